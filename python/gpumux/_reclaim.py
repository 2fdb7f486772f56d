# SPDX-License-Identifier: Apache-2.0
"""Memory that is only cached goes back when others need it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import inspect
import os
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpumux import _guard


class CallbackFailed(RuntimeWarning):
    """A callback of :func:`on_reclaim` raised an exception."""


@dataclass(frozen=True)
class Wanted:
    """What others need."""

    bytes: int
    """Never more than this process holds. Less is welcome as well."""
    device: int
    """CUDA's ordinal in this process; -1 if it is not known."""


class ReclaimHandle:
    """What :func:`on_reclaim` returns. Calling it calls the callback."""

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback
        self._gets_wanted = _has_parameter(callback, "wanted")
        self._failed = False

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._callback(*arguments, **keywords)

    def cancel(self) -> None:
        """The callback is called no more. A second time does nothing."""
        _listener.remove(self)

    def _run(self, wanted: Wanted) -> None:
        try:
            if self._gets_wanted:
                self._callback(wanted=wanted)
            else:
                self._callback()
        except BaseException:
            if self._failed:
                return
            self._failed = True
            text = f"{self._callback!r} failed; it is called again, but this is said once\n{traceback.format_exc()}"
            # A filter may turn the warning into an exception, which has nowhere to go.
            with contextlib.suppress(Warning):
                warnings.warn(text, CallbackFailed, stacklevel=2)


def on_reclaim(callback: Callable[..., object]) -> ReclaimHandle:
    """``callback`` is called when others need memory that this process may only cache.

    ``gpumux.on_reclaim(torch.cuda.empty_cache)`` is all that a PyTorch program needs.
    Works as a decorator. A parameter called ``wanted`` gets a :class:`Wanted`;
    otherwise the callback is called without arguments.

    It runs in a thread of the package, one callback after the other, while the
    program goes on; it may take locks of the allocator, since the process is never
    asked while one of its own allocations waits for gpumux. Who waits is refused
    3 s after the question, so it should be quick. Asked it is when another tenant
    finds the GPU full or waits for room, as far as this tenant uses more than its
    guarantee; and when another process of this tenant finds the tenant's limit. An
    exception is shown as a warning once, and ends nothing. A child of ``fork`` has no
    callbacks: CUDA does not work there if the parent has used it.
    """
    if not callable(callback):
        raise TypeError("on_reclaim needs something that can be called")
    handle = ReclaimHandle(callback)
    if _guard.in_tenant():
        _listener.add(handle)
    else:
        _guard.checked(_guard.NOT_A_TENANT, "on_reclaim")
    return handle


def _has_parameter(callback: Callable[..., object], name: str) -> bool:
    try:
        return name in inspect.signature(callback).parameters
    except (TypeError, ValueError):  # functions of extension modules
        return False


class _Listener:
    """One thread for all callbacks, as long as there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handles: list[ReclaimHandle] = []
        self.thread: threading.Thread | None = None

    def add(self, handle: ReclaimHandle) -> None:
        with self.lock:
            self.handles.append(handle)
            if self.thread is None:
                self.thread = threading.Thread(target=self.listen, name="gpumux-on-reclaim", daemon=True)
                self.thread.start()

    def remove(self, handle: ReclaimHandle) -> None:
        with self.lock:
            if handle in self.handles:
                self.handles.remove(handle)
            if not self.handles and self.thread is not None:
                _guard.call("reclaim_stop")

    def stop(self) -> None:
        with self.lock:
            self.handles.clear()
            if self.thread is not None:
                _guard.call("reclaim_stop")

    def listen(self) -> None:
        wanted = _guard.Reclaim(size=ctypes.sizeof(_guard.Reclaim))
        while True:
            code = _guard.call("reclaim_wait", ctypes.byref(wanted), -1)
            if code == _guard.SUCCESS:
                with self.lock:
                    handles = list(self.handles)
                for handle in handles:
                    handle._run(Wanted(bytes=wanted.wanted_bytes, device=wanted.device))
                _guard.call("reclaim_done", ctypes.byref(wanted))
                continue
            with self.lock:
                # One that came while the last one went: this thread stays.
                if code == _guard.CANCELLED and self.handles:
                    continue
                self.thread = None
            if code == _guard.BUSY:
                _guard.warn_once("gpumux.on_reclaim: another part of this program waits for the same", CallbackFailed)
            return


_listener = _Listener()


def _in_forked_child() -> None:
    global _listener
    _listener = _Listener()


os.register_at_fork(after_in_child=_in_forked_child)
# No callback may run while the interpreter takes itself down.
atexit.register(lambda: _listener.stop())
