#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gpumuxd takes of a processor with many tenants: left alone, asked once a second for status and tenants, and for metrics.

usage: daemon_cost.py PREFIX [TENANTS] [SECONDS]     (100, 20)
Each tenant is a program with a context that holds memory. One JSON object: percent of one core. On a machine without a GPU the
software GPU stands in: what its NVML takes in the daemon is in the figures.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

prefix = os.path.abspath(sys.argv[1])
tenants = int(sys.argv[2]) if len(sys.argv) > 2 else 100
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20
work = tempfile.mkdtemp(prefix="gpumux-cost-")
env = dict(os.environ, GPUMUX_RUNTIME_DIR=os.path.join(work, "run"))
simulated = not os.path.exists("/dev/nvidiactl")
if simulated:
    env.update(GPUMUX_SOFTGPU="H200", GPUMUX_SOFTGPU_DIR=os.path.join(work, "gpu"))


def gpumux(*args):
    return subprocess.run([f"{prefix}/bin/gpumux", *args], env=env, capture_output=True, text=True)


def daemon_pid():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if work.encode() in f.read() and os.readlink(f"/proc/{pid}/exe").endswith("/gpumuxd"):
                    return int(pid)
        except OSError:
            pass
    return None


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def get(path):
    api = os.path.join(work, "run", "sim" if simulated else ".", "api.sock")
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(api)
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: gpumux\r\nConnection: close\r\n\r\n".encode())
        body = b""
        while got := s.recv(1 << 16):
            body += got
    return body


def measure(pid, paths):
    before, start = cpu_seconds(pid), time.monotonic()
    ask = start
    while time.monotonic() - start < seconds:
        for path in paths:
            if b" 200 " not in get(path)[:20]:
                sys.exit(f"{path} was not answered")
        ask += 1
        time.sleep(max(0, ask - time.monotonic()))
    return round(100 * (cpu_seconds(pid) - before) / (time.monotonic() - start), 3)


started = []
try:
    for i in range(tenants):
        started.append(subprocess.Popen(
            [f"{prefix}/bin/gpumux", "run", "--quiet", "--mem", "1GiB", "--name", f"t{i}", "--", f"{prefix}/bin/gpumux-workload", "--alloc",
             "64MiB", "--seconds", "0.01", "--hold", "100000"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    until = time.monotonic() + 120
    while True:
        held = sum(t["mem_used_bytes"] > 0 for t in json.loads(gpumux("status", "--json").stdout or '{"data":{"tenants":[]}}')["data"]["tenants"])
        if held == tenants:
            break
        if time.monotonic() > until:
            sys.exit(f"{held} of {tenants} tenants hold memory after 120 s")
        time.sleep(0.5)
    time.sleep(3)
    pid = daemon_pid()
    out = {"tenants": tenants, "seconds": seconds, "simulated": simulated, "left_alone_percent": measure(pid, []),
           "status_and_tenants_percent": measure(pid, ["/v1/status", "/v1/tenants"])}
    if b" 200 " in get("/metrics")[:20]:
        out["metrics_percent"] = measure(pid, ["/metrics"])
    print(json.dumps(out))
finally:
    gpumux("stop", "--all", "--grace", "1s")
    for process in started:
        process.kill()
    if pid := daemon_pid():
        os.kill(pid, 15)
