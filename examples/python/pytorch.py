# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a good neighbour. Needs PyTorch and a GPU.

    gpumux run --mem 8GiB:40GiB -- python3 pytorch.py

Its caching allocator keeps what tensors gave back. Within the guarantee that is nobody
else's business; beyond it, others may want it.
"""

import gpumux
import torch

gpumux.on_reclaim(torch.cuda.empty_cache)

x = torch.randn(4096, 4096, device="cuda")
for step in range(1000):
    y = x @ x
    if step % 100 == 0:
        with gpumux.latency_critical():  # what a user waits for
            y.sum().item()
print(gpumux.memory_info())
