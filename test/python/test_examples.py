# SPDX-License-Identifier: Apache-2.0
"""The examples do what they say, on the software GPU."""

import re
import sys
import unittest

import sandbox
from python_test import PythonTest


class Examples(PythonTest):
    def example(self, name, *options):
        self.env["PYTHONPATH"] = f"{sandbox.ROOT}/python"
        return self.start(
            [sandbox.GPUMUX, "run", "--quiet", *options, "--", sys.executable, f"{sandbox.ROOT}/examples/python/{name}", "60"]
        )

    def test_memory(self):
        out = self.passes(self.example("memory.py", "--mem=8GiB:20GiB"))
        self.assertEqual(out.count("total 20.00 GiB"), 4, out)
        self.assertEqual(out.count("guaranteed 8.00"), 4, out)

    def test_memory_outside_of_a_tenant(self):
        self.env["LD_LIBRARY_PATH"] = f"{sandbox.BUILD}/lib/gpumux/softgpu"
        out = self.passes(self.start([sys.executable, f"{sandbox.ROOT}/examples/python/memory.py"]))
        self.assertEqual(out.count("nothing is promised"), 4, out)

    def test_two_processes(self):
        out = self.passes(self.example("two_processes.py", "--mem=8GiB"))
        told = re.findall(r"told (\d+) MiB", out)
        self.assertEqual(told, ["2048", "6144"], out)

    def test_reclaim(self):
        program = self.example("reclaim.py")
        self.assertRegex(program.line(), r"^1\d\d GiB are cached$")
        self.passes(self.start([sandbox.GPUMUX, "run", "--quiet", "--mem=100GiB", "--wait=20s", "--", "/bin/true"]))
        self.assertRegex(program.line(), r"are wanted, 1\d\d.00 GiB given$")


if __name__ == "__main__":
    unittest.main()
