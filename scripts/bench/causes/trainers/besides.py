"""Things that a training loop does besides its steps, each of which can take much time."""

import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from scripts.bench.causes.trainers.pipelines import busy
from scripts.bench.causes.trainers.recipe import Recipe

Beside = Callable[[], object]


def beside_of(recipe: Recipe, variables: list[Any], loss_of: Callable[[Any], Any]) -> Callable[[int], None]:
    """Return what is called after each step, with the number of the step.

    Args:
        recipe: The recipe.
        variables: Weights of the model.
        loss_of: Returns the loss of a batch, without training.
    """
    if not recipe.beside:
        return lambda _number: None
    once = BESIDES[recipe.beside](recipe, variables, loss_of)

    def beside(number: int) -> None:
        if number % recipe.every == 0:
            once()

    return beside


def _stall(recipe: Recipe, _variables: list[Any], _loss_of: Callable[[Any], Any]) -> Beside:
    """Wait, as for a lock or for another machine."""
    return lambda: time.sleep(recipe.beside_ms / 1000)


def _compute(recipe: Recipe, _variables: list[Any], _loss_of: Callable[[Any], Any]) -> Beside:
    """Compute in Python."""
    return lambda: busy(recipe.beside_ms / 1000)


def _garbage(recipe: Recipe, _variables: list[Any], _loss_of: Callable[[Any], Any]) -> Beside:
    """Collect garbage beside `amount` thousand objects that are in use."""
    kept = [[number] for number in range(1000 * recipe.amount)]

    def collect() -> int:
        return gc.collect() + len(kept)

    return collect


def _logging(recipe: Recipe, _variables: list[Any], _loss_of: Callable[[Any], Any]) -> Beside:
    """Write `amount` thousand numbers into a log, down to the disk."""
    path = Path(tempfile.mkdtemp()) / "log.json"
    numbers = list(np.random.default_rng(0).random(1000 * recipe.amount))

    def write() -> None:
        with path.open("w") as file:
            json.dump(numbers, file)
            file.flush()
            os.fsync(file.fileno())

    return write


def _metrics(recipe: Recipe, variables: list[Any], _loss_of: Callable[[Any], Any]) -> Beside:
    """Take `amount` figures of the weights one by one, each of them to Python."""
    first = variables[0]
    return lambda: [float(tf.reduce_sum(first[0] * number).numpy()) for number in range(recipe.amount)]


def _checkpoint(recipe: Recipe, variables: list[Any], _loss_of: Callable[[Any], Any]) -> Beside:
    """Save the weights, with `amount` MiB besides, as an optimizer has them."""
    more = [tf.Variable(tf.random.normal([1 << 18])) for _ in range(recipe.amount)]
    checkpoint = tf.train.Checkpoint(**{f"v{number}": one for number, one in enumerate([*variables, *more])})
    manager = tf.train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=1)
    return lambda: manager.save()


def _validation(recipe: Recipe, _variables: list[Any], loss_of: Callable[[Any], Any]) -> Beside:
    """Go over `amount` batches of other data, without training on them."""
    features = tf.random.stateless_normal([recipe.batch_size, recipe.width], (0, 2))
    dataset = tf.data.Dataset.from_tensors(features).repeat(recipe.amount)
    evaluate = tf.function(loss_of)
    return lambda: [float(evaluate(batch)) for batch in dataset]


def _leak(recipe: Recipe, _variables: list[Any], _loss_of: Callable[[Any], Any]) -> Beside:
    """Keep `amount` MiB more each time, as a list of all outputs does."""
    kept: list[Any] = []
    return lambda: kept.append(np.ones(recipe.amount << 17))


BESIDES: dict[str, Callable[[Recipe, list[Any], Callable[[Any], Any]], Beside]] = {
    "stall": _stall,
    "compute": _compute,
    "garbage": _garbage,
    "logging": _logging,
    "metrics": _metrics,
    "checkpoint": _checkpoint,
    "validation": _validation,
    "leak": _leak,
}
"""What a loop may do besides steps, by its name in a recipe."""
