#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mode mps on a machine with a GPU: concurrency, deaths with kernels in flight, limits, faults.

usage: mps.py --gpumux PREFIX/bin/gpumux --out DIR [--parts A,B,...] [--budget SECONDS]
  rates    saturating tenants: one alone, two and four under gpumux and under bare MPS, in alternation
  deaths   a tenant dies with kernels in flight, in five ways, on memory of five kinds; a neighbour checks every result
  faults   an illegal address in one tenant: who is named, when does the neighbour run again
  torch    a PyTorch inference beside a training that is killed within a step, again and again; limits read back
  bare     the same deaths under MPS without gpumux
  outlast  kernels that take longer than a dead process's descriptors are held
  cores    bare MPS: which faults reach whom, and whose process leaves a core of the GPU
Each part writes DIR/mps-PART.json as soon as it has something; a part that would go past the budget is cut short.
Needs nvcc (mps_victims.cu), PyTorch for `torch`, and root for the kernel's log.
"""
import argparse
import glob
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from measure import GIB, MIB, Bench, Sampler

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("rates", "deaths", "faults", "torch", "bare", "outlast", "cores")
HOWS = ("kill", "segv", "exit", "term", "stop")
KINDS = ("plain", "managed", "pinned", "async", "ipc")


def say(text):
    print(f"[{time.monotonic() - STARTED:6.1f}] {text}", flush=True)


STARTED = time.monotonic()


class Lines(threading.Thread):
    """A process whose lines of JSON are kept as they come."""

    def __init__(self, argv, env, log, limit=0, stdin=None):
        super().__init__(daemon=True)
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=self.errors, stdin=stdin, text=True)
        self.log, self.lines, self.changed, self.text = log, [], threading.Condition(), []
        self.start()

    def run(self):
        for line in self.process.stdout:
            with self.changed:
                try:
                    self.lines.append(json.loads(line))
                except ValueError:
                    self.text.append(line.strip())
                self.changed.notify_all()
        with self.changed:
            self.lines.append({"event": "end", "at": time.time()})
            self.changed.notify_all()

    def wait_for(self, what, limit, start=0):
        """The first line from number `start` on for which `what` holds; None if it ends first, or in `limit` seconds."""
        until = time.monotonic() + limit
        with self.changed:
            at = start
            while True:
                while at < len(self.lines):
                    if what(self.lines[at]):
                        return self.lines[at]
                    if self.lines[at].get("event") == "end":
                        return None
                    at += 1
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self.changed.wait(left)

    def event(self, name, limit, start=0):
        return self.wait_for(lambda line: line.get("event") == name, limit, start)

    def since(self, at):
        with self.changed:
            return [line for line in self.lines if line.get("at", 0) >= at]

    def over(self):
        return self.process.poll() is not None

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read()[-4000:]

    def finish(self, limit):
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            return "killed: it did not end"


class BareMps:
    """A control daemon without gpumux, with directories of its own."""

    def __init__(self, run):
        self.run = run
        self.dir = tempfile.mkdtemp(prefix="mps-", dir="/tmp")
        self.env = dict(run.b.bare_env, CUDA_MPS_PIPE_DIRECTORY=self.dir + "/pipe", CUDA_MPS_LOG_DIRECTORY=self.dir + "/log")
        if run.b.simulated:
            self.env["PATH"] = os.path.join(run.b.prefix, "lib/gpumux/softgpu/bin") + ":" + self.env["PATH"]
        for d in ("pipe", "log"):
            os.mkdir(os.path.join(self.dir, d))

    def __enter__(self):
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.env, timeout=20, stdin=subprocess.DEVNULL,
                       stdout=self.run.b.log, stderr=self.run.b.log)
        uid = os.getuid()
        self.command(f"start_server -uid {uid}")
        for _ in range(50):
            servers = self.command("get_server_list").split()
            if servers and "ACTIVE" in self.command(f"get_server_status {servers[0]}"):
                break
            time.sleep(0.1)
        return self

    def command(self, text, limit=5):
        try:
            return subprocess.run(["nvidia-cuda-mps-control"], input=text + "\n", env=self.env, timeout=limit, text=True,
                                  capture_output=True).stdout
        except (subprocess.TimeoutExpired, OSError) as e:
            return f"no answer: {e}"

    def healthy(self):
        servers = self.command("get_server_list").split()
        return bool(servers) and "ACTIVE" in self.command(f"get_server_status {servers[0]}")

    def logs(self):
        found = {}
        for path in glob.glob(self.dir + "/log/*.log"):
            with open(path, errors="replace") as f:
                found[os.path.basename(path)] = f.read()[-30000:]
        return found

    def __exit__(self, *_):
        try:
            with open(self.dir + "/pipe/nvidia-cuda-mps-control.pid") as f:
                control = int(f.read())
        except (OSError, ValueError):
            control = 0
        servers = [int(s) for s in self.command("get_server_list").split() if s.isdigit()]
        self.command("quit -t 2", 8)
        until = time.monotonic() + 3
        left = [p for p in servers + [control] if p]
        while left and time.monotonic() < until:
            left = [p for p in left if alive(p)]
            time.sleep(0.05)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def kernel_log():
    try:
        out = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in out.splitlines() if "Xid" in line]


class Run:
    def __init__(self, args):
        self.b = Bench(os.path.dirname(os.path.dirname(os.path.abspath(args.gpumux))), args.out)
        self.until = STARTED + args.budget
        self.repeats, self.children = args.repeats, []
        self.victims = args.victims or self.build()
        self.origin = f"given: {args.victims}" if args.victims else "built from mps_victims.cu"
        self.table = []

    def build(self):
        target = os.path.join(self.b.dir, "mps_victims")
        nvcc = "/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else "nvcc"
        say("nvcc mps_victims.cu")
        subprocess.run([nvcc, "-O2", "-std=c++17", "-arch=sm_90", "-o", target, f"{HERE}/mps_victims.cu"], check=True, timeout=120)
        return target

    def left(self):
        return self.until - time.monotonic()

    def row(self, *cells):
        self.table.append(cells)
        say(" | ".join(str(c) for c in cells))

    def save(self, part, data):
        self.b.save("mps-" + part, {"victims": self.origin, **data} if isinstance(data, dict) else data)

    def tenant(self, name, argv, options=(), stdin=None, env=None):
        head = [self.b.bin("gpumux"), "run", "--mode", "mps", "--name", name, "--json", *options, "--"]
        child = Lines(head + argv, env or self.b.env, self.b.log, stdin=stdin)
        self.children.append(child)
        return child

    def bare(self, mps, argv, env=None):
        child = Lines(argv, dict(mps.env, **(env or {})), self.b.log)
        self.children.append(child)
        return child

    def gpumux(self, *argv, limit=15):
        try:
            p = subprocess.run([self.b.bin("gpumux"), *argv], env=self.b.env, capture_output=True, text=True, timeout=limit)
            return p.returncode, p.stdout, p.stderr
        except subprocess.TimeoutExpired:
            return -1, "", "timed out"

    def data(self, *argv):
        code, out, err = self.gpumux(*argv, "--json")
        try:
            return json.loads(out)["data"]
        except (ValueError, KeyError):
            return {"error": err or out, "code": code}

    def daemon_pid(self):
        """gpumuxd, by its runtime directory in its environment."""
        for path in glob.glob("/proc/[0-9]*/comm"):
            pid = int(path.split("/")[2])
            try:
                with open(path) as f, open(f"/proc/{pid}/environ", "rb") as e:
                    if f.read().strip() == "gpumuxd" and self.b.dir.encode() in e.read():
                        return pid
            except OSError:
                pass
        return 0

    def end_children(self):
        for child in self.children:
            if not child.over():
                child.process.terminate()
        until = time.monotonic() + 4
        for child in self.children:
            try:
                child.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
        self.children = []


# ---- 1 ----

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


# ---- 2 ----

class Neighbour:
    """A program that checks every result; started again when it has died."""

    def __init__(self, start):
        self.start_one, self.child, self.wrong, self.failures = start, None, 0, 0

    def ensure(self):
        if self.failures > 1:
            return False
        if self.child is None or self.child.over():
            self.child = self.start_one()
            if self.child.event("first", 15) is None:
                self.failures += 1
                say("the neighbour did not start: " + self.child.stderr()[-300:])
                return False
        return True

    def window(self, since):
        """What happened to it from then on: alive, wrong results, the longest pause."""
        lines = self.child.since(since)
        bins = [line for line in lines if "worst_ms" in line]
        error = next((line for line in lines if line.get("event") == "error"), None)
        ended = any(line.get("event") == "end" for line in lines)
        self.wrong = max([self.wrong] + [line["wrong"] for line in bins])
        return {"alive": error is None and not ended, "error": error, "wrong": max([line["wrong"] for line in bins], default=None),
                "worst_ms": max([line["worst_ms"] for line in bins], default=None), "bins": [(line["at"], line["worst_ms"]) for line in bins]}


def victim_argv(run, how, kind, turn, count=20, milliseconds=20):
    if kind == "ipc":
        kind = "ipc-stays" if turn % 2 == 0 else "ipc-leaves"
    way = {"term": "wait", "stop": "wait" if turn % 2 == 0 else "deaf"}.get(how, how)
    return [run.victims, "victim", way, kind, str(count), str(milliseconds)]


def trial(run, start, neighbour, how, name, settle, stop=None):
    """One death; `settle` seconds later it is looked how the neighbour is."""
    began = time.time()
    victim = start()
    flight = victim.event("in flight", 20)
    result = {"how": how, "in_flight": flight, "ready": next((line for line in victim.lines if line.get("event") == "ready"), None)}
    if flight is None:
        result.update(died_after_s=time.time() - began, error="the victim did not get that far", stderr=victim.stderr(), lines=victim.lines[-3:])
        victim.process.kill()
    else:
        if how == "term":
            os.kill(flight["pid"], signal.SIGTERM)
        elif how == "stop":
            result["stop"] = stop()
        result["status"] = victim.finish(20)
        result["died_after_s"] = time.time() - began
        if how == "stop":
            result["stderr"] = victim.stderr()[-1500:]
    time.sleep(settle)
    neighbour.child.wait_for(lambda line: line.get("at", 0) > began + result.get("died_after_s", 0) + settle - 0.2, 3)
    result.update(kind=name, began=began, neighbour=neighbour.window(began))
    return result


def verdict(trials):
    good = [t for t in trials if t["in_flight"] and t["in_flight"].get("unfinished")]
    fine = [t for t in good if t["neighbour"]["alive"] and t["neighbour"]["wrong"] == 0]
    pauses = {}
    for t in good:
        if t["neighbour"]["worst_ms"] is not None:
            pauses.setdefault(t["kind"], []).append(t["neighbour"]["worst_ms"])
    return {"trials": len(trials), "in_flight": len(good), "neighbour_alive_and_right": len(fine),
            "longest_pause_ms": {k: max(v) for k, v in pauses.items()}}


def deaths(run, hows=HOWS, rounds=2, settle=0.9, part="deaths"):
    trials = []
    neighbour = Neighbour(lambda: run.tenant("neighbour", [run.victims, "neighbour"], ["--mem", "4GiB"]))
    number = 0
    for how in hows:
        for kind in KINDS:
            for turn in range(rounds):
                if run.left() < 15 or not neighbour.ensure():
                    break
                number += 1
                name = f"victim{number}"
                options = ["--mem", "8GiB"] + (["--processes", "2"] if kind == "ipc" else [])
                trials.append(trial(run, lambda: run.tenant(name, victim_argv(run, how, kind, turn), options), neighbour, how, kind, settle,
                                    lambda: run.gpumux("stop", "--grace", "1s", name)))
                state = trials[-1]["neighbour"]
                say(f"{part} {number}: {how} {kind}: neighbour {'alive' if state['alive'] else state['error'] or 'ended'}, "
                    f"wrong {state['wrong']}, longest {state['worst_ms']} ms" + (" NOT IN FLIGHT " + str(trials[-1].get("stderr", ""))[-200:]
                                                                                 if not (trials[-1]["in_flight"] or {}).get("unfinished") else ""))
                run.save(part, {"trials": trials})
    # The last ones' descriptors are still held: their closing belongs to the trial.
    end = time.time()
    time.sleep(min(5, max(0, run.left())))
    after = neighbour.window(end) if neighbour.child else None
    status, events = run.data("status"), run.data("events", "--since", "10m")
    summary = verdict(trials)
    run.save(part, {"trials": trials, "after_the_last": after, "summary": summary, "status": status, "events": events})
    run.row(part, f"{summary['neighbour_alive_and_right']} of {summary['in_flight']} alive and right", f"longest pause ms {summary['longest_pause_ms']}",
            f"after the last: {'alive' if after and after['alive'] else 'not alive'}")
    run.end_children()


def bare(run):
    trials, number = [], 0
    with BareMps(run) as mps:
        neighbour = Neighbour(lambda: run.bare(mps, [run.victims, "neighbour"]))
        for how, kind in [(h, k) for i, h in enumerate(HOWS[:4]) for k in (KINDS[i % 5], KINDS[(i + 2) % 5])]:
            if run.left() < 15:
                break
            number += 1
            for _ in range(100):
                if mps.healthy():
                    break
                time.sleep(0.1)
            if not neighbour.ensure():
                break
            trials.append(trial(run, lambda: run.bare(mps, victim_argv(run, how, kind, number)), neighbour, how, kind, 1.0))
            state = trials[-1]["neighbour"]
            say(f"bare {number}: {how} {kind}: neighbour {'alive' if state['alive'] else state['error'] or 'ended'}")
            run.save("bare", {"trials": trials})
        summary = verdict(trials)
        run.end_children()
        run.save("bare", {"trials": trials, "summary": summary, "logs": mps.logs()})
    run.row("bare MPS", f"{summary['neighbour_alive_and_right']} of {summary['in_flight']} alive and right", f"longest pause ms {summary['longest_pause_ms']}")


def outlast(run):
    """Kernels of 1 s each, held for at most 0.5 s."""
    path = os.path.join(run.b.dir, "short-hold.toml")
    with open(path, "w") as f:
        f.write('[mps]\nhold_min = "200ms"\nhold_max = "500ms"\n')
    os.chmod(path, 0o600)
    check = run.gpumux("config", "check", path)
    if check[0] != 0:
        run.save("outlast", {"skipped": check})
        run.row("outlast", "not run: the configuration knows no mps.hold_max", check[1] + check[2])
        return
    before = run.b.env
    pid = run.daemon_pid()
    if pid:
        os.kill(pid, signal.SIGTERM)
        for _ in range(50):
            if not alive(pid):
                break
            time.sleep(0.1)
    run.b.env = dict(before, GPUMUX_CONFIG=path)
    trials = []
    try:
        neighbour = Neighbour(lambda: run.tenant("neighbour", [run.victims, "neighbour"], ["--mem", "4GiB"]))
        for number, kind in enumerate(("plain", "managed")):
            if not neighbour.ensure():
                break
            trials.append(trial(run, lambda: run.tenant(f"long{number}", [run.victims, "victim", "kill", kind, "4", "1000"], ["--mem", "8GiB"]),
                                neighbour, "kill", kind, 5))
            state = trials[-1]["neighbour"]
            run.row("outlast", f"4 kernels of 1 s on {kind} memory, held 0.5 s", "alive" if state["alive"] else str(state["error"]), f"longest {state['worst_ms']} ms")
            run.save("outlast", {"trials": trials})
        run.save("outlast", {"trials": trials, "events": run.data("events", "--since", "1m"), "status": run.data("status")})
    finally:
        run.end_children()
        run.b.env = before


# ---- 3 ----

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


# ---- 4 ----

def faults(run):
    rounds = []
    for what in ("illegal", "illegal", "trap", "assert", "misaligned"):
        if run.left() < 25:
            break
        number = len(rounds)
        watcher = run.tenant("plain-neighbour", [run.victims, "neighbour"], ["--mem", "4GiB"])
        neighbour = run.tenant("restarted", [run.victims, "neighbour"], ["--mem", "4GiB", "--restart", "neighbour-fault"])
        up = neighbour.event("first", 25), watcher.event("first", 25)
        if None in up:
            rounds.append({"what": what, "error": "neighbours did not start", "stderr": [neighbour.stderr(), watcher.stderr()]})
            say(f"faults: {rounds[-1]}")
            run.end_children()
            continue
        culprit = run.tenant(f"culprit{number}", [run.victims, "fault", what], ["--mem", "4GiB"])
        faulting = culprit.event("faulting", 20)
        at = faulting["at"] if faulting else time.time()
        again = neighbour.wait_for(lambda line: line.get("event") == "first" and line["at"] > at, 30)
        culprit_status, watcher_status = culprit.finish(15), watcher.finish(15)
        time.sleep(0.5)
        entry = {"what": what, "at": at, "culprit_status": culprit_status, "watcher_status": watcher_status,
                 "culprit_lines": culprit.lines, "culprit_stderr": culprit.stderr(),
                 "watcher_errors": [line for line in watcher.lines if "event" in line], "watcher_stderr": watcher.stderr(),
                 "neighbour_events": [line for line in neighbour.lines if "event" in line], "neighbour_stderr": neighbour.stderr(),
                 "runs_again_after_s": again["at"] - at if again else None,
                 "events": run.data("events", "--since", "30s"), "status": run.data("status")}
        run.end_children()
        entry["restarted_closing"] = neighbour.stderr()
        rounds.append(entry)
        named = [e.get("text") for e in entry["events"].get("events", []) if e.get("kind") in ("mps-fault", "mps-server-lost")]
        run.row("faults", what, f"runs again after {entry['runs_again_after_s']} s", f"named: {named[-1:] if named else None}")
        run.save("faults", {"rounds": rounds, "xid": kernel_log()[-20:]})


# ---- 5 ----

def cores(run):
    rounds = []
    with BareMps(run) as mps:
        for what, with_core in [(w, c) for w in ("illegal", "assert", "misaligned", "trap") for c in (False, True)]:
            if run.left() < 12:
                break
            folder = tempfile.mkdtemp(prefix="cores-", dir=run.b.dir)
            env = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
                   "CUDA_COREDUMP_FILE": folder + "/core.%p"} if with_core else {}
            for _ in range(50):
                if mps.healthy():
                    break
                time.sleep(0.1)
            neighbours = [run.bare(mps, [run.victims, "neighbour"], env) for _ in range(2)]
            up = [n.event("first", 10) for n in neighbours]
            xids = len(kernel_log())
            culprit = run.bare(mps, [run.victims, "fault", what], env)
            faulting = culprit.event("faulting", 10)
            code = culprit.finish(8)
            ends = []
            for n in neighbours:
                n.wait_for(lambda line: line.get("event") == "end", 2)
                ends.append(n.process.poll())
            pids = {"culprit": culprit.process.pid, "neighbours": [n.process.pid for n in neighbours]}
            entry = {"what": what, "cores_asked_for": with_core, "pids": pids, "started": [bool(u) for u in up] + [bool(faulting)],
                     "culprit_status": code, "culprit": [line for line in culprit.lines if line.get("event") == "error"],
                     "culprit_stderr": culprit.stderr()[-1500:], "neighbour_status": ends,
                     "neighbours": [[line for line in n.lines if line.get("event") == "error"] for n in neighbours],
                     "neighbour_stderr": [n.stderr()[-800:] for n in neighbours],
                     "cores": {os.path.basename(p): os.path.getsize(p) for p in glob.glob(folder + "/*")}, "xid": kernel_log()[xids:]}
            run.end_children()
            rounds.append(entry)
            run.row("cores", what, "cores on" if with_core else "cores off", f"culprit {pids['culprit']}: {code} {[e['code'] for e in entry['culprit']]}",
                    f"neighbours {pids['neighbours']}: {ends} {[[e['code'] for e in n] for n in entry['neighbours']]}", f"cores {entry['cores']}")
            run.save("cores", {"rounds": rounds, "logs": mps.logs()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpumux", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--budget", type=float, default=470, help="seconds for everything (default 470)")
    parser.add_argument("--repeats", type=int, default=3, help="of the rates (default 3)")
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
