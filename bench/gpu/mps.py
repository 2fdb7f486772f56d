#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mode mps on a machine with a GPU: concurrency, deaths with kernels in flight, limits, faults.

usage: mps.py --gpumux PREFIX/bin/gpumux --out DIR [--parts A,B,...] [--budget SECONDS]
  rates    saturating tenants: one alone, two and four under gpumux and under bare MPS, in alternation
  deaths   a tenant dies with kernels in flight, in five ways, on memory of five kinds; a neighbour checks every result
  faults   a GPU fault of one tenant, which is started again as the others are: who is named, when do they run again
  torch    a PyTorch inference beside a training that is killed within a step, again and again; limits read back
  bare     the same deaths under MPS without gpumux
  outlast  kernels that take longer than a dead process's descriptors are held
  cores    bare MPS: which faults reach whom, and whose process leaves a core of the GPU
Each part writes DIR/mps-PART.json as soon as it has something; a part that would go past the budget is cut short.
Needs nvcc (mps_victims.cu), PyTorch for `torch`, and root for the kernel's log.
"""
import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import traceback

from measure import GIB, Sampler
from mps_deaths import bare, deaths, outlast  # noqa: F401, parts by name
from mps_faults import cores, faults  # noqa: F401
from mps_run import BareMps, Lines, Neighbour, Run, say

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("rates", "deaths", "faults", "torch", "bare", "outlast", "cores")


def together(run, count, mps, seconds):
    """`count` saturating programs that start at the same moment: kernels a second of each."""
    argv = [run.b.bin("gpumux-workload"), "--kernel-us", "500", "--blocks", "33", "--threads", "1024", "--seconds", str(seconds),
            "--start-at", f"{time.time() + 1.5 + 0.2 * count:.3f}", "--json"]
    if mps == "gpumux":
        children = [run.tenant(f"rate{i}", argv) for i in range(count)]
    else:
        children = [run.bare(mps, argv) for _ in range(count)] if mps else [Lines(argv, run.b.bare_env, run.b.log)]
    rates = []
    for child in children:
        report = child.wait_for(lambda line: "rate_per_s" in line, seconds + 15)
        child.finish(10)
        rates.append((report or {}).get("rate_per_s") or 0)
    if min(rates) == 0:
        say("a program had no rate: " + "; ".join(c.stderr()[-300:] for c in children))
    return rates


def rates(run):
    cases = [("alone", 1), ("gpumux", 2), ("bare", 2), ("gpumux", 4), ("bare", 4)]
    results = {f"{how} {n}": [] for how, n in cases}
    for repeat in range(run.repeats):
        for how, count in (cases if repeat % 2 == 0 else reversed(cases)):
            if how == "bare":
                with BareMps(run) as mps:
                    got = together(run, count, mps, 2)
            else:
                got = together(run, count, "gpumux" if how == "gpumux" else None, 2)
            results[f"{how} {count}"].append(got)
            say(f"rates {repeat + 1}/{run.repeats}: {how} {count}: sum {sum(got):.0f}/s")
            run.save("rates", {"kernels_per_second": results})
    alone = statistics.median(sum(r) for r in results["alone 1"])
    summary = {"alone_per_s": alone}
    for count in (2, 4):
        ours, theirs = ([sum(r) for r in results[f"{who} {count}"]] for who in ("gpumux", "bare"))
        ratios = [a / b for a, b in zip(ours, theirs) if b]
        summary[str(count)] = {"gpumux_sum": statistics.median(ours), "bare_sum": statistics.median(theirs), "ratios": ratios,
                               "ratio": statistics.median(ratios) if ratios else None,
                               "gpumux_over_alone": statistics.median(ours) / alone if alone else None}
        run.row("rates", f"{count} tenants", f"gpumux / bare {summary[str(count)]['ratio']}", f"sum / alone {summary[str(count)]['gpumux_over_alone']}")
    run.save("rates", {"kernels_per_second": results, "summary": summary})


def torch(run):
    sampler = Sampler(run.b.nvml)
    sampler.start()
    mem = 6 * GIB

    def start(name, role, share, waiting):
        child = run.tenant(name, [sys.executable, f"{HERE}/mps_torch.py", role], ["--mem", "6GiB", "--share", share],
                           stdin=subprocess.PIPE if waiting else None)
        sampler.watch(name, child.process.pid, mem)
        return child

    result = {"kills": []}
    waiting = [start(f"training{i}", "training", "40%", True) for i in range(4)]
    started = len(waiting)
    inference = start("inference", "inference", "30%", False)
    result["inference_ready"] = inference.event("ready", 40)
    if result["inference_ready"] is None:
        result["error"] = inference.stderr() + " ".join(inference.text[-5:])
    say(f"torch: inference {result['inference_ready']}")
    result["status"] = run.data("status")
    run.save("torch", result)
    neighbour = Neighbour(None)
    neighbour.child = inference
    for number in range(20):
        if run.left() < 20 or inference.over():
            break
        training = waiting.pop(0)
        if started < 20:
            waiting.append(start(f"training{started}", "training", "40%", True))
            started += 1
        if training.event("loaded", 30) is None:
            result["kills"].append({"error": "the training did not start", "stderr": training.stderr()})
            continue
        began = time.time()
        training.process.stdin.write("grab\n" if number < 2 else "go\n")
        training.process.stdin.flush()
        step = training.event("training", 40)
        kill = {"training": next((line for line in training.lines if line.get("event") == "ready"), None)}
        if step is None:
            kill["error"] = training.stderr() + " ".join(training.text[-5:])
        else:
            if number == 0:
                result["status_both"] = run.data("status")
                kill["nvml_processes"] = {str(p): u for p, u in run.b.nvml.processes().items()}
            time.sleep(random.Random(number).uniform(0.1, 0.5))
            os.kill(step["pid"], signal.SIGKILL)
            kill["status"] = training.finish(15)
        time.sleep(0.5)
        kill["inference"] = neighbour.window(began)
        result["kills"].append(kill)
        state = kill["inference"]
        say(f"torch {number + 1}/20: inference {'alive' if state['alive'] else state['error'] or 'ended'}, wrong {state['wrong']}, "
            f"longest {state['worst_ms']} ms {str(kill.get('error', ''))[-300:]}")
        run.save("torch", result)
    time.sleep(min(4, max(0, run.left())))
    result["after_the_last"] = neighbour.window(time.time() - 4)
    sampler.on = False
    over = {name: value for name, value in sampler.over.items() if sampler.samples[name]}
    result["nvml"] = {"samples": sampler.samples, "peak_bytes": sampler.peak, "over_limit_bytes": over}
    result["inference_errors"] = inference.stderr()
    killed = [k for k in result["kills"] if "status" in k]
    alive_after = [k for k in killed if k["inference"]["alive"] and k["inference"]["wrong"] == 0]
    run.row("torch", f"{len(alive_after)} of {len(killed)} kills survived with right results", f"over limit by NVML: {max(over.values(), default=None)} bytes",
            f"longest pause {max((k['inference']['worst_ms'] or 0 for k in killed), default=None)} ms")
    run.save("torch", result)
    run.end_children()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpumux", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--budget", type=float, default=470, help="seconds for everything (default 470)")
    parser.add_argument("--repeats", type=int, default=3, help="of the rates (default 3)")
    parser.add_argument("--faults", type=lambda s: s.split(","), default=["illegal", "trap", "misaligned", "assert", "illegal"], help="one round each")
    parser.add_argument("--victims", help="mps_victims, if it is built already")
    args = parser.parse_args()
    run = Run(args)
    try:
        for part in args.parts.split(","):
            if run.left() < 20:
                run.row(part, "not run: no time left")
                continue
            say(f"== {part}")
            try:
                globals()[part](run)
            except Exception:  # one part's failure must not cost the others
                say(traceback.format_exc())
                run.row(part, "FAILED, see above")
                run.end_children()
    finally:
        run.end_children()
        run.b.close()
    print()
    for cells in run.table:
        print(" | ".join(str(c) for c in cells))
    run.save("table", {"rows": [list(map(str, cells)) for cells in run.table]})


if __name__ == "__main__":
    main()
