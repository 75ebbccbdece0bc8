"""Sees which data a JAX trainer trains on.

A compiled step of JAX never comes back to Python, but the first call of it does, to be traced. If a gradient is taken
then, the dataset of the last batch is what is trained on, and each of its batches is a step from there on. The batches
themselves are seen where they come from: ``tf.data`` or PyTorch's ``DataLoader``.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any, Callable

from autotune.trainee.loop import Loop
from autotune.trainee.shield import Shield


def observe(loop: Loop, shield: Shield) -> None:
    """Wraps what there is to be seen; JAX has been imported."""
    jax = import_module("jax")
    for name in ("grad", "value_and_grad", "vjp"):
        shield.attempt(f"jax: {name}", functools.partial(_wrap, jax, name, loop, shield))


def _wrap(jax: Any, name: str, loop: Loop, shield: Shield) -> None:
    original = getattr(jax, name)

    def traced() -> None:
        if shield.on:
            try:
                loop.always_trains()
            except Exception as error:
                shield.failed(error)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if name == "vjp":  # takes the gradient itself
            traced()
            return made
        return _telling(made, traced)

    setattr(jax, name, observed)


def _telling(function: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        tell()
        return function(*args, **kwargs)

    return told
