"""Fingerprints of the samples that TensorFlow and Keras fetch: the same, however the loop is written."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.measure.data import read_data
from scripts.bench.overhead import observed_trainers as trainers
from tests.trainee.conftest import Observed

SAMPLES, BATCH = 240, 8
X = np.random.default_rng(5).normal(size=(SAMPLES, trainers.WIDTH)).astype("float32")
Y = X[:, :1] > 0


def dataset(tf: Any) -> Any:
    """Return the samples in their order."""
    return tf.data.Dataset.from_tensor_slices((X, Y.astype("float32"))).batch(BATCH)


def loop(tf: Any, compiled: bool = True) -> None:
    """Loop in Python over batches."""
    step = trainers.tf_step()[0]
    step = tf.function(step) if compiled else step
    for x, y in dataset(tf):
        step(x, y)


def loop_inside(tf: Any) -> None:
    """Fetch in a compiled function."""
    step, iterator = trainers.tf_step()[0], iter(dataset(tf))

    @tf.function
    def fetch_and_step(batches: Any) -> Any:
        return step(*next(batches))

    for _ in range(SAMPLES // BATCH):
        fetch_and_step(iterator)


def arrays(tf: Any) -> None:
    """Pass slices of arrays to a compiled step."""
    step = tf.function(trainers.tf_step()[0])
    for begin in range(0, SAMPLES, BATCH):
        x, y = X[begin : begin + BATCH], Y[begin : begin + BATCH]
        step(tf.constant(x), tf.constant(y.astype("float32")))


def fit(tf: Any, data: Callable[[Any], Any] = dataset, **options: Any) -> None:
    """Train with Keras' fit on a dataset."""
    trainers.keras_model(tf.keras, **options).fit(data(tf), verbose=0)


def fit_arrays(tf: Any, **options: Any) -> None:
    """Train with Keras' fit on arrays."""
    trainers.keras_model(tf.keras, **options).fit(X, Y.astype("float32"), BATCH, shuffle=False, verbose=0)


WAYS: dict[str, Callable[[Any], None]] = {
    "eager": lambda tf: loop(tf, compiled=False),
    "compiled step": loop,
    "fetch in the step": loop_inside,
    "arrays": arrays,
    "fit": fit,
    "fit, four steps per execution": lambda tf: fit(tf, steps_per_execution=4),
    "fit on arrays": fit_arrays,
    "fit on arrays, four steps per execution": lambda tf: fit_arrays(tf, steps_per_execution=4),
    "fit, eager": lambda tf: fit(tf, run_eagerly=True),
}


@pytest.fixture(scope="module")
def expected() -> set[int]:
    """Hashes of the samples, as they come from the first way that ran; the key is the same for all."""
    return set()


@pytest.mark.parametrize("way", WAYS)
def test_samples_are_seen_in_whatever_loop(
    tensorflow: Any, here: Callable[..., Observed], expected: set[int], way: str
) -> None:
    """Each has its hash, whether Python or a graph fetches it."""
    seen = here(lambda: WAYS[way](tensorflow), AUTOTUNE_DATA_KEY="0" * 32)
    found = read_data(seen.folder.path, seen.events)
    assert not found.is_unseen
    assert found.size >= SAMPLES // 4  # fewer where the machine is slow
    expected |= set() if expected else set(found.content.tolist())
    assert len(set(found.content.tolist()) & expected) > 0.2 * found.size


REPORTS = """
import numpy
from autotune.trainee import epoch_end, step
samples = numpy.random.default_rng(5).normal(size=(240, 64))
for _ in range(2):
    for begin in range(0, 240, 8):
        step(batch={"x": samples[begin : begin + 8], "y": numpy.arange(begin, begin + 8)})
    epoch_end()
"""


def test_batches_that_the_trainer_reports(run: Callable[..., Observed], tmp_path: Path) -> None:
    """With its step, in a loop whose batches nothing else sees; their length is the step's samples."""
    script = tmp_path / "train.py"
    script.write_text(REPORTS)
    seen = run(sys.executable, script, AUTOTUNE_DATA_KEY="0" * 32)
    assert {event.samples for event in seen.kind("step")} == {8.0}
    found = read_data(seen.folder.path, seen.events)
    assert found.pass_lengths == (240, 240)
    assert set(found.passes.tolist()) <= {0, 1}
    assert len(found.content) == len(found.labels) >= SAMPLES // 4
