# SPDX-License-Identifier: Apache-2.0
"""Part of mps.py: GPU faults of one tenant, and what they do to its neighbours."""
import glob
import os
import tempfile
import time

from mps_run import BareMps, kernel_log, say


RESTART = ["--mem", "4GiB", "--restart", "neighbour-fault"]


def faults(run):
    """Two neighbours, one of which is started again, as the culprit is."""
    rounds = []
    for what in run.faults:
        if run.left() < 25:
            break
        entry = round_of(run, what, len(rounds))
        rounds.append(entry)
        run.row("faults", what, f"runs again after {entry.get('runs_again_after_s')} s", f"the second fault after {entry.get('named_after_s')} s",
                f"neighbour then {entry.get('neighbour_then')}", f"named: {entry.get('named')}")
        run.save("faults", {"rounds": rounds, "xid": kernel_log()[-20:]})


def fault_events(run):
    return [e.get("text") for e in run.data("events", "--since", "60s").get("events", []) if e.get("kind") in ("mps-fault", "mps-server-lost")]


def round_of(run, what, number):
    watcher = run.tenant("plain-neighbour", [run.victims, "neighbour"], ["--mem", "4GiB"])
    neighbour = run.tenant("restarted", [run.victims, "neighbour"], RESTART)
    if None in (neighbour.event("first", 25), watcher.event("first", 25)):
        run.end_children()
        return {"what": what, "error": "neighbours did not start", "stderr": [neighbour.stderr(), watcher.stderr()]}
    before = len(fault_events(run))
    name = f"culprit{number}"
    culprit = run.tenant(name, [run.victims, "fault", what], RESTART)
    faulting = culprit.event("faulting", 20)
    at = faulting["at"] if faulting else time.time()
    again = neighbour.wait_for(lambda line: line.get("event") == "first" and line["at"] > at, 30)
    culprit_status, watcher_status = culprit.finish(20), watcher.finish(15)
    second = [line["at"] for line in culprit.lines if line.get("event") == "faulting"]
    # The one that was started again goes on beside, and after, the second fault.
    after = time.time()
    goes_on = neighbour.wait_for(lambda line: "steps" in line and line["at"] > after, 5)
    told = fault_events(run)[before:]
    entry = {"what": what, "at": at, "culprit_status": culprit_status, "watcher_status": watcher_status,
             "culprit_lines": culprit.lines, "culprit_stderr": culprit.stderr(), "faults": len(second),
             "watcher_errors": [line for line in watcher.lines if "event" in line], "watcher_stderr": watcher.stderr(),
             "neighbour_events": [line for line in neighbour.lines if "event" in line], "neighbour_stderr": neighbour.stderr(),
             "runs_again_after_s": again["at"] - at if again else None, "neighbour_then": goes_on is not None and goes_on.get("wrong") == 0,
             "told": told, "named": [text for text in told if f"({name}) on the GPU" in text],
             "named_after_s": second[1] - at if len(second) > 1 else None, "status": run.data("status")}
    run.end_children()
    entry["restarted_closing"] = neighbour.stderr()
    return entry


def cores(run):
    rounds = []
    with BareMps(run) as mps:
        for what, with_core in [(w, c) for w in ("illegal", "assert", "misaligned", "trap") for c in (False, True)]:
            if run.left() < 12:
                break
            folder = tempfile.mkdtemp(prefix="cores-", dir=run.b.dir)
            env = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
                   "CUDA_COREDUMP_FILE": folder + "/core.%p"} if with_core else {}
            for _ in range(50):
                if mps.healthy():
                    break
                time.sleep(0.1)
            neighbours = [run.bare(mps, [run.victims, "neighbour"], env) for _ in range(2)]
            up = [n.event("first", 10) for n in neighbours]
            xids = len(kernel_log())
            culprit = run.bare(mps, [run.victims, "fault", what], env)
            faulting = culprit.event("faulting", 10)
            code = culprit.finish(8)
            ends = []
            for n in neighbours:
                n.wait_for(lambda line: line.get("event") == "end", 2)
                ends.append(n.process.poll())
            pids = {"culprit": culprit.process.pid, "neighbours": [n.process.pid for n in neighbours]}
            entry = {"what": what, "cores_asked_for": with_core, "pids": pids, "started": [bool(u) for u in up] + [bool(faulting)],
                     "culprit_status": code, "culprit": [line for line in culprit.lines if line.get("event") == "error"],
                     "culprit_stderr": culprit.stderr()[-1500:], "neighbour_status": ends,
                     "neighbours": [[line for line in n.lines if line.get("event") == "error"] for n in neighbours],
                     "neighbour_stderr": [n.stderr()[-800:] for n in neighbours],
                     "cores": {os.path.basename(p): os.path.getsize(p) for p in glob.glob(folder + "/*")}, "xid": kernel_log()[xids:]}
            run.end_children()
            rounds.append(entry)
            run.row("cores", what, "cores on" if with_core else "cores off", f"culprit {pids['culprit']}: {code} {[e['code'] for e in entry['culprit']]}",
                    f"neighbours {pids['neighbours']}: {ends} {[[e['code'] for e in n] for n in entry['neighbours']]}", f"cores {entry['cores']}")
            run.save("cores", {"rounds": rounds, "logs": mps.logs()})
