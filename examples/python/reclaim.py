# SPDX-License-Identifier: Apache-2.0
"""A program that caches memory, and gives it back when others need it.

    gpumux run -- python3 reclaim.py &          # no guarantee: it uses what nobody else is promised
    gpumux run --mem 100GiB -- nvidia-smi       # waits for room, and gets it

Ends after 60 s, or as many as the first argument says.
"""

import sys
import time

import gpumux
from driver import GIB, Cache, Gpu

gpu = Gpu()
cache = Cache(gpu)


@gpumux.on_reclaim
def give_back(wanted: gpumux.Wanted) -> None:
    given = cache.empty()
    print(f"{wanted.bytes / GIB:.2f} GiB are wanted, {given / GIB:.2f} GiB given", flush=True)


pieces = [cache.take(GIB) for _ in range(gpu.memory()[0] // GIB)]
for piece in pieces:
    cache.give_back(piece, GIB)
print(f"{len(pieces)} GiB are cached", flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
