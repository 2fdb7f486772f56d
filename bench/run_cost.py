#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `gpumux run` adds to a program that does nothing: /bin/true bare and as a
tenant, in turn, with a daemon up and another tenant on the GPU.

usage: run_cost.py PREFIX OUT [PAIRS]      (300 pairs)
"""
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu"))
from measure import Bench  # noqa: E402


def once(argv, env):
    at = time.perf_counter()
    if subprocess.call(argv, env=env):
        sys.exit(f"{argv[0]} failed")
    return time.perf_counter() - at


def interval(values, rounds=2000):
    """The median with a 95 % bootstrap interval."""
    generator = random.Random(1)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(rounds))
    return statistics.median(values), medians[int(rounds * 0.025)], medians[int(rounds * 0.975)]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    b = Bench(sys.argv[1], sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    guarded = [b.bin("gpumux"), "run", "--mem", "2GiB", "--quiet", "--", "/bin/true"]
    try:
        other = subprocess.Popen([b.bin("gpumux"), "run", "--mem", "1GiB", "--quiet", "--", "sleep", "600"], env=b.env)
        for _ in range(5):
            once(["/bin/true"], b.env), once(guarded, b.env)
        rows = []
        for i in range(pairs):
            first, second = (["/bin/true"], guarded) if i % 2 else (guarded, ["/bin/true"])
            a, c = once(first, b.env), once(second, b.env)
            rows.append((a, c) if i % 2 else (c, a))
        other.terminate()
        other.wait()
        more = [t - bare for bare, t in rows]
        middle, low, high = interval(more)
        worst = sorted(more)[int(len(more) * 0.95)]
        print(f"/bin/true {1e3 * statistics.median(bare for bare, _ in rows):.2f} ms; as a tenant"
              f" {1e3 * statistics.median(t for _, t in rows):.2f} ms; more by {1e3 * middle:.2f} ms"
              f" (95 %: {1e3 * low:.2f} to {1e3 * high:.2f}), p95 {1e3 * worst:.2f} ms, {pairs} pairs")
        b.save("run-cost", {"pairs_s": rows, "more_s": [middle, low, high], "p95_more_s": worst})
    finally:
        b.close()


if __name__ == "__main__":
    main()
