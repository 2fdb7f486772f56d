# SPDX-License-Identifier: Apache-2.0
"""gpumux for Python programs: their part of a shared GPU, seen and used well.

Nothing here is needed to run under gpumux; `gpumux run -- python3 train.py` keeps
every promise for a program that never heard of this package. It is for programs
that want to

* see what they were promised: :func:`memory_info`,
* share their tenant's promise between its processes: :func:`set_memory_fraction`,
* give cached memory back when others need it: :func:`on_reclaim`,
* say that what they do now must not wait: :func:`latency_critical`.

Outside of `gpumux run` each of them warns once (:class:`NotATenant`) and does
nothing, so the same program runs with and without gpumux. Sizes are bytes;
devices are CUDA's ordinals as this process sees them. All functions may be
called from any thread. The package needs nothing but the standard library.
"""

from gpumux._guard import Error, InvalidDevice, NotATenant, NotInEffect, NotReady, in_tenant
from gpumux._latency import latency_critical
from gpumux._memory import MemoryInfo, memory_info, set_memory_fraction
from gpumux._reclaim import CallbackFailed, ReclaimHandle, Wanted, on_reclaim
from gpumux._version import __version__

__all__ = [
    "CallbackFailed",
    "Error",
    "InvalidDevice",
    "MemoryInfo",
    "NotATenant",
    "NotInEffect",
    "NotReady",
    "ReclaimHandle",
    "Wanted",
    "__version__",
    "in_tenant",
    "latency_critical",
    "memory_info",
    "on_reclaim",
    "set_memory_fraction",
]
