# SPDX-License-Identifier: Apache-2.0
"""What the parts of mps.py have in common: tenants whose lines are kept, a bare MPS beside gpumux, a neighbour that checks."""
import glob
import json
import os
import signal
import subprocess
import tempfile
import threading
import time

from measure import Bench

HERE = os.path.dirname(os.path.abspath(__file__))


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
        self.repeats, self.faults, self.children = args.repeats, args.faults, []
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
