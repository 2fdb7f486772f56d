# SPDX-License-Identifier: Apache-2.0
"""Two processes of one tenant share its promise: a quarter for one, the rest for the other.

    gpumux run --mem 8GiB -- python3 two_processes.py

Without the fractions whoever allocates last would be refused.
"""

import multiprocessing
import sys

import gpumux
from driver import MIB, Gpu, OutOfMemory


def fill(name: str, fraction: float) -> None:
    gpumux.set_memory_fraction(fraction)
    gpu = Gpu()
    held = 0
    try:
        while True:
            gpu.allocate(64 * MIB)
            held += 64 * MIB
    except OutOfMemory:
        pass
    told = gpu.memory()[1]
    print(f"{name}: told {told // MIB} MiB in all, allocated {held // MIB} MiB beside its context")


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
    for name, fraction in (("small", 0.25), ("large", 0.75)):
        process = spawn.Process(target=fill, args=(name, fraction))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(1)
