# SPDX-License-Identifier: Apache-2.0
"""What needs two GPUs, as a tenant of both: NCCL between two processes, a copy from one
GPU to the other, and each GPU's own limit.

usage: NCCL_NVLS_ENABLE=0 gpumux run --gpu auto:2 --mem 20GiB -- python3 two_gpus.py
"""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

GIB = 1 << 30
MOST = 40  # GiB that are asked for, more than the promise


def fill(device):
    """GiB granted on a GPU before the first refusal; all given back."""
    held = []
    try:
        while len(held) < MOST:
            held.append(torch.empty(GIB, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError:
        pass
    granted = len(held)
    del held
    torch.cuda.empty_cache()
    return granted


def rank(index, count, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(index), WORLD_SIZE=str(count))
    torch.cuda.set_device(index)
    dist.init_process_group("nccl", rank=index, world_size=count)
    x = torch.full((1 << 24,), float(index + 1), device="cuda")
    dist.all_reduce(x)
    right = bool((x == 3).all())
    told = torch.cuda.mem_get_info()[1] / GIB
    granted = fill("cuda")
    y = torch.full((1 << 20,), 1.0, device="cuda")
    dist.all_reduce(y)  # after refusals too
    results.put((index, right and bool((y == 2).all()), told, granted))
    dist.destroy_process_group()


def main():
    count = torch.cuda.device_count()
    print("devices", count, [torch.cuda.get_device_properties(i).total_memory / GIB for i in range(count)])
    context = mp.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=rank, args=(i, 2, results)) for i in range(2)]
    for p in ranks:
        p.start()
    told = sorted(results.get(timeout=100) for _ in ranks)
    for p in ranks:
        p.join()
    print("two processes, NCCL:", told, "exit", [p.exitcode for p in ranks])
    a = torch.arange(1 << 20, device="cuda:0")
    b = a.to("cuda:1")
    print("peer copy ok", bool((b.cpu() == a.cpu()).all()), "can access", torch.cuda.can_device_access_peer(0, 1))
    print("GiB granted on each from one process", [fill(f"cuda:{d}") for d in (0, 1)])


if __name__ == "__main__":
    main()
