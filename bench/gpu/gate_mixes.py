#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random mixes of tenants with priorities, some of which die or are stopped: none may hang, none may stay held back.

usage: gate_mixes.py --gpumux PREFIX/bin/gpumux --out DIR [--seed N] [--seconds S] [--budget SECONDS]
Each mix: a mode (timeslice, turns, mps), one to three latency-critical tenants and one to three best-effort ones, now and then a
normal one, of random kernels, streams, graphs and arrivals; a latency-critical one may be killed (not in mps, where its death is
another's fault) or stopped for a second. Checked: every program that was left alone ends in time without an error; once the
latency-critical ones are gone, every best-effort one does work. Writes DIR/gate-mixes.json. Exit 1: a check failed.
"""
import argparse
import os
import random
import signal
import sys
import time

from together import Together, arguments, say


def program(run, rnd, latency, seconds):
    options = ["--blocks", rnd.choice([8, 33, 132, 264]), "--threads", rnd.choice([128, 256, 1024]), "--streams", rnd.choice([1, 1, 2, 4]),
               "--seconds", seconds, "--seed", rnd.randrange(1 << 20)]
    us = rnd.choice([20, 50, 100, 200] if latency else [20, 50, 200, 500, 2000, 5000])
    options += ["--kernel-us", us]
    if rnd.random() < 0.3:
        options += ["--graph", rnd.choice([2, 5, 20])]
    options += ["--kernels", rnd.choice([1, 5, 10])]
    if latency:
        options += ["--rate", rnd.choice([20, 100, 400])]
        if rnd.random() < 0.3:
            options += ["--poll"]
    return run.workload(*options)


def child_of(process):
    """The program that `gpumux run` waits for."""
    try:
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as f:
            return int(f.read().split()[0])
    except (OSError, IndexError):
        return 0


def closed(run):
    """Seconds that each best-effort tenant's gate was closed, of those that are there."""
    gates = {name: t.get("gate") or {} for name, t in run.tenants().items() if isinstance(t, dict)}
    return {name: gate["closed_seconds"] for name, gate in gates.items() if "closed_seconds" in gate}


def mix(run, rnd, number):
    mode, seconds = rnd.choice(["timeslice", "turns", "mps"]), run.args.seconds
    plan = [("latency", i) for i in range(rnd.randint(1, 3))] + [("best-effort", i) for i in range(rnd.randint(1, 3))]
    plan += [("normal", 0)] if rnd.random() < 0.3 else []
    started, problems, spared = [], [], []
    for priority, i in plan:
        latency = priority == "latency"
        argv = program(run, rnd, latency, seconds if latency else seconds + 2)
        started.append((priority, f"{priority}-{i}", run.start(f"{priority}-{i}", argv, "--mode", mode, "--priority", priority, mem="2GiB"), argv[2:]))
    time.sleep(seconds / 2 + 1)
    what = None
    if rnd.random() < 0.5:
        what = rnd.choice(["stopped"] if mode == "mps" else ["killed", "stopped"])
        victim = next(s for s in started if s[0] == "latency")
        pid = child_of(victim[2])
        if pid:
            os.kill(pid, signal.SIGKILL if what == "killed" else signal.SIGSTOP)
            if what == "stopped":
                time.sleep(1)
                os.kill(pid, signal.SIGCONT)
            else:
                spared.append(victim[1])
    reports = {}
    for priority, name, process, _ in sorted(started, key=lambda s: s[0] != "latency"):
        if priority != "latency" and "after" not in reports:
            # All latency-critical ones are gone: nobody is held back, once a dead one's bit is cleared.
            time.sleep(0.15)
            first = closed(run)
            time.sleep(0.3)
            second = closed(run)
            reports["after"] = [first, second]
            problems += [f"{n}: held back by nobody" for n in second if n in first and second[n] > first[n]]
        report, status = run.b.json_of(process, limit=30)
        reports[name] = {"status": status, **{k: report.get(k) for k in ("requests", "p99_us", "max_us", "error")}}
        if name in spared:
            continue
        if status != 0 or report.get("error") or not report.get("requests"):
            problems.append(f"{name}: status {status}, {report.get('error')}, requests {report.get('requests')}")
    return {"number": number, "mode": mode, "event": what, "programs": [(n, " ".join(a)) for _, n, _, a in started], "reports": reports,
            "problems": problems}


def main():
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(seconds=1.5, budget=240)
    run = Together(parser.parse_args())
    rnd, mixes = random.Random(run.args.seed), []
    try:
        while run.time_for("more mixes", 3 * run.args.seconds + 8):
            mixes.append(mix(run, rnd, len(mixes)))
            m = mixes[-1]
            say(f"mix {m['number']}: {m['mode']}, {len(m['programs'])} programs, {m['event'] or 'nothing happens'}: {m['problems'] or 'fine'}")
            run.b.save("gate-mixes", {"seed": run.args.seed, "mixes": mixes})
    finally:
        run.b.close()
    wrong = [m for m in mixes if m["problems"]]
    print(f"\n{len(mixes)} mixes, {len(wrong)} with problems")
    for m in wrong:
        print(m["number"], m["mode"], m["event"], m["problems"])
    return bool(wrong) or not mixes


if __name__ == "__main__":
    sys.exit(main())
