# SPDX-License-Identifier: Apache-2.0
"""What is served on /metrics: as documented, as `status` says, to whom it may be, and no further."""

import pathlib
import re
import unittest

from sandbox import GIB, ROOT, WORKLOAD, until
from scene import Metrics, Scene

GUIDE = (ROOT / "docs/guide/metrics.md").read_text()
OF_A_TENANT = ["tenant", "tenant_id", "[pod]", "[namespace]", "[container]", "[hpc_job]"]


def documented() -> dict[str, dict]:
    """The rows of the guide."""
    rows = {}
    for name, kind, unit, labels, meaning in re.findall(r"^\| `(gpumux_\w+)` \| (\w+) \| (\w*) \| (.*?) \| (.*) \|$", GUIDE, re.M):
        names = [label for part in filter(None, labels.replace("`", "").split(", "))
                 for label in (OF_A_TENANT if part == "*of a tenant*" else [part])]
        rows[name] = {"type": kind, "unit": unit, "meaning": meaning,
                      "must": {label for label in names if label[0] != "["}, "may": {label.strip("[]") for label in names}}
    return rows


class EverybodyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.scene = Scene()
        cls.addClassCleanup(cls.scene.close)
        cls.scene.everybody()

    def test_is_what_the_guide_lists(self) -> None:
        metrics, rows = self.scene.metrics(), documented()
        self.assertEqual(list(rows), list(metrics.help), "the guide's tables and what is served, in their order")
        seen: dict[str, set[str]] = {}
        for name, row in rows.items():
            self.assertEqual(metrics.type[name], row["type"], name)
            self.assertEqual(metrics.help[name], row["meaning"], name)
            unit = name.removesuffix("_total").rsplit("_", 1)[1]
            self.assertEqual(unit if unit in ("bytes", "seconds", "ratio") else "", row["unit"], name)
        for name, labels, _ in metrics.samples:
            row = rows[metrics.family(name)]
            has = set(labels) - {"le"}
            self.assertLessEqual(has, row["may"], name)
            self.assertGreaterEqual(has, row["must"], name)
            seen.setdefault(metrics.family(name), set()).update(has)
        self.assertEqual(set(seen), set(rows), "every series of the guide was seen")
        for name, row in rows.items():
            if "pod" not in row["may"] or name.startswith("gpumux_tenant_gate_"):
                self.assertEqual(seen[name], row["may"] - {"pod", "namespace", "container", "hpc_job"}, name)
            else:
                self.assertEqual(seen[name], row["may"], name)

    def test_agrees_with_status(self) -> None:
        def same(metrics: Metrics, status: dict) -> None:
            for gpu in status["gpus"]:
                labels = {"UUID": gpu["uuid"], "gpu": str(gpu["index"])}
                for what in ("total", "reserve", "guaranteed", "used", "unmanaged", "unexplained", "device_used", "promisable"):
                    self.assertEqual(metrics.get(f"gpumux_gpu_memory_{what}_bytes", **labels), gpu[f"mem_{what}_bytes"], what)
                self.assertEqual(metrics.get("gpumux_gpu_mode", mode=gpu["mode"], **labels), 1)
                self.assertEqual(metrics.get("gpumux_gpu_tenants", **labels), gpu["tenants"])
                self.assertEqual(metrics.get("gpumux_gpu_unmanaged_processes", **labels), len(gpu["unmanaged_pids"]))
                self.assertEqual(metrics.get("gpumux_gpu_info", model=gpu["name"], pci_bus_id=gpu["pci_bus_id"], **labels), 1)
            states = [tenant["state"] for tenant in status["tenants"]]
            for state in ("starting", "running", "stopping", "waiting"):
                self.assertEqual(metrics.get("gpumux_tenants", state=state), states.count(state), state)
            for tenant in status["tenants"]:
                labels = {"tenant_id": tenant["id"], "tenant": tenant["name"]}
                if tenant["state"] == "waiting":
                    self.assertEqual([name for name, has, _ in metrics.samples if has.get("tenant_id") == tenant["id"]], [])
                    continue
                self.assertEqual(metrics.get("gpumux_tenant_info", owner=tenant["owner"], mode=tenant["mode"],
                                             priority=tenant["priority"], isolation=tenant["isolation"], **labels), 1)
                self.assertEqual(metrics.get("gpumux_tenant_memory_enforced", **labels),
                                 {None: None, "not enforced": 0}.get(tenant["enforced"]["memory"], 1))
                for cause in ("own_limit", "device_full", "own_part"):
                    self.assertEqual(metrics.get("gpumux_tenant_memory_refusals_total", cause=cause, **labels), tenant["refusals"][cause])
                for gpu in tenant["gpus"]:
                    for what in ("guaranteed", "limit", "used", "peak", "at_risk"):
                        self.assertEqual(metrics.get(f"gpumux_tenant_memory_{what}_bytes", UUID=gpu["uuid"], **labels),
                                         gpu[f"mem_{what}_bytes"], (tenant["name"], what))

        # The figures stand still but for the moments between the two questions.
        for attempt in range(20):
            try:
                return same(self.scene.metrics(), self.scene.status())
            except AssertionError:
                if attempt == 19:
                    raise

    def test_status_says_how_busy_nvml_finds_a_gpu(self) -> None:
        """On GPU 0 two are always at work."""
        until("GPU 0 is busy", lambda: self.scene.status()["gpus"][0]["busy_ratio"] > 0.5)
        self.assertLessEqual(self.scene.status()["gpus"][0]["busy_ratio"], 1)

    def test_counts_between_what_status_says_before_and_after(self) -> None:
        def counters() -> dict[tuple[str, str], float]:
            out = {}
            for tenant in self.scene.status()["tenants"]:
                if turns := tenant.get("turns"):
                    out["gpumux_tenant_gpu_seconds_total", tenant["id"]] = turns["gpu_seconds"]
                    out["gpumux_tenant_turns_total", tenant["id"]] = turns["turns"]
                if (gate := tenant.get("gate")) and "closed_seconds" in gate:
                    out["gpumux_tenant_gate_closed_seconds_total", tenant["id"]] = gate["closed_seconds"]
                    out["gpumux_tenant_gate_forced_open_total", tenant["id"]] = gate["forced_open"]
                if tenant["name"] == "free":
                    out["gpumux_tenant_idle_seconds", tenant["id"]] = tenant["idle_seconds"]
            return out

        before, metrics, after = counters(), self.scene.metrics(), counters()
        self.assertEqual(len(before), 7)
        for (name, tenant_id), least in before.items():
            value = metrics.get(name, tenant_id=tenant_id)
            self.assertLessEqual(least, value, name)
            self.assertLessEqual(value, after[name, tenant_id], name)

    def test_unknown_is_absent(self) -> None:
        metrics = self.scene.metrics()
        self.assertIsNone(metrics.get("gpumux_tenant_memory_limit_bytes", tenant="free"))
        self.assertEqual(metrics.get("gpumux_tenant_memory_guaranteed_bytes", tenant="free"), 0)
        self.assertIsNone(metrics.get("gpumux_tenant_gpu_seconds_total", tenant="free"))
        self.assertIsNone(metrics.get("gpumux_tenant_gate_closed_seconds_total", tenant="urgent"))
        self.assertGreater(metrics.get("gpumux_tenant_memory_used_bytes", tenant="free"), GIB)

    def test_remembers_those_who_have_ended(self) -> None:
        metrics = self.scene.metrics()
        self.assertEqual(metrics.get("gpumux_tenants_ended_total", outcome="completed"), 1)
        self.assertEqual(metrics.get("gpumux_tenant_completion_seconds_count"), 1)
        self.assertEqual(metrics.get("gpumux_tenant_queue_wait_seconds_count"), 7)
        self.assertGreater(metrics.get("gpumux_turn_wait_seconds_count"), 4)
        self.assertGreater(metrics.get("gpumux_turn_wait_seconds_sum"), 0)
        self.assertGreater(metrics.get("gpumux_queue_longest_wait_seconds"), 0)
        self.assertEqual(metrics.get("gpumux_events_total", kind="ended"), 1)

    def test_names_nobody_by_pid_or_command(self) -> None:
        text = self.scene.metrics().text
        self.assertNotIn("--alloc", text)
        self.assertNotIn(WORKLOAD, text)
        self.assertNotIn("secret", text)
        # Where a program is named by gpumux itself, it is by its file's name.
        self.assertTrue(all(not set(labels) & {"pid", "command", "cwd"} for _, labels, _ in self.scene.metrics().samples))

    def test_labels_of_pods_are_for_the_owner_alone(self) -> None:
        mine = [labels for _, labels, _ in self.scene.metrics().samples if labels.get("tenant") == "one"]
        self.assertTrue(mine)
        for labels in mine:
            self.assertEqual([labels[key] for key in ("pod", "namespace", "container", "hpc_job")], ["serve-0", "ml", 'a"b\\c', "4711"])
        for _, labels, _ in self.scene.metrics(tcp=True).samples:
            self.assertFalse(set(labels) & {"pod", "namespace", "container", "hpc_job"}, labels)

    def test_is_all_that_is_on_tcp(self) -> None:
        status, kind, text = self.scene.http(tcp=True)
        self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
        self.assertEqual([name for name, _, _ in Metrics(text).samples], [name for name, _, _ in self.scene.metrics().samples])
        for path in ("/", "/v1/status", "/v1/tenants", "/metrics/", "/metrics/../v1/status"):
            self.assertEqual(self.scene.http(path, tcp=True)[0], 404, path)
        self.assertEqual(self.scene.http("/metrics?x=1", tcp=True)[0], 200)
        for method in ("POST", "PUT", "DELETE"):
            self.assertEqual(self.scene.http(method=method, tcp=True)[0], 405, method)
        tenant = self.scene.tenant("one")["id"]
        self.assertEqual(self.scene.http(f"/v1/tenants/{tenant}/stop", tcp=True, method="POST")[0], 404)
        self.assertEqual(self.scene.tenant("one")["state"], "running")

    def test_is_not_for_web_pages_of_other_names(self) -> None:
        for host in ("example.com", "example.com:9835", "10.0.0.1:9835", ""):
            self.assertEqual(self.scene.http(tcp=True, host=host)[0], 403, host)
        for host in ("localhost:9835", "127.0.0.1", "[::1]:9835"):
            self.assertEqual(self.scene.http(tcp=True, host=host)[0], 200, host)


