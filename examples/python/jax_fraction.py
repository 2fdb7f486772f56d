# SPDX-License-Identifier: Apache-2.0
"""JAX beside another program in one tenant. Needs JAX and a GPU.

    gpumux run --mem 20GiB -- sh -c 'python3 jax_fraction.py & python3 other.py; wait'

JAX takes three quarters of what it is told as the GPU's total when it starts. With a
fraction it is told less, so that the rest is left for the other program; no variable of
JAX has to be set.
"""

import gpumux

gpumux.set_memory_fraction(0.5)  # before JAX asks the GPU for its size

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

x = jnp.ones((4096, 4096))
print(float((x @ x).sum()), jax.devices()[0], gpumux.memory_info())
