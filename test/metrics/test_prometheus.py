# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own programs, as Debian has them: what they say of our metrics, rules and dashboard.
Exit 77 (skipped) where they are not installed."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import urllib.error
import urllib.parse
import urllib.request

from sandbox import ROOT, until
from scene import Scene
from test_metrics import documented

RULES = ROOT / "packaging/prometheus/gpumux.rules.yml"
DASHBOARD = ROOT / "packaging/grafana/gpumux.json"


def promtool(*args: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=60, **kwargs)


def names_in(expression: str) -> set[str]:
    """The families that an expression of PromQL is about."""
    rows = documented()
    return {name if name in rows else re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bgpumux_\w+", expression)}


def expressions() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


class RulesTest(unittest.TestCase):
    def test_rules_are_clean_and_fire(self) -> None:
        checked = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        scene = Scene()
        self.addCleanup(scene.close)
        for file in (RULES, pathlib.Path(__file__).with_name("rules_test.yml")):
            shutil.copy(file, scene.dir)
        tested = promtool("test", "rules", "rules_test.yml", cwd=scene.dir)
        self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)

    def test_rules_dashboard_and_guide_name_series_that_there_are(self) -> None:
        for what, text in (("rules", RULES.read_text()), ("dashboard", "\n".join(expressions())),
                           ("guide", (ROOT / "docs/guide/metrics.md").read_text())):
            names = names_in(text)
            self.assertGreater(len(names), 8, what)
            self.assertEqual(names - set(documented()), set(), what)


class PrometheusTest(unittest.TestCase):
    def test_scrapes_and_computes(self) -> None:
        scene = Scene()
        self.addCleanup(scene.close)
        scene.everybody()
        checked = promtool("check", "metrics", input=scene.metrics().text)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

        host, port = scene.address.split(":")
        config = pathlib.Path(scene.dir, "prometheus.yml")
        config.write_text(f"""
rule_files: ["{RULES}"]
scrape_configs:
  - job_name: gpumux
    scrape_interval: 500ms
    static_configs: [{{targets: ["{scene.address}"]}}]
""")
        self.assertEqual(promtool("check", "config", str(config)).returncode, 0)
        server = scene.start_unread(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={scene.dir}/data",
                                     f"--web.listen-address={host}:{int(port) + 1}", "--log.level=warn"])

        def ask(path: str, **query: str):
            url = f"http://{host}:{int(port) + 1}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                if error.code == 503:  # it reads its files
                    return None
                self.fail(f"{query}: {error.read().decode()}")
            except OSError:
                self.assertIsNone(server.poll(), "Prometheus has ended")
                return None

        def value(query: str) -> float | None:
            found = (ask("query", query=query) or {"result": []})["result"]
            return float(found[0]["value"][1]) if found else None

        until("Prometheus has scraped twice", lambda: (value('count_over_time(up{job="gpumux"}[1m])') or 0) >= 2)
        self.assertEqual(value('min_over_time(up{job="gpumux"}[1m])'), 1)
        target = ask("targets")["activeTargets"][0]
        self.assertEqual((target["health"], target["lastError"]), ("up", ""))
        for tenant in ("one", "two", "urgent", "patient", "free"):
            used = next(gpu["mem_used_bytes"] for gpu in scene.tenant(tenant)["gpus"])
            self.assertEqual(value(f'gpumux_tenant_memory_used_bytes{{tenant="{tenant}"}}'), used, tenant)
        until("the rate of GPU time is known", lambda: (value('sum(rate(gpumux_tenant_gpu_seconds_total[1m]))') or 0) > 0)
        # Of each series that there is Prometheus has the type and the meaning that we serve.
        metadata = ask("metadata")
        for name, row in documented().items():
            if name in metadata:
                self.assertEqual((metadata[name][0]["type"], metadata[name][0]["help"]), (row["type"], row["meaning"]))
        self.assertGreater(len(metadata), 40)
        for group in ask("rules")["groups"]:
            for rule in group["rules"]:
                self.assertNotEqual(rule["health"], "err", rule)
        # What the dashboard asks is PromQL, and what it asks of tenants has an answer here.
        empty = []
        for expression in expressions():
            plain = expression.replace("$__rate_interval", "1m").replace("$__range", "1m").replace("$instance", ".*").replace("$gpu", ".*")
            if not ask("query", query=plain)["result"]:
                empty.append(expression)
        self.assertLessEqual(len(empty), 3, empty)


if __name__ == "__main__":
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("skipped: no prometheus here (tools/install-deps names the package)")
        sys.exit(77)
    unittest.main()
