#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `gpumux top` takes of a processor at one sample a second, and how much it sends to its terminal.

usage: top_cost.py PREFIX [TENANTS] [SECONDS]     (100, 30)
Two of the tenants take turns on the GPU all the time, the others only hold a promise. One JSON object: of each size of the terminal,
percent of one core and bytes a second. On a machine without a GPU the software GPU stands in.
"""
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

prefix = os.path.abspath(sys.argv[1])
tenants = int(sys.argv[2]) if len(sys.argv) > 2 else 100
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 30
work = tempfile.mkdtemp(prefix="gpumux-cost-")
env = dict(os.environ, GPUMUX_RUNTIME_DIR=os.path.join(work, "run"), LC_ALL="C.UTF-8", TERM="xterm-256color")
simulated = not os.path.exists("/dev/nvidiactl")
if simulated:
    env.update(GPUMUX_SOFTGPU="H200", GPUMUX_SOFTGPU_DIR=os.path.join(work, "gpu"))


def status():
    done = subprocess.run([f"{prefix}/bin/gpumux", "status", "--json"], env=env, capture_output=True, text=True)
    return json.loads(done.stdout)["data"]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drain(fd, until):
    sent = 0
    while (left := until - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            sent += len(os.read(fd, 1 << 16))
    return sent


def measure(width, height):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    top = subprocess.Popen([f"{prefix}/bin/gpumux", "top"], env=env, stdin=theirs, stdout=theirs, start_new_session=True)
    os.close(theirs)
    drain(ours, time.monotonic() + 3)  # the first screen, and the events before it
    before, start = cpu_seconds(top.pid), time.monotonic()
    sent = drain(ours, start + seconds)
    used, took = cpu_seconds(top.pid) - before, time.monotonic() - start
    os.write(ours, b"q")
    if top.wait(10) != 0:
        sys.exit(f"gpumux top ended with {top.returncode}")
    os.close(ours)
    return {"percent_of_a_core": round(100 * used / took, 3), "bytes_per_second": round(sent / took)}


started = []
try:
    for i in range(tenants):
        program = ["sleep", "100000"]
        if i < 2:
            program = [f"{prefix}/bin/gpumux-workload", "--alloc", "64MiB", "--kernel-us", "5000", "--seconds", "100000"]
        started.append(subprocess.Popen(
            [f"{prefix}/bin/gpumux", "run", "--quiet", "--mem", "1GiB", "--mode", "turns", "--name", f"t{i}", "--", *program],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    until = time.monotonic() + 120
    while len(status()["tenants"]) < tenants:
        if time.monotonic() > until:
            sys.exit("not all tenants run after 120 s")
        time.sleep(0.5)
    print(json.dumps({"tenants": tenants, "seconds": seconds, "simulated": simulated,
                      **{f"{w}x{h}": measure(w, h) for w, h in ((80, 24), (200, 50))}}))
finally:
    daemon = status()["daemon"]
    for process in started:
        process.terminate()
    for process in started:
        process.wait(30)
    if daemon:
        os.kill(daemon["pid"], 15)
