"""Contract of the observers: what each has to show of trainers that report nothing (`autotune.trainee.observe`).

To add a framework, add its styles of trainers: to scripts/bench/overhead/observed_trainers.py, to the table of
scripts/bench/overhead/observer.py, and to what they show here.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import SystemClock
from autotune.diagnose.framework_child import QUESTIONS
from autotune.frameworks import FRAMEWORKS
from autotune.trainee.loop import Loop
from autotune.trainee.observe import COSTS, OBSERVERS, PHASED_OBSERVERS, Instrumentation, part
from autotune.trainee.stream import Report, Stream
from autotune.trial.launch import Guard, ProcessRunner
from autotune.trial.warm import ZygoteRunner
from scripts.bench.overhead import observed_trainers
from scripts.bench.overhead.observer import STYLES
from tests.trainee.conftest import ROOT, TRAINERS, Observed, interpreter_with, observe_here, observe_run, sums_up

STEPS, SLEEP_MS = 10, 2.0
HIDES_WAITS = {"fit-mirrored", "torch-own-batches"}  # fetched ahead for each device, or by nothing that is known
HIDES_SAMPLES = {"torch-own-batches"}
VALIDATE = {"fit", "loop-compiled", "loop-eager", "torch", "torch-workers"}
CHECKPOINT = {"loop-compiled", "loop-eager", "torch", "torch-workers"}
END_EPOCHS = {"fit", "fit-several-steps", "loop-compiled", "loop-mirrored", "torch", "torch-workers"}
SHOW_LOSSES = {"fit", "train-on-batch", "loop-compiled", "loop-eager", "torch", "torch-workers"}

Matrix = Callable[[str, str], Observed]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, tensorflow: Any) -> Iterator[Matrix]:
    """Trainers of each style, with pauses: of TensorFlow here, of each other framework in forks of one process."""
    folder = tmp_path_factory.mktemp("study")

    @cache
    def here(style: str) -> Observed:
        facts = observed_trainers.Facts(Namespace(steps=STEPS, batch=8, sleep_ms=SLEEP_MS, pauses=True))
        epoch = observed_trainers.STYLES[style]

        def train() -> None:
            one = epoch(facts)
            for _ in range(2):
                one()

        seen = observe_here(folder / style, train)
        seen.facts[style] = {"pid": os.getpid(), "steps": 2 * STEPS, "samples": 2 * (8 * STEPS - 4)}
        return seen

    with Guard() as guard:
        runner = ProcessRunner(guard, SystemClock())

        @cache
        def elsewhere(framework: str) -> Observed:
            imports = "tensorflow,jax" if framework == "jax" else framework
            words = ("--pauses", "--imports", imports, "--steps", STEPS, "--sleep-ms", SLEEP_MS)
            python = interpreter_with(*imports.split(","))
            return observe_run(runner, folder / framework, python, TRAINERS, *STYLES[framework], *words)

        yield lambda framework, style: here(style) if framework == "tensorflow" else elsewhere(framework)


def each(styles: Collection[str] = (), *, but: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test with each style, by its framework, or with all but some."""
    pairs = [(framework, style) for framework, names in STYLES.items() for style in names]
    chosen = [(framework, style) for framework, style in pairs if (style in styles or not styles) and style not in but]
    services = [() if framework == "tensorflow" else (pytest.mark.services,) for framework, _ in chosen]
    return pytest.mark.parametrize(
        ("framework", "style"), [pytest.param(*pair, marks=mark) for pair, mark in zip(chosen, services, strict=True)]
    )


@each(but={"loop-inside"} | HIDES_WAITS | HIDES_SAMPLES)
def test_steps_samples_and_waits_are_those_of_the_trainer(matrix: Matrix, framework: str, style: str) -> None:
    """Each batch that was trained on is a step, with its samples, the last half batch included, and its wait."""
    sums_up(matrix(framework, style), style, sleep_s=SLEEP_MS / 1000)


@each(HIDES_WAITS | HIDES_SAMPLES)
def test_what_is_not_seen_of_a_step_is_unknown_and_not_zero(matrix: Matrix, framework: str, style: str) -> None:
    """The steps are seen all the same."""
    seen = matrix(framework, style)
    sums_up(seen, style, samples=style not in HIDES_SAMPLES)
    if style in HIDES_SAMPLES:
        assert {step.samples for step in seen.of(style, "step")} == {None}


@each({"loop-inside"})
def test_a_loop_that_cannot_be_seen_is_said(matrix: Matrix, framework: str, style: str) -> None:
    """A loop inside one tf.function has no steps, and the user is told what to add to it."""
    seen = matrix(framework, style)
    (note,) = seen.of(style, "note")
    assert "add to that loop: tf.py_function(lambda: step(samples=BATCH) and None, [], [])" in (note.text or "")
    assert seen.of(style, "step") == []


