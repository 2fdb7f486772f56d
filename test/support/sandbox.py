# SPDX-License-Identifier: Apache-2.0
"""A software GPU, a runtime directory and the programs of a build for one test, as
test/support/sandbox.h. For tests in Python: their PYTHONPATH has this folder."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from typing import Any, Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["GPUMUX_TEST_BUILD"])
GPUMUX, WORKLOAD = str(BUILD / "bin" / "gpumux"), str(BUILD / "bin" / "gpumux-workload")
MIB, GIB = 1 << 20, 1 << 30


def until(what: str, condition: Callable[[], object], seconds: float = 30) -> None:
    """Polls; the state is waited for, not the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain until {what}")
        time.sleep(0.01)


class Program(subprocess.Popen):
    """A started program; what it prints is read line by line."""

    def line(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def rest(self, timeout: float = 60) -> tuple[int, str, str]:
        out, err = self.communicate(timeout=timeout)
        return self.returncode, out, err


class Sandbox:
    def __init__(self, gpus: str = "H200") -> None:
        self.dir = tempfile.mkdtemp(prefix="gpumux-test-")
        for name in ("run", "gpu"):
            os.mkdir(f"{self.dir}/{name}", 0o700)
        config = pathlib.Path(self.dir, "config.toml")
        config.touch()
        keep = ("PATH", "HOME", "LANG")
        self.env = {key: os.environ[key] for key in keep if key in os.environ}
        self.env.update(
            GPUMUX_SOFTGPU=gpus, GPUMUX_SOFTGPU_DIR=f"{self.dir}/gpu", GPUMUX_RUNTIME_DIR=f"{self.dir}/run", GPUMUX_CONFIG=str(config)
        )
        self._started: list[Program] = []

    def close(self) -> None:
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
        for program in self._started:
            program.kill()
            program.wait()
            # What it started may hold the pipes for longer.
            for pipe in (program.stdin, program.stdout, program.stderr):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, argv: list[str], **options: Any) -> Program:
        """`options`: of subprocess.Popen."""
        asked = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        program = Program(argv, env=self.env, cwd=self.dir, text=True, **asked)
        self._started.append(program)
        return program

    def start_unread(self, argv: list[str]) -> Program:
        return self.start(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def gpumux(self, *args: str) -> subprocess.CompletedProcess:
        return subprocess.run([GPUMUX, *args], env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def json(self, *args: str) -> Any:
        """`data` of what a command says with --json."""
        done = self.gpumux(*args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["data"]

    def status(self) -> Any:
        return self.json("status")

    def tenant(self, name: str) -> Any:
        """As `status` shows it; waits until it is there."""
        found: list[Any] = []
        until(f"{name} is there", lambda: found.extend(each for each in self.status()["tenants"] if each["name"] == name) or found)
        return found[0]


class SandboxTest(unittest.TestCase):
    """A test with a sandbox of its own."""

    gpu = "H200"

    def setUp(self) -> None:
        self.box = Sandbox(self.gpu)
        self.addCleanup(self.box.close)
        self.dir, self.env = self.box.dir, self.box.env

    def start(self, argv: list[str]) -> Program:
        return self.box.start(argv)

    def passes(self, program: Program) -> str:
        """Its output; the test fails if the program does."""
        code, out, err = program.rest()
        self.assertEqual(code, 0, f"output:\n{out}\nerrors:\n{err}")
        return out
