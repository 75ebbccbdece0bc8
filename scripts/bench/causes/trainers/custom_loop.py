"""Training loop over a dataset, with its own gradients.

Kinds of step: ``graph`` (compiled once), ``fetching`` (compiled, takes its batch itself), ``eager`` (operation by
operation, as many small ones as layers), ``retracing`` (compiled anew for each step, as its number is a Python
number), ``wrapped`` (a new compiled function for each step), ``shapes`` (each batch is of a length of its own).
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from scripts.bench.causes.trainers.besides import beside_of
from scripts.bench.causes.trainers.pipelines import batches_of
from scripts.bench.causes.trainers.recipe import Recipe, read_recipe

_RATE = 1e-3


class Model:
    """Layers of the same width with a tanh each.

    Args:
        recipe: Says how many, and how wide.
    """

    def __init__(self, recipe: Recipe) -> None:
        shape = [recipe.width, recipe.width]
        self.variables = [tf.Variable(tf.random.normal(shape, stddev=0.05)) for _ in range(recipe.layers)]

    def loss(self, features: Any) -> Any:
        """Return the loss of a batch."""
        outputs = features
        for variable in self.variables:
            outputs = tf.tanh(outputs @ variable)
        return tf.reduce_mean(tf.square(outputs - 1.0))

    def step(self, features: Any, _number: int = 0) -> Any:
        """Train on a batch; return its loss."""
        with tf.GradientTape() as tape:
            loss = self.loss(features)
        for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
            variable.assign_sub(_RATE * gradient)
        return loss


def _steps(recipe: Recipe, model: Model) -> Iterator[Any]:
    """Train for ever; yield the loss of each step."""
    dataset = batches_of(recipe)
    take = _step_of(recipe, model)
    number = 0
    while True:
        if recipe.step == "fetching":
            yield from _fetching(dataset, model)
        for features in dataset:
            number += 1
            yield take(features, number)


def _fetching(dataset: Any, model: Model) -> Iterator[Any]:
    iterator = iter(dataset)

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]  # TensorFlow has no types
    def step() -> Any:
        return model.step(next(iterator))

    while True:
        yield step()


def _step_of(recipe: Recipe, model: Model) -> Callable[[Any, int], Any]:
    compiled = tf.function(model.step)
    if recipe.step == "eager":
        return model.step
    if recipe.step == "retracing":
        return compiled  # type: ignore[no-any-return]
    if recipe.step == "wrapped":
        return lambda features, _number: tf.function(model.step)(features)
    if recipe.step == "shapes":
        return lambda features, _number: compiled(features[: random.randint(1, len(features))])
    return lambda features, _number: compiled(features)


def main() -> None:
    """Train until stopped."""
    recipe = read_recipe()
    model = Model(recipe)
    beside = beside_of(recipe, model.variables, model.loss)
    begin_s = time.monotonic()
    for number, loss in enumerate(_steps(recipe, model), start=1):
        value = float(loss)
        beside(number)
        if recipe.jitter:
            usual_s = (time.monotonic() - begin_s) / number
            time.sleep(usual_s * recipe.jitter * random.random())
        if number % 1000 == 0:
            print(number, value, flush=True)


if __name__ == "__main__":
    main()
