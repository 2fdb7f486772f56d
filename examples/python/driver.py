# SPDX-License-Identifier: Apache-2.0
"""As much of the CUDA driver's API as the examples need, by ctypes: they run on any GPU
and on the software GPU, and need no framework."""

from __future__ import annotations

import ctypes

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY

MIB, GIB = 1 << 20, 1 << 30


class CudaError(RuntimeError):
    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} failed with CUDA error {code}")
        self.code = code


class OutOfMemory(CudaError):
    pass


class Gpu:
    """A context on one GPU, and its memory."""

    def __init__(self, device: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.use()

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._cuda, function)(*arguments)
        if code == OUT_OF_MEMORY:
            raise OutOfMemory(function, code)
        if code:
            raise CudaError(function, code)

    def use(self) -> None:
        """Makes the context the calling thread's: each thread has its own."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def allocate_managed(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(size), 1)
        return address.value

    def allocate_async(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), None)
        return address.value

    def memory(self) -> tuple[int, int]:
        """Free and total bytes, as the driver tells them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def total_of_device(self, device: int = 0) -> int:
        total = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        return total.value


class Cache:
    """An allocator that keeps what it was given back, as those of the frameworks do."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._kept: dict[int, list[int]] = {}

    def take(self, size: int) -> int:
        kept = self._kept.get(size)
        return kept.pop() if kept else self._gpu.allocate(size)

    def give_back(self, address: int, size: int) -> None:
        self._kept.setdefault(size, []).append(address)

    def empty(self) -> int:
        """What is kept goes back to the GPU; says how many bytes that was."""
        self._gpu.use()
        count = 0
        for size, addresses in list(self._kept.items()):
            while addresses:
                self._gpu.free(addresses.pop())
                count += size
        return count
