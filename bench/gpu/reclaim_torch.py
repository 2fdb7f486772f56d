#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one tenant only caches goes to another that needs it: a tenant without a guarantee
allocates CACHE GiB and frees them into its allocator's cache; then another one asks for
a guarantee that needs half of that, and a third allocates as much without one. With
gpumux.on_reclaim and without it. Prints one JSON object; exit 1 if it shows anything else.

usage: reclaim_torch.py PREFIX [--cache GIB] [--driver]
  PREFIX    where bin/ and lib/ of a build are
  --cache   60 by default
  --driver  a cache of our own over the driver's API instead of PyTorch (also on the software GPU)
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

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
GIB = 1 << 30
PATIENCE = 8  # seconds that who wants to start waits


class TorchCache:
    def __init__(self):
        import torch

        self.torch = torch
        torch.zeros(1, device="cuda")

    def fill(self, gib):
        held = [self.torch.empty(GIB, dtype=self.torch.uint8, device="cuda") for _ in range(gib)]
        del held

    def work(self):
        x = self.torch.ones(1 << 20, device="cuda")
        (x * 2).sum().item()

    def allocate(self, gib):
        held = []
        try:
            for _ in range(gib):
                held.append(self.torch.empty(GIB, dtype=self.torch.uint8, device="cuda"))
        except self.torch.OutOfMemoryError:
            pass
        return len(held)

    def empty(self):
        self.torch.cuda.empty_cache()


class DriverCache:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(self.cuda.cuCtxSetCurrent(context))
        self.context, self.free = context, []

    @staticmethod
    def check(code):
        if code:
            raise RuntimeError(f"CUDA error {code}")

    def fill(self, gib):
        for _ in range(gib):
            address = ctypes.c_uint64()
            self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(GIB)))
            self.free.append(address)

    def work(self):
        self.check(self.cuda.cuCtxSynchronize())

    def allocate(self, gib):
        for done in range(gib):
            address = ctypes.c_uint64()
            if self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(GIB)):
                return done
        return gib

    def empty(self):
        self.check(self.cuda.cuCtxSetCurrent(self.context))  # another thread's
        while self.free:
            self.check(self.cuda.cuMemFree_v2(self.free.pop()))


def hold(cache, gib, listens):
    """The tenant that caches: works until it is ended."""
    if listens:
        import gpumux

        gpumux.on_reclaim(cache.empty)
    cache.fill(gib)
    print("ready", flush=True)
    while True:
        cache.work()
        time.sleep(0.05)


def grow(cache, gib):
    begin = time.monotonic()
    got = cache.allocate(gib)
    print(json.dumps({"gib": got, "seconds": round(time.monotonic() - begin, 3)}), flush=True)


class Bench:
    def __init__(self, prefix, cache, driver):
        self.gpumux = os.path.join(prefix, "bin", "gpumux")
        self.directory = tempfile.mkdtemp(prefix="gpumux-reclaim-")
        self.env = dict(os.environ, GPUMUX_RUNTIME_DIR=os.path.join(self.directory, "run"),
                        PYTHONPATH=os.path.join(ROOT, "python"))
        self.cache = cache
        self.self = [sys.executable, os.path.abspath(__file__)] + (["--driver"] if driver else [])

    def run(self, *options):
        return [self.gpumux, "run", "--quiet", *options, "--"]

    def status(self):
        out = subprocess.run([self.gpumux, "status", "--json"], env=self.env, capture_output=True, text=True, check=True)
        return json.loads(out.stdout)["data"]

    def tenant(self, name):
        return next(t for t in self.status()["tenants"] if t["name"] == name)

    def close(self):
        try:
            os.kill(self.status()["daemon"]["pid"], signal.SIGTERM)
        except (OSError, KeyError, TypeError, subprocess.CalledProcessError):
            pass  # it has left by itself
        shutil.rmtree(self.directory, ignore_errors=True)

    def once(self, listens):
        name = "listens" if listens else "silent"
        role = ["--role", "hold", "--cache", str(self.cache)] + (["--listen"] if listens else [])
        holder = subprocess.Popen(self.run("--name", name) + self.self + role, env=self.env, stdout=subprocess.PIPE, text=True)
        try:
            if holder.stdout.readline().strip() != "ready":
                raise RuntimeError(f"{name} did not start")
            gpu = self.status()["gpus"][0]
            half = self.cache // 2
            result = {"promisable_gib": round(gpu["mem_promisable_bytes"] / GIB, 2)}
            # Allocates past what is there, without a guarantee; gives it back by its end.
            more = gpu["mem_promisable_bytes"] // GIB + half
            grown = subprocess.run(self.run("--name", "grows") + self.self + ["--role", "grow", "--cache", str(more)],
                                   env=self.env, capture_output=True, text=True, timeout=200)
            result["allocation"] = dict(json.loads(grown.stdout), wanted_gib=more)
            # The cache has to be full again: with the listener it gave it away.
            if listens:
                holder.terminate()
                holder.wait()
                holder = subprocess.Popen(self.run("--name", name) + self.self + role, env=self.env,
                                          stdout=subprocess.PIPE, text=True)
                if holder.stdout.readline().strip() != "ready":
                    raise RuntimeError(f"{name} did not start again")
            size = self.status()["gpus"][0]["mem_promisable_bytes"] + half * GIB
            begin = time.monotonic()
            started = subprocess.run(self.run("--name", "starts", "--mem", f"{size >> 20}MiB", f"--wait={PATIENCE}s") + ["/bin/true"],
                                     env=self.env, capture_output=True, text=True)
            result["start"] = {"wanted_gib": round(size / GIB, 1), "exit": started.returncode,
                               "seconds": round(time.monotonic() - begin, 3)}
            result["reclaim"] = self.tenant(name)["reclaim"]
            result["holder_lives"] = holder.poll() is None
            return result
        finally:
            holder.terminate()
            holder.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", nargs="?", default="build/release")
    parser.add_argument("--cache", type=int, default=60)
    parser.add_argument("--driver", action="store_true")
    parser.add_argument("--listen", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=["hold", "grow"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        cache = DriverCache() if args.driver else TorchCache()
        return hold(cache, args.cache, args.listen) if args.role == "hold" else grow(cache, args.cache)
    bench = Bench(args.prefix, args.cache, args.driver)
    result = {"cache_gib": args.cache, "with": "driver" if args.driver else "torch"}
    try:
        result["listens"], result["silent"] = bench.once(True), bench.once(False)
    finally:
        bench.close()
    gave, kept = result["listens"], result["silent"]
    result["as_claimed"] = (
        gave["start"]["exit"] == 0 and gave["start"]["seconds"] < 3 and gave["holder_lives"]
        and gave["allocation"]["gib"] == gave["allocation"]["wanted_gib"]
        and kept["start"]["exit"] == 5 and kept["allocation"]["gib"] < kept["allocation"]["wanted_gib"])
    print(json.dumps(result, indent=1))
    return 0 if result["as_claimed"] else 1


if __name__ == "__main__":
    sys.exit(main())