@each({"torch-workers"})
def test_workers_write_nothing(matrix: Matrix, framework: str, style: str) -> None:
    """Only the training process has a stream; the trainers of the styles have one each."""
    seen = matrix(framework, style)
    assert {event.pid for event in seen.events if event.kind == "step"} == {one["pid"] for one in seen.facts.values()}


@each(VALIDATE)
def test_validation_is_a_pause_between_the_epochs(matrix: Matrix, framework: str, style: str) -> None:
    """Its batches are no steps, and it lies between the last step of one epoch and the first of the next."""
    seen = matrix(framework, style)
    steps, evals = seen.of(style, "step"), seen.of(style, "eval")
    assert steps[STEPS - 1].t_s < evals[0].t_s < steps[STEPS].t_s


@each(CHECKPOINT)
def test_checkpoints_are_pauses(matrix: Matrix, framework: str, style: str) -> None:
    """So is a checkpoint, in each epoch."""
    assert len(matrix(framework, style).of(style, "checkpoint")) == 2


@each(END_EPOCHS)
def test_the_end_of_an_epoch_is_seen(matrix: Matrix, framework: str, style: str) -> None:
    """Each pass over the data has its end."""
    assert len(matrix(framework, style).of(style, "epoch_end")) == 2


@each(SHOW_LOSSES)
def test_losses_are_seen(matrix: Matrix, framework: str, style: str) -> None:
    """A loss that is there for free is passed on now and then."""
    assert any(step.loss is not None for step in matrix(framework, style).of(style, "step"))


@pytest.mark.services
@pytest.mark.parametrize("framework", ["tensorflow", "torch", "jax"])
def test_no_broken_wrapper_breaks_the_trainer(run, framework: str) -> None:
    """Of every function that we put into a framework, whatever it uses raises: the trainer's call does what it did.

    Each has a trainer's call that comes by it, and each error is noticed. No function of ours is where none is known.
    """
    script = Path(__file__).with_name("broken_wrappers.py")
    seen = run(interpreter_with(framework, "msgspec"), script, framework, PYTHONPATH=str(ROOT))
    lines = [line for line in seen.folder.stdout.read_text().splitlines() if line.startswith("{")]
    first, *broken = map(json.loads, lines)
    assert first == {"strays": [], "without a workout": []}
    assert len(broken) >= 3
    assert [piece for piece in broken if not piece["noticed"]] == []


@pytest.mark.services
def test_forks_of_a_warm_interpreter_are_seen(tmp_path: Path, tensorflow: Any) -> None:
    """The observer is installed on their side of the fork, before TensorFlow is handed out to the trainer."""
    words = (sys.executable, TRAINERS, "loop-compiled", "--steps", 5)
    with Guard() as guard:
        remarks: list[str] = []
        runner = ZygoteRunner(guard, SystemClock(), remarks.append)
        trials = [observe_run(runner, tmp_path / str(number), *words) for number in range(2)]
        assert runner.warm_starts == 1, remarks
    for seen in trials:
        sums_up(seen, "loop-compiled", sleep_s=0.02)


def test_each_observer_is_where_it_is_looked_for() -> None:
    """One that is not would only be noted."""
    tables = OBSERVERS, PHASED_OBSERVERS, COSTS
    assert all(callable(part(one).install) for table in tables for observers in table.values() for one in observers)


def test_each_framework_has_an_observer() -> None:
    """The host's table and those of the guest, which cannot import it, name the same frameworks."""
    assert {framework.module for framework in FRAMEWORKS} == OBSERVERS.keys()
    assert {framework.module for framework in FRAMEWORKS if framework.gpu_build is not None} == QUESTIONS.keys()


@pytest.mark.parametrize("observer", [one for names in OBSERVERS.values() for one in names])
def test_a_version_without_the_places_of_an_observer_is_no_error(
    monkeypatch: pytest.MonkeyPatch, observer: str
) -> None:
    """What cannot be observed is noted, with its name, and nothing is raised."""
    for name in {*OBSERVERS, *(name for name in sys.modules if name.partition(".")[0] in OBSERVERS)}:
        monkeypatch.setitem(sys.modules, name, None)
    notes: list[str] = []
    instrumentation = Instrumentation(notes.append)
    instrumentation.attempt(observer, lambda: part(observer)(Loop(Report(Stream())), instrumentation).install())
    assert notes
    assert all("cannot be observed" in note for note in notes)
    assert instrumentation.replaced == []
