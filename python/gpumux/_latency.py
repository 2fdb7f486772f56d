# SPDX-License-Identifier: Apache-2.0
"""What must not wait."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from gpumux import _guard


class _Hint:
    """Of the process: it holds as long as any thread is in a block."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0

    def change(self, by: int) -> int:
        with self.lock:
            before, self.depth = self.depth > 0, max(0, self.depth + by)
            if before == (self.depth > 0):
                return _guard.SUCCESS
            return _guard.call("latency_critical", int(self.depth > 0))


class latency_critical:  # noqa: N801, used as a function
    """``with latency_critical():`` what the process does in here must not wait for others.

    A hint, for the whole process: it holds as long as any thread is in such a
    block. In a tenant of ``gpumux run --priority latency`` best-effort neighbours are
    held back from its beginning, and not only from the first launch. In any other
    nothing acts on it, which a warning says once (:class:`NotInEffect`).
    """

    def __enter__(self) -> None:
        _guard.checked(_hint.change(1), "latency_critical")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        _hint.change(-1)


_hint = _Hint()


def _in_forked_child() -> None:
    global _hint
    _hint = _Hint()


os.register_at_fork(after_in_child=_in_forked_child)
