#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What sharing does, seen: one scenario on a machine with a GPU, told by gpumux and by nvidia-smi side by side.

usage: seen.py --gpumux PREFIX/bin/gpumux --out DIR [--seconds S]
A training works alone; then beside it a second training, a server (latency-critical), and a notebook that holds memory and does
nothing; then also a greedy job that asks for more than its promise, a job that waits for room, and a stranger outside gpumux.
Each phase lasts S seconds. The programs are PyTorch's (torch_programs.py, taker.py). Writes DIR/seen.json (figures), DIR/screens.txt
(`gpumux top --once`, `status`, `history`, `events` and what nvidia-smi says, phase by phase) and DIR/metrics.txt (`/metrics`).
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

from together import Together, arguments, say
from torch_mix import HERE, Latency, Training

GIB = 1 << 30


class Utilisation(threading.Thread):
    """What nvidia-smi shows: the GPU's utilisation and memory in use, ten times a second (its own source, NVML)."""

    def __init__(self, nvml):
        super().__init__(daemon=True)
        self.nvml, self.seen = nvml, []
        self.start()

    def run(self):
        import ctypes

        both = (ctypes.c_uint * 2)()
        while True:
            if self.nvml.lib.nvmlDeviceGetUtilizationRates(self.nvml.device, both) == 0:
                self.seen.append((time.time(), both[0], self.nvml.memory()["used"]))
            time.sleep(0.1)

    def between(self, start, end):
        inside = [(busy, used) for at, busy, used in self.seen if start <= at <= end]
        if not inside:
            return None
        return {"utilisation_mean_percent": round(statistics.mean(busy for busy, _ in inside), 1),
                "utilisation_least_percent": min(busy for busy, _ in inside), "mem_used_gib": round(inside[-1][1] / GIB, 2)}


class Taker:
    """taker.py as tenant, or outside gpumux (options None)."""

    def __init__(self, run, name, *options, mem="16GiB"):
        argv = [sys.executable, f"{HERE}/taker.py"] + (["--driver"] if run.b.simulated else [])
        self.process = run.start(name, argv, *options, mem=mem, stdin=subprocess.PIPE)

    def ready(self):
        return json.loads(self.process.stdout.readline())

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def quit(self):
        self.process.stdin.close()
        return self.process.wait(30)


class Screens:
    """What an operator would have seen, one after the other in one file."""

    def __init__(self, run):
        self.run, self.file = run, open(os.path.join(run.args.out, "screens.txt"), "w")

    def show(self, title, *command, columns=132, lines=40):
        env = dict(self.run.b.env, COLUMNS=str(columns), LINES=str(lines), LC_ALL="C.UTF-8")
        shown = subprocess.run(command, env=env, capture_output=True, text=True)
        self.file.write(f"==== {title}\n$ {' '.join([os.path.basename(command[0]), *command[1:]])}\n{shown.stdout}{shown.stderr}\n")
        self.file.flush()
        return shown.stdout

    def all(self, phase):
        gpumux = self.run.b.bin("gpumux")
        self.show(f"{phase}: gpumux top", gpumux, "top", "--once")
        self.show(f"{phase}: gpumux status", gpumux, "status")
        if not self.run.b.simulated:
            self.show(f"{phase}: nvidia-smi", "nvidia-smi", "--query-gpu=name,utilization.gpu,utilization.memory,memory.used,memory.total",
                      "--format=csv")
            self.show(f"{phase}: nvidia-smi, programs", "nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv")


