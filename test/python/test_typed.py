# SPDX-License-Identifier: Apache-2.0
"""The package is typed and can be made a wheel; what checks that is not on every machine."""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

import sandbox

PACKAGE = sandbox.ROOT / "python"


class Package(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_has_the_types_that_it_says(self):
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "gpumux"], cwd=PACKAGE, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipUnless(importlib.util.find_spec("pip") and importlib.util.find_spec("setuptools"), "pip or setuptools is missing")
    def test_becomes_a_wheel_with_its_types(self):
        import shutil

        with tempfile.TemporaryDirectory() as directory:
            source = shutil.copytree(PACKAGE, f"{directory}/python")  # setuptools writes beside the source
            done = subprocess.run(
                [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", directory, source],
                capture_output=True,
                text=True,
            )
            if "invalid command 'bdist_wheel'" in done.stderr:
                self.skipTest("the package wheel is not installed")
            self.assertEqual(done.returncode, 0, done.stderr)
            (wheel,) = pathlib.Path(directory).glob("gpumux-*.whl")
            names = zipfile.ZipFile(wheel).namelist()
            self.assertIn("gpumux/py.typed", names)
            self.assertIn("gpumux/_reclaim.py", names)


if __name__ == "__main__":
    unittest.main()
