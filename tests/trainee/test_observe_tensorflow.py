"""Steps of TensorFlow and Keras trainers that report nothing."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner
from autotune.trial.warm import ZygoteRunner
from scripts.bench.overhead.observer import STYLES
from tests.trainee.conftest import TRAINERS, Observed, interpreter_with, observe_run, sums_up

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """One process that imports TensorFlow and forks a trainer of each style, with validation and checkpoints."""
    folder = tmp_path_factory.mktemp("study") / "run"
    with Guard() as guard:
        runner = ProcessRunner(guard, SystemClock())
        words = ("--pauses", "--imports", "tensorflow,keras", "--steps", 10)
        yield observe_run(runner, folder, sys.executable, TRAINERS, *STYLES["tensorflow"], *words)


@pytest.mark.parametrize(
    "style",
    [
        "fit",
        "fit-several-steps",
        "fit-xla",
        "fit-eager",
        "train-on-batch",
        "loop-compiled",
        "loop-eager",
        "loop-mirrored",
        "loop-mirrored-eager",
        "loop-own-batches",
        "next-inside",
        "session-feed",
    ],
)
def test_steps_samples_and_waits_are_those_of_the_trainer(matrix: Observed, style: str) -> None:
    """Each batch that was trained on is a step, with its samples, the last half batch included, and its wait."""
    sums_up(matrix, style)


def test_batches_that_are_fetched_in_the_background_are_counted(matrix: Observed) -> None:
    """Under MirroredStrategy ``fit`` has batches fetched ahead for each device; samples are summed over them."""
    sums_up(matrix, "fit-mirrored", waits=False)


def test_what_a_session_fetches_by_itself_is_not_guessed(matrix: Observed) -> None:
    """Steps of a session that runs its own iterator are seen; waits and samples are unknown, not zero."""
    sums_up(matrix, "session-dataset", waits=False, samples=False)
    assert {(step.wait_s, step.samples) for step in matrix.steps_of("session-dataset")} == {(None, None)}


@pytest.mark.parametrize("style", ["fit", "loop-compiled", "loop-eager"])
def test_validation_is_a_pause_between_the_epochs(matrix: Observed, style: str) -> None:
    """Its batches are no steps, and it lies between the last step of one epoch and the first of the next."""
    steps, evals = matrix.steps_of(style), [event.t_s for event in matrix.of(style) if event.kind == "eval"]
    assert steps[9].t_s < evals[0] < steps[10].t_s


@pytest.mark.parametrize("style", ["loop-compiled", "loop-eager"])
def test_checkpoints_are_pauses(matrix: Observed, style: str) -> None:
    """So is a checkpoint, in each epoch."""
    assert [event.kind for event in matrix.of(style)].count("checkpoint") == 2


@pytest.mark.parametrize("style", ["fit", "fit-several-steps", "loop-compiled", "loop-mirrored", "session-dataset"])
def test_the_end_of_an_epoch_is_seen(matrix: Observed, style: str) -> None:
    """Each pass over the data has its end."""
    assert [event.kind for event in matrix.of(style)].count("epoch_end") == 2


@pytest.mark.parametrize("style", ["fit", "train-on-batch", "loop-compiled", "loop-eager", "session-feed"])
def test_losses_are_seen(matrix: Observed, style: str) -> None:
    """A loss that is there for free is passed on now and then."""
    assert any(step.loss is not None for step in matrix.steps_of(style))


def test_a_loop_that_cannot_be_seen_is_said(matrix: Observed) -> None:
    """A loop inside one tf.function has no steps, and the user is told what to add to it."""
    assert matrix.steps_of("loop-inside") == []
    (note,) = [event.text or "" for event in matrix.of("loop-inside") if event.kind == "note"]
    assert "add to that loop: tf.py_function(lambda: step(samples=BATCH) and None, [], [])" in note


@pytest.mark.parametrize("style", ["keras-2-fit", "keras-2-train-on-batch"])
def test_keras_2_is_seen(run, style: str) -> None:
    """``TF_USE_LEGACY_KERAS=1`` makes no difference."""
    seen = run(interpreter_with("tf_keras"), TRAINERS, style)
    sums_up(seen, style)
    assert any(step.loss is not None for step in seen.steps_of(style))


def test_forks_of_a_warm_interpreter_are_seen(tmp_path: Path) -> None:
    """The observer is installed on their side of the fork, before TensorFlow is handed out to the trainer."""
    words = (sys.executable, TRAINERS, "loop-compiled", "--steps", 5)
    with Guard() as guard:
        runner = ZygoteRunner(guard, SystemClock())
        trials = [observe_run(runner, tmp_path / str(number), *words) for number in range(2)]
        assert runner.warm_starts == 1, runner.remarks
    for seen in trials:
        sums_up(seen, "loop-compiled")
