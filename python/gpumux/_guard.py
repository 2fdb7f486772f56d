# SPDX-License-Identifier: Apache-2.0
"""The functions that the guard exports in this process (include/gpumux/gpumux.h)."""

from __future__ import annotations

import ctypes
import functools
import warnings
from typing import Any

SUCCESS = 0
NOT_A_TENANT = 1
INVALID_VALUE = 2
INVALID_DEVICE = 3
NOT_READY = 4
TIMEOUT = 5
CANCELLED = 6
BUSY = 7
NOT_IN_EFFECT = 8


class NotATenant(UserWarning):
    """The program was not started by ``gpumux run``, or its limits are not in force."""


class NotInEffect(UserWarning):
    """What was asked for is recorded, but nothing of this version acts on it."""


class Error(RuntimeError):
    """A call failed; ``code`` is a value of enum gpumux_result."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class InvalidDevice(Error, ValueError):
    """There is no such device, or nothing of it is promised to this tenant."""


class NotReady(Error):
    """Which device is which is not known before CUDA is initialised."""


class Memory(ctypes.Structure):
    """struct gpumux_memory"""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("total_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("used_bytes", ctypes.c_uint64),
        ("peak_bytes", ctypes.c_uint64),
        ("guaranteed_bytes", ctypes.c_uint64),
    ]


class Reclaim(ctypes.Structure):
    """struct gpumux_reclaim"""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
        ("wanted_bytes", ctypes.c_uint64),
    ]


_ARGUMENTS: dict[str, list[Any]] = {
    "memory_info": [ctypes.c_int, ctypes.POINTER(Memory)],
    "set_memory_fraction": [ctypes.c_double, ctypes.c_int],
    "reclaim_wait": [ctypes.POINTER(Reclaim), ctypes.c_int],
    "reclaim_done": [ctypes.POINTER(Reclaim)],
    "reclaim_stop": [],
    "latency_critical": [ctypes.c_int],
}


@functools.cache
def _function(name: str) -> Any:
    """Of the guard, which is there from the process's start or never: looked for once, since that takes longer than a call."""
    function = getattr(ctypes.CDLL(None), f"gpumux_{name}_v1", None)
    if function is not None:
        function.argtypes = _ARGUMENTS[name]
        function.restype = ctypes.c_int
    return function


def call(name: str, *arguments: Any) -> int:
    """Calls a function of the guard; NOT_A_TENANT where there is no guard."""
    function = _function(name)
    if function is None:
        return NOT_A_TENANT
    result: int = function(*arguments)
    return result


def in_tenant() -> bool:
    """Whether this process is a tenant's, with its limits in force.

    Connects to the daemon if it has not before; does not initialise CUDA.
    """
    memory = Memory(size=ctypes.sizeof(Memory))
    return call("memory_info", 0, ctypes.byref(memory)) != NOT_A_TENANT


_warned: set[str] = set()


def warn_once(text: str, category: type[Warning]) -> None:
    """Warns where the package was called, the first time only.

    From ``checked``, called by a function of the package: that is what the level counts.
    """
    if text in _warned:
        return
    _warned.add(text)
    warnings.warn(text, category, stacklevel=4)


def checked(code: int, what: str) -> bool:
    """True: done. False: not a tenant, which was said. Raises Error for the rest."""
    if code == SUCCESS:
        return True
    if code == NOT_A_TENANT:
        warn_once(f"gpumux.{what} does nothing: this process was not started by `gpumux run`", NotATenant)
        return False
    if code == NOT_IN_EFFECT:
        warn_once(f"gpumux.{what} is recorded, but has no effect: the tenant is not of priority latency", NotInEffect)
        return True
    if code == INVALID_DEVICE:
        raise InvalidDevice(code, f"gpumux.{what}: there is no such device, or nothing of it is promised here")
    if code == NOT_READY:
        raise NotReady(code, f"gpumux.{what}: CUDA_VISIBLE_DEVICES was changed: initialise CUDA first")
    raise Error(code, f"gpumux.{what} failed with code {code}")
