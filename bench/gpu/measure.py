#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures gpumux on a machine with a GPU (or, what needs no framework, on the
software GPU) and prints short tables; raw figures go to OUT/*.json.

usage: measure.py PREFIX OUT PART [PART ...]
  PREFIX  where bin/, lib/ and bench/ of a build are
  PART    caps      promises of 40 and 60 GiB beside each other, a greedy tenant of each kind
          likeness  the same gpumux-workload runs as on the other kind of GPU
          cost      launches, allocations, PyTorch: bare and guarded in alternation
  Environment: CAPS, PAIRS, EAGER_PAIRS, START_PAIRS choose less than the whole.
"""
import ctypes
import glob
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MIB, GIB = 1 << 20, 1 << 30


class Nvml:
    """The few calls that are needed, by ctypes: no Python package assumed."""

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    class Memory(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong),
                    ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self, path="libnvidia-ml.so.1"):
        self.lib = ctypes.CDLL(path)
        self.lib.nvmlInit_v2()
        self.device = ctypes.c_void_p()
        if self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)):
            raise RuntimeError("no GPU")

    def text(self, function, *args):
        buffer = ctypes.create_string_buffer(96)
        getattr(self.lib, function)(*args, buffer, 96)
        return buffer.value.decode()

    def processes(self):
        count = ctypes.c_uint(256)
        table = (Nvml.Process * 256)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), table):
            return {}
        return {table[i].pid: table[i].used for i in range(count.value)}

    def memory(self):
        m = Nvml.Memory()
        m.version = ctypes.sizeof(Nvml.Memory) | (2 << 24)
        self.lib.nvmlDeviceGetMemoryInfo_v2(self.device, ctypes.byref(m))
        return {"total": m.total, "reserved": m.reserved, "free": m.free, "used": m.used}


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read().rsplit(b")", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0


class Sampler(threading.Thread):
    """NVML's own figure of every process, summed over each tenant, 100 times a second."""

    def __init__(self, nvml):
        super().__init__(daemon=True)
        self.nvml, self.roots, self.samples, self.over, self.peak, self.on = nvml, {}, {}, {}, {}, True
        self.owner = {}

    def watch(self, name, root_pid, cap):
        self.roots[root_pid] = (name, cap)
        self.samples[name], self.peak[name], self.over[name] = 0, 0, 0

    def tenant_of(self, pid):
        if pid not in self.owner:
            at = pid
            while at > 1 and at not in self.roots:
                at = parent(at)
            if at not in self.roots:
                return None
            self.owner[pid] = self.roots[at]
        return self.owner[pid]

    def run(self):
        tick = time.monotonic()
        while self.on:
            sums = {}
            for pid, used in self.nvml.processes().items():
                tenant = self.tenant_of(pid)
                if tenant and used != (1 << 64) - 1:
                    sums[tenant] = sums.get(tenant, 0) + used
            for (name, cap), used in sums.items():
                self.samples[name] += 1
                self.peak[name] = max(self.peak[name], used)
                self.over[name] = max(self.over[name], used - cap)
            tick += 0.01
            time.sleep(max(0, tick - time.monotonic()))


class Bench:
    def __init__(self, prefix, out):
        self.prefix, self.out = os.path.abspath(prefix), os.path.abspath(out)
        os.makedirs(self.out, exist_ok=True)
        self.dir = tempfile.mkdtemp(prefix="gpumux-bench-")
        self.env = dict(os.environ, GPUMUX_RUNTIME_DIR=os.path.join(self.dir, "run"))
        self.simulated = not os.path.exists("/dev/nvidiactl")
        soft = os.path.join(self.prefix, "lib/gpumux/softgpu")
        if self.simulated:
            self.env["GPUMUX_SOFTGPU"] = "H200"
            self.env["GPUMUX_SOFTGPU_DIR"] = os.path.join(self.dir, "gpu")
            os.makedirs(self.env["GPUMUX_SOFTGPU_DIR"])
            os.environ.update({k: self.env[k] for k in ("GPUMUX_SOFTGPU", "GPUMUX_SOFTGPU_DIR")})
        self.bare_env = dict(self.env)
        if self.simulated:
            self.bare_env["LD_LIBRARY_PATH"] = soft
        self.nvml = Nvml(os.path.join(soft, "libnvidia-ml.so.1") if self.simulated else "libnvidia-ml.so.1")
        self.log = open(os.path.join(self.out, "stderr.txt"), "ab")

    def bin(self, name):
        return os.path.join(self.prefix, "bin", name)

    def machine(self):
        return {"gpu": self.nvml.text("nvmlDeviceGetName", self.nvml.device), "simulated": self.simulated,
                "driver": self.nvml.text("nvmlSystemGetDriverVersion"), "kernel": platform.release(),
                "cpus": os.cpu_count(), "python": platform.python_version(),
                "gpumux": subprocess.run([self.bin("gpumux"), "version"], env=self.env, capture_output=True,
                                         text=True).stdout.strip(),
                "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}

    def save(self, name, data):
        # Where this repository lies on the machine is nobody's business.
        text = json.dumps({"machine": self.machine(), "data": data}, indent=1).replace(os.path.dirname(os.path.dirname(HERE)), ".")
        with open(os.path.join(self.out, name + ".json"), "w") as f:
            f.write(text + "\n")

    def run(self, mem, argv, name=None, guarded=True):
        """Starts argv as a tenant (or bare); its stdout is a pipe."""
        if guarded:
            argv = [self.bin("gpumux"), "run", "--mem", mem, "--quiet"] + (["--name", name] if name else []) + ["--"] + argv
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                env=self.env if guarded else self.bare_env)

    def json_of(self, process, limit=120):
        try:
            out, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            return {"error": "timed out"}, process.returncode
        for line in reversed(out.strip().splitlines()):
            if line.startswith("{"):
                return json.loads(line), process.returncode
        return {"error": out[-300:]}, process.returncode

    def close(self):
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as f:
                    if self.dir.encode() in f.read() and int(path.split("/")[2]) != os.getpid():
                        os.kill(int(path.split("/")[2]), signal.SIGKILL)
            except (OSError, ValueError):
                pass


def caps(b):
    """A greedy tenant of each kind under 40 GiB beside a PyTorch loop under 60 GiB."""
    kinds = os.environ.get("CAPS", "torch,torch-expandable,torch-async,jax,cupy,tensorflow").split(",")
    cap, neighbour_cap = 40 * GIB, 60 * GIB
    stop = os.path.join(b.dir, "stop")
    sampler = Sampler(b.nvml)
    neighbour = b.run("60GiB", [sys.executable, f"{HERE}/neighbour.py", stop, "20"], "neighbour")
    sampler.watch("neighbour", neighbour.pid, neighbour_cap)
    sampler.start()
    line = neighbour.stdout.readline()
    if "working" not in line:
        print("the neighbour did not start:", line)
    rows = []
    for kind in kinds:
        if kind == "tensorflow":
            argv = [b.bin("gpumux-workload"), "--like", "tensorflow", "--touch", "--seconds", "1", "--hold", "3", "--json"]
        else:
            argv = [sys.executable, f"{HERE}/greedy.py", kind, "--hold", "3"]
        p = b.run("40GiB", argv, kind)
        sampler.watch(kind, p.pid, cap)
        result, code = b.json_of(p)
        alloc = result.get("alloc") if isinstance(result.get("alloc"), dict) else {}
        rows.append({"kind": kind, "cap_bytes": cap, "samples": sampler.samples[kind], "nvml_peak_bytes": sampler.peak[kind],
                     "overshoot_bytes": max(0, sampler.over[kind]), "exit_code": code, "result": result,
                     "told_total_bytes": result.get("total_bytes"),
                     "taken_bytes": result.get("taken_bytes", alloc.get("bytes"))})
    status = subprocess.run([b.bin("gpumux"), "status", "--json"], env=b.env, capture_output=True, text=True).stdout
    open(stop, "w").close()
    told, code = b.json_of(neighbour)
    sampler.on = False
    sampler.join()
    rows.append({"kind": "neighbour", "cap_bytes": neighbour_cap, "samples": sampler.samples["neighbour"],
                 "nvml_peak_bytes": sampler.peak["neighbour"], "overshoot_bytes": max(0, sampler.over["neighbour"]),
                 "exit_code": code, "result": told, "told_total_bytes": told.get("total_bytes")})
    b.save("caps", {"rows": rows, "status": json.loads(status) if status else None})
    print(f"{'tenant':18} {'cap GiB':>8} {'told GiB':>9} {'taken GiB':>9} {'NVML peak GiB':>14} {'overshoot B':>12} {'samples':>8}  error")
    for r in rows:
        told_gib = r["told_total_bytes"] / GIB if r["told_total_bytes"] else float("nan")
        taken = r.get("taken_bytes")
        print(f"{r['kind']:18} {r['cap_bytes'] / GIB:8.0f} {told_gib:9.3f} {(taken or 0) / GIB:9.3f} {r['nvml_peak_bytes'] / GIB:14.4f}"
              f" {r['overshoot_bytes']:12d} {r['samples']:8d}  {r['result'].get('error_class', r['result'].get('error', '-'))}"
              f" {r['result'].get('work_at_the_brim', '')} exit {r['exit_code']}")
    print("neighbour:", json.dumps({k: v for k, v in told.items() if k != "which"}))


LIKENESS = [
    ["--alloc", "1KiB", "--alloc-count", "2"], ["--alloc", "684KiB", "--alloc-count", "64"], ["--alloc", "3MiB", "--alloc-count", "4"],
    ["--alloc", "1000MiB"], ["--alloc", "95MiB", "--alloc-api", "pitch"],
    ["--alloc", "5MiB", "--alloc-api", "async", "--alloc-count", "10"], ["--alloc", "1000MiB", "--alloc-api", "async"],
    ["--alloc", "5MiB", "--alloc-api", "pool", "--alloc-count", "10"], ["--alloc", "1000MiB", "--alloc-api", "pool"],
    ["--alloc", "6MiB", "--alloc-api", "vmm", "--alloc-count", "10"], ["--alloc", "1000MiB", "--alloc-api", "vmm"],
    ["--alloc", "100MiB", "--alloc-api", "managed", "--touch"], ["--alloc", "200GiB"], ["--alloc", "200GiB", "--alloc-api", "vmm"],
    ["--alloc", "200GiB", "--alloc-api", "async"], ["--like", "tensorflow"], ["--like", "jax"],
    ["--like", "pytorch", "--alloc", "4GiB"], ["--alloc", "64MiB", "--verify"],
]


def likeness(b):
    """Memory and time of the same workload runs, bare. Compare two outputs with compare_likeness.py."""
    rows = []
    for args in LIKENESS:
        p = b.run("", [b.bin("gpumux-workload"), "--seconds", "0.05", "--kernel-us", "200", "--report-memory", "--json"] + args,
                  guarded=False)
        result, code = b.json_of(p)
        rows.append({"args": args, "exit_code": code, "result": result})
    timing = []
    for kernel_us in (500, 5000):
        for clients in (1, 2, 4):
            at = str(time.time() + 1.5)
            ps = [b.run("", [b.bin("gpumux-workload"), "--kernel-us", str(kernel_us), "--blocks", "33", "--threads", "1024",
                             "--seconds", "2", "--start-at", at, "--json"], guarded=False) for _ in range(clients)]
            results = [b.json_of(p)[0] for p in ps]
            timing.append({"kernel_us": kernel_us, "clients": clients, "results": results})
    b.save("likeness", {"rows": rows, "timing": timing})
    for t in timing:
        rates = [r.get("rate_per_s", 0) for r in t["results"]]
        alone = next(sum(r.get("rate_per_s", 0) for r in u["results"]) for u in timing
                     if u["kernel_us"] == t["kernel_us"] and u["clients"] == 1)
        print(f"kernel {t['kernel_us']:5d} us, {t['clients']} clients: {', '.join(f'{r:.0f}' for r in rates)} /s, sum {sum(rates) / alone if alone else 0:.3f} of alone")


def bootstrap(values, rounds=4000):
    """Median and its 95 % interval, by resampling."""
    pick = random.Random(1)
    values = sorted(values)
    if not values:
        return {"n": 0}
    medians = sorted(sorted(pick.choices(values, k=len(values)))[len(values) // 2] for _ in range(rounds))
    return {"n": len(values), "median": values[len(values) // 2], "low95": medians[int(rounds * 0.025)],
            "high95": medians[int(rounds * 0.975)], "min": values[0], "max": values[-1]}


def cost(b):
    """Bare and guarded in alternation; differences within each pair."""
    pairs = int(os.environ.get("PAIRS", "16"))
    out = {"guard_cost": [], "eager": [], "start": []}

    def both(argv, mem):
        order = [False, True]
        if len(both.seen) % 2:
            order.reverse()
        both.seen.append(1)
        got = {}
        for guarded in order:
            args = [str(time.time()) if a == "NOW" else a for a in argv]
            got[guarded], _ = b.json_of(b.run(mem, args, guarded=guarded))
        return {"bare": got[False], "guarded": got[True]}

    both.seen = []
    b.json_of(b.run("8GiB", [b.bin("gpumux-workload"), "--seconds", "0.1", "--json"]))  # the daemon is up, caches are warm
    for _ in range(pairs):
        out["guard_cost"].append(both([os.path.join(b.prefix, "bench/guard_cost"), "--bursts", "1000"], "8GiB"))
    if not b.simulated:
        for _ in range(int(os.environ.get("EAGER_PAIRS", "4"))):
            out["eager"].append(both([sys.executable, f"{HERE}/eager.py", "NOW", "600"], "20GiB"))
        for _ in range(int(os.environ.get("START_PAIRS", "6"))):
            out["start"].append(both([sys.executable, f"{HERE}/eager.py", "NOW", "0"], "20GiB"))

    def difference(rows, key):
        return bootstrap([r["guarded"][key] - r["bare"][key] for r in rows if key in r["guarded"] and key in r["bare"]])

    def bare(rows, key):
        return bootstrap([r["bare"][key] for r in rows if key in r["bare"]])

    lines = [("launch, ns", out["guard_cost"], "launch_ns"), ("cuMemAlloc+cuMemFree 1 MiB, ns", out["guard_cost"], "alloc_free_ns"),
             ("driver initialisation, ns", out["guard_cost"], "init_ns"), ("context, ns", out["guard_cost"], "context_ns"),
             ("start to first kernel, ns", out["guard_cost"], "first_kernel_ns"),
             ("ResNet-50 eager p10, ms", out["eager"], "p10_ms"), ("ResNet-50 eager p50, ms", out["eager"], "p50_ms"),
             ("ResNet-50 eager mean, ms", out["eager"], "mean_ms"),
             ("PyTorch import to first kernel, s", out["eager"] + out["start"], "import_to_first_kernel_s"),
             ("PyTorch start to first kernel, s", out["eager"] + out["start"], "to_first_kernel_s")]
    out["summary"] = {}
    print(f"{'what':36} {'bare (median)':>14} {'added (median)':>15} {'95 % of added':>24} {'pairs':>6}")
    for title, rows, key in lines:
        d, base = difference(rows, key), bare(rows, key)
        out["summary"][title] = {"added": d, "bare": base}
        if d["n"]:
            print(f"{title:36} {base['median']:14.4f} {d['median']:15.4f} {d['low95']:11.4f} ..{d['high95']:11.4f} {d['n']:6d}")
    inside = [r["guarded"] for r in out["guard_cost"] if r["guarded"].get("added_pairs", [0])[0]]
    for title, key in (("launch", "added_launch_ns"), ("cuMemAlloc+cuMemFree 1 MiB", "added_alloc_free_ns")):
        if inside:
            medians = bootstrap([r[key][0] for r in inside])
            out["summary"][f"{title}, alternating in one process, ns added"] = {"processes": medians, "each": [r[key] for r in inside]}
            print(f"{title}, alternating within one process: {medians['median']:.1f} ns added "
                  f"({medians['low95']:.1f} .. {medians['high95']:.1f} over {medians['n']} processes, "
                  f"{inside[0]['added_pairs'][0 if 'launch' in key else 1]} pairs each)")
    b.save("cost", out)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    b = Bench(sys.argv[1], sys.argv[2])
    try:
        print(json.dumps(b.machine()))
        for part in sys.argv[3:]:
            if not re.fullmatch("caps|likeness|cost", part):
                sys.exit(f"measure.py: unknown part {part}")
            print(f"--- {part}")
            began = time.time()
            globals()[part](b)
            print(f"({time.time() - began:.0f} s)", flush=True)
    finally:
        b.close()


if __name__ == "__main__":
    main()
