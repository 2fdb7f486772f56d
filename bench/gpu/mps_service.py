#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MPS as gpumux runs it, on a machine with a GPU: kept, adopted, and more clients than it has places.

usage: mps_service.py --gpumux PREFIX/bin/gpumux --out DIR
  kept      `mps start`, a tenant, the daemon is killed, `mps stop`: nothing of MPS is left
  adopted   a control daemon started by hand: named, in the way, adopted, its server serves a tenant, let go alive
  places    one tenant with more processes than the server has client places: all of them get their context in turn
Writes DIR/mps-service.json. Changes no setting of the GPU. Exit 1: a step did not do what it should.
"""
import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STEPS = []


def client(seconds):
    """A process that has a context for so long; prints what cuCtxCreate said and how long it took."""
    cuda = ctypes.CDLL("libcuda.so.1")
    begin = time.monotonic()
    code = cuda.cuInit(0)
    context = ctypes.c_void_p()
    if code == 0:
        code = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    took = time.monotonic() - begin
    time.sleep(seconds if code == 0 else 0)
    if code == 0:
        cuda.cuDevicePrimaryCtxRelease_v2(0)
    print(json.dumps({"code": code, "seconds": round(took, 3)}), flush=True)


def crowd(processes, seconds):
    """So many clients at once, in one tenant."""
    children = [subprocess.Popen([sys.executable, __file__, "--client", str(seconds)], stdout=subprocess.PIPE, text=True)
                for _ in range(processes)]
    print(json.dumps([json.loads(child.communicate()[0] or "{}") for child in children]), flush=True)


class Box:
    def __init__(self, gpumux):
        self.gpumux = gpumux
        self.dir = tempfile.mkdtemp(prefix="gmx.", dir="/tmp")
        self.env = dict(os.environ, GPUMUX_RUNTIME_DIR=self.dir + "/r")
        os.mkdir(self.dir + "/r", 0o700)
        self.children = []

    def run(self, *arguments, limit=60):
        return subprocess.run([self.gpumux, *arguments], env=self.env, capture_output=True, text=True, timeout=limit)

    def mps(self, *arguments):
        done = self.run("mps", *arguments, "--json")
        return json.loads(done.stdout)["data"] if done.returncode == 0 else {"failed": done.stdout + done.stderr}

    def start(self, argv, env=None):
        child = subprocess.Popen(argv, env=env or self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    def tenant(self, *program, options=()):
        return self.start([self.gpumux, "run", "--mode", "mps", "--mem", "4GiB", *options, "--", sys.executable, __file__, *program])

    def daemon(self):
        """Its own, and nobody else's."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm") as comm, open(f"/proc/{pid}/environ", "rb") as environ:
                    if comm.read().strip() == "gpumuxd" and f"GPUMUX_RUNTIME_DIR={self.dir}/r".encode() in environ.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def end(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
        self.run("mps", "stop")
        for pid in self.daemon():
            os.kill(pid, signal.SIGTERM)
        time.sleep(1)
        shutil.rmtree(self.dir, ignore_errors=True)


def step(name, right, **seen):
    STEPS.append({"step": name, "right": bool(right), **seen})
    print(f"{'ok   ' if right else 'WRONG'} {name}: {json.dumps(seen)[:300]}", flush=True)


def until(condition, limit=30):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kept(box):
    # A daemon of before may still have the GPU.
    until(lambda: "domains" in box.mps("start"), 60)
    box.mps("stop")
    begin = time.monotonic()
    started = box.mps("start")
    took = round(time.monotonic() - begin, 2)
    domain = (started.get("domains") or [{}])[0]
    step("start", domain.get("state") == "active" and domain.get("kept"), seconds=took, domain=domain or started)
    tenant = box.tenant("--client", "3")
    step("a tenant joins it", until(lambda: (box.mps()["domains"][0]["tenants"])))
    for pid in box.daemon():
        os.kill(pid, signal.SIGKILL)
    out = tenant.communicate()[0]
    step("the tenant outlives the daemon", json.loads(out or "{}").get("code") == 0, out=out)
    after = box.mps()
    step("the next daemon keeps it", after.get("domains") and after["domains"][0]["control_pid"] == domain.get("control_pid")
         and after["domains"][0]["kept"], after=after)
    begin = time.monotonic()
    stopped = box.mps("stop")
    step("stop", stopped.get("domains") == [] and until(lambda: not lives(domain.get("control_pid"))),
         seconds=round(time.monotonic() - begin, 2))


def adopted(box):
    pipe, log = box.dir + "/theirs", box.dir + "/theirs-log"
    os.mkdir(pipe)
    os.mkdir(log)
    env = dict(box.env, CUDA_MPS_PIPE_DIRECTORY=pipe, CUDA_MPS_LOG_DIRECTORY=log)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=env, check=True, timeout=30)
    theirs = [each for each in box.mps()["foreign"] if each["pipe_dir"] == pipe]
    step("a control daemon of somebody is named", len(theirs) == 1, foreign=theirs)
    pid = theirs[0]["pid"] if theirs else 0
    # A client first: only then there is a server on the GPU.
    outside = box.start([sys.executable, __file__, "--client", "90"], env)

    def refused():
        done = box.run("run", "--mode", "mps", "--mem", "1GiB", "--no-wait", "--", "/bin/true")
        return done.returncode == 4 and "another MPS server" in done.stderr
    step("its server is in the way of mode mps", until(refused))
    begin = time.monotonic()
    taken = box.mps("adopt", "--pid", str(pid))
    step("adopted", taken.get("domains") and taken["domains"][0]["control_pid"] == pid, seconds=round(time.monotonic() - begin, 2), taken=taken)
    tenant = box.tenant("--client", "3", options=["--strict"])
    out, err = tenant.communicate(timeout=60)
    step("it serves a strict tenant", json.loads(out or "{}").get("code") == 0, out=out, err=err[-300:])
    step("let go", until(lambda: box.mps("stop").get("domains") == [] or "failed" in box.mps("stop")))
    step("it lives, with its client", lives(pid) and outside.poll() is None)
    outside.kill()
    outside.wait()
    subprocess.run(["nvidia-cuda-mps-control"], env=env, input="quit\n", text=True, capture_output=True, timeout=60)
    step("and ends as its owner says", until(lambda: not lives(pid)))


