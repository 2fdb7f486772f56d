#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A latency-critical program beside a best-effort one, with gpumux's gate and without, on a machine with a GPU.

usage: gate.py --gpumux PREFIX/bin/gpumux --out DIR [--seconds S] [--kernels 20,200,2000] [--loads 0.2,0.5] [--arrangements A,B]
               [--gate-budget-us 100,120] [--rounds N]
gpumux-workload: requests of 10 kernels of 50 us, arriving at random, beside full-GPU kernels back to back: alone, then in each
arrangement of together.py. Writes DIR/gate.json. On a machine without a GPU the software GPU stands in, and says so.
"""
import argparse
import sys

from together import ARRANGEMENTS, Together, arguments, say

LC_KERNEL_US, LC_KERNELS = 50, 10


def latency(run, load, seconds):
    rate = load / (LC_KERNEL_US * LC_KERNELS * 1e-6)
    return run.workload("--kernel-us", LC_KERNEL_US, "--kernels", LC_KERNELS, "--blocks", 132, "--threads", 1024,
                        "--rate", f"{rate:.1f}", "--seconds", seconds)


def greedy(run, us, seconds):
    return run.workload("--kernel-us", us, "--kernels", max(8, 6000 // us), "--blocks", 264, "--threads", 1024, "--seconds", seconds)


def short(report):
    return {k: report.get(k) for k in ("p50_us", "p99_us", "max_us", "service_p50_us", "service_p99_us", "rate_per_s", "requests", "error")}


def measure(run):
    seconds, cells, alone = run.args.seconds, [], {}
    for load in run.args.loads:
        (report,), _ = run.together([("lc", latency(run, load, seconds), (None,))], seconds)
        alone[load] = short(report)
        say(f"alone at {load}: {alone[load]}")
    plan = [(budget, us, load, way) for round in range(run.args.rounds) for budget in run.args.gate_budget_us[:: -1 if round % 2 else 1]
            for us in run.args.kernels for load in run.args.loads for way in run.args.arrangements]
    be_alone, set_budget = {}, None
    for budget, us, load, way in plan:
        if not run.time_for(f"{us} us, load {load}, {way}", seconds + 4):
            continue
        if us not in be_alone:
            (report,), _ = run.together([("be", greedy(run, us, 2), (None,))], 2)
            be_alone[us] = report.get("rate_per_s") or 0
        if budget != set_budget:
            run.gate_budget(budget)
            set_budget = budget
        (lc, be), tenants = run.together([("lc", latency(run, load, seconds), ARRANGEMENTS[way][0]),
                                          ("be", greedy(run, us, seconds), ARRANGEMENTS[way][1])], seconds)
        base = alone[load]
        cell = {"be_kernel_us": us, "load": load, "arrangement": way, "gate_budget_us": budget, "lc": short(lc), "be": short(be),
                "be_share": (be.get("rate_per_s") or 0) / be_alone[us] if be_alone[us] else None, "tenants": tenants, "clocks": run.seen_clocks}
        if lc.get("service_p99_us") and base.get("service_p99_us"):
            cell["service_p50_ratio"] = lc["service_p50_us"] / base["service_p50_us"]
            cell["service_p99_ratio"] = lc["service_p99_us"] / base["service_p99_us"]
            cell["arrival_p99_ratio"] = lc["p99_us"] / base["p99_us"]
            cell["be_goal"] = 0.97 * (1 - lc["requests"] / seconds * base["service_p50_us"] * 1e-6)
        cells.append(cell)
        run.rows.append((us, load, way, budget or "default", f"{lc.get('service_p50_us') or 0:.0f}", f"{lc.get('service_p99_us') or 0:.0f}",
                         f"x{cell.get('service_p50_ratio', 0):.2f}", f"x{cell.get('service_p99_ratio', 0):.2f}",
                         f"x{cell.get('arrival_p99_ratio', 0):.2f}", f"{cell['be_share'] or 0:.3f}", f"{cell.get('be_goal', 0):.3f}",
                         lc.get("error") or be.get("error") or ""))
        say(" | ".join(map(str, run.rows[-1])))
        run.b.save("gate", {"alone": {str(k): v for k, v in alone.items()}, "cells": cells, "left_out": run.left_out})


def main():
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--kernels", type=lambda s: [int(x) for x in s.split(",")], default=[20, 200, 2000])
    parser.add_argument("--loads", type=lambda s: [float(x) for x in s.split(",")], default=[0.2, 0.5])
    parser.add_argument("--gate-budget-us", type=lambda s: [int(x) for x in s.split(",")], default=[None], help="gate.budget_us, one or several in turn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--arrangements", type=lambda s: s.split(","), default=list(ARRANGEMENTS))
    run = Together(parser.parse_args())
    try:
        measure(run)
    finally:
        run.b.close()
    run.table("be us | load | arrangement | budget us | service p50 | p99 us | p50/alone | p99/alone | arrival p99/alone | be/alone | be goal")


if __name__ == "__main__":
    sys.exit(main())
