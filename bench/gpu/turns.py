#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that take turns beside the driver's time-slicing, on a machine with a GPU.

usage: turns.py --gpumux PREFIX/bin/gpumux --out DIR [--parts saturating,shares,torch] [--seconds S]
  saturating  two and four programs, each one 500 us kernel after the other, waited for: the sum of their rates against one
              alone, and the longest wait; in mode timeslice and in mode turns
  shares      two and three of them with shares of 75/25 and 60/30/10
  torch       two trainings (ResNet-50 and a 36-layer encoder): steps against alone (the best of three windows), the longest step;
              then with shares; --torch-cells and --torch-pair choose
Writes DIR/turns-PART.json. On a machine without a GPU the software GPU stands in (not for torch), and says so.
"""
import argparse
import sys

from together import Together, arguments, say
from torch_mix import Training

TORCH_CELLS = {"timeslice": ("timeslice", None), "turns": ("turns", None), "75/25": ("turns", (75, 25)), "25/75": ("turns", (25, 75))}


def program(run, seconds):
    return run.workload("--kernel-us", run.args.kernel_us, "--blocks", 33, "--threads", 1024, "--seconds", seconds)


def cell(run, name, shares, mode, alone, seconds, store):
    """So many programs as shares; a share of None is none asked."""
    if not run.time_for(name, seconds + 4):
        return
    jobs = [(f"p{i}", program(run, seconds), ["--mode", mode] + (["--share", f"{share}%"] if share else [])) for i, share in enumerate(shares)]
    reports, tenants = run.together(jobs, seconds)
    rates = [r.get("rate_per_s") or 0 for r in reports]
    sum_of = sum(rates) / alone["rate_per_s"] if alone.get("rate_per_s") else None
    got = [round(100 * r / alone["rate_per_s"], 2) for r in rates]
    store.append({"name": name, "mode": mode, "shares": shares, "rates_per_s": rates, "sum_against_alone": sum_of, "percent_of_alone": got,
                  "longest_ms": [(r.get("max_us") or 0) / 1e3 for r in reports], "p99_ms": [(r.get("p99_us") or 0) / 1e3 for r in reports],
                  "errors": [r.get("error") for r in reports], "tenants": tenants})
    run.rows.append((name, mode, f"sum {sum_of or 0:.3f}", "each % " + "/".join(map(str, got)),
                     "longest ms " + "/".join(f"{x:.1f}" for x in store[-1]["longest_ms"]), *filter(None, store[-1]["errors"])))
    say(" | ".join(run.rows[-1]))


def saturating(run):
    seconds, cells = run.args.seconds, []
    (alone,), _ = run.together([("alone", program(run, seconds), (None,))], seconds)
    say(f"alone: {alone.get('rate_per_s')} kernels/s, longest {alone.get('max_us')} us")
    run.alone = alone
    for n in (2, 4):
        for mode in ("timeslice", "turns"):
            cell(run, f"{n} saturating", [None] * n, mode, alone, seconds, cells)
            run.b.save("turns-saturating", {"alone": alone, "cells": cells, "left_out": run.left_out})


def shares(run):
    cells = []
    for wanted in ([75, 25], [60, 30, 10]):
        cell(run, "shares", wanted, "turns", run.alone, max(4, run.args.seconds), cells)
        run.b.save("turns-shares", {"alone": run.alone, "cells": cells, "left_out": run.left_out})


def torch(run):
    seconds, cells = 2.5 * run.args.seconds, []
    pair = run.args.torch_pair
    alone, windows = {}, {}
    for kind in pair:
        with Training(run, kind, kind, "--mode", "timeslice", mem="60GiB") as t:
            t.wait_ready()
            windows[kind] = [t.window(seconds) for _ in range(run.args.alone_windows)]
        # An eager program that its processor holds up for a while is slower alone than in a share of a GPU.
        alone[kind] = max(windows[kind], key=lambda w: w["steps_per_s"])
        say(f"{kind} alone: {windows[kind]}")
    for mode, share in (TORCH_CELLS[c] for c in run.args.torch_cells):
        name = f"trainings {share or ''}".strip()
        if not run.time_for(f"{name}, {mode}", seconds + 25):
            continue
        options = [["--mode", mode] + (["--share", f"{share[i]}%"] if share else []) for i in range(2)]
        with (Training(run, pair[0], pair[0], *options[0], mem="60GiB") as a,
              Training(run, pair[1], pair[1], *options[1], mem="60GiB") as b):
            a.wait_ready()
            b.wait_ready()
            before = run.tenants()
            got = Training.windows([a, b], seconds)
            tenants = run.tenants()
        part = [100 * got[i]["steps_per_s"] / alone[pair[i]]["steps_per_s"] for i in range(2)]
        cells.append({"mode": mode, "shares": share, "programs": pair, "windows": got, "percent_of_alone": part,
                      "sum_against_alone": sum(part) / 100, "tenants_before": before, "tenants": tenants})
        run.rows.append((name, mode, f"sum {sum(part) / 100:.3f}", "each % " + "/".join(f"{p:.1f}" for p in part),
                         "longest step ms " + "/".join(f"{g['longest_ms']:.0f}" for g in got)))
        say(" | ".join(run.rows[-1]))
        run.b.save("turns-torch", {"alone": alone, "alone_windows": windows, "cells": cells, "left_out": run.left_out})


def main():
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--parts", default="saturating,shares,torch")
    parser.add_argument("--torch-cells", type=lambda s: s.split(","), default=list(TORCH_CELLS))
    parser.add_argument("--torch-pair", type=lambda s: s.split(","), default=["resnet", "encoder"], help="trainings of torch_programs.py")
    parser.add_argument("--alone-windows", type=int, default=3)
    parser.add_argument("--kernel-us", type=int, default=500)
    run = Together(parser.parse_args())
    try:
        for part in run.args.parts.split(","):
            globals()[part](run)
    finally:
        run.b.close()
    run.table("cell | mode | sum against one alone | each | longest")


if __name__ == "__main__":
    sys.exit(main())
