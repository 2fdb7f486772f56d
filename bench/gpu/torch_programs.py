# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs of the benchmarks of sharing; lines of JSON on stdout, orders on stdin.

usage: torch_programs.py training KIND     resnet (ResNet-50, batch 128) or encoder (36 layers, width 1280, batch 8 x 512), bf16 autocast;
                                           resnet-large, encoder-large: twice the batch, so that the processor keeps ahead of the GPU;
                                           encoder-graph: the encoder, each step one launch of a CUDA graph
       torch_programs.py latency           requests of a 12-layer encoder (width 768, batch 1 x 128, fp16), eager and as a CUDA graph,
                                           and of a 24-layer one (width 2048, batch 8 x 256) as a graph
Orders, one a line: {"from": EPOCH, "to": EPOCH} a window of training; {"kind": "eager"|"graph"|"long", "from", "to", "load": 0.2, "solo":
seconds, "prepare": seconds, "hint": bool} a window of requests arriving at random (Poisson; load is rate x service time alone), each of
which works on the processor first; end of input ends.
"""
import json
import os
import random
import sys
import time

import torch
from torch import nn

torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True


def say(**fields):
    print(json.dumps(fields), flush=True)


def encoder(width, layers, heads):
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def step_of(kind):
    times = 2 if kind.endswith("-large") else 1
    if kind.startswith("resnet"):
        import torchvision

        model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        x = torch.randn(128 * times, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        y = torch.randint(0, 1000, (128 * times,), device="cuda")

        def loss():
            return nn.functional.cross_entropy(model(x), y)
    else:
        model = encoder(1280, 36, 20).cuda()
        x = torch.randn(8 * times, 512, 1280, device="cuda")

        def loss():
            return model(x).float().pow(2).mean()

    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def work():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=not kind.endswith("-graph")):
            value = loss()
        value.backward()
        optimizer.step()

    if kind.endswith("-graph"):
        work = captured(work)

    def step():
        work()
        torch.cuda.synchronize()

    return step


class Orders:
    """Lines on stdin, read without waiting (a training goes on) or with."""

    def __init__(self):
        os.set_blocking(0, False)
        self.rest = b""
        self.ended = False

    def take(self):
        try:
            got = os.read(0, 65536)
            self.ended = self.ended or not got
            self.rest += got
        except BlockingIOError:
            pass
        line, newline, rest = self.rest.partition(b"\n")
        if not newline:
            return None
        self.rest = rest
        return json.loads(line)


def training(kind):
    step, orders = step_of(kind), Orders()
    for _ in range(6):
        step()
    say(event="ready")
    window, ends = None, []
    while True:
        step()
        now = time.time()
        window = orders.take() or window
        if window:
            ends.append(now)
            if now > window["to"]:
                say(**steps_in(ends, window["from"], window["to"]))
                window, ends = None, []
        if orders.ended:
            return


def steps_in(ends, start, end):
    """Steps between two times; the parts of the first and the last one count."""
    steps, longest = 0.0, 0.0
    for a, b in zip(ends, ends[1:]):
        inside = min(b, end) - max(a, start)
        if inside > 0:
            steps += inside / (b - a)
            longest = max(longest, b - a)
    return {"steps_per_s": steps / (end - start), "longest_ms": 1e3 * longest}


def latency():
    small, x = encoder(768, 12, 12).cuda().half().eval(), torch.randn(1, 128, 768, device="cuda").half()
    large, y = encoder(2048, 24, 16).cuda().half().eval(), torch.randn(8, 256, 2048, device="cuda").half()
    hint = None
    try:
        import gpumux

        hint = gpumux.latency_critical
    except ImportError:
        pass
    with torch.no_grad():
        runs = {"eager": lambda: small(x), "graph": captured(lambda: small(x)), "long": captured(lambda: large(y))}
        for run in runs.values():
            for _ in range(20):
                run()
                torch.cuda.synchronize()
        say(event="ready", solo={kind: median_of(run) for kind, run in runs.items()}, hint=hint is not None)
        for line in sys.stdin:
            order = json.loads(line)
            say(**requests(runs[order["kind"]], order, hint if order.get("hint") else None))


def captured(run):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(10):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def median_of(run):
    times = []
    for _ in range(40):
        a = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - a)
    return sorted(times)[20]


def request(run, prepared_at):
    while time.perf_counter() < prepared_at:
        pass
    run()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return launched


def requests(run, order, hint):
    rate, prepare = order["load"] / order["solo"], order["prepare"]
    rnd, service, finish, launch = random.Random(1), [], [], []
    while time.time() < order["from"]:
        time.sleep(0.0002)
    start = time.perf_counter()
    length, arrival = order["to"] - order["from"], start
    while True:
        arrival += rnd.expovariate(rate)
        if arrival - start > length:
            break
        while time.perf_counter() < arrival:
            pass
        a = time.perf_counter()
        if hint:
            with hint():
                launched = request(run, a + prepare)
        else:
            launched = request(run, a + prepare)
        b = time.perf_counter()
        service.append(b - a)
        finish.append(b - arrival)
        launch.append(launched - a - prepare)
    busy_until = time.time()
    service.sort()
    finish.sort()
    launch.sort()

    def at(values, part):
        return 1e3 * values[min(len(values) - 1, int(part * len(values)))] if values else None

    return {"requests": len(service), "rate_per_s": rate, "launch_p50_ms": at(launch, 0.5), "launch_p99_ms": at(launch, 0.99),
            "service_p50_ms": at(service, 0.5), "service_p99_ms": at(service, 0.99),
            "service_max_ms": at(service, 1), "finish_p50_ms": at(finish, 0.5), "finish_p99_ms": at(finish, 0.99), "ended_at": busy_until}


if __name__ == "__main__":
    try:
        training(sys.argv[2]) if sys.argv[1] == "training" else latency()
    except Exception as e:  # noqa: BLE001, told to the harness
        say(event="error", what=f"{type(e).__name__}: {e}"[:400])
        sys.exit(3)
