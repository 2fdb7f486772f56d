# SPDX-License-Identifier: Apache-2.0
"""What this process may use of a GPU."""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass

from gpumux import _guard


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of one GPU as this process is told it, in bytes."""

    total: int
    """The limit: what CUDA tells as the GPU's total. Without a guarantee it changes."""
    free: int
    """What can be allocated now, at once, by this process or its siblings."""
    used: int
    """By the whole tenant, contexts included; by this process alone once it has set a fraction."""
    peak: int
    """The most that this process had at once, its context included."""
    guaranteed: int
    """The tenant's whether it uses it or not; 0 without a guarantee."""


def memory_info(device: int = 0) -> MemoryInfo | None:
    """Memory of ``device``; ``None`` outside of a tenant.

    Works before CUDA is initialised, and does not initialise it. Raises
    :class:`InvalidDevice` for a device that there is not, and :class:`NotReady` if
    the program changed ``CUDA_VISIBLE_DEVICES`` and has not initialised CUDA yet.
    """
    memory = _guard.Memory(size=ctypes.sizeof(_guard.Memory))
    code = _guard.call("memory_info", operator.index(device), ctypes.byref(memory))
    if not _guard.checked(code, "memory_info"):
        return None
    return MemoryInfo(
        total=memory.total_bytes,
        free=memory.free_bytes,
        used=memory.used_bytes,
        peak=memory.peak_bytes,
        guaranteed=memory.guaranteed_bytes,
    )


def set_memory_fraction(fraction: float, device: int = 0) -> None:
    """From now on this process gets no more than this part of its tenant's limit.

    Whatever allocates: every framework, library and raw CUDA call of the process,
    contexts and loaded code included. Beyond it the driver's own out-of-memory is
    returned. The process is told its part as the GPU's total. At any time, also
    before CUDA is initialised; what it has beyond the part stays, and nothing is
    added until it has less. 1 takes the part away. Other processes are not
    concerned, and nothing is kept for this one. A child of ``fork`` has no part.

    Raises ``ValueError`` if ``fraction`` is not within 0 to 1, and as
    :func:`memory_info`.
    """
    fraction = float(fraction)
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"a fraction is within 0 to 1, not {fraction}")
    code = _guard.call("set_memory_fraction", fraction, operator.index(device))
    _guard.checked(code, "set_memory_fraction")