class EndsTest(unittest.TestCase):
    def test_totals_go_on_and_series_go(self) -> None:
        scene = Scene("H200", "labels = true\n")
        self.addCleanup(scene.close)
        scene.run("keeps", ["--mem=4GiB"], "--alloc=1GiB", "--hold=1000")
        one = scene.run("one", ["--mem=2GiB", "--label=pod=p"], "--alloc=4GiB", "--hold=1000", ready=False)
        until("it was refused", lambda: scene.tenant("one")["refusals"]["own_limit"])
        before = scene.metrics(tcp=True)
        self.assertEqual(before.get("gpumux_tenant_memory_refusals_total", tenant="one", cause="own_limit", pod="p"), 1)
        self.assertEqual(before.get("gpumux_memory_refusals_total", cause="own_limit"), 1)
        scene.gpumux("stop", "one", "--grace", "0s")
        one.wait(30)
        until("it is gone", lambda: len(scene.status()["tenants"]) == 1)
        scene.run("killed", ["--mem=1GiB"], "--alloc=256MiB", "--end=kill").wait(30)
        scene.run("failed", ["--mem=1GiB"], "--alloc=2GiB", ready=False).wait(30)
        until("they are gone", lambda: len(scene.status()["tenants"]) == 1)
        after = scene.metrics()
        self.assertEqual([name for name, labels, _ in after.samples if labels.get("tenant") == "one"], [])
        self.assertEqual(after.get("gpumux_memory_refusals_total", cause="own_limit"), 2)
        self.assertEqual(after.get("gpumux_tenants_ended_total", outcome="stopped"), 1)
        self.assertEqual(after.get("gpumux_tenants_ended_total", outcome="killed"), 1)
        self.assertEqual(after.get("gpumux_tenants_ended_total", outcome="out-of-memory"), 1)
        self.assertEqual(after.get("gpumux_tenant_completion_seconds_count"), 3)
        self.assertEqual(after.get("gpumux_tenant_completion_seconds_bucket", le="+Inf"), 3)
        self.assertGreater(after.get("gpumux_tenant_completion_seconds_sum"), 0)
        for name, labels, value in before.samples:
            if before.type[before.family(name)] == "counter" and "tenant" not in labels:
                self.assertGreaterEqual(after.get(name, **labels), value, name)


