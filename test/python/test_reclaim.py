# SPDX-License-Identifier: Apache-2.0
"""gpumux.on_reclaim, between tenants on the software GPU."""

import json
import os
import signal
import unittest

import sandbox
from python_test import PythonTest

# Fills the GPU and gives everything back into a cache of its own.
CACHES = """
    gpu = Gpu()
    cache = Cache(gpu)
    count = gpu.memory()[0] // GIB
    for address in [cache.take(GIB) for _ in range(count)]:
        cache.give_back(address, GIB)
    """
READY = """
    print("ready", flush=True)
    for line in sys.stdin: pass
    time.sleep(60)
    """


class OnReclaimTest(PythonTest):
    def holder(self, code, *options):
        program = self.tenant(CACHES + code + READY, "--name=holder", *options)
        self.assertEqual(program.line(), "ready", program.poll() is None or program.rest())
        return program

    def reclaims(self):
        return self.box.tenant("holder")["reclaim"]

    def listening_or_none(self):
        """None while there is no daemon."""
        code, out, _ = self.start([sandbox.GPUMUX, "status", "--json"]).rest()
        tenants = json.loads(out)["data"]["tenants"] if code == 0 else []
        return next((t["reclaim"]["listening"] for t in tenants if t["name"] == "holder"), None)


class OnReclaim(OnReclaimTest):
    def test_gives_memory_to_who_waits_for_room(self):
        holder = self.holder("gpumux.on_reclaim(cache.empty)")
        sandbox.until("it listens", lambda: self.reclaims()["listening"] == 1)
        waits = self.tenant("Gpu().allocate(39 * GIB)", "--mem=40GiB", "--wait=20s")
        self.passes(waits)
        reclaims = self.reclaims()
        self.assertEqual(reclaims["asked"], 1)
        self.assertGreater(reclaims["given_bytes"], 100 << 30)
        self.assertIsNone(holder.poll())

    def test_gives_memory_to_an_allocation_that_would_be_refused(self):
        self.holder("gpumux.on_reclaim(cache.empty)")
        # Room for a context, and nothing beyond.
        sandbox.until("it listens", lambda: self.reclaims()["listening"] == 1)
        self.passes(self.tenant("Gpu().allocate(40 * GIB)"))
        self.assertGreaterEqual(self.reclaims()["asked"], 1)

    def test_gives_memory_to_a_sibling_at_the_tenants_limit(self):
        self.passes(
            self.tenant(
                CACHES
                + """
    gpumux.on_reclaim(cache.empty)
    import json, subprocess
    code = "from driver import *; Gpu().allocate(4 * GIB)"
    for patience in range(200):
        if subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0:
            sys.exit(0)
        time.sleep(0.05)
    sys.exit("never")
    """,
                "--mem=8GiB",
            )
        )

    def test_gives_memory_when_it_is_idle_and_the_machine_asks_for_that(self):
        with open(f"{self.dir}/config.toml", "w", encoding="utf-8") as file:
            file.write('idle.policy = "reclaim"\nidle.after = "200ms"\n')
        self.env["GPUMUX_CONFIG"] = f"{self.dir}/config.toml"
        self.holder("gpumux.on_reclaim(cache.empty)", "--mem=20GiB")
        sandbox.until("it has given its cache", lambda: self.reclaims()["given_bytes"] > 18 << 30)
        events = json.loads(self.passes(self.start([sandbox.GPUMUX, "events", "--json", "--tenant=holder"])))
        kinds = [event["kind"] for event in events["data"]["events"]]
        self.assertEqual(kinds.count("idle"), 1)
        self.assertLess(kinds.index("idle"), kinds.index("recalled"))

    def test_one_that_raises_is_reported_once_and_asked_again(self):
        holder = self.holder(
            """
    calls = []
    def fails():
        calls.append(1)
        raise RuntimeError("of the test")
    gpumux.on_reclaim(fails)
    gpumux.on_reclaim(cache.empty)
    gpumux.on_reclaim(lambda: print("called", len(calls), flush=True))
    """
        )
        self.passes(self.tenant("", "--mem=40GiB", "--wait=20s"))
        self.assertEqual(holder.line(), "called 1")
        self.passes(self.start([sandbox.GPUMUX, "stop", "--signal=KILL", "holder"]))
        _, _, err = holder.rest()
        self.assertEqual(err.count("of the test"), 1, err)
        self.assertEqual(err.count("CallbackFailed"), 1, err)


