"""Observer of JAX: detects the dataset that a trainer trains on.

A compiled step of JAX runs no Python, but its first call does, to trace it. If a gradient is taken then, the dataset of
the last batch is trained on, and each of its batches is a step from there on. The batches themselves are observed at
their source: ``tf.data`` or PyTorch's ``DataLoader``.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop


def observe(loop: Loop, instrumentation: Instrumentation) -> None:
    """Instrument JAX, which has been imported."""
    jax = import_module("jax")
    for name in ("grad", "value_and_grad", "vjp"):
        instrumentation.attempt(f"jax: {name}", functools.partial(_wrap, jax, name, loop, instrumentation))


def _wrap(jax: Any, name: str, loop: Loop, instrumentation: Instrumentation) -> None:
    def traced(args: Any, kwargs: Any) -> None:
        loop.always_trains()

    if name == "vjp":  # takes the gradient itself
        instrumentation.around(jax, name, traced, None)
        return
    original = getattr(jax, name)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        return instrumentation.observing(original(*args, **kwargs), traced, None)

    instrumentation.put(jax, name, observed)