class UnreadTest(unittest.TestCase):
    def test_a_gpu_that_nvml_has_no_figures_of_is_lost_and_has_none(self) -> None:
        scene = Scene("1xThor,1xH200")
        self.addCleanup(scene.close)
        scene.run("x", ["--mem=1GiB"], "--alloc=256MiB", "--hold=1000")
        metrics, (gpu, other) = scene.metrics(), scene.status()["gpus"]
        self.assertEqual(metrics.get("gpumux_gpu_lost", gpu="0"), 1)
        self.assertEqual(metrics.get("gpumux_gpu_closed", gpu="0"), 1)
        self.assertEqual(metrics.get("gpumux_gpu_lost", gpu="1"), 0)
        for what in ("total", "reserve", "unmanaged", "unexplained", "device_used"):
            self.assertIsNone(gpu[f"mem_{what}_bytes"], what)
            self.assertIn("Not Supported", gpu[f"mem_{what}_bytes_reason"])
            self.assertIsNone(metrics.get(f"gpumux_gpu_memory_{what}_bytes", gpu="0"), what)
            self.assertEqual(metrics.get(f"gpumux_gpu_memory_{what}_bytes", gpu="1"), other[f"mem_{what}_bytes"], what)
        for what in ("guaranteed", "used", "promisable"):
            self.assertEqual(metrics.get(f"gpumux_gpu_memory_{what}_bytes", gpu="0"), 0, what)
        self.assertIsNone(gpu["busy_ratio"])
        self.assertIn("Not Supported", gpu["busy_ratio_reason"])
        self.assertEqual(other["busy_ratio"], 0)


class TakenTest(unittest.TestCase):
    def test_daemon_serves_all_the_same_where_the_port_is_another_s(self) -> None:
        first, second = Scene("H200"), Scene("H200")
        self.addCleanup(first.close)
        self.addCleanup(second.close)
        first.run("x", ["--mem=1GiB"], "--alloc=256MiB", "--hold=1000")
        second.run("y", ["--mem=1GiB"], "--alloc=256MiB", "--hold=1000")
        self.assertIsNotNone(first.metrics(tcp=True).get("gpumux_tenant_start_time_seconds", tenant="x"))
        self.assertIsNotNone(second.metrics().get("gpumux_tenant_start_time_seconds", tenant="y"))
        log = pathlib.Path(second.dir, "run/sim/gpumuxd.log").read_text()
        self.assertEqual(log.count("metrics.listen: "), 1)
        self.assertIn("Address already in use", log)
        first.close()
        until("it listens as soon as it can", lambda: answers(second))
        self.assertIsNotNone(second.metrics(tcp=True).get("gpumux_tenant_start_time_seconds", tenant="y"))


def answers(scene: Scene) -> bool:
    try:
        return scene.http(tcp=True)[0] == 200
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()
