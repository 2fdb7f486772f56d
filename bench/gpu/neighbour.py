# SPDX-License-Identifier: Apache-2.0
"""The neighbour: a PyTorch training loop that holds most of its promise, checks
its own arithmetic in every step and reports how long steps took. Ends when the
file given appears. One JSON line.

usage: neighbour.py STOP_FILE [GIB]
"""
import json
import os
import sys
import time

import torch


def main():
    stop = sys.argv[1]
    gib = float(sys.argv[2]) if len(sys.argv) > 2 else 8
    free, total = torch.cuda.mem_get_info()
    ballast = torch.empty(int(gib * (1 << 30)), dtype=torch.uint8, device="cuda")
    ballast[:: 1 << 20].fill_(7)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(512, 2048, device="cuda")
    check = torch.arange(1 << 20, device="cuda", dtype=torch.int64)
    want = (1 << 20) * ((1 << 20) - 1) // 2
    print("working", flush=True)
    steps, wrong, refused, times = 0, 0, 0, []
    while not os.path.exists(stop):
        t = time.perf_counter()
        try:
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
            y = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")  # takes and frees in every step
            del y
            if int(check.sum()) != want or int(ballast[0]) != 7:
                wrong += 1
        except torch.OutOfMemoryError:
            refused += 1
        torch.cuda.synchronize()
        times.append(time.perf_counter() - t)
        steps += 1
    times.sort()
    print(json.dumps({"which": "neighbour", "steps": steps, "wrong": wrong, "refused": refused, "total_bytes": total,
                      "free_bytes": free, "p50_ms": 1e3 * times[len(times) // 2],
                      "p99_ms": 1e3 * times[int(len(times) * 0.99)], "max_ms": 1e3 * times[-1]}), flush=True)


if __name__ == "__main__":
    main()
