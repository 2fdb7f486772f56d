# SPDX-License-Identifier: Apache-2.0
"""PyTorch tenants of mps.py: `inference`, which compares every result, and `training`, which waits for a line on its input
("go", or "grab": take what there is first) and trains until it is killed. Lines of JSON on stdout."""
import json
import os
import sys
import time

import torch

MIB = 1 << 20


def say(**fields):
    print(json.dumps({"at": time.time(), "pid": os.getpid(), **fields}), flush=True)


def net(width, depth):
    torch.manual_seed(1)
    layers = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).cuda()


def grab():
    """Takes memory until that is refused; how much it got, and the refusal."""
    pieces, error = [], None
    try:
        while len(pieces) < 4096:
            pieces.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
    except RuntimeError as e:
        error = f"{type(e).__name__}: {e}"[:300]
    got = 64 * MIB * len(pieces)
    pieces.clear()
    torch.cuda.empty_cache()
    return {"grabbed_bytes": got, "refusal": error}


def ready(grabbing):
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    fields = {"multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count, "free_bytes": free, "total_bytes": total}
    say(event="ready", **fields, **(grab() if grabbing else {}))


def inference():
    ready(True)
    model = net(2048, 8).eval().half()
    x = torch.randn(64, 2048, device="cuda", dtype=torch.half)
    with torch.inference_mode():
        want = model(x).clone()
        torch.cuda.synchronize()
        wrong, steps, worst, told = 0, 0, 0.0, time.time()
        while True:
            start = time.time()
            same = bool(torch.equal(model(x), want))
            end = time.time()
            steps, wrong, worst = steps + 1, wrong + (not same), max(worst, 1e3 * (end - start))
            if end - told >= 0.1:
                say(steps=steps, wrong=wrong, worst_ms=round(worst, 3))
                worst, told = 0.0, end


def training():
    say(event="loaded")
    ready(sys.stdin.readline().strip() == "grab")
    model = net(4096, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2048, 4096, device="cuda")
    for step in range(1 << 30):
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()
        if step == 2:
            torch.cuda.synchronize()
            say(event="training")
        elif step % 20 == 19:
            torch.cuda.synchronize()


if __name__ == "__main__":
    try:
        inference() if sys.argv[1] == "inference" else training()
    except Exception as e:
        say(event="error", what=f"{type(e).__name__}: {e}"[:400], code=-1)
        sys.exit(3)
