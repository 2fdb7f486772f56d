#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A latency-critical PyTorch program beside a training, arrangement by arrangement, on a machine with a GPU.

usage: gate_torch.py --gpumux PREFIX/bin/gpumux --out DIR [--seconds S] [--cells TRAINING:ARRANGEMENT[:LOAD],...]
                     [--requests eager,graph,long] [--loads 0.2,0.5]
Trainings are those of torch_programs.py, arrangements those of together.py; without a LOAD all of --loads. "idle-mps" in place of
a training: the latency-critical program alone as a tenant of mode mps. Service time and arrival to finish of each window of requests, the training's steps against alone. In rows marked "hint" (of the first load) a request
works 500 us on the processor first (alone too), and says gpumux.latency_critical() when it arrives. Writes DIR/gate-torch.json.
"""
import argparse
import sys

from together import ARRANGEMENTS, Together, arguments, say
from torch_mix import Latency, Training

PREPARE_S = 500e-6


def windows_of(run, hints, loads):
    """(kind, load, hint) of one pair of programs."""
    return [(kind, load, hint) for load in loads for kind in run.args.requests
            for hint in ((False, True) if hints and load == run.args.loads[0] else (False,))]


def name_of(kind, load, hint):
    return f"{kind} {load}" + (" prepared" if hint else "")


def measure(run):
    data = {"solo_s": {}, "alone": {}, "training_alone": {}, "cells": []}
    with Latency(run, "lc", None) as lc:
        data["solo_s"] = lc.wait_ready()["solo"]
        first = run.args.loads[0]
        hints = any(c[1].startswith("gate") and (len(c) < 3 or float(c[2]) == first) for c in run.args.cells if len(c) > 1)
        alone(run, lc, data, hints, "")
    if ["idle-mps"] in run.args.cells:
        with Latency(run, "lc", *ARRANGEMENTS["gate-mps"][0]) as lc:
            lc.wait_ready()
            alone(run, lc, data, False, " as a tenant in mps")
    cells = [c for c in run.args.cells if c[0] != "idle-mps"]
    for training in dict.fromkeys(c[0] for c in cells):
        with Training(run, "be", training, None) as be:
            be.wait_ready()
            data["training_alone"][training] = be.window(2 * run.args.seconds)
        say(f"{training} alone: {data['training_alone'][training]}")
    for training, arrangement, *load in cells:
        one(run, data, training, arrangement, [float(x) for x in load] or run.args.loads)
        run.b.save("gate-torch", {**data, "left_out": run.left_out})


def alone(run, lc, data, hints, suffix):
    for kind, load, hint in windows_of(run, hints, run.args.loads):
        name = name_of(kind, load, hint) + suffix
        got, _ = lc.requests(kind, load, data["solo_s"][kind], run.args.seconds, PREPARE_S if hint else 0)
        data["alone"][name] = got
        say(f"alone {name}: service p50 {got['service_p50_ms']:.3f} p99 {got['service_p99_ms']:.3f}, finish p99 {got['finish_p99_ms']:.3f} ms")


def one(run, data, training, arrangement, loads):
    plan = windows_of(run, arrangement.startswith("gate"), loads)
    if not run.time_for(f"{training}, {arrangement}", 20 + (run.args.seconds + 0.5) * len(plan)):
        return
    lc_options, be_options = ARRANGEMENTS[arrangement]
    try:
        with Latency(run, "lc", *lc_options) as lc, Training(run, "be", training, *be_options) as be:
            lc.wait_ready()
            be.wait_ready()
            be.window(1)
            idle = be.window(run.args.seconds)
            for kind, load, hint in plan:
                got, steps = lc.requests(kind, load, data["solo_s"][kind], run.args.seconds, PREPARE_S if hint else 0, hint, be)
                row(run, data, training, arrangement, kind, load, hint, got, steps, idle)
    except RuntimeError as e:
        data["cells"].append({"training": training, "arrangement": arrangement, "error": str(e)})
        run.rows.append((training, arrangement, str(e)))
        say(f"{training}, {arrangement}: {e}")


def row(run, data, training, arrangement, kind, load, hint, got, steps, idle):
    base, alone = data["alone"][name_of(kind, load, hint)], data["training_alone"][training]
    on_gpu_ms = base["service_p50_ms"] - (1e3 * PREPARE_S if hint else 0)
    busy = min(1, got["rate_per_s"] * on_gpu_ms / 1e3)
    cell = {"training": training, "arrangement": arrangement, "kind": kind, "load": load, "hint": hint, "requests": got, "steps": steps,
            "steps_beside_idle": idle, "clocks": run.clocks.between(got["ended_at"] - run.args.seconds, got["ended_at"]) if run.clocks else None,
            "tenants": run.tenants(), "service_p50_ratio": got["service_p50_ms"] / base["service_p50_ms"],
            "service_p99_ratio": got["service_p99_ms"] / base["service_p99_ms"], "finish_p99_ratio": got["finish_p99_ms"] / base["finish_p99_ms"],
            "training_share": steps["steps_per_s"] / alone["steps_per_s"],
            "training_share_of_idle": steps["steps_per_s"] / idle["steps_per_s"], "training_goal": 0.97 * (1 - busy)}
    data["cells"].append(cell)
    run.rows.append((training, arrangement + (" hint" if hint else ""), kind, load, f"{got['service_p50_ms']:.2f}", f"{got['service_p99_ms']:.2f}",
                     f"x{cell['service_p50_ratio']:.2f}", f"x{cell['service_p99_ratio']:.2f}", f"x{cell['finish_p99_ratio']:.2f}",
                     f"{cell['training_share']:.3f}", f"{cell['training_share_of_idle']:.3f}", f"{cell['training_goal']:.3f}",
                     (cell["clocks"] or {}).get("sm_mhz_mean", "-")))
    say(" | ".join(map(str, run.rows[-1])))


def main():
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--cells", type=lambda s: [c.split(":") for c in s.split(",")],
                        default=[["idle-mps"]] + [[t, a] for t in ("encoder", "resnet") for a in ARRANGEMENTS])
    parser.add_argument("--requests", type=lambda s: s.split(","), default=["eager", "graph", "long"])
    parser.add_argument("--loads", type=lambda s: [float(x) for x in s.split(",")], default=[0.2, 0.5])
    run = Together(parser.parse_args())
    try:
        measure(run)
    finally:
        run.b.close()
    run.table("training | arrangement | requests | load | service p50 | p99 ms | p50/alone | p99/alone | finish p99/alone | training/alone | training/beside idle | goal | SM MHz")


if __name__ == "__main__":
    sys.exit(main())
