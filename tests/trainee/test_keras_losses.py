"""Losses and pauses of Keras within an epoch: the loss of the batches, not of the epoch so far; pauses after steps."""

import runpy
from itertools import pairwise
from typing import Any

import pytest

from autotune.records import EACH_LOSS_VARIABLE
from autotune.trainee import loop
from autotune.trainee.stream import EACH_LOSS_VARIABLE as OBSERVERS_VARIABLE
from tests.trainee.conftest import Observed, observe_here

BATCHES, EVERY = 24, 6
TRAINER = f"""
import keras, numpy as np

class Save(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch % {EVERY} == {EVERY} - 1:
            self.model.save_weights("FOLDER/w.weights.h5")

class Raw(keras.Sequential):
    def train_step(self, data):
        super().train_step(data)
        return {{"loss": keras.ops.mean(keras.ops.square(data[1]))}}

# Nothing is learned, and the loss of a batch is its number in the epoch.
y = np.repeat(np.sqrt(np.arange({BATCHES}, dtype="float32")), 8)[:, None]
model = MODEL([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.0), "mse")
last = np.ones((8, 1)), y[-8:]
model.fit(
    np.ones_like(y), y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Save()], validation_data=last
)
"""


@pytest.fixture(scope="module", params=["keras.Sequential", "Raw"])
def trained(tmp_path_factory: pytest.TempPathFactory, tensorflow: Any, request: pytest.FixtureRequest) -> Observed:
    """Run of a Keras model, with its own training step or with one that returns the loss of the batch."""
    folder = tmp_path_factory.mktemp("study")
    script = folder / "train.py"
    script.write_text(TRAINER.replace("MODEL", request.param).replace("FOLDER", str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "READ_EVERY_S", 0.0)
        return observe_here(folder / "run", lambda: runpy.run_path(str(script)), **{EACH_LOSS_VARIABLE: "1"})


def test_host_and_guest_mean_the_same_variable() -> None:
    """The guest has no import of the host's."""
    assert EACH_LOSS_VARIABLE == OBSERVERS_VARIABLE


def test_losses_are_those_of_the_batches(trained: Observed) -> None:
    """Each reported loss is the mean over the steps since the one before."""
    numbers = 2 * list(range(BATCHES))
    begin, losses = 0, [event.loss for event in trained.kind("step")]
    for end, loss in enumerate(losses, start=1):
        if loss is not None:
            assert loss == pytest.approx(sum(numbers[begin:end]) / (end - begin))
            begin = end
    assert (len(losses), begin) == (2 * BATCHES, 2 * BATCHES - 1)  # of the last step, none is read any more


def test_evaluations_tell_their_loss(trained: Observed) -> None:
    """It is none of training."""
    assert [event.loss for event in trained.kind("eval")] == pytest.approx([BATCHES - 1] * 2)


def test_the_step_after_a_pause_is_the_slow_one(trained: Observed) -> None:
    """A checkpoint within the callbacks of a step comes after that step, and before the next."""
    kinds = [event.kind for event in trained.events if event.kind in ("step", "checkpoint")]
    places = [place for place, kind in enumerate(kinds) if kind == "checkpoint"]
    assert places == [EVERY * number + number - 1 for number in range(1, 2 * BATCHES // EVERY + 1)]
    times_s = [event.t_s for event in trained.events if event.kind in ("step", "checkpoint")]
    assert all(later >= earlier for earlier, later in pairwise(times_s))
