#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the software GPU differs from a real one: compares two likeness.json of
measure.py step by step and lists every difference.

usage: compare_likeness.py REAL.json SOFTWARE.json
"""
import json
import sys


def main():
    real, soft = (json.load(open(path))["data"] for path in sys.argv[1:3])
    steps = same = 0
    differences = []
    for a, b in zip(real["rows"], soft["rows"]):
        name = " ".join(a["args"])
        ra, rb = a["result"], b["result"]
        if a["args"] != b["args"]:
            sys.exit("the two files are of different runs")

        def check(what, x, y):
            nonlocal steps, same
            steps += 1
            if x == y:
                same += 1
            else:
                differences.append((name, what, x, y))

        check("exit code", a["exit_code"], b["exit_code"])
        for key in ("result", "bytes", "granted"):
            check(f"alloc {key}", (ra.get("alloc") or {}).get(key), (rb.get("alloc") or {}).get(key))
        for m, n in zip(ra.get("memory", []), rb.get("memory", [])):
            for key in ("free_bytes", "total_bytes", "nvml_used_bytes", "nvml_free_bytes", "nvml_own_bytes"):
                check(f"{m['step']}: {key}", m.get(key), n.get(key))
    print(f"{same} of {steps} figures the same")
    for name, what, x, y in differences:
        by = f" ({y - x:+d})" if isinstance(x, int) and isinstance(y, int) else ""
        print(f"  {name or '-'} | {what} | real {x} | software {y}{by}")
    print(f"{'kernel us':>9} {'clients':>8} {'real, each /s':>14} {'software, each /s':>18} {'ratio':>6}")
    for a, b in zip(real["timing"], soft["timing"]):
        x = sum(r.get("rate_per_s", 0) for r in a["results"]) / a["clients"]
        y = sum(r.get("rate_per_s", 0) for r in b["results"]) / b["clients"]
        print(f"{a['kernel_us']:9d} {a['clients']:8d} {x:14.1f} {y:18.1f} {y / x if x else 0:6.3f}")


if __name__ == "__main__":
    main()
