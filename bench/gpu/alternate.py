# SPDX-License-Identifier: Apache-2.0
"""What the guard adds to a ResNet-50 inference (batch 1, fp16, eager), both within
one PyTorch process: processes differ from each other by more than the guard costs.

Runs as a tenant. What CUDA's runtime got from its look-ups are words in the data
of the loaded objects; they are pointed at the driver's own functions and back at the
guard's, in alternation. The tenant's own count of launches shows that each half is
what it is called: it stands still in one and moves in the other.

usage: gpumux run --mem 20GiB -- python3 alternate.py GPUMUX [PAIRS [REQUESTS]]
  GPUMUX    the command, for the count of launches
  PAIRS     how often guarded and bare follow each other (default 1000)
  REQUESTS  inferences a half (default 5)
One JSON line.
"""
import ctypes
import gc
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import time

import numpy

KEY = 0x5A5A5A5A5A5A5A5A  # the addresses looked for are kept masked, so that this program does not find itself


def maps():
    with open("/proc/self/maps") as f:
        for line in f:
            fields = line.split(None, 5)
            low, high = (int(x, 16) for x in fields[0].split("-"))
            yield low, high, fields[1], int(fields[2], 16), fields[5].strip() if len(fields) > 5 else ""


def exports(part):
    """Addresses of the functions that the loaded object with `part` in its name exports, and its path."""
    path, base = next((p, low) for low, _, _, offset, p in maps() if part in p and offset == 0)
    with open(path, "rb") as f:
        image = f.read()
    section_at, = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, section_at + i * size) for i in range(count)]
    found = {}
    for s in sections:
        if s[1] != 11:  # SHT_DYNSYM
            continue
        names = sections[s[6]][4]
        for at in range(s[4], s[4] + s[5], s[9]):
            name, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", image, at)
            if info & 15 == 2 and index:  # STT_FUNC, defined
                end = image.index(b"\0", names + name)
                found[image[names + name:end].decode()] = base + value
    return found, path


def find_words(table, excluded):
    """Where the loaded objects' data hold one of the masked addresses in `table`."""
    wanted = numpy.array(sorted(table), dtype=numpy.uint64)
    sites, after_object = [], False
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for low, high, mode, _, path in list(maps()):
            object_data = ".so" in path or (after_object and not path)
            after_object = ".so" in path
            if not object_data or mode[:2] != "rw" or path in excluded:
                continue
            memory.seek(low)
            words = numpy.frombuffer(memory.read(high - low), dtype=numpy.uint64)
            for index in numpy.nonzero(numpy.isin(words ^ numpy.uint64(KEY), wanted))[0]:
                sites.append((low + 8 * int(index), int(words[index])))
    return sites


class Route:
    """Flips what the runtime calls between the guard's functions and the driver's."""

    def __init__(self):
        guard, guard_path = exports("libgpumux-guard")
        driver, driver_path = exports("libcuda.so")
        table = {guard[n] ^ KEY: driver[n] for n in guard if n.startswith("cu") and n in driver}
        self.sites = [(ctypes.c_uint64.from_address(at), word, table[word ^ KEY])
                      for at, word in find_words(table, (guard_path, driver_path))]

    def guarded(self):
        for word, guard, _ in self.sites:
            word.value = guard

    def bare(self):
        for word, _, driver in self.sites:
            word.value = driver


def launches(gpumux):
    out = subprocess.run([gpumux, "status", "--json"], capture_output=True, text=True, check=True,
                         env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}).stdout
    return sum(tenant["launches"] for tenant in json.loads(out)["data"]["tenants"])


def main():
    gpumux = sys.argv[1]
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    requests = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    import torch
    import torchvision

    model = torchvision.models.resnet50().eval().half().cuda()
    image = torch.randn(1, 3, 224, 224, device="cuda", dtype=torch.half)

    def half(count):
        times = []
        for _ in range(count):
            t = time.perf_counter()
            model(image)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - t))
        return times

    with torch.inference_mode():
        half(100)
        route = Route()
        route.bare()
        half(20)
        start = launches(gpumux)
        half(100)
        while_bare = launches(gpumux) - start
        route.guarded()
        half(100)
        while_guarded = launches(gpumux) - start - while_bare
        gc.disable()
        bare, guarded, added = [], [], []
        for pair in range(pairs):
            order = (route.bare, bare), (route.guarded, guarded)
            got = {}
            for flip, into in order if pair % 2 else reversed(order):
                flip()
                times = half(requests + 1)[1:]
                into.extend(times)
                got[flip.__name__] = statistics.median(times)
            added.append(got["guarded"] - got["bare"])
        route.guarded()
    pick = random.Random(1)
    medians = sorted(statistics.median(pick.choices(added, k=len(added))) for _ in range(1000))
    print(json.dumps({
        "words": len(route.sites), "launches_a_request_bare": while_bare / 100, "launches_a_request_guarded": while_guarded / 100,
        "pairs": pairs, "requests_a_half": requests, "bare_p50_ms": statistics.median(bare), "guarded_p50_ms": statistics.median(guarded),
        "bare_mean_ms": statistics.fmean(bare), "guarded_mean_ms": statistics.fmean(guarded),
        "added_ms": statistics.median(added), "added_low95_ms": medians[25], "added_high95_ms": medians[974],
        "added_percent": 100 * statistics.median(added) / statistics.median(bare),
        "added_low95_percent": 100 * medians[25] / statistics.median(bare),
        "added_high95_percent": 100 * medians[974] / statistics.median(bare)}), flush=True)


if __name__ == "__main__":
    main()
