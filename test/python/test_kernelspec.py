# SPDX-License-Identifier: Apache-2.0
"""gpumux kernelspec, and kernels of Jupyter as tenants on the software GPU.

The kernels are started by jupyter_client with ipykernel, of this interpreter or of Debian's; without them that part
is skipped.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

import sandbox
from python_test import PythonTest

# Started by the interpreter that has the two modules; prints a line for each step.
CLIENT = """
import json, sys
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

kernels, log = sys.argv[1:3]
specs = KernelSpecManager(kernel_dirs=[kernels], ensure_native_kernel=False)
manager = KernelManager(kernel_name="gpumux", kernel_spec_manager=specs)
with open(log, "wb") as out:
    manager.start_kernel(stdout=out, stderr=out)
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)

def run(code, when_it_prints=lambda: None):
    said = []
    def heard(message):
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])
            when_it_prints()
    # After an error a kernel sends back, unread, what came too soon.
    reply = {"content": {"status": "aborted"}}
    while reply["content"]["status"] == "aborted":
        reply = client.execute_interactive(code, timeout=60, output_hook=heard)
    return reply["content"], "".join(said)

for line in sys.stdin:
    what = line.strip()
    if what == "memory":
        print(run("from driver import Gpu; gpu = Gpu(); print(gpu.memory()[1])")[1].strip(), flush=True)
    elif what == "interrupt":
        reply, said = run("import time\\nprint('runs', flush=True)\\nwhile True: time.sleep(0.01)", manager.interrupt_kernel)
        again, text = run("print('goes on')")
        print(json.dumps([reply.get("ename"), said, again["status"], text]), flush=True)
    elif what == "kill":
        manager.shutdown_kernel(now=True)
        print("killed", flush=True)
    else:
        manager.shutdown_kernel()
        print("over", flush=True)
