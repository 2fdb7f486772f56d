# SPDX-License-Identifier: Apache-2.0
"""Part of mps.py: tenants that die with kernels in flight, beside a neighbour that checks every result."""
import os
import signal
import time

from mps_run import BareMps, Neighbour, alive, say

HOWS = ("kill", "segv", "exit", "term", "stop")
KINDS = ("plain", "managed", "pinned", "async", "ipc")


def victim_argv(run, how, kind, turn, count=20, milliseconds=20):
    if kind == "ipc":
        kind = "ipc-stays" if turn % 2 == 0 else "ipc-leaves"
    way = {"term": "wait", "stop": "wait" if turn % 2 == 0 else "deaf"}.get(how, how)
    return [run.victims, "victim", way, kind, str(count), str(milliseconds)]


def trial(run, start, neighbour, how, name, settle, stop=None):
    """One death; `settle` seconds later it is looked how the neighbour is."""
    began = time.time()
    victim = start()
    flight = victim.event("in flight", 20)
    result = {"how": how, "in_flight": flight, "ready": next((line for line in victim.lines if line.get("event") == "ready"), None)}
    if flight is None:
        result.update(died_after_s=time.time() - began, error="the victim did not get that far", stderr=victim.stderr(), lines=victim.lines[-3:])
        victim.process.kill()
    else:
        if how == "term":
            os.kill(flight["pid"], signal.SIGTERM)
        elif how == "stop":
            result["stop"] = stop()
        result["status"] = victim.finish(20)
        result["died_after_s"] = time.time() - began
        if how == "stop":
            result["stderr"] = victim.stderr()[-1500:]
    time.sleep(settle)
    neighbour.child.wait_for(lambda line: line.get("at", 0) > began + result.get("died_after_s", 0) + settle - 0.2, 3)
    result.update(kind=name, began=began, neighbour=neighbour.window(began))
    return result


def verdict(trials):
    good = [t for t in trials if t["in_flight"] and t["in_flight"].get("unfinished")]
    fine = [t for t in good if t["neighbour"]["alive"] and t["neighbour"]["wrong"] == 0]
    pauses = {}
    for t in good:
        if t["neighbour"]["worst_ms"] is not None:
            pauses.setdefault(t["kind"], []).append(t["neighbour"]["worst_ms"])
    return {"trials": len(trials), "in_flight": len(good), "neighbour_alive_and_right": len(fine),
            "longest_pause_ms": {k: max(v) for k, v in pauses.items()}}


def deaths(run, hows=HOWS, rounds=2, settle=0.9, part="deaths"):
    trials = []
    neighbour = Neighbour(lambda: run.tenant("neighbour", [run.victims, "neighbour"], ["--mem", "4GiB"]))
    number = 0
    for how in hows:
        for kind in KINDS:
            for turn in range(rounds):
                if run.left() < 15 or not neighbour.ensure():
                    break
                number += 1
                name = f"victim{number}"
                options = ["--mem", "8GiB"] + (["--processes", "2"] if kind == "ipc" else [])
                trials.append(trial(run, lambda: run.tenant(name, victim_argv(run, how, kind, turn), options), neighbour, how, kind, settle,
                                    lambda: run.gpumux("stop", "--grace", "1s", name)))
                state = trials[-1]["neighbour"]
                say(f"{part} {number}: {how} {kind}: neighbour {'alive' if state['alive'] else state['error'] or 'ended'}, "
                    f"wrong {state['wrong']}, longest {state['worst_ms']} ms" + (" NOT IN FLIGHT " + str(trials[-1].get("stderr", ""))[-200:]
                                                                                 if not (trials[-1]["in_flight"] or {}).get("unfinished") else ""))
                run.save(part, {"trials": trials})
    # The last ones' descriptors are still held: their closing belongs to the trial.
    end = time.time()
    time.sleep(min(5, max(0, run.left())))
    after = neighbour.window(end) if neighbour.child else None
    status, events = run.data("status"), run.data("events", "--since", "10m")
    summary = verdict(trials)
    run.save(part, {"trials": trials, "after_the_last": after, "summary": summary, "status": status, "events": events})
    run.row(part, f"{summary['neighbour_alive_and_right']} of {summary['in_flight']} alive and right", f"longest pause ms {summary['longest_pause_ms']}",
            f"after the last: {'alive' if after and after['alive'] else 'not alive'}")
    run.end_children()


def bare(run):
    trials, number = [], 0
    with BareMps(run) as mps:
        neighbour = Neighbour(lambda: run.bare(mps, [run.victims, "neighbour"]))
        for how, kind in [(h, k) for i, h in enumerate(HOWS[:4]) for k in (KINDS[i % 5], KINDS[(i + 2) % 5])]:
            if run.left() < 15:
                break
            number += 1
            for _ in range(100):
                if mps.healthy():
                    break
                time.sleep(0.1)
            if not neighbour.ensure():
                break
            trials.append(trial(run, lambda: run.bare(mps, victim_argv(run, how, kind, number)), neighbour, how, kind, 1.0))
            state = trials[-1]["neighbour"]
            say(f"bare {number}: {how} {kind}: neighbour {'alive' if state['alive'] else state['error'] or 'ended'}")
            run.save("bare", {"trials": trials})
        summary = verdict(trials)
        run.end_children()
        run.save("bare", {"trials": trials, "summary": summary, "logs": mps.logs()})
    run.row("bare MPS", f"{summary['neighbour_alive_and_right']} of {summary['in_flight']} alive and right", f"longest pause ms {summary['longest_pause_ms']}")


def outlast(run):
    """Kernels of 1 s each, held for at most 0.5 s."""
    path = os.path.join(run.b.dir, "short-hold.toml")
    with open(path, "w") as f:
        f.write('[mps]\nhold_min = "200ms"\nhold_max = "500ms"\n')
    os.chmod(path, 0o600)
    check = run.gpumux("config", "check", path)
    if check[0] != 0:
        run.save("outlast", {"skipped": check})
        run.row("outlast", "not run: the configuration knows no mps.hold_max", check[1] + check[2])
        return
    before = run.b.env
    pid = run.daemon_pid()
    if pid:
        os.kill(pid, signal.SIGTERM)
        for _ in range(50):
            if not alive(pid):
                break
            time.sleep(0.1)
    run.b.env = dict(before, GPUMUX_CONFIG=path)
    trials = []
    try:
        neighbour = Neighbour(lambda: run.tenant("neighbour", [run.victims, "neighbour"], ["--mem", "4GiB"]))
        for number, kind in enumerate(("plain", "managed")):
            if not neighbour.ensure():
                break
            trials.append(trial(run, lambda: run.tenant(f"long{number}", [run.victims, "victim", "kill", kind, "4", "1000"], ["--mem", "8GiB"]),
                                neighbour, "kill", kind, 5))
            state = trials[-1]["neighbour"]
            run.row("outlast", f"4 kernels of 1 s on {kind} memory, held 0.5 s", "alive" if state["alive"] else str(state["error"]), f"longest {state['worst_ms']} ms")
            run.save("outlast", {"trials": trials})
        run.save("outlast", {"trials": trials, "events": run.data("events", "--since", "1m"), "status": run.data("status")})
    finally:
        run.end_children()
        run.b.env = before
