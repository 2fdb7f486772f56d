# SPDX-License-Identifier: Apache-2.0
"""What am I promised, and what of it do I have?

    gpumux run --mem 8GiB:20GiB -- python3 memory.py
"""

import gpumux
from driver import GIB, Gpu


def show(when: str) -> None:
    memory = gpumux.memory_info()
    if memory is None:
        print(f"{when}: no tenant, so nothing is promised")
        return
    print(
        f"{when}: total {memory.total / GIB:.2f} GiB, free {memory.free / GIB:.2f}, used {memory.used / GIB:.2f},"
        f" peak {memory.peak / GIB:.2f}, guaranteed {memory.guaranteed / GIB:.2f}"
    )


show("before CUDA is used")
gpu = Gpu()
show("with a context")
address = gpu.allocate(3 * GIB)
show("with 3 GiB more")
gpu.free(address)
show("without them")
