"""Steps of PyTorch trainers that report nothing, beyond the contract of test_observers.py."""

import math
from pathlib import Path

import pytest

from tests.trainee.conftest import interpreter_with, sums_up

pytestmark = pytest.mark.services

FRAMEWORKS = Path(__file__).with_name("torch_frameworks.py")


SWALLOWS = """
import torch
for batch in torch.utils.data.DataLoader(torch.ones(20, 4), batch_size=2):
    try:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
    except RuntimeError:
        continue
"""


def test_memory_that_runs_out_is_seen(run, tmp_path: Path) -> None:
    """Also in a forward pass, and where the trainer says nothing and goes on: a step, whose loss is infinite."""
    script = tmp_path / "swallows.py"
    script.write_text(SWALLOWS)
    seen = run(interpreter_with("torch"), script)
    steps = seen.kind("step")
    assert len(steps) == 10
    assert {step.loss for step in steps} == {math.inf, None}
    (note,) = [event.text for event in seen.kind("note")]
    assert note == "memory ran out: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."


OVER_A_LIST = """
import torch
rows, model = [(torch.ones(4), torch.ones(1))] * 20, torch.nn.Linear(4, 1)
for _ in range(2):
    for x, y in torch.utils.data.DataLoader(rows, batch_size=2):
        ((model(x) - y) ** 2).mean().backward()
    for x, y in torch.utils.data.DataLoader(rows, batch_size=2):
        model(x)
"""


def test_a_loader_over_a_list_is_seen(run, tmp_path: Path) -> None:
    """A list is a dataset too; validation over the same one is a pause."""
    script = tmp_path / "over_a_list.py"
    script.write_text(OVER_A_LIST)
    seen = run(interpreter_with("torch"), script)
    kinds = [event.kind for event in seen.events]
    assert (kinds.count("step"), kinds.count("eval"), kinds.count("note")) == (20, 1, 0)


KERAS_FIT = """
import keras, torch
data = torch.utils.data.TensorDataset(torch.ones(36, 8), torch.ones(36, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse", run_eagerly=EAGERLY)
model.fit(loader, epochs=2, verbose=0)
"""


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_keras_over_a_loader_counts_each_batch_once(run, tmp_path: Path, backend: str, eagerly: bool) -> None:
    """Keras and the loader that it feeds on both have an observer; one batch is one step with its samples."""
    script = tmp_path / "keras_fit.py"
    script.write_text(KERAS_FIT.replace("EAGERLY", str(eagerly)))
    seen = run(interpreter_with("torch", "keras", backend), script, KERAS_BACKEND=backend)
    steps = seen.kind("step")
    assert len(steps) == 10
    assert sum(step.samples or 0.0 for step in steps) == pytest.approx(72)
    assert seen.kind("note") == []


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize(
    ("library", "style"),
    [
        ("transformers", "transformers"),
        ("accelerate", "accelerate"),
        ("lightning", "lightning"),
        ("lightning", "several_loaders"),
    ],
)
def test_libraries_above_torch_are_seen(run, library: str, style: str, accumulated: int) -> None:
    """Batches, their samples and the optimizer's steps; neither a check before training nor validation is one."""
    seen = run(interpreter_with(library), FRAMEWORKS, style, accumulated)
    sums_up(seen, style)
    # Before the first update nothing is known of accumulation, so those batches count as steps.
    updates = [step.update for step in seen.of(style, "step")]
    assert updates.count(True) == seen.facts[style]["updates"] + accumulated - 1
    assert len(seen.of(style, "eval")) == 1
