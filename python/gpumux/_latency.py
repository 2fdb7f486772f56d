# SPDX-License-Identifier: Apache-2.0
"""What must not wait."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from gpumux import _guard

_lock = threading.Lock()
_depth = 0


@contextlib.contextmanager
def latency_critical() -> Iterator[None]:
    """``with latency_critical():`` what the process does in here must not wait for others.

    A hint, for the whole process: it holds as long as any thread is in such a
    block. It is recorded, and no mode of this version acts on it, which a warning
    says once (:class:`NotInEffect`).
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _depth
    with _lock:
        _depth += 1
        code = _guard.call("latency_critical", 1) if _depth == 1 else _guard.SUCCESS
    if code == _guard.NOT_IN_EFFECT:
        _guard.warn_once("gpumux.latency_critical is recorded, but has no effect in this version", _guard.NotInEffect)
    else:
        _guard.checked(code, "latency_critical")


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            _guard.call("latency_critical", 0)


def _in_forked_child() -> None:
    global _lock, _depth
    _lock = threading.Lock()
    _depth = 0


os.register_at_fork(after_in_child=_in_forked_child)
