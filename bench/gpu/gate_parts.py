#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a latency-critical PyTorch request beside a training waits for, part by part, in mode mps.

usage: gate_parts.py --gpumux PREFIX/bin/gpumux --out DIR [--seconds S]
The small encoder as a CUDA graph at 20 % load: alone; beside the training at work, with the gate closed when the request launches, and
earlier by a hint (0.2, 0.5 and 2 ms of work on the processor first); beside the training stopped, with a gate and without. What is left
with the training stopped is not of the gate: it is MPS's, for a second client. Writes DIR/gate-parts.json.
"""
import argparse
import os
import signal
import sys
import time

from together import ARRANGEMENTS, Together, arguments, say
from torch_mix import Latency, Training


def child_of(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as f:
        return int(f.read().split()[0])


def window(run, data, name, lc, solo, prepare, hint=False, beside=None):
    got, _ = lc.requests("graph", 0.2, solo, run.args.seconds, prepare, hint, beside)
    on_gpu = [got[k] - 1e3 * prepare for k in ("service_p50_ms", "service_p99_ms")]
    data.append({"name": name, "prepare_s": prepare, "hint": hint, "requests": got, "less_preparation_p50_ms": on_gpu[0],
                 "less_preparation_p99_ms": on_gpu[1]})
    run.rows.append((name, f"{1e3 * prepare:.1f}", "hint" if hint else "-", f"{on_gpu[0]:.3f}", f"{on_gpu[1]:.3f}"))
    say(" | ".join(run.rows[-1]))
    run.b.save("gate-parts", data)


def measure(run):
    data = []
    with Latency(run, "lc", None) as lc:
        solo = lc.wait_ready()["solo"]["graph"]
        for prepare in (0, 0.0005):
            window(run, data, "alone", lc, solo, prepare)
    for way in ("gate-mps", "mps"):
        with Latency(run, "lc", *ARRANGEMENTS[way][0]) as lc, Training(run, "be", "encoder", *ARRANGEMENTS[way][1]) as be:
            lc.wait_ready()
            be.wait_ready()
            be.window(1)
            plan = ((0, False), (0.0002, True), (0.0005, True), (0.002, False), (0.002, True))
            for prepare, hint in plan if way == "gate-mps" else ():
                window(run, data, f"{way}, training", lc, solo, prepare, hint, be)
            pid = child_of(be.process)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.3)
            window(run, data, f"{way}, training stopped", lc, solo, 0)
            os.kill(pid, signal.SIGCONT)


def main():
    run = Together(arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)).parse_args())
    try:
        measure(run)
    finally:
        run.b.close()
    run.table("beside what | ms of preparation | | p50 | p99 ms, without the preparation")


if __name__ == "__main__":
    sys.exit(main())
