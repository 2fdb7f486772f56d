# SPDX-License-Identifier: Apache-2.0
"""A program that does as it is told, a line at a time on stdin:

  take GIB    allocates so much, in pieces of 1 GiB, and writes into it
  check       are the contents of all of it right?
  drop        forgets all of it; PyTorch keeps the memory in its cache
  fail        ends with status 1, as a program does that cannot go on
  quit

It answers each line with one line of JSON, and says {"ready": true, "pid": ...} once it has a context. Uses
PyTorch, or with `--driver` the driver's own functions, as on the software GPU.
"""
import ctypes
import json
import os
import sys
import time

GIB = 1 << 30


class Refused(Exception):
    pass


class ByTorch:
    def __init__(self):
        import torch

        self.torch = torch
        torch.zeros(1, device="cuda").item()

    def take(self, value):
        try:
            piece = self.torch.empty(GIB, dtype=self.torch.uint8, device="cuda")
            piece[:: 1 << 20].fill_(value)
            self.torch.cuda.synchronize()
            return piece
        except self.torch.OutOfMemoryError as e:
            raise Refused(str(e).splitlines()[0][:200]) from None

    def holds(self, piece, value):
        return bool((piece[:: 1 << 20] == value).all())

    def drop(self, pieces):
        pieces.clear()

    def cached(self):
        return self.torch.cuda.memory_reserved()


class ByDriver:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        for code in (self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), self.cuda.cuCtxSetCurrent(context)):
            if code:
                sys.exit(f"no context: error {code}")

    def take(self, value):
        piece = ctypes.c_uint64()
        code = self.cuda.cuMemAlloc_v2(ctypes.byref(piece), ctypes.c_size_t(GIB))
        if code:
            raise Refused(f"error {code}")
        self.cuda.cuMemsetD8_v2(piece, ctypes.c_ubyte(value), ctypes.c_size_t(4096))
        return piece

    def holds(self, piece, value):
        there = (ctypes.c_ubyte * 4096)()
        return self.cuda.cuMemcpyDtoH_v2(there, piece, ctypes.c_size_t(4096)) == 0 and set(there) == {value}

    def drop(self, pieces):
        while pieces:
            self.cuda.cuMemFree_v2(pieces.pop())

    def cached(self):
        return 0


def main():
    by = ByDriver() if "--driver" in sys.argv[1:] else ByTorch()
    pieces = []
    print(json.dumps({"ready": True, "pid": os.getpid(), "at": time.monotonic()}), flush=True)
    for line in sys.stdin:
        words = line.split()
        answer = {}
        try:
            if words[0] == "take":
                for _ in range(int(words[1])):
                    pieces.append(by.take(len(pieces) % 251))
            elif words[0] == "check":
                answer["wrong"] = sum(not by.holds(piece, i % 251) for i, piece in enumerate(pieces))
            elif words[0] == "drop":
                by.drop(pieces)
            elif words[0] == "quit":
                return
            elif words[0] == "fail":
                sys.exit(1)
            else:
                answer["error"] = f"what is {words[0]}?"
        except Refused as refused:
            answer["error"] = str(refused)
        answer.update(held_gib=len(pieces), cached_bytes=by.cached(), at=time.monotonic())
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
