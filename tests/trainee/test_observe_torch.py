"""Steps of PyTorch trainers that report nothing."""

import pytest

from tests.trainee.conftest import TRAINERS, interpreter_with, sums_up


def test_loops_over_loaders_are_seen(run) -> None:
    """With and without workers: steps, samples, waits, epochs, validation and checkpoints."""
    python = interpreter_with("torch")
    seen = run(python, TRAINERS, "torch", "torch-workers", "--imports", "torch", "--pauses", "--steps", 10)
    for style in ("torch", "torch-workers"):
        sums_up(seen, style)
        kinds = [event.kind for event in seen.of(style)]
        assert (kinds.count("epoch_end"), kinds.count("checkpoint")) == (2, 2)
        evals = [event.t_s for event in seen.of(style) if event.kind == "eval"]
        assert seen.steps_of(style)[9].t_s < evals[0] < seen.steps_of(style)[10].t_s
        assert any(step.loss is not None for step in seen.steps_of(style))


def test_workers_write_nothing(run) -> None:
    """Only the training process has a stream."""
    seen = run(interpreter_with("torch"), TRAINERS, "torch-workers", "--steps", 5)
    assert len(list(seen.folder.path.glob("steps.*"))) == 1


def test_a_loop_without_a_loader_is_seen(run) -> None:
    """Steps are made of the backward passes; what they waited for is not known."""
    seen = run(interpreter_with("torch"), TRAINERS, "torch-own-batches", "--steps", 5)
    sums_up(seen, "torch-own-batches", waits=False, samples=False)


@pytest.mark.parametrize("style", ["jax"])
def test_jax_is_seen(run, style: str) -> None:
    """A compiled step over a dataset of ``tf.data``."""
    sums_up(run(interpreter_with("jax"), TRAINERS, style, "--steps", 10), style)
