# SPDX-License-Identifier: Apache-2.0
"""The PyTorch programs of torch_programs.py as tenants, for turns.py and gate_torch.py."""
import json
import os
import select
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Program:
    def __init__(self, run, name, role, *options, mem="24GiB", env=()):
        self.name = name
        self.process = run.start(name, [sys.executable, f"{HERE}/torch_programs.py", *role], *options, mem=mem, env=env, stdin=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.process.stdin.close()
            self.process.wait(timeout=15)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait()

    def line(self, limit):
        """The next object that the program says."""
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise RuntimeError(f"{self.name}: nothing said in {limit:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}")
        said = json.loads(line)
        if said.get("event") == "error":
            raise RuntimeError(f"{self.name}: {said['what']}")
        return said

    def order(self, **fields):
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()

    def wait_ready(self, limit=90):
        self.ready = self.line(limit)
        return self.ready


class Training(Program):
    def __init__(self, run, name, kind, *options, **more):
        super().__init__(run, name, ["training", kind], *options, **more)

    def window(self, seconds):
        return Training.windows([self], seconds)[0]

    @staticmethod
    def windows(programs, seconds):
        """Steps of each in the same stretch of time."""
        start = time.time() + 0.5
        for p in programs:
            p.order(**{"from": start, "to": start + seconds})
        return [p.line(seconds + 60) for p in programs]


class Latency(Program):
    def __init__(self, run, name, *options, **more):
        super().__init__(run, name, ["latency"], *options, **more)

    def requests(self, kind, load, solo, seconds, prepare=0, hint=False, beside=None):
        """A window of requests, and of the training beside it: (requests, steps or None)."""
        start = time.time() + 0.5
        window = {"from": start, "to": start + seconds}
        if beside:
            beside.order(**window)
        self.order(kind=kind, load=load, solo=solo, prepare=prepare, hint=hint, **window)
        got = self.line(seconds + 60)
        return got, beside.line(60) if beside else None
