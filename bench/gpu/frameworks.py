# SPDX-License-Identifier: Apache-2.0
"""What programs do beyond allocating, run as a tenant: each line is one thing
that must work as it does bare. Prints name, ok or the error, one a line.

usage: frameworks.py            (as a tenant with some GiB)
"""
import os
import traceback

import torch
import torch.multiprocessing as mp


def child(queue, out):
    t = queue.get()
    out.put(float(t.sum()))
    del t


def shared_tensors():
    context = mp.get_context("spawn")
    queue, out = context.Queue(), context.Queue()
    p = context.Process(target=child, args=(queue, out))
    p.start()
    t = torch.ones(1 << 20, device="cuda")
    queue.put(t)
    assert out.get(timeout=60) == float(1 << 20)
    p.join()


def cuda_graph():
    x = torch.randn(256, 256, device="cuda")
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        for _ in range(3):
            x @ x
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x @ x
    for _ in range(100):
        g.replay()
    torch.cuda.synchronize()
    assert torch.allclose(y, x @ x, atol=1e-3)


def triton_kernel():
    import triton
    import triton.language as tl

    @triton.jit
    def add(a, b, o, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        m = i < n
        tl.store(o + i, tl.load(a + i, mask=m) + tl.load(b + i, mask=m), mask=m)

    a, b = torch.randn(10000, device="cuda"), torch.randn(10000, device="cuda")
    o = torch.empty_like(a)
    add[(40,)](a, b, o, 10000, BLOCK=256)
    assert torch.equal(o, a + b)


def data_loader():
    data = torch.utils.data.TensorDataset(torch.arange(1000.0))
    total = 0.0
    for (x,) in torch.utils.data.DataLoader(data, batch_size=100, num_workers=4, pin_memory=True):
        total += float(x.cuda(non_blocking=True).sum())
    assert total == 499500.0


def nccl_one_process():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    t = torch.ones(1024, device="cuda")
    torch.distributed.all_reduce(t)
    torch.cuda.synchronize()
    assert float(t[0]) == 1.0
    torch.distributed.destroy_process_group()


def main():
    for f in (cuda_graph, triton_kernel, shared_tensors, data_loader, nccl_one_process):
        try:
            f()
            print(f.__name__, "ok", flush=True)
        except Exception:
            print(f.__name__, traceback.format_exc().strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