"""


def interpreter_with_jupyter():
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        if os.access(python, os.X_OK):
            tried = subprocess.run([python, "-c", "import ipykernel, jupyter_client"], capture_output=True, check=False)
            if tried.returncode == 0:
                return python
    return None


class KernelspecTest(PythonTest):
    def setUp(self):
        super().setUp()
        self.env["JUPYTER_DATA_DIR"] = f"{self.dir}/jupyter"
        self.kernels = pathlib.Path(self.dir, "jupyter", "kernels")

    def kernelspec(self, *arguments):
        return self.start([sandbox.GPUMUX, "kernelspec", *arguments]).rest()

    def names(self):
        _, out, _ = self.kernelspec("list", "--json")
        return [spec["name"] for spec in json.loads(out)["data"]["kernelspecs"]]


class Command(KernelspecTest):
    def test_installs_lists_and_removes(self):
        code, out, err = self.kernelspec("install", "--mem", "8GiB", "--python", sys.executable, "--", "--priority", "best-effort")
        self.assertEqual(code, 0, err)
        self.assertIn("8GiB", out)
        spec = json.loads((self.kernels / "gpumux" / "kernel.json").read_text(encoding="utf-8"))
        self.assertEqual(os.path.realpath(spec["argv"][0]), os.path.realpath(sandbox.GPUMUX))
        self.assertIn("best-effort", spec["argv"])
        self.assertEqual(spec["argv"][-1], "{connection_file}")
        self.assertEqual(self.names(), ["gpumux"])
        self.assertEqual(self.kernelspec("remove", "gpumux")[0], 0)
        self.assertEqual(self.names(), [])
        self.assertEqual(self.kernelspec("remove", "gpumux")[0], 6)

    def test_refuses_to_overwrite_or_remove_what_it_did_not_make(self):
        theirs = self.kernels / "python3" / "kernel.json"
        theirs.parent.mkdir(parents=True)
        theirs.write_text('{"argv": ["python3"], "display_name": "Mine", "language": "python"}', encoding="utf-8")
        before = theirs.read_bytes()
        for arguments in (("install", "--name", "python3", "--python", sys.executable), ("remove", "python3")):
            code, _, err = self.kernelspec(*arguments)
            self.assertEqual(code, 4, err)
            self.assertIn("was not made by gpumux", err)
        self.assertEqual(theirs.read_bytes(), before)
        self.assertEqual(self.names(), [])

    def test_writes_under_a_prefix(self):
        prefix = f"{self.dir}/venv"
        self.assertEqual(self.kernelspec("install", "--prefix", prefix, "--python", sys.executable)[0], 0)
        self.assertTrue(os.path.exists(f"{prefix}/share/jupyter/kernels/gpumux/kernel.json"))
        self.assertFalse(self.kernels.exists())

    def test_refuses_what_run_would_refuse_when_the_kernel_starts(self):
        for wrong in (
            ("--mem", "8"),
            ("--name", "../x"),
            ("--", "--priority", "much"),
            ("--", "--json"),
            ("--", "--mem", "1GiB", "python3"),
            ("--", "--"),
        ):
            self.assertEqual(self.kernelspec("install", "--python", sys.executable, *wrong)[0], 2, wrong)
        self.assertEqual(self.kernelspec("install", "--python", f"{self.dir}/none")[0], 127)
        self.assertEqual(self.kernelspec("install", "--python", sys.executable, "--", "--share", "40%")[0], 7)
        self.assertFalse(self.kernels.exists())


class OwnGroup(PythonTest):
    # By the wakeup descriptor: a handler runs once for two signals that come at once.
    COUNTS = """
    import signal
    count, (signals, wakeup) = 0, os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    print("ready", os.getpid(), flush=True)
    while True:
        for number in os.read(signals, 1):
            if number != signal.SIGINT:
                print("total", count, flush=True)
                sys.exit(0)
            count += 1
            print("interrupted", count, flush=True)
    """

    def leader(self):
        program = self.tenant(self.COUNTS, "--own-group")
        self.addCleanup(lambda: program.poll() is None and program.kill())
        ready, pid = program.line().split()
        self.assertEqual(ready, "ready")
        return program, int(pid)

    def test_gets_a_signal_to_all_of_runs_group_once(self):
        program, pid = self.leader()
        self.assertEqual(os.getpgid(pid), pid)
        # Many: the kernel, too, makes one of two that come at once.
        for count in range(1, 21):
            os.killpg(program.pid, signal.SIGINT)
            self.assertEqual(program.line(), f"interrupted {count}")
        # `run` passes on what it gets in this order: a second one would be there before this.
        os.kill(program.pid, signal.SIGTERM)
        self.assertEqual(program.line(), "total 20")
        self.assertEqual(program.rest()[0], 0)

    def test_ends_with_run(self):
        program, pid = self.leader()
        program.kill()
        program.wait()
        sandbox.until("it is dead", lambda: self.is_dead(pid))

    @staticmethod
    def is_dead(pid):
        """Or waits for whoever reaps it."""
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    def start(self, argv):
        """In a session of its own, as Jupyter starts its kernels."""
        return self.box.start(argv, start_new_session=True)


class Kernel(KernelspecTest):
    def setUp(self):
        super().setUp()
        python = interpreter_with_jupyter()
        if python is None:
            self.skipTest("neither this Python nor /usr/bin/python3 has ipykernel and jupyter_client")
        # What `run` would say at the end, were it not told to be quiet.
        pathlib.Path(self.dir, "config.toml").write_text("run.summary = true\n", encoding="utf-8")
        self.env.update(
            IPYTHONDIR=f"{self.dir}/ipython",
            JUPYTER_RUNTIME_DIR=f"{self.dir}/jupyter-run",
        )
        code, _, err = self.kernelspec("install", "--mem", "8GiB", "--python", python)
        self.assertEqual(code, 0, err)
        self.log = pathlib.Path(self.dir, "kernel.log")
        self.client = self.box.start([python, "-c", CLIENT, str(self.kernels), str(self.log)], stdin=subprocess.PIPE, stderr=None)

    def ask(self, what):
        self.client.stdin.write(what + "\n")
        self.client.stdin.flush()
        answer = self.client.line()
        self.assertTrue(answer, self.log.read_text(encoding="utf-8"))
        return answer

    def test_is_a_tenant_that_is_interrupted_and_shut_down(self):
        self.assertEqual(int(self.ask("memory")), 8 << 30)
        tenant = self.box.tenant("gpumux")
        self.assertEqual(tenant["mem_guaranteed_bytes"], 8 << 30)
        self.assertEqual(tenant["enforced"]["memory"], "guard")
        self.assertEqual(json.loads(self.ask("interrupt")), ["KeyboardInterrupt", "runs\n", "ok", "goes on\n"])
        self.assertEqual(self.ask("shutdown"), "over")
        sandbox.until("the tenant is over", lambda: not self.box.status()["tenants"])
        self.assertNotIn("gpumux:", self.log.read_text(encoding="utf-8"))

    def test_is_over_when_jupyter_kills_it(self):
        self.assertEqual(int(self.ask("memory")), 8 << 30)
        self.assertEqual(self.ask("kill"), "killed")
        sandbox.until("the tenant is over", lambda: not self.box.status()["tenants"])


if __name__ == "__main__":
    unittest.main()
