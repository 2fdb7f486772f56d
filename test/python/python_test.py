# SPDX-License-Identifier: Apache-2.0
"""Python code as a tenant, and beside tenants, with the package and its examples at hand."""

from __future__ import annotations

import sys
import textwrap

from sandbox import GPUMUX, ROOT, Program, SandboxTest


class PythonTest(SandboxTest):
    def setUp(self) -> None:
        super().setUp()
        self.env.update(PYTHONPATH=f"{ROOT}/python:{ROOT}/examples/python", PYTHONDONTWRITEBYTECODE="1")

    def tenant(self, code: str, *options: str) -> Program:
        """`gpu` of examples/python/driver.py is at hand as Gpu."""
        return self.start([GPUMUX, "run", "--quiet", *options, "--", sys.executable, "-c", PRELUDE + textwrap.dedent(code)])

    def bare(self, code: str) -> Program:
        return self.start([sys.executable, "-c", PRELUDE + textwrap.dedent(code)])


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
