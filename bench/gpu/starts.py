#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long programs take to start when many start together: bare and as tenants,
in turn. Each makes a context, runs kernels for 10 ms and ends; its time is from
its start to its end.

usage: starts.py PREFIX OUT [COUNT:PROMISE ...]     (1:16GiB 20:4GiB 200:2GiB by default)
  ROUNDS  how often bare and guarded follow each other (default 3)
Tenants whose promises do not fit beside the others wait for their turn; bare
programs have no such queue, and some may fail.
"""
import json
import os
import statistics
import subprocess
import sys
import threading
import time

from measure import Bench


def together(b, count, mem, guarded):
    """Starts `count` programs at once. Seconds of each, and until the last ended."""
    argv = [b.bin("gpumux-workload"), "--kernel-us", "100", "--seconds", "0.01", "--json"]
    took, failed = [], []
    began = time.monotonic()

    def one():
        at = time.monotonic()
        p = b.run(mem, argv, guarded=guarded)
        out, _ = p.communicate()
        took.append(time.monotonic() - at)
        if p.returncode != 0 or not out.strip().startswith("{"):
            failed.append((p.returncode, out[-200:]))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return {"guarded": guarded, "count": count, "promise": mem, "each_s": sorted(took), "all_s": time.monotonic() - began,
            "failed": failed, "peak_used": b.nvml.memory()["used"]}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    b = Bench(sys.argv[1], sys.argv[2])
    cases = [(int(a.split(":")[0]), a.split(":")[1]) for a in sys.argv[3:] or ["1:16GiB", "20:4GiB", "200:2GiB"]]
    rows = []
    try:
        keeper = subprocess.Popen([b.bin("gpumux"), "run", "--mem", "1GiB", "--quiet", "--", "sleep", "600"], env=b.env)
        together(b, 1, "1GiB", True)  # the daemon is up, files are cached
        together(b, 1, "1GiB", False)
        for count, mem in cases:
            for round_ in range(int(os.environ.get("ROUNDS", "3")) * (5 if count == 1 else 1)):
                for guarded in (False, True) if round_ % 2 else (True, False):
                    rows.append(together(b, count, mem, guarded))
        keeper.terminate()
        print(f"{'programs':>8} {'':16} {'median s':>9} {'p95 s':>8} {'last s':>8} {'all ended s':>12} {'failed':>7} {'rounds':>7}")
        for count, mem in cases:
            for guarded in (False, True):
                mine = [r for r in rows if (r["count"], r["promise"]) == (count, mem) and r["guarded"] == guarded]
                each = sorted(t for r in mine for t in r["each_s"])
                print(f"{count:8d} {'of ' + mem if guarded else 'bare':16} {statistics.median(each):9.3f} {each[int(len(each) * .95)]:8.3f}"
                      f" {each[-1]:8.3f} {statistics.median(r['all_s'] for r in mine):12.3f} {sum(len(r['failed']) for r in mine):7d} {len(mine):7d}")
        b.save("starts", rows)
        for r in rows:
            if r["failed"]:
                print("failed:", json.dumps(r["failed"][:3]))
    finally:
        b.close()


if __name__ == "__main__":
    main()
