"""Observer of JAX: detects the dataset that a trainer trains on.

A compiled step of JAX runs no Python, but its first call does, to trace it. If a gradient is taken then, the dataset of
the last batch is trained on, and each of its batches is a step from there on. The batches themselves are observed at
their source: ``tf.data`` or PyTorch's ``DataLoader``.
"""

from __future__ import annotations

import functools
from typing import Any

from autotune.trainee.observer import Observer


class JaxObserver(Observer):
    """Observer of JAX."""

    def install(self) -> None:
        self.around("jax:vjp", self._traced)  # takes the gradient itself
        for place in ("jax:grad", "jax:value_and_grad"):
            self.attempt(place, self._around_transform)

    def _traced(self, args: Any, kwargs: Any) -> None:
        self.loop.always_trains()

    def _around_transform(self, jax: Any, name: str) -> None:
        """Observe the functions that a transform returns."""
        original, traced, instrumentation = getattr(jax, name), self._traced, self.instrumentation

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            return instrumentation.observing(original(*args, **kwargs), traced, None)

        instrumentation.put(jax, name, observed)
