# SPDX-License-Identifier: Apache-2.0
"""A greedy tenant: takes device memory by one framework until it is refused,
uses what it has, and reports what it was told. One JSON line.

usage: greedy.py torch|torch-expandable|torch-async|jax|cupy [--hold SECONDS]
"""
import json
import os
import sys
import time

GIB = 1 << 30


def by_torch(conf):
    if conf:
        os.environ["PYTORCH_ALLOC_CONF"] = conf
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    import torch

    free, total = torch.cuda.mem_get_info()
    out = {"free_bytes": free, "total_bytes": total,
           "property_total_bytes": torch.cuda.get_device_properties(0).total_memory, "version": torch.__version__}
    kept = []
    # A piece of odd size first, and work with libraries that load code lazily.
    a = torch.randn(2048, 2048, device="cuda")
    (a @ a).sum().item()
    size = GIB
    while size >= 2 << 20:
        try:
            x = torch.empty(size, dtype=torch.uint8, device="cuda")
            x[:: 1 << 20].fill_(1)
            torch.cuda.synchronize()
            kept.append(x)
        except Exception as e:  # the framework's own error is what is looked for
            out["error_class"] = type(e).__module__ + "." + type(e).__name__
            out["error_text"] = str(e).splitlines()[0][:200]
            size //= 2
    out["taken_bytes"] = sum(x.numel() for x in kept)
    # Full to the brim: kernels still run, and code that is not loaded yet still loads.
    try:
        (a @ a).sum().item()
        (a.bfloat16() @ a.bfloat16()).float().sum().item()
        out["work_at_the_brim"] = "done"
    except Exception as e:
        out["work_at_the_brim"] = type(e).__name__
    return out, kept


def by_jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    import jax
    import jax.numpy as jnp

    d = jax.devices()[0]
    a = jnp.ones((2048, 2048))
    (a @ a).block_until_ready()
    stats = d.memory_stats()
    out = {"total_bytes": None, "bytes_limit": stats.get("bytes_limit"), "version": jax.__version__}
    kept = []
    size = GIB
    while size >= 64 << 20:
        try:
            x = jnp.zeros((size,), dtype=jnp.uint8)
            x.block_until_ready()
            kept.append(x)
        except Exception as e:
            out["error_class"] = type(e).__module__ + "." + type(e).__name__
            out["error_text"] = str(e).splitlines()[0][:200]
            size //= 2
    out["taken_bytes"] = sum(x.nbytes for x in kept)
    return out, kept


def by_cupy():
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    out = {"free_bytes": free, "total_bytes": total, "version": cupy.__version__}
    a = cupy.random.rand(2048, 2048, dtype=cupy.float32)
    float((a @ a).sum())
    kept = []
    size = GIB
    while size >= 2 << 20:
        try:
            x = cupy.empty(size, dtype=cupy.uint8)
            x[:: 1 << 20] = 1
            cupy.cuda.Device().synchronize()
            kept.append(x)
        except Exception as e:
            out["error_class"] = type(e).__module__ + "." + type(e).__name__
            out["error_text"] = str(e).splitlines()[0][:200]
            size //= 2
    out["taken_bytes"] = sum(x.nbytes for x in kept)
    return out, kept


def main():
    which = sys.argv[1]
    hold = float(sys.argv[sys.argv.index("--hold") + 1]) if "--hold" in sys.argv else 1.0
    if which == "torch":
        out, kept = by_torch("")
    elif which == "torch-expandable":
        out, kept = by_torch("expandable_segments:True")
    elif which == "torch-async":
        out, kept = by_torch("backend:cudaMallocAsync")
    elif which == "jax":
        out, kept = by_jax()
    elif which == "cupy":
        out, kept = by_cupy()
    else:
        sys.exit(f"greedy.py: unknown framework {which}")
    out["which"] = which
    time.sleep(hold)
    print(json.dumps(out), flush=True)
    os._exit(0)  # as a killed or careless program ends: nothing is freed by hand


if __name__ == "__main__":
    main()