def metrics(run):
    """The daemon's answer to GET /metrics, on its Unix socket."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(os.path.join(run.b.env["GPUMUX_RUNTIME_DIR"], "sim" if run.b.simulated else "", "api.sock"))
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = b""
        while piece := s.recv(1 << 16):
            text += piece
    return text.decode().partition("\r\n\r\n")[2]


def json_of(run, *command):
    shown = subprocess.run([run.b.bin("gpumux"), *command, "--json"], env=run.b.env, capture_output=True, text=True).stdout
    try:
        return json.loads(shown)["data"]
    except ValueError:
        return {"error": shown[-300:]}


def figures(run, phase, seconds, screens, trainings, server=None, solo=None):
    """A window of work: the rate of each program, and what both tools say in the midst of it."""
    start = time.time() + 0.5
    look = threading.Timer(0.5 + seconds / 3, screens.all, [phase])
    look.start()
    for each in trainings:
        each.order(**{"from": start, "to": start + seconds})
    got = {}
    if server:
        got["server"], _ = server.requests("graph", 0.2, solo, seconds)
    for each in trainings:
        got[each.name] = each.line(seconds + 60)
    look.join()
    return {"phase": phase, "programs": got, "nvidia_smi": run.utilisation.between(start, start + seconds), "status": json_of(run, "status"),
            "ps": run.tenants()}


def scenario(run):
    seconds, screens, phases = run.args.seconds, Screens(run), []
    mps, best_effort = ["--mode", "mps"], ["--mode", "mps", "--priority", "best-effort"]

    def phase(name, *programs, **more):
        phases.append(figures(run, name, seconds, screens, *programs, **more))
        say(f"{name}: {phases[-1]['nvidia_smi']}, {phases[-1]['programs']}")
        run.b.save("seen", {"phases": phases})

    with Training(run, "resnet", "resnet", *best_effort) as resnet:
        resnet.wait_ready()
        resnet.window(1)
        phase("a training alone", [resnet])
        with Latency(run, "server", "--mode", "mps", "--priority", "latency", mem="10GiB") as server:
            solo = server.wait_ready()["solo"]["graph"]
            with Training(run, "encoder", "encoder", *best_effort, mem="30GiB") as encoder:
                notebook = Taker(run, "notebook", *mps, "--label", "kernel=python3", mem="16GiB")
                notebook.ready()
                notebook.do("take 8")
                encoder.wait_ready()
                phase("two trainings, a server, a notebook", [resnet, encoder], server=server, solo=solo)
                later = crowd(run, phase, resnet, encoder, server, solo, screens)
            later["waiting"].ready()
            screens.show("the second training has ended: gpumux top", run.b.bin("gpumux"), "top", "--once")
            subprocess.run([run.b.bin("gpumux"), "stop", "notebook"], env=run.b.env, stdout=screens.file, stderr=screens.file)
            later["waiting"].quit()
    wait_for_all(run)
    ended(run, phases, screens)


def wait_for_all(run):
    """Until no tenant is left: what dies at work is told when the driver has let go of it."""
    give_up = time.monotonic() + 30
    while run.tenants() and time.monotonic() < give_up:
        time.sleep(0.1)


def crowd(run, phase, resnet, encoder, server, solo, screens):
    """Somebody greedy, somebody who waits, somebody outside."""
    stranger = subprocess.Popen(run.workload("--alloc", "20GiB", "--touch", "--kernel-us", 500, "--seconds", 3 * run.args.seconds + 6),
                                env=run.b.bare_env, stdout=subprocess.DEVNULL, stderr=run.b.log)
    greedy = Taker(run, "greedy", "--mode", "mps", mem="10GiB")
    greedy.ready()
    refused = greedy.do("take 40")
    say(f"greedy: {refused}")
    waiting = Taker(run, "late", "--mode", "mps", mem="60GiB")
    phase("and a greedy job, one that waits, a stranger", [resnet, encoder], server=server, solo=solo)
    with open(os.path.join(run.args.out, "metrics.txt"), "w") as f:
        f.write(metrics(run))
    screens.show("why does it wait: gpumux explain", run.b.bin("gpumux"), "explain", "late")
    greedy.process.stdin.write("fail\n")
    greedy.quit()
    stranger.terminate()
    stranger.wait(30)
    return {"waiting": waiting, "refused": refused}


def ended(run, phases, screens):
    gpumux = run.b.bin("gpumux")
    screens.show("all have ended: gpumux history", gpumux, "history", columns=160)
    screens.show("gpumux history --gpu", gpumux, "history", "--gpu", "all", columns=160)
    screens.show("gpumux events", gpumux, "events", columns=160)
    run.b.save("seen", {"phases": phases, "history": json_of(run, "history"), "events": json_of(run, "events"),
                        "gpu_history": json_of(run, "history", "--gpu", "all")})
    screens.file.close()
    for p in phases:
        smi, programs = p["nvidia_smi"] or {}, p["programs"]
        rates = ", ".join(f"{name} {got['steps_per_s']:.1f} steps/s" if "steps_per_s" in got else f"{name} p99 {got['service_p99_ms']:.2f} ms"
                          for name, got in programs.items())
        run.rows.append((p["phase"], f"{smi.get('utilisation_mean_percent')} %", f"{smi.get('mem_used_gib')} GiB", rates))


def main():
    parser = arguments(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.set_defaults(seconds=8)
    run = Together(parser.parse_args())
    path = os.path.join(run.b.dir, "config.toml")
    with open(path, "w") as f:
        f.write('idle.policy = "notify"\nidle.after = "10s"\n')
    run.b.env["GPUMUX_CONFIG"] = path
    run.utilisation = Utilisation(run.b.nvml)
    try:
        scenario(run)
    finally:
        run.b.close()
    run.table("phase | GPU utilisation (nvidia-smi) | memory in use | what the programs got")


if __name__ == "__main__":
    sys.exit(main())
