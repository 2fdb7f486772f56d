# SPDX-License-Identifier: Apache-2.0
"""A daemon on two software GPUs with a tenant of each kind, and what it serves, read by
a parser of our own (Prometheus' is asked too: test_prometheus.py)."""

from __future__ import annotations

import http.client
import os
import pathlib
import re
import socket

from sandbox import BUILD, GPUMUX, WORKLOAD, Program, Sandbox, until


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)


class Metrics:
    """The text format, as its specification has it."""

    SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
    LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\"n])*)"')

    def __init__(self, text: str) -> None:
        self.text = text
        self.help: dict[str, str] = {}
        self.type: dict[str, str] = {}
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            if line.startswith("# HELP "):
                _, _, name, rest = line.split(" ", 3)
                assert name not in self.help, name
                self.help[name] = rest
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.type[name] = kind
            else:
                match = self.SAMPLE.fullmatch(line)
                assert match, f"no sample: {line!r}"
                labels = {key: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
                          for key, value in self.LABEL.findall(match[2] or "")}
                self.samples.append((match[1], labels, float(match[3])))
        series = [(name, tuple(sorted(labels.items()))) for name, labels, _ in self.samples]
        assert len(series) == len(set(series)), "a series twice"

    def family(self, name: str) -> str:
        """Of a sample's name."""
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        return base if self.type.get(base) == "histogram" else name

    def get(self, name: str, **labels: str) -> float | None:
        """Of the one series with these labels, and perhaps others."""
        found = [value for each, has, value in self.samples
                 if each == name and all(has.get(key) == value for key, value in labels.items())]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None


class Scene(Sandbox):
    def __init__(self, gpus: str = "2xH200", config: str = "") -> None:
        super().__init__(gpus)
        # An address of its own: tests run side by side.
        pid = os.getpid()
        self.address = f"127.{pid >> 16 & 255}.{pid >> 8 & 255}.{pid & 255 or 1}:9835"
        pathlib.Path(self.dir, "config.toml").write_text(f'[metrics]\nlisten = "{self.address}"\n{config}')
        self.api = f"{self.dir}/run/sim/api.sock"

    def run(self, name: str, options: list[str], *workload: str, ready: bool = True) -> Program:
        """A tenant; returns when its memory is taken."""
        file = pathlib.Path(self.dir, f"ready-{name}")
        process = self.start_unread([GPUMUX, "run", "--name", name, *options, "--", WORKLOAD, *workload, "--ready", str(file)])
        if ready:
            until(f"{name} works", file.exists)
        return process

    def outside(self, *workload: str) -> None:
        """A program that gpumux knows nothing of."""
        ready = pathlib.Path(self.dir, "outside")
        self.env["LD_LIBRARY_PATH"] = str(BUILD / "lib/gpumux/softgpu")
        ready.unlink(missing_ok=True)
        self.start_unread([WORKLOAD, *workload, "--ready", str(ready)])
        del self.env["LD_LIBRARY_PATH"]
        until("a program works outside gpumux", ready.exists)

    def http(self, path: str = "/metrics", tcp: bool = False, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
        """Status, content type, body."""
        connection = http.client.HTTPConnection(self.address, timeout=20) if tcp else UnixConnection(self.api)
        try:
            connection.request(method, path, headers={"Host": host} if host is not None else {})
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
        finally:
            connection.close()

    def metrics(self, tcp: bool = False) -> Metrics:
        status, _, text = self.http(tcp=tcp)
        assert status == 200, text
        return Metrics(text)

    def everybody(self) -> None:
        """GPU 0: two that take turns. GPU 1: a latency-critical one, one that it holds back, one that was refused
        memory, one without a limit, and two programs outside, one of which had a fault. One has ended, and one waits."""
        labels = [f"--label={key}={value}" for key, value in
                  (("pod", "serve-0"), ("namespace", "ml"), ("container", 'a"b\\c'), ("hpc_job", "4711"), ("secret", "no"))]
        self.run("one", ["--gpu=0", "--mode=turns", "--share=30%:80%", "--mem=4GiB", *labels], "--kernel-us=5000", "--seconds=1000")
        self.run("two", ["--gpu=0", "--mode=turns", "--mem=4GiB"], "--kernel-us=5000", "--seconds=1000")
        self.run("ended", ["--gpu=1", "--mem=1GiB"], "--alloc=256MiB").wait()
        self.run("urgent", ["--gpu=1", "--priority=latency", "--mem=4GiB"], "--kernel-us=3000", "--gap-us=3000", "--seconds=1000")
        self.run("patient", ["--gpu=1", "--priority=best-effort", "--mem=4GiB"], "--kernel-us=500", "--seconds=1000")
        self.run("refused", ["--gpu=1", "--mem=2GiB"], "--alloc=4GiB", "--seconds=1", "--hold=1000", ready=False)
        self.run("free", ["--gpu=1"], "--alloc=1GiB", "--hold=1000")
        self.outside("--device=1", "--kernel-us=100", "--seconds=0.01", "--end=fault")
        self.outside("--device=1", "--alloc=1GiB", "--hold=1000")
        self.run("waits", ["--mem=135GiB"], "--alloc=1GiB", ready=False)
        until("one waits", lambda: any(each["state"] == "waiting" for each in self.status()["tenants"]))
        until("one was refused memory", lambda: self.tenant("refused")["refusals"]["own_limit"])
        until("a gate was closed", lambda: (self.tenant("patient")["gate"] or {}).get("closed_seconds"))
        until("one is seen to be idle", lambda: self.tenant("free")["idle_seconds"] is not None)
        until("a fault was reported", lambda: any(name == "gpumux_gpu_xids_total" for name, _, _ in self.metrics().samples))
        until("turns were taken", lambda: all(self.tenant(name)["turns"]["turns"] > 1 for name in ("one", "two")))
