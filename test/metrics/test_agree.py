# SPDX-License-Identifier: Apache-2.0
"""`status`, the API, /metrics and `history`, asked for one instant at which nothing moves: whatever two of them
tell, they tell alike."""

from __future__ import annotations

import json
import os
import signal
import unittest
from typing import Any, Iterable

from sandbox import GIB, until
from scene import Metrics, Scene

# A figure is named by what it is, and whose: ("used", tenant, uuid).
Figures = dict[tuple[str, ...], Any]

CAUSES = ("own_limit", "device_full", "own_part")
OF_A_GPU = ("total", "reserve", "guaranteed", "used", "unmanaged", "unexplained", "device_used", "promisable")
# A live one's; of one that has ended the last three.
OF_A_TENANT_ON_A_GPU = ("used", "at_risk", "guaranteed", "limit", "peak")


def of_status(status: Any) -> Figures:
    figures: Figures = {}
    for gpu in status["gpus"]:
        for what in OF_A_GPU:
            figures["gpu", gpu["uuid"], what] = gpu[f"mem_{what}_bytes"]
        for what in ("mode", "tenants", "index"):
            figures["gpu", gpu["uuid"], what] = gpu[what]
        figures["gpu", gpu["uuid"], "strangers"] = len(gpu["unmanaged_pids"])
    figures.update(of_tenants(status["tenants"]))
    states = [tenant["state"] for tenant in status["tenants"]]
    figures.update({("tenants", state): states.count(state) for state in ("starting", "running", "stopping", "waiting")})
    return figures


def of_tenants(tenants: list[Any]) -> Figures:
    """Of `status`, of the API's list and of the history."""
    figures: Figures = {}
    for tenant in tenants:
        of = ("tenant", tenant["id"])
        waits, ended = tenant.get("state") == "waiting", tenant.get("ended") is not None
        for what in ("name", "owner", "priority", "isolation", *(() if waits else ("mode", "started_at", "command"))):
            figures[*of, what] = tenant[what]
        figures[*of, "waited"] = tenant["waited_seconds"]
        for what in ("guaranteed", "limit", "peak", *(() if ended else ("used", "at_risk"))):
            figures[*of, what] = tenant.get(f"mem_{what}_bytes", 0)
        for cause in CAUSES:
            figures[*of, "refused", cause] = tenant["refusals"][cause]
        for gpu in tenant["gpus"]:
            for what in OF_A_TENANT_ON_A_GPU[2 if ended else 0 :]:
                figures[*of, gpu["uuid"], what] = gpu[f"mem_{what}_bytes"]
        if ended:
            for what in ("why", "exit_code", "signal", "ended_at", "ran_seconds"):
                figures[*of, what] = tenant["ended"][what]
        elif not waits:
            figures[*of, "idle"] = tenant["idle_seconds"]
    return figures


def of_all_tenants(tenants: list[Any]) -> Figures:
    """What follows for the sums, of those that live and those that have ended."""
    figures = of_tenants(tenants)
    had_room = [tenant for tenant in tenants if tenant["state"] != "waiting"]
    for cause in CAUSES:
        figures["refused", cause] = sum(tenant["refusals"][cause] for tenant in had_room)
    figures.update(spread("wait", [tenant["waited_seconds"] for tenant in had_room], WAITS))
    return figures | of_ends([tenant for tenant in tenants if tenant["ended"]])


def of_ends(ended: list[Any]) -> Figures:
    return spread("completion", [tenant["waited_seconds"] + tenant["ended"]["ran_seconds"] for tenant in ended], COMPLETIONS)


def of_history(history: Any) -> Figures:
    past = history["tenants"]
    outcomes = [tenant["outcome"] for tenant in past]
    figures = of_tenants(past) | of_ends(past) | {("outcome", name): outcomes.count(name) for name in set(outcomes)}
    for tenant in past:
        figures["tenant", tenant["id"], "outcome"] = tenant["outcome"]
    for what, values in (("ran", [tenant["ended"]["ran_seconds"] for tenant in past]), ("waited", [tenant["waited_seconds"] for tenant in past])):
        figures[what, "median"], figures[what, "p95"] = rank(values, 0.5), rank(values, 0.95)
    return figures


