# SPDX-License-Identifier: Apache-2.0
"""A software GPU, a runtime directory and the programs of a build for one test, as
test/support/sandbox.h."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from typing import Any, Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["GPUMUX_TEST_BUILD"])
GPUMUX = str(BUILD / "bin" / "gpumux")
MIB, GIB = 1 << 20, 1 << 30


class Program(subprocess.Popen):
    """A started program; what it prints is read line by line."""

    def line(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def rest(self, timeout: float = 60) -> tuple[int, str, str]:
        out, err = self.communicate(timeout=timeout)
        return self.returncode, out, err


class SandboxTest(unittest.TestCase):
    gpu = "H200"

    def setUp(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="gpumux-test-")
        self.addCleanup(self._remove)
        for name in ("run", "gpu"):
            os.mkdir(f"{self.dir}/{name}", 0o700)
        keep = ("PATH", "HOME", "LANG")
        self.env = {key: os.environ[key] for key in keep if key in os.environ}
        self.env.update(
            GPUMUX_SOFTGPU=self.gpu,
            GPUMUX_SOFTGPU_DIR=f"{self.dir}/gpu",
            GPUMUX_RUNTIME_DIR=f"{self.dir}/run",
            PYTHONPATH=f"{ROOT}/python:{ROOT}/examples/python",
            PYTHONDONTWRITEBYTECODE="1",
        )

    def _remove(self) -> None:
        """Every process that was started here ends: until none is left, as some start others."""
        mine = self.dir.encode()
        for _ in range(50):
            left = 0
            for entry in pathlib.Path("/proc").iterdir():
                try:
                    if entry.name.isdigit() and mine in (entry / "environ").read_bytes():
                        os.kill(int(entry.name), signal.SIGKILL)
                        left += 1
                except OSError:
                    continue
            if not left:
                break
            time.sleep(0.01)
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, argv: list[str]) -> Program:
        program = Program(
            argv, env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(self._end, program)
        return program

    @staticmethod
    def _end(program: Program) -> None:
        program.kill()
        program.wait()
        # What it started may hold the pipes for longer.
        for pipe in (program.stdout, program.stderr):
            if pipe is not None:
                pipe.close()

    def tenant(self, code: str, *options: str) -> Program:
        """Python code as a tenant; `gpu` of examples/python/driver.py is at hand as Gpu."""
        return self.start([GPUMUX, "run", "--quiet", *options, "--", sys.executable, "-c", PRELUDE + textwrap.dedent(code)])

    def bare(self, code: str) -> Program:
        return self.start([sys.executable, "-c", PRELUDE + textwrap.dedent(code)])

    def passes(self, program: Program) -> str:
        """Its output; the test fails if the program does."""
        code, out, err = program.rest()
        self.assertEqual(code, 0, f"output:\n{out}\nerrors:\n{err}")
        return out

    def status(self) -> Any:
        code, out, err = self.start([GPUMUX, "status", "--json"]).rest()
        self.assertEqual(code, 0, err)
        return json.loads(out)["data"]

    def tenant_of(self, name: str) -> Any:
        return next(t for t in self.status()["tenants"] if t["name"] == name)

    def wait_until(self, what: str, condition: Callable[[], bool], limit: float = 20) -> None:
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"waited {limit} s in vain until {what}")
            time.sleep(0.01)


PRELUDE = textwrap.dedent(
    """
    import os, sys, threading, time, warnings
    import gpumux
    from driver import GIB, MIB, Cache, CudaError, Gpu, OutOfMemory

    def refused(call, *arguments):
        try:
            call(*arguments)
        except OutOfMemory:
            return True
        return False
    """
)
