# SPDX-License-Identifier: Apache-2.0
"""gpumux.memory_info and gpumux.set_memory_fraction, as tenants on the software GPU."""

import re
import sys
import unittest

import sandbox
from python_test import PRELUDE, PythonTest

PIECE = 2 << 20  # the device's page


class MemoryInfo(PythonTest):
    def test_says_what_the_driver_says_and_what_is_guaranteed(self):
        self.passes(
            self.tenant(
                """
                before = gpumux.memory_info()
                assert (before.total, before.guaranteed) == (8 * GIB, 2 * GIB), before
                assert before.used == before.peak == 0, before
                gpu = Gpu()
                address = gpu.allocate(GIB)
                now = gpumux.memory_info()
                assert (now.free, now.total) == gpu.memory(), (now, gpu.memory())
                assert now.used == now.total - now.free and now.used > GIB, now
                assert now.peak == now.used, now
                gpu.free(address)
                after = gpumux.memory_info()
                assert after.peak == now.peak and after.used == now.used - GIB, (now, after)
                """,
                "--mem=2GiB:8GiB",
            )
        )

    def test_knows_the_devices_of_this_process_alone(self):
        self.passes(
            self.tenant(
                """
                for device in (1, 64, -1):
                    try:
                        gpumux.memory_info(device)
                    except gpumux.InvalidDevice:
                        continue
                    except gpumux.NotReady:
                        assert device > 0
                        continue
                    raise AssertionError(device)
                Gpu()
                for device in (1, 64, -1):
                    try:
                        gpumux.memory_info(device)
                    except gpumux.InvalidDevice:
                        continue
                    raise AssertionError(device)
                """,
                "--mem=2GiB",
            )
        )

    def test_before_cuda_is_used_a_changed_variable_leaves_it_open_which_device_is_which(self):
        self.passes(
            self.tenant(
                """
                os.environ["CUDA_VISIBLE_DEVICES"] = "0"
                try:
                    gpumux.memory_info()
                except gpumux.NotReady:
                    Gpu()
                    assert gpumux.memory_info().total == 2 * GIB
                else:
                    raise AssertionError("an answer out of nothing")
                """,
                "--mem=2GiB",
            )
        )

    def test_outside_of_a_tenant_it_says_so_once_and_knows_nothing(self):
        self.passes(
            self.bare(
                """
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    assert gpumux.memory_info() is None and gpumux.memory_info() is None
                    gpumux.set_memory_fraction(0.5)
                    with gpumux.latency_critical():
                        pass
                    handle = gpumux.on_reclaim(lambda: None)
                    handle.cancel()
                assert not gpumux.in_tenant()
                assert [w.category for w in caught] == [gpumux.NotATenant] * 4, [str(w.message) for w in caught]
                assert all(w.filename == "<string>" for w in caught), [w.filename for w in caught]
                assert threading.active_count() == 1
                """
            )
        )