class AtTheEdges(OnReclaimTest):
    def test_without_it_who_waits_goes_on_waiting(self):
        self.holder("")
        code, _, err = self.tenant("", "--mem=40GiB", "--wait=1s").rest()
        self.assertEqual(code, 5, err)

    def test_a_callback_may_ask_what_is_wanted(self):
        holder = self.holder(
            """
    @gpumux.on_reclaim
    def give(wanted: gpumux.Wanted):
        print(wanted.device, wanted.bytes // GIB, threading.current_thread().daemon, flush=True)
        cache.empty()
    assert give.__class__ is gpumux.ReclaimHandle
    """
        )
        self.passes(self.tenant("", "--mem=40GiB", "--wait=20s"))
        device, gib, daemon = holder.line().split()
        self.assertEqual((device, daemon), ("0", "True"))
        self.assertIn(int(gib), (39, 40))

    def test_one_that_hangs_delays_who_waits_and_nothing_else(self):
        holder = self.holder(
            """
    held = threading.Event()
    gpumux.on_reclaim(held.wait)
    """
        )
        sandbox.until("it listens", lambda: self.reclaims()["listening"] == 1)
        code, _, err = self.tenant("", "--mem=40GiB", "--no-wait").rest()
        self.assertEqual(code, 4, err)
        self.assertEqual(self.reclaims()["asked"], 1)
        code, _, err = self.tenant("", "--mem=40GiB", "--no-wait").rest()
        self.assertEqual(code, 4, err)
        self.assertEqual(self.reclaims()["asked"], 1)
        self.assertIsNone(holder.poll())

    def test_cancelled_it_is_asked_no_more(self):
        self.holder(
            """
    one = gpumux.on_reclaim(cache.empty)
    two = gpumux.on_reclaim(cache.empty)
    one.cancel()
    one.cancel()
    two.cancel()
    for patience in range(1000):
        if threading.active_count() == 1: break
        time.sleep(0.01)
    assert threading.active_count() == 1
    """
        )
        sandbox.until("nobody listens", lambda: self.reclaims()["listening"] == 0)
        code, _, err = self.tenant("", "--mem=40GiB", "--no-wait").rest()
        self.assertEqual(code, 4, err)
        self.assertEqual(self.reclaims()["asked"], 0)

    def test_registered_again_it_is_asked_again(self):
        self.holder(
            """
    for _ in range(20):
        gpumux.on_reclaim(cache.empty).cancel()
    gpumux.on_reclaim(cache.empty)
    """
        )
        self.passes(self.tenant("", "--mem=40GiB", "--wait=20s"))

    def test_a_child_of_fork_starts_anew_and_its_parent_goes_on(self):
        self.holder(
            """
    gpumux.on_reclaim(cache.empty)
    pid = os.fork()
    if pid == 0:
        assert threading.active_count() == 1
        gpumux.on_reclaim(lambda: None)  # its own, in its own thread
        time.sleep(60)
        os._exit(0)
    """
        )
        sandbox.until("both listen", lambda: self.reclaims()["listening"] == 2)
        self.passes(self.tenant("", "--mem=40GiB", "--wait=20s"))
        self.assertEqual(self.reclaims()["listening"], 2)

    def test_the_program_ends_as_it_would_without(self):
        program = self.tenant("gpumux.on_reclaim(lambda: None); print('over')", "--mem=1GiB")
        code, out, err = program.rest(timeout=20)
        self.assertEqual((code, out, err), (0, "over\n", ""))

    def test_a_new_daemon_asks_too(self):
        self.holder("gpumux.on_reclaim(cache.empty)")
        sandbox.until("it listens", lambda: self.reclaims()["listening"] == 1)
        os.kill(self.box.status()["daemon"]["pid"], signal.SIGKILL)
        # `run` starts the next one; the listener finds it by itself.
        sandbox.until("the next daemon knows it", lambda: self.listening_or_none() == 1)
        self.passes(self.tenant("", "--mem=40GiB", "--wait=20s"))


class LatencyCritical(PythonTest):
    def test_is_recorded_and_says_that_it_has_no_effect(self):
        self.passes(
            self.tenant(
                """
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    for _ in range(2):
                        with gpumux.latency_critical(), gpumux.latency_critical():
                            pass
                assert [w.category for w in caught] == [gpumux.NotInEffect], caught
                try:
                    with gpumux.latency_critical():
                        raise KeyError("of the program")
                except KeyError:
                    pass
                """,
                "--mem=1GiB",
            )
        )

    def test_is_in_effect_where_the_tenant_is_latency_critical(self):
        self.passes(
            self.tenant(
                """
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    with gpumux.latency_critical():
                        pass
                """,
                "--mem=1GiB",
                "--priority=latency",
            )
        )


if __name__ == "__main__":
    unittest.main()
