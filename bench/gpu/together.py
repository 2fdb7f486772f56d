# SPDX-License-Identifier: Apache-2.0
"""Programs that run at the same time under gpumux, for the benchmarks of sharing (gate.py, turns.py)."""
import ctypes
import json
import os
import subprocess
import threading
import time

from measure import Bench

STARTED = time.monotonic()

# Ways for a latency-critical program to share with a best-effort one: `run`'s options of both.
ARRANGEMENTS = {
    "timeslice": (["--mode", "timeslice"], ["--mode", "timeslice"]),
    "mps": (["--mode", "mps"], ["--mode", "mps"]),
    "mps-half": (["--mode", "mps"], ["--mode", "mps", "--share", "50%"]),
    "gate-timeslice": (["--mode", "timeslice", "--priority", "latency"], ["--mode", "timeslice", "--priority", "best-effort"]),
    "gate-turns": (["--mode", "turns", "--priority", "latency"], ["--mode", "turns", "--priority", "best-effort"]),
    "gate-mps": (["--mode", "mps", "--priority", "latency"], ["--mode", "mps", "--priority", "best-effort"]),
    "gate-mps-60": (["--mode", "mps", "--priority", "latency"], ["--mode", "mps", "--priority", "best-effort", "--share", "60%"]),
    "gate-mps-half": (["--mode", "mps", "--priority", "latency"], ["--mode", "mps", "--priority", "best-effort", "--share", "50%"]),
}


def say(text):
    print(f"[{time.monotonic() - STARTED:6.1f}] {text}", flush=True)


class Clocks(threading.Thread):
    """The SM clock (MHz) and the power (W), twenty times a second: a GPU that works hard lowers its clock, for everybody."""

    def __init__(self, nvml):
        super().__init__(daemon=True)
        self.nvml, self.seen = nvml, []
        self.start()

    def run(self):
        mhz, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        while True:
            if self.nvml.lib.nvmlDeviceGetClockInfo(self.nvml.device, 1, ctypes.byref(mhz)) != 0:
                return
            self.nvml.lib.nvmlDeviceGetPowerUsage(self.nvml.device, ctypes.byref(milliwatts))
            self.seen.append((time.time(), mhz.value, milliwatts.value / 1e3))
            time.sleep(0.05)

    def between(self, start, end):
        inside = [(mhz, watts) for at, mhz, watts in self.seen if start <= at <= end]
        if not inside:
            return None
        return {"sm_mhz_mean": round(sum(m for m, _ in inside) / len(inside)), "sm_mhz_least": min(m for m, _ in inside),
                "watts_mean": round(sum(w for _, w in inside) / len(inside))}


class Together:
    def __init__(self, args):
        self.args = args
        self.b = Bench(os.path.dirname(os.path.dirname(os.path.abspath(args.gpumux))), args.out)
        self.left_out, self.rows = [], []
        self.clocks = Clocks(self.b.nvml) if hasattr(self.b.nvml.lib, "nvmlDeviceGetClockInfo") else None

    def time_for(self, what, seconds):
        """Whether a cell that takes `seconds` still ends in time; else it is noted as left out."""
        if time.monotonic() - STARTED + seconds <= self.args.budget:
            return True
        self.left_out.append(what)
        return False

    def gate_budget(self, us):
        """gate.budget_us of the next daemon: settings are read when it starts, and the next tenant starts one."""
        self.b.close()
        path = os.path.join(self.b.dir, "config.toml")
        with open(path, "w") as f:
            f.write(f"gate.budget_us = {us}\n")
        self.b.env["GPUMUX_CONFIG"] = path

    def workload(self, *options):
        return [self.b.bin("gpumux-workload"), "--json", *map(str, options)]

    def start(self, name, argv, *options, mem="8GiB", env=(), stdin=None):
        """argv as tenant `name`, with `run`'s options; without options (None) outside gpumux."""
        bare = options == (None,)
        if not bare:
            argv = [self.b.bin("gpumux"), "run", "--mem", mem, "--quiet", "--name", name, *options, "--"] + argv
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=self.b.log, stdin=stdin, text=True,
                                env={**(self.b.bare_env if bare else self.b.env), **dict(env)})

    def together(self, jobs, seconds):
        """[(name, argv, options)], loads that start together: each one's report, and the tenants as the daemon saw them at two thirds."""
        at = time.time() + 2 + 0.4 * len(jobs)
        started = [self.start(name, argv + ["--start-at", f"{at:.3f}"], *options) for name, argv, options in jobs]
        time.sleep(max(0, at + seconds * 2 / 3 - time.time()))
        tenants = self.tenants()
        self.seen_clocks = self.clocks.between(at, time.time()) if self.clocks else None
        reports = []
        for process in started:
            report, status = self.b.json_of(process, limit=60)
            report["exit_status_seen"] = status
            reports.append(report)
        return reports, tenants

    def tenants(self):
        shown = subprocess.run([self.b.bin("gpumux"), "ps", "--json"], env=self.b.env, capture_output=True, text=True).stdout
        try:
            return {t["name"]: {k: t.get(k) for k in ("gate", "gpu_time", "turns", "mode", "priority") if t.get(k) is not None}
                    for t in json.loads(shown)["data"]["tenants"]}
        except (ValueError, KeyError):
            return {"error": shown[-200:]}

    def table(self, title):
        print("\n" + title)
        for row in self.rows:
            print(" | ".join(map(str, row)))
        for what in self.left_out:
            print("left out for time:", what)


def arguments(parser):
    """What every such benchmark takes."""
    parser.add_argument("--gpumux", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--budget", type=float, default=3600, help="seconds; cells that would end later are left out, and named")
    parser.add_argument("--seconds", type=float, default=4)
    return parser
