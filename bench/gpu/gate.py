#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A latency-critical program beside a best-effort one, with gpumux's gate and without, on a machine with a GPU.

usage: gate.py --gpumux PREFIX/bin/gpumux --out DIR [--parts A,B] [--seconds S] [--kernels 20,200,2000] [--loads 0.2,0.5]
  kernels  gpumux-workload: requests of 10 kernels of 50 us, arriving at random, beside full-GPU kernels back to back:
           alone, then in each mode without priorities and with --priority latency and best-effort
Writes DIR/gate-PART.json. On a machine without a GPU the software GPU stands in, and says so.
"""
import argparse
import os
import subprocess
import sys
import time

from measure import Bench

STARTED = time.monotonic()
LC_KERNEL_US, LC_KERNELS = 50, 10


def say(text):
    print(f"[{time.monotonic() - STARTED:6.1f}] {text}", flush=True)


class Run:
    def __init__(self, args):
        self.args, self.b, self.table = args, Bench(os.path.dirname(os.path.dirname(os.path.abspath(args.gpumux))), args.out), []

    def workload(self, *options):
        return [self.b.bin("gpumux-workload"), "--json", *map(str, options)]

    def start(self, name, mode, priority, argv):
        command = [self.b.bin("gpumux"), "run", "--mem", "8GiB", "--quiet", "--name", name]
        if mode:
            command += ["--mode", mode]
        if priority:
            command += ["--priority", priority]
        return subprocess.Popen(command + ["--"] + argv, stdout=subprocess.PIPE, stderr=self.b.log, text=True, env=self.b.env)

    def together(self, jobs, seconds):
        """[(name, mode, priority, argv)] at the same time; each one's report and, at two thirds, the daemon's word of the gate."""
        at = time.time() + 3 + 0.5 * len(jobs)
        started = [self.start(name, mode, priority, argv + ["--start-at", f"{at:.3f}"]) for name, mode, priority, argv in jobs]
        time.sleep(max(0, at + seconds * 2 / 3 - time.time()))
        gates = self.gates()
        reports = []
        for (name, *_), process in zip(jobs, started):
            report, status = self.b.json_of(process, limit=60)
            report["exit_status_seen"] = status
            reports.append(report)
        return reports, gates

    def gates(self):
        import json
        shown = subprocess.run([self.b.bin("gpumux"), "ps", "--json"], env=self.b.env, capture_output=True, text=True).stdout
        try:
            return {t["name"]: t.get("gate") for t in json.loads(shown)["data"]["tenants"]}
        except (ValueError, KeyError):
            return {"error": shown[-200:]}


def latency(rate, seconds, run):
    return run.workload("--kernel-us", LC_KERNEL_US, "--kernels", LC_KERNELS, "--blocks", 132, "--threads", 1024,
                        "--rate", f"{rate:.1f}", "--seconds", seconds)


def greedy(us, seconds, run):
    return run.workload("--kernel-us", us, "--kernels", max(8, 6000 // us), "--blocks", 264, "--threads", 1024, "--seconds", seconds)


def short(report):
    return {k: report.get(k) for k in ("p50_us", "p99_us", "service_p50_us", "service_p99_us", "rate_per_s", "requests", "error")}


def kernels(run):
    seconds, cells = run.args.seconds, []
    service = LC_KERNEL_US * LC_KERNELS * 1e-6
    alone = {}
    for load in run.args.loads:
        (report,), _ = run.together([("lc", None, None, latency(load / service, seconds, run))], seconds)
        alone[load] = short(report)
        say(f"alone at {load}: {alone[load]}")
    for us in run.args.kernels:
        (report,), _ = run.together([("be", None, None, greedy(us, 2, run))], 2)
        be_alone = report.get("rate_per_s") or 0
        for load in run.args.loads:
            for mode in run.args.modes:
                for priorities in ((None, None), ("latency", "best-effort")):
                    (lc, be), gates = run.together([("lc", mode, priorities[0], latency(load / service, seconds, run)),
                                                    ("be", mode, priorities[1], greedy(us, seconds, run))], seconds)
                    base = alone[load]
                    cell = {"be_kernel_us": us, "load": load, "mode": mode, "gate": priorities[0] is not None, "lc": short(lc),
                            "be": short(be), "be_share": (be.get("rate_per_s") or 0) / be_alone if be_alone else None, "gates": gates}
                    if lc.get("service_p99_us") and base.get("service_p99_us"):
                        cell["service_p99_ratio"] = lc["service_p99_us"] / base["service_p99_us"]
                        cell["arrival_p99_ratio"] = lc["p99_us"] / base["p99_us"]
                        busy = lc["requests"] / seconds * base["service_p50_us"] * 1e-6
                        cell["be_goal"] = 0.97 * (1 - busy)
                    cells.append(cell)
                    say(f"{us} us, load {load}, {mode}, {'gate' if cell['gate'] else 'none'}: service p50 {lc.get('service_p50_us')} p99 "
                        f"{lc.get('service_p99_us')} (x{cell.get('service_p99_ratio', 0):.2f}), be {cell['be_share']}")
                    run.table.append((us, load, mode, "gate" if cell["gate"] else "-", f"{lc.get('service_p50_us') or 0:.0f}",
                                      f"{lc.get('service_p99_us') or 0:.0f}", f"x{cell.get('service_p99_ratio', 0):.2f}",
                                      f"x{cell.get('arrival_p99_ratio', 0):.2f}", f"{cell['be_share'] or 0:.3f}", f"{cell.get('be_goal', 0):.3f}"))
                    run.b.save("gate-kernels", {"alone": {str(k): v for k, v in alone.items()}, "cells": cells})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpumux", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--parts", default="kernels")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--kernels", type=lambda s: [int(x) for x in s.split(",")], default=[20, 200, 2000])
    parser.add_argument("--loads", type=lambda s: [float(x) for x in s.split(",")], default=[0.2, 0.5])
    parser.add_argument("--modes", type=lambda s: s.split(","), default=["mps", "timeslice"])
    run = Run(parser.parse_args())
    try:
        for part in run.args.parts.split(","):
            globals()[part](run)
    finally:
        run.b.close()
    print("\nbe us | load | mode | gate | service p50 | p99 | / alone | arrival p99 / alone | be share | goal")
    for row in run.table:
        print(" | ".join(map(str, row)))


if __name__ == "__main__":
    sys.exit(main())