def of_totals(history: Any) -> Figures:
    totals = history["totals"]
    figures: Figures = {("outcome", name): count for name, count in totals["outcomes"].items()}
    for what in ("ran", "waited"):
        figures[what, "median"], figures[what, "p95"] = totals[f"{what}_median_seconds"], totals[f"{what}_p95_seconds"]
    return figures


# Bounds of the histograms; that there are others shows in the test of what the guide lists.
WAITS, COMPLETIONS = (0.1, 1.0, 5.0), (1.0, 5.0, 15.0)


def spread(what: str, values: list[float], bounds: Iterable[float]) -> Figures:
    figures: Figures = {(what, "below", str(bound)): sum(value <= bound for value in values) for bound in bounds}
    return figures | {(what, "count"): len(values), (what, "sum"): sum(values)}


def rank(values: list[float], part: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(-int(-part * len(values) // 1), 1) - 1]


def of_metrics(metrics: Metrics) -> Figures:
    figures: Figures = {}
    infos = {has["tenant_id"]: has for name, has, _ in metrics.samples if name == "gpumux_tenant_info"}
    gpus = {has["UUID"]: has for name, has, _ in metrics.samples if name == "gpumux_gpu_info"}
    for uuid, info in gpus.items():
        for what in OF_A_GPU:
            figures["gpu", uuid, what] = metrics.get(f"gpumux_gpu_memory_{what}_bytes", UUID=uuid)
        figures["gpu", uuid, "index"] = int(info["gpu"])
        figures["gpu", uuid, "mode"] = next((has["mode"] for name, has, _ in metrics.samples if name == "gpumux_gpu_mode" and has["UUID"] == uuid), None)
        figures["gpu", uuid, "tenants"] = metrics.get("gpumux_gpu_tenants", UUID=uuid)
        figures["gpu", uuid, "strangers"] = metrics.get("gpumux_gpu_unmanaged_processes", UUID=uuid)
    for id, info in infos.items():
        of = ("tenant", id)
        figures.update({(*of, "name"): info["tenant"]} | {(*of, what): info[what] for what in ("owner", "mode", "priority", "isolation")})
        figures[*of, "idle"] = metrics.get("gpumux_tenant_idle_seconds", tenant_id=id)
        for cause in CAUSES:
            figures[*of, "refused", cause] = metrics.get("gpumux_tenant_memory_refusals_total", tenant_id=id, cause=cause)
        for name, has, _ in metrics.samples:
            if name != "gpumux_tenant_memory_guaranteed_bytes" or has["tenant_id"] != id:
                continue
            for what in OF_A_TENANT_ON_A_GPU:
                figures[*of, has["UUID"], what] = metrics.get(f"gpumux_tenant_memory_{what}_bytes", tenant_id=id, UUID=has["UUID"])
    for state in ("starting", "running", "stopping", "waiting"):
        figures["tenants", state] = metrics.get("gpumux_tenants", state=state)
    for cause in CAUSES:
        figures["refused", cause] = metrics.get("gpumux_memory_refusals_total", cause=cause)
    for name, has, value in metrics.samples:
        if name == "gpumux_tenants_ended_total" and value:
            figures["outcome", has["outcome"]] = value
        if name == "gpumux_events_total" and value:
            figures["event", has["kind"]] = value
    for what, series, bounds in (("wait", "queue_wait", WAITS), ("completion", "completion", COMPLETIONS)):
        for bound in bounds:
            figures[what, "below", str(bound)] = metrics.get(f"gpumux_tenant_{series}_seconds_bucket", le=f"{bound:g}")
        for part in ("count", "sum"):
            figures[what, part] = metrics.get(f"gpumux_tenant_{series}_seconds_{part}")
    return figures


def of_events(events: Any) -> Figures:
    kinds = [event["kind"] for event in events["events"]]
    return {("event", kind): kinds.count(kind) for kind in set(kinds)}


# Figures that grow with the clock, of who still waits or is idle.
def grows(name: tuple[str, ...], waiting: set[str]) -> bool:
    return name[0] == "tenant" and (name[2] == "idle" or (name[2] == "waited" and name[1] in waiting))


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, (int, float)):
        return abs(one - other) < 1e-6
    return one == other


class AgreeTest(unittest.TestCase):

    def api(self, scene: Scene, path: str) -> Any:
        status, _, text = scene.http(path)
        self.assertEqual(status, 200, text)
        return json.loads(text)["data"]

    def quiet_scene(self) -> Scene:
        """GPU 0: one within its promise, one that was refused memory by its limit, one for which the GPU was full; all
        hold on. One has both GPUs, and there is a program outside. One is refused admission, one waits, and there are ends of four kinds,
        one of them after a wait."""
        scene = Scene()
        self.addCleanup(scene.close)
        large = scene.run("large", ["--gpu=1", "--mem=100GiB"], "--alloc=1GiB", "--hold=1000")
        scene.run("holds", ["--gpu=0", "--mem=8GiB:12GiB", "--priority=best-effort"], "--alloc=3GiB", "--hold=1000")
        scene.run("refused", ["--gpu=0", "--mem=2GiB"], "--alloc=4GiB", "--seconds=0.1", "--hold=1000", ready=False)
        scene.run("full", ["--gpu=0"], "--alloc=130GiB", "--seconds=0.1", "--hold=1000", ready=False)
        scene.run("both", ["--gpu=0,1", "--mem=4GiB"], "--alloc=1GiB", "--hold=1000")
        scene.run("fine", ["--gpu=1", "--mem=1GiB"], "--alloc=256MiB").wait(30)
        scene.run("failed", ["--gpu=1", "--mem=1GiB"], "--alloc=2GiB", ready=False).wait(30)
        scene.run("killed", ["--gpu=1", "--mem=1GiB"], "--alloc=256MiB", "--end=kill").wait(30)
        waited = scene.run("waited", ["--gpu=1", "--mem=100GiB"], "--alloc=1GiB", ready=False)
        self.assertEqual(scene.tenant("waited")["state"], "waiting")
        self.assertEqual(scene.gpumux("run", "--no-wait", "--mem=139GiB", "--", "true").returncode, 4)
        until("all are idle", lambda: all(scene.tenant(name)["idle_seconds"] for name in ("large", "holds", "refused", "full", "both")))
        self.idle_before_its_end = scene.metrics().get("gpumux_tenant_idle_seconds", tenant="large")
        self.assertEqual(scene.gpumux("stop", "large", "--grace", "0s").returncode, 0)
        large.wait(30)
        waited.wait(30)
        scene.outside("--device=1", "--alloc=1GiB", "--hold=1000")
        scene.run("waits", ["--gpu=1", "--mem=139GiB"], "--alloc=1GiB", ready=False)
        until("one waits", lambda: scene.tenant("waits")["state"] == "waiting")
        until("they were refused memory", lambda: scene.tenant("refused")["refusals"]["own_limit"] and scene.tenant("full")["refusals"]["device_full"])
        until("the history has all five", lambda: len(scene.json("history")["tenants"]) == 5)

        def bytes_of(status: Any) -> Figures:
            return {name: value for name, value in of_status(status).items() if not grows(name, {scene.tenant("waits")["id"]})}

        until("nothing moves", lambda: bytes_of(scene.status()) == bytes_of(scene.status()))
        return scene

    def test_of_one_instant(self) -> None:
        scene = self.quiet_scene()
        waiting = {scene.tenant("waits")["id"]}
        # The first and the last of them are as `status` tells it.
        told = [
            ("status", of_status(scene.status())),
            ("/v1/status", of_status(self.api(scene, "/v1/status"))),
            ("/metrics", of_metrics(scene.metrics())),
            ("/v1/tenants", of_all_tenants(self.api(scene, "/v1/tenants?all=1")["tenants"])),
            ("history", of_history(scene.json("history", "--limit", "all"))),
            ("totals of history", of_totals(scene.json("history"))),
            ("/v1/history", of_history(self.api(scene, "/v1/history"))),
            ("events", of_events(scene.json("events"))),
            ("status again", of_status(scene.status())),
        ]
        tellers: dict[tuple[str, ...], list[str]] = {}
        for source, figures in told:
            for name in figures:
                tellers.setdefault(name, []).append(source)
        last: dict[tuple[str, ...], tuple[str, Any]] = {}
        wrong = []
        for source, figures in told:
            for name, value in figures.items():
                before_source, before = last.get(name, (source, value))
                if not (before <= value if grows(name, waiting) else alike(before, value)):
                    wrong.append(f"{name}: {before_source} says {before}, {source} says {value}")
                last[name] = (source, value)
        self.assertEqual("\n".join(wrong), "")
        # What grows did so by no more than the clock.
        for name in filter(lambda name: grows(name, waiting), last):
            self.assertLess(last[name][1] - told[0][1][name], 20, name)
        self.no_figure_is_told_by_one_alone(tellers, {uuid for kind, uuid, *_ in tellers if kind == "gpu"})
        # And they are those of the scene.
        figures = {name: value for name, (_, value) in last.items()}
        ids = {figures[name]: name[1] for name in figures if name[0] == "tenant" and name[2] == "name"}
        self.assertEqual(set(ids), {"holds", "refused", "full", "both", "fine", "failed", "killed", "large", "waited", "waits"})
        self.assertEqual({name[1]: count for name, count in figures.items() if name[0] == "outcome"},
                         {"completed": 2, "out-of-memory": 1, "killed": 1, "stopped": 1})
        self.assertEqual((figures["refused", "own_limit"], figures["refused", "device_full"]), (2, 1))
        self.assertEqual(figures["tenant", ids["failed"], "refused", "own_limit"], 1)
        self.assertEqual(figures["event", "refused"], 1)
        self.assertEqual((figures["tenant", ids["holds"], "guaranteed"], figures["tenant", ids["holds"], "limit"]), (8 * GIB, 12 * GIB))
        self.assertGreater(figures["tenant", ids["holds"], "used"], 3 * GIB)
        self.assertGreater(figures["tenant", ids["waited"], "waited"], 0)
        self.assertEqual(figures["tenants", "waiting"], 1)
        self.idle_time_of_one_that_has_ended(scene.json("history", "--name", "large")["tenants"][0])

    def idle_time_of_one_that_has_ended(self, past: Any) -> None:
        """All that was told while it lived, and no more than it lived."""
        self.assertLessEqual(self.idle_before_its_end, past["idle_total_seconds"])
        self.assertLess(past["idle_total_seconds"], past["ended"]["ran_seconds"])

    def no_figure_is_told_by_one_alone(self, tellers: dict[tuple[str, ...], list[str]], uuids: set[str]) -> None:
        """Else one of the readers here has another name for it, and nothing was compared."""
        kinds: dict[tuple[str, ...], set[str]] = {}
        for name, sources in tellers.items():
            kind = tuple("GPU" if part in uuids else "ID" if name[0] == "tenant" and at == 1 else part for at, part in enumerate(name))
            kinds.setdefault(kind, set()).update("status" if source.endswith(("status", "again")) else source for source in sources)
        alone = {kind for kind, sources in kinds.items() if len(sources) == 1}
        self.assertLessEqual(alone, {("event", "started")}, {kind: kinds[kind] for kind in alone})
        self.assertGreater(len(kinds), 60)

class NextDaemonTest(unittest.TestCase):
    def test_of_a_gpu_as_the_next_daemon_finds_it(self) -> None:
        """A daemon notes what the GPUs are like when it starts, and each minute."""
        scene = Scene("H200")
        self.addCleanup(scene.close)
        scene.run("holds", ["--mem=8GiB:12GiB"], "--alloc=3GiB", "--hold=1000")
        scene.outside("--alloc=1GiB", "--hold=1000")
        until("the program outside is seen", lambda: scene.status()["gpus"][0]["unmanaged_pids"])
        os.kill(scene.status()["daemon"]["pid"], signal.SIGKILL)

        def stretch() -> Any:
            done = scene.gpumux("history", "--gpu", "0", "--json")
            stretches = json.loads(done.stdout)["data"]["stretches"] if done.returncode == 0 else []
            return stretches[-1] if stretches and stretches[-1]["tenants"] else None

        until("the next one has looked", stretch)
        until("and its tenant is back", lambda: scene.tenant("holds")["mem_used_bytes"])
        found, gpu = stretch(), scene.status()["gpus"][0]
        for what in set(OF_A_GPU) - {"total", "reserve"}:
            self.assertEqual(found[f"mem_{what}_bytes"], gpu[f"mem_{what}_bytes"], what)
        self.assertEqual((found["uuid"], found["modes"], found["tenants"]), (gpu["uuid"], [gpu["mode"]], gpu["tenants"]))


if __name__ == "__main__":
    unittest.main()