class MemoryFraction(PythonTest):
    def test_holds_to_the_byte_for_every_family(self):
        self.passes(
            self.tenant(
                f"""
                PIECE = {PIECE}
                gpumux.set_memory_fraction(0.25)
                gpu = Gpu()
                assert gpumux.memory_info().total == gpu.memory()[1] == gpu.total_of_device() == 2 * GIB
                def fill():
                    # What is told as free can be had, and nothing beyond.
                    free, _ = gpu.memory()
                    whole = free - free % PIECE
                    address = gpu.allocate(whole)
                    assert gpu.memory()[0] < PIECE, gpu.memory()
                    assert refused(gpu.allocate, PIECE)
                    assert refused(gpu.allocate_managed, PIECE)
                    assert refused(gpu.allocate_async, 64 * MIB)
                    assert refused(gpu.allocate, 1)
                    gpu.free(address)
                    assert gpu.memory()[0] == free
                fill()
                managed = gpu.allocate_managed(256 * MIB)
                fill()
                gpu.allocate_async(64 * MIB)
                fill()
                """,
                "--mem=8GiB",
                "--name=part",
            )
        )

    def test_is_counted_as_the_programs_own_doing(self):
        program = self.tenant(
            """
            gpumux.set_memory_fraction(0.5)
            gpu = Gpu()
            assert refused(gpu.allocate, 5 * GIB)
            print("refused", flush=True)
            sys.stdin.read()
            time.sleep(60)
            """,
            "--mem=8GiB",
            "--name=part",
        )
        self.assertEqual(program.line(), "refused")
        refusals = self.box.tenant("part")["refusals"]
        self.assertEqual((refusals["own_part"], refusals["own_limit"], refusals["device_full"]), (1, 0, 0))
        self.assertEqual(refusals["last_refused_bytes"], 5 << 30)

    def test_changes_at_any_time_and_takes_nothing_away(self):
        self.passes(
            self.tenant(
                """
                gpu = Gpu()
                address = gpu.allocate(4 * GIB)
                gpumux.set_memory_fraction(0.25)
                memory = gpumux.memory_info()
                assert (memory.total, memory.free, memory.used) == (2 * GIB, 0, 2 * GIB), memory
                assert gpu.memory() == (0, 2 * GIB)
                assert refused(gpu.allocate, 2 * MIB)
                gpumux.set_memory_fraction(0.75)
                more = gpu.allocate(GIB)
                assert refused(gpu.allocate, 2 * GIB)
                gpumux.set_memory_fraction(1)
                gpu.allocate(2 * GIB)
                gpumux.set_memory_fraction(0)
                assert refused(gpu.allocate, 1)
                """,
                "--mem=8GiB",
            )
        )

    def test_a_context_counts(self):
        self.passes(
            self.tenant(
                """
                gpumux.set_memory_fraction(0.05)  # 409 MiB; a context takes more than 500
                assert refused(Gpu)
                gpumux.set_memory_fraction(0.5)
                Gpu()
                """,
                "--mem=8GiB",
            )
        )

    def test_of_two_processes_each_gets_its_own(self):
        code = """
            gpumux.set_memory_fraction({fraction})
            gpu = Gpu()
            count = 0
            while not refused(gpu.allocate, 64 * MIB):
                count += 64 * MIB
            print(count, gpu.memory()[1], flush=True)
            time.sleep(60)
            """
        script = f"{self.dir}/one.py"
        with open(script, "w") as out:
            import textwrap

            out.write(PRELUDE + textwrap.dedent(code).replace("{fraction}", "float(sys.argv[1])"))
        program = self.start(
            [sandbox.GPUMUX, "run", "--quiet", "--mem=8GiB", "--", "sh", "-c", f"{sys.executable} {script} 0.25 & {sys.executable} {script} 0.75; wait"]
        )
        got = dict(tuple(map(int, reversed(program.line().split()))) for _ in range(2))
        self.assertEqual(set(got), {2 << 30, 6 << 30})
        for total, held in got.items():
            # The rest is its context, and less than a piece.
            self.assertGreater(held, total - (800 << 20))
            self.assertLess(held, total - (500 << 20))

    def test_threads_at_the_edge_get_all_of_it_and_no_more(self):
        self.passes(
            self.tenant(
                """
                gpumux.set_memory_fraction(0.5)
                gpu = Gpu()
                def take(out):
                    gpu.use()
                    while not refused(gpu.allocate, 2 * MIB):
                        out.append(1)
                lists = [[] for _ in range(4)]
                free = gpu.memory()[0]
                threads = [threading.Thread(target=take, args=(each,)) for each in lists]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                assert sum(map(len, lists)) == free // (2 * MIB), (list(map(len, lists)), free)
                """,
                "--mem=3GiB",
            )
        )

    def test_a_child_of_fork_has_none(self):
        self.passes(
            self.tenant(
                """
                gpumux.set_memory_fraction(0.5)
                assert gpumux.memory_info().total == 4 * GIB
                pid = os.fork()
                if pid == 0:
                    os._exit(0 if gpumux.memory_info().total == 8 * GIB else 1)
                assert os.waitpid(pid, 0)[1] == 0
                assert gpumux.memory_info().total == 4 * GIB
                """,
                "--mem=8GiB",
            )
        )

    def test_what_is_no_fraction_is_an_error_in_and_out_of_a_tenant(self):
        code = """
            for wrong in (-0.1, 1.1, float("nan"), float("inf")):
                try:
                    gpumux.set_memory_fraction(wrong)
                except ValueError:
                    continue
                raise AssertionError(wrong)
            """
        self.passes(self.tenant(code, "--mem=1GiB"))
        self.passes(self.bare(code))


class Version(unittest.TestCase):
    def test_is_the_projects(self):
        project = re.search(r"project\(\s*gpumux\s+VERSION\s+([0-9.]+)", (sandbox.ROOT / "CMakeLists.txt").read_text())
        assert project
        package = (sandbox.ROOT / "python/gpumux/_version.py").read_text()
        self.assertIn(f'__version__ = "{project[1]}"', package)


if __name__ == "__main__":
    unittest.main()
