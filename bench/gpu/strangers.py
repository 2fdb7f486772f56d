#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program outside gpumux grows on a GPU that tenants share.

usage: strangers.py PREFIX OUT
  1. two tenants of 60 GiB each, a stranger takes 40 GiB step by step: when is it seen, when is a promise shown
     at risk, is anybody refused within its promise while the GPU has room?
  2. `gpumux reserve --pid` keeps 40 GiB for such a program while tenants ask for more.
  3. the daemon is killed three times while both tenants take and check memory.
"""
import json
import os
import subprocess
import sys
import threading
import time

from measure import GIB, Bench

HERE = os.path.dirname(os.path.abspath(__file__))


class Taker:
    def __init__(self, b, name, mem=None):
        argv = [sys.executable, f"{HERE}/taker.py"] + (["--driver"] if b.simulated else [])
        if mem:
            argv = [b.bin("gpumux"), "run", "--mem", mem, "--name", name, "--quiet", "--"] + argv
        self.name, self.refused, self.wrong = name, 0, 0
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=b.log, text=True,
                                        env=b.env if mem else b.bare_env)
        self.ready = json.loads(self.process.stdout.readline())
        self.pid = self.ready["pid"]

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.refused += "error" in answer
        self.wrong += answer.get("wrong", 0)
        return answer

    def quit(self):
        self.process.stdin.close()
        self.process.wait(60)


class Watcher(threading.Thread):
    """`gpumux status` over and over: when did it show what?"""

    def __init__(self, b):
        super().__init__(daemon=True)
        self.b, self.on, self.seen = b, True, []
        self.start()

    def run(self):
        while self.on:
            asked = time.monotonic()
            p = subprocess.run([self.b.bin("gpumux"), "status", "--json"], env=self.b.env, capture_output=True, text=True)
            if p.returncode == 0:
                self.seen.append((asked, time.monotonic(), json.loads(p.stdout)["data"]))
            time.sleep(0.03)

    def first(self, what, since, patience=10):
        """Seconds from `since` until a status that was asked for afterwards shows it."""
        at = 0
        while time.monotonic() < since + patience:
            for asked, told, data in self.seen[at:]:
                if asked >= since and what(data):
                    return told - since
            at = max(0, len(self.seen) - 1)
            time.sleep(0.01)
        return None


def at_risk(data):
    return {t["name"] for t in data["tenants"] if t.get("mem_at_risk_bytes")}


def events(b):
    p = subprocess.run([b.bin("gpumux"), "events", "--json"], env=b.env, capture_output=True, text=True)
    return json.loads(p.stdout)["data"]["events"] if p.returncode == 0 else [{"kind": "no events", "text": p.stderr}]


def grows(b):
    watcher = Watcher(b)
    first, second = Taker(b, "first", "60GiB"), Taker(b, "second", "60GiB")
    first.do("take 40")
    second.do("take 30")
    stranger = Taker(b, "stranger")
    out = {"stranger_pid": stranger.pid,
           "seen_after_s": watcher.first(lambda d: stranger.pid in d["gpus"][0]["unmanaged_pids"], stranger.ready["at"])}
    steps = []
    out["at_risk_after_s"] = None
    while steps == [] or steps[-1]["stranger_gib"] < 40:
        answer = stranger.do("take 4")
        step = {"stranger_gib": answer["held_gib"], "error": answer.get("error"), "tenants": {}}
        if b.nvml.memory()["free"] > 6 * GIB:
            # Each takes some more, within its promise.
            for tenant in (first, second):
                step["tenants"][tenant.name] = tenant.do("take 1" if tenant is first else "take 2")
        bytes_now = stranger_bytes(b, stranger.pid)
        seen = watcher.first(lambda d: d["gpus"][0]["mem_unmanaged_bytes"] >= bytes_now * 0.99, answer["at"])
        step["figure_after_s"] = seen
        risk = watcher.seen[-1][2]
        step["at_risk"] = sorted(at_risk(risk))
        step["promisable_bytes"] = risk["gpus"][0]["mem_promisable_bytes"]
        if step["at_risk"] and out["at_risk_after_s"] is None:
            out["at_risk_after_s"] = watcher.first(lambda d: bool(at_risk(d)), answer["at"])
            out["at_risk_at_gib"] = answer["held_gib"]
        steps.append(step)
        if answer.get("error"):
            break
    out["steps"] = steps
    for tenant in (first, second):
        tenant.do("check")
    out["refused_within_promise"] = first.refused + second.refused
    out["wrong"] = first.wrong + second.wrong
    before = time.monotonic()
    stranger.quit()
    out["covered_after_s"] = watcher.first(lambda d: not at_risk(d) and not d["gpus"][0]["unmanaged_pids"], before)
    first.quit()
    second.quit()
    watcher.on = False
    out["events"] = [{k: e.get(k) for k in ("kind", "severity", "text")} for e in events(b)
                     if e.get("kind") in ("stranger-seen", "stranger-gone", "at-risk", "covered", "no events")]
    return out


def stranger_bytes(b, pid):
    return b.nvml.processes().get(pid, 0)


def reserved(b):
    stranger = Taker(b, "outside")
    stranger.do("take 4")
    out = {}
    p = subprocess.run([b.bin("gpumux"), "reserve", "--pid", str(stranger.pid), "--mem", "40GiB"], env=b.env, capture_output=True, text=True)
    out["reserve"] = (p.returncode, (p.stdout + p.stderr).strip())
    ask = [b.bin("gpumux"), "run", "--no-wait", "--quiet", "--mem", "105GiB", "--", "true"]
    p = subprocess.run(ask, env=b.env, capture_output=True, text=True)
    out["asks_105_gib"] = (p.returncode, p.stderr.strip())
    tenant = Taker(b, "beside", "90GiB")
    tenant.do("take 80")
    out["grows"] = stranger.do("take 34")
    data = json.loads(subprocess.run([b.bin("gpumux"), "status", "--json"], env=b.env, capture_output=True, text=True).stdout)["data"]
    out["at_risk"] = sorted(at_risk(data))
    out["tenant"] = tenant.do("take 8")
    out["wrong"] = tenant.do("check").get("wrong")
    tenant.quit()
    stranger.quit()
    p = subprocess.run([b.bin("gpumux"), "run", "--wait=20s", "--quiet", "--mem", "105GiB", "--", "true"], env=b.env, capture_output=True, text=True)
    out["after_its_end_105_gib"] = (p.returncode, p.stderr.strip())
    return out


def daemon_pids(b):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "gpumuxd":
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if b.dir.encode() in f.read():
                        found.append(int(pid))
        except OSError:
            pass
    return found


def killed(b):
    first, second = Taker(b, "first", "60GiB"), Taker(b, "second", "60GiB")
    out = {"rounds": 0, "kills": 0}
    end = time.monotonic() + 24
    next_kill = time.monotonic() + 4
    while time.monotonic() < end:
        for tenant in (first, second):
            tenant.do("take 20")
            tenant.do("check")
            tenant.do("drop")
        out["rounds"] += 1
        if out["kills"] < 3 and time.monotonic() > next_kill:
            for pid in daemon_pids(b):
                os.kill(pid, 9)
                out["kills"] += 1
            next_kill += 6
    out["refused"], out["wrong"] = first.refused + second.refused, first.wrong + second.wrong
    p = subprocess.run([b.bin("gpumux"), "status"], env=b.env, capture_output=True, text=True)
    out["status"] = p.stdout
    first.quit()
    second.quit()
    return out


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    b = Bench(sys.argv[1], sys.argv[2])
    results = {}
    try:
        for part in (grows, reserved, killed):
            try:
                results[part.__name__] = part(b)
            except Exception as e:
                results[part.__name__] = {"failed": repr(e)}
            print(part.__name__, json.dumps(results[part.__name__])[:3000], flush=True)
        b.save("strangers", results)
    finally:
        b.close()


if __name__ == "__main__":
    main()
