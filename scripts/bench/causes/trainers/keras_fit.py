"""Keras's own training loop. Kinds of step: ``graph``, ``eager`` (``run_eagerly``)."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from scripts.bench.causes.trainers.besides import beside_of
from scripts.bench.causes.trainers.pipelines import batches_of
from scripts.bench.causes.trainers.recipe import Recipe, read_recipe


class _Beside(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]  # Keras has no types
    """Calls what the loop does besides steps."""

    def __init__(self, beside: Callable[[int], None]) -> None:
        super().__init__()
        self._beside = beside
        self._number = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._number += 1
        self._beside(self._number)


def _callbacks(recipe: Recipe, model: Any, weights: Path) -> list[Any]:
    if recipe.beside == "checkpoint":
        return [keras.callbacks.ModelCheckpoint(str(weights), save_freq=recipe.every)]
    if recipe.beside in ("", "validation"):
        return []

    def loss_of(features: Any) -> Any:
        return tf.reduce_mean(tf.square(model(features) - 1.0))

    return [_Beside(beside_of(recipe, model.trainable_variables, loss_of))]


def main() -> None:
    """Train until stopped."""
    recipe = read_recipe()
    layers = [keras.layers.Dense(recipe.width, activation="tanh") for _ in range(recipe.layers)]
    model = keras.Sequential([keras.Input((recipe.width,)), *layers])
    model.compile(optimizer="sgd", loss="mse", run_eagerly=recipe.step == "eager")

    def with_target(features: Any) -> Any:
        return features, tf.ones_like(features)

    dataset = batches_of(recipe).map(with_target)
    if recipe.prefetch:
        dataset = dataset.prefetch(recipe.prefetch)
    validation = None
    if recipe.beside == "validation":
        validation = tf.data.Dataset.from_tensors(tf.ones([recipe.batch_size, recipe.width]))
        validation = validation.map(with_target).repeat(recipe.amount)
    with tempfile.TemporaryDirectory() as folder:
        model.fit(
            dataset.repeat(),
            epochs=1_000_000,
            steps_per_epoch=recipe.every if validation is not None else recipe.epoch_batches or 1000,
            validation_data=validation,
            callbacks=_callbacks(recipe, model, Path(folder) / "model.keras"),
            verbose=0,
        )


if __name__ == "__main__":
    main()
