#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the gate costs a program that launches, on a machine with a GPU.

usage: gate_cost.py --gpumux PREFIX/bin/gpumux --guard-cost PREFIX/bench/guard_cost --out DIR [--parts launch,share] [--rounds N] [--budgets 100,50,25]
  launch  what the guard adds to a launch on the host (call by call beside the driver's own function, in one process): of a tenant
          of priority normal, of a latency-critical one, of a best-effort one with nobody who could close its gate and with somebody
  share   of a best-effort program's speed with full-GPU kernels back to back, what its waits take: in turn beside an idle tenant of
          priority normal and beside an idle latency-critical one (a second client of MPS alone costs each kernel a little)
Writes DIR/gate-cost.json. On a machine without a GPU the software GPU stands in, and says so.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

from together import Together, arguments, say


def idle(run, mode, priority):
    """A tenant with a context, which launches once in a long while."""
    ready = os.path.join(run.b.dir, f"idle-{time.monotonic_ns()}")
    process = run.start("idle", run.workload("--kernel-us", 10, "--rate", 0.01, "--seconds", 1000, "--ready", ready),
                        "--mode", mode, "--priority", priority)
    until = time.time() + 60
    while not os.path.exists(ready) and time.time() < until and process.poll() is None:
        time.sleep(0.05)
    return process


def end(process):
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def launch(run, data):
    def once(name, *options):
        process = run.start("cost", [run.args.guard_cost, "--bursts", "400", "--allocs", "0"], *options)
        report, _ = run.b.json_of(process)
        row = data.setdefault(name, [])
        row.append(report)
        return report

    for _ in range(run.args.rounds):
        once("normal", "--mode", "timeslice")
        once("latency", "--mode", "timeslice", "--priority", "latency")
        once("best-effort", "--mode", "timeslice", "--priority", "best-effort")
        owner = idle(run, "timeslice", "latency")
        report = once("best-effort beside an owner", "--mode", "timeslice", "--priority", "best-effort")
        end(owner)
    for name, reports in data.items():
        added = [r["added_launch_ns"] for r in reports if "added_launch_ns" in r]
        said = " ".join(f"{a[0] if isinstance(a, list) else a:.0f}" for a in added)
        run.rows.append(("added to a launch, ns", name, said or str(reports[-1].get("error"))))
        say(" | ".join(run.rows[-1]))


def share(run, data, budget):
    def rate(us):
        seconds = run.args.seconds
        (report,), tenants = run.together([("be", run.workload("--kernel-us", us, "--kernels", max(8, 6000 // us), "--blocks", 264, "--threads",
                                                               1024, "--seconds", seconds), ["--mode", "mps", "--priority", "best-effort"])], seconds)
        return report.get("rate_per_s") or 0, (tenants.get("be", {}).get("gate") or {}).get("waits")

    def beside_idle(us, priority):
        other = idle(run, "mps", priority)
        try:
            return rate(us)
        finally:
            end(other)

    for us in run.args.kernels:
        if not run.time_for(f"share of {us} us kernels at {budget} us", run.args.rounds * 2 * (run.args.seconds + 4)):
            continue
        pairs = []
        for _ in range(run.args.rounds):
            (without, _), (beside, waits) = (beside_idle(us, priority) for priority in ("normal", "latency"))
            pairs.append({"without": without, "with": beside, "waits": waits})
        ratio = statistics.median(p["with"] / p["without"] for p in pairs if p["without"])
        data.append({"kernel_us": us, "budget_us": budget, "pairs": pairs, "speed": ratio})
        run.rows.append((f"speed with waits, budget {budget} us", f"{us} us kernels", f"{ratio:.4f}"))
        say(" | ".join(run.rows[-1]))


def main():
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--guard-cost", required=True)
    parser.add_argument("--parts", type=lambda s: s.split(","), default=["launch", "share"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budgets", type=lambda s: [int(x) for x in s.split(",")], default=[100])
    parser.add_argument("--kernels", type=lambda s: [int(x) for x in s.split(",")], default=[20])
    run = Together(parser.parse_args())
    data = {"launch": {}, "share": []}
    try:
        if "launch" in run.args.parts:
            launch(run, data["launch"])
            run.b.save("gate-cost", data)
        for budget in run.args.budgets if "share" in run.args.parts else []:
            run.gate_budget(budget)
            share(run, data["share"], budget)
            run.b.save("gate-cost", {**data, "left_out": run.left_out})
    finally:
        run.b.close()
    run.table("what | of whom | figure")


if __name__ == "__main__":
    sys.exit(main())
