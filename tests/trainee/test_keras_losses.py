"""Losses and pauses of Keras within an epoch: the loss of the batches, not of the epoch so far; pauses after steps."""

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest

from autotune.records import EACH_LOSS_VARIABLE
from autotune.trainee.report import EACH_LOSS_VARIABLE as OBSERVERS_VARIABLE
from tests.trainee.conftest import Observed

pytestmark = pytest.mark.services

BATCHES, EVERY = 60, 15
TRAINER = """
    import time
    import keras, numpy as np

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % {every} == {every} - 1:
                self.model.save_weights("{folder}/w.weights.h5")
                time.sleep(0.2)

    class Raw(keras.Sequential):
        def train_step(self, data):
            super().train_step(data)
            return {{"loss": keras.ops.mean(keras.ops.square(data[1]))}}

    # Nothing is learned, and the loss of a batch is its number in the epoch.
    y = np.repeat(np.sqrt(np.arange({batches}, dtype="float32")), 8)[:, None]
    model = {model}([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    last = np.ones((8, 1)), y[-8:]
    model.fit(
        np.ones_like(y), y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Save()], validation_data=last
    )
"""


@pytest.fixture(params=["keras.Sequential", "Raw"])
def trained(run: Callable[..., Observed], tmp_path: Path, request: pytest.FixtureRequest) -> Observed:
    """Run of a Keras model, with its own training step or with one that returns the loss of the batch."""
    text = dedent(TRAINER).format(every=EVERY, batches=BATCHES, folder=tmp_path, model=request.param)
    (tmp_path / "train.py").write_text(text)
    return run(sys.executable, tmp_path / "train.py", **{EACH_LOSS_VARIABLE: "1"})


def test_host_and_guest_mean_the_same_variable() -> None:
    """The guest has no import of the host's."""
    assert EACH_LOSS_VARIABLE == OBSERVERS_VARIABLE


def test_losses_are_those_of_the_batches(trained: Observed) -> None:
    """Each reported loss is the mean over the steps since the one before; all batches are in it."""
    seen, since = [], 0
    for event in trained.events:
        if event.kind == "step":
            since += 1
        if event.loss is not None and event.kind == "step":
            seen.append((event.loss, since))
            since = 0
    assert sum(count for _, count in seen) == 2 * BATCHES
    whole = sum(loss * count for loss, count in seen)
    assert whole == pytest.approx(2 * sum(range(BATCHES)), rel=0.02)
    last, count = seen[-1]
    assert last == pytest.approx(BATCHES - (1 + count) / 2, abs=0.6)


def test_evaluations_tell_their_loss(trained: Observed) -> None:
    """It is none of training."""
    assert [event.loss for event in trained.events if event.kind == "eval"] == pytest.approx([BATCHES - 1] * 2)


def test_the_step_after_a_pause_is_the_slow_one(trained: Observed) -> None:
    """A checkpoint within the callbacks of a step comes after that step, and before the next."""
    kinds = [event.kind for event in trained.events if event.kind in ("step", "checkpoint")]
    places = [place for place, kind in enumerate(kinds) if kind == "checkpoint"]
    assert places == [EVERY * number + number - 1 for number in range(1, 2 * BATCHES // EVERY + 1)]
    times_s = [event.t_s for event in trained.events if event.kind in ("step", "checkpoint")]
    assert all(later >= earlier for earlier, later in pairwise(times_s))