def places(box, processes=56, seconds=4):
    begin = time.monotonic()
    tenant = box.tenant("--crowd", str(processes), str(seconds), options=["--mem", "100GiB", "--processes", "4"])
    waiting = []

    def look():
        data = json.loads(box.run("status", "--json").stdout or "{}").get("data", {})
        for each in data.get("tenants", []):
            for member in each.get("members", []):
                if member.get("waits"):
                    waiting.append(member["waits"])
        return tenant.poll() is not None
    until(look, 120)
    out, err = tenant.communicate(timeout=60)
    clients = json.loads(out or "[]")
    codes = sorted({each.get("code") for each in clients})
    waits = [each["seconds"] for each in clients if each.get("seconds", 0) > seconds / 2]
    step(f"{processes} clients of one server", codes == [0] and len(clients) == processes, codes=codes, waited=len(waits),
         longest_seconds=max(waits, default=0), seconds=round(time.monotonic() - begin, 1), seen_waiting=waiting[:2], err=err[-300:])


def main():
    parser = argparse.ArgumentParser(description="MPS as gpumux runs it.", epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpumux")
    parser.add_argument("--out")
    parser.add_argument("--parts", default="kept,adopted,places")
    parser.add_argument("--client", type=float)
    parser.add_argument("--crowd", nargs=2)
    options = parser.parse_args()
    if options.client is not None:
        return client(options.client)
    if options.crowd:
        return crowd(int(options.crowd[0]), float(options.crowd[1]))
    for part in options.parts.split(","):
        box = Box(options.gpumux)
        try:
            {"kept": kept, "adopted": adopted, "places": places}[part](box)
        except Exception as error:
            step(part, False, error=repr(error))
        finally:
            box.end()
    with open(os.path.join(options.out, "mps-service.json"), "w") as f:
        json.dump(STEPS, f, indent=1)
    sys.exit(0 if all(each["right"] for each in STEPS) else 1)


if __name__ == "__main__":
    main()
