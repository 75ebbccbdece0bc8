"""A small JAX training: a compiled step over batches from the host."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import yaml

with open(sys.argv[1]) as file:
    data = yaml.safe_load(file)["data"]


@jax.jit
def step(weights, batch):
    """One step of gradient descent."""

    def loss(weights):
        return jnp.mean((batch @ weights - 1.0) ** 2)

    return weights - 0.01 * jax.grad(loss)(weights)


weights = jnp.zeros((64, 1))
random = np.random.default_rng(0)
while True:
    weights = step(weights, random.normal(size=(data["batch_size"], 64)).astype(np.float32))
    weights.block_until_ready()
