"""Contract of the observers: what each has to show of trainers that report nothing (`autotune.trainee.observer`).

To add a framework, add its styles of trainers: to scripts/bench/overhead/observed_trainers.py, to the table of
scripts/bench/overhead/observer.py, and to what they show here.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.observe import COSTS, OBSERVERS, PHASED_OBSERVERS, part
from autotune.trainee.report import Report
from autotune.trainee.stream import Stream
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner
from scripts.bench.overhead.observer import STYLES
from tests.trainee.conftest import TRAINERS, Observed, interpreter_with, observe_run, sums_up

pytestmark = pytest.mark.services

HIDES_STEPS = {"loop-inside"}
HIDES_WAITS = {"fit-mirrored", "torch-own-batches"}  # fetched ahead for each device, or by nothing that is known
HIDES_SAMPLES = {"session-dataset", "torch-own-batches"}
VALIDATE = {"fit", "loop-compiled", "loop-eager", "torch", "torch-workers"}
CHECKPOINT = {"loop-compiled", "loop-eager", "torch", "torch-workers"}
END_EPOCHS = {"fit", "fit-several-steps", "loop-compiled", "loop-mirrored", "session-dataset", "torch", "torch-workers"}
SHOW_LOSSES = {
    *("fit", "train-on-batch", "loop-compiled", "loop-eager", "session-feed"),
    *("keras-2-fit", "keras-2-train-on-batch", "torch", "torch-workers"),
}

Matrix = Callable[[str], Observed]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """Of each framework one process that imports it and forks a trainer of each style, with pauses."""
    with Guard() as guard:
        runner = ProcessRunner(guard, SystemClock())

        @cache
        def observed(framework: str) -> Observed:
            imports = {"tensorflow": "tensorflow,keras"}.get(framework, framework)
            words = ("--pauses", "--imports", imports, "--steps", 10)
            folder = tmp_path_factory.mktemp("study") / framework
            return observe_run(runner, folder, interpreter_with(framework), TRAINERS, *STYLES[framework], *words)

        yield observed


def each(styles: Collection[str] = (), *, but: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test with each style, by its framework, or with all but some."""
    pairs = [(framework, style) for framework, names in STYLES.items() for style in names]
    chosen = [(framework, style) for framework, style in pairs if (style in styles or not styles) and style not in but]
    return pytest.mark.parametrize(("framework", "style"), chosen)


@each(but=HIDES_STEPS | HIDES_WAITS | HIDES_SAMPLES)
def test_steps_samples_and_waits_are_those_of_the_trainer(matrix: Matrix, framework: str, style: str) -> None:
    """Each batch that was trained on is a step, with its samples, the last half batch included, and its wait."""
    sums_up(matrix(framework), style)


@each(HIDES_WAITS | HIDES_SAMPLES)
def test_what_is_not_seen_of_a_step_is_unknown_and_not_zero(matrix: Matrix, framework: str, style: str) -> None:
    """The steps are seen all the same."""
    seen = matrix(framework)
    sums_up(seen, style, waits=False, samples=style not in HIDES_SAMPLES)
    if style in HIDES_SAMPLES:
        assert {step.samples for step in seen.steps_of(style)} == {None}


@each(VALIDATE)
def test_validation_is_a_pause_between_the_epochs(matrix: Matrix, framework: str, style: str) -> None:
    """Its batches are no steps, and it lies between the last step of one epoch and the first of the next."""
    seen = matrix(framework)
    steps, evals = seen.steps_of(style), [event.t_s for event in seen.of(style) if event.kind == "eval"]
    assert steps[9].t_s < evals[0] < steps[10].t_s


@each(CHECKPOINT)
def test_checkpoints_are_pauses(matrix: Matrix, framework: str, style: str) -> None:
    """So is a checkpoint, in each epoch."""
    assert [event.kind for event in matrix(framework).of(style)].count("checkpoint") == 2


@each(END_EPOCHS)
def test_the_end_of_an_epoch_is_seen(matrix: Matrix, framework: str, style: str) -> None:
    """Each pass over the data has its end."""
    assert [event.kind for event in matrix(framework).of(style)].count("epoch_end") == 2


@each(SHOW_LOSSES)
def test_losses_are_seen(matrix: Matrix, framework: str, style: str) -> None:
    """A loss that is there for free is passed on now and then."""
    assert any(step.loss is not None for step in matrix(framework).steps_of(style))


@pytest.mark.parametrize("framework", ["tensorflow", "torch", "jax"])
def test_no_broken_wrapper_breaks_the_trainer(run, framework: str) -> None:
    """Of every function that we put into a framework, whatever it uses raises: the trainer's call does what it did.

    Each has a trainer's call that comes by it, and each error is noticed. No function of ours is where none is known.
    """
    script = Path(__file__).with_name("broken_wrappers.py")
    root = str(Path(__file__).parents[2])
    seen = run(interpreter_with(framework), script, framework, PYTHONPATH=root)
    first, *broken = [json.loads(line) for line in seen.stdout.splitlines() if line.startswith("{")]
    assert first == {"strays": [], "without a workout": []}
    assert len(broken) >= 3
    assert [piece for piece in broken if not piece["noticed"]] == []


@pytest.mark.parametrize("framework", [*OBSERVERS, *PHASED_OBSERVERS, *COSTS])
def test_each_observer_is_where_it_is_looked_for(framework: str) -> None:
    """One that is not would only be noted."""
    for table in OBSERVERS, PHASED_OBSERVERS, COSTS:
        assert all(callable(part(observer).install) for observer in table.get(framework, ()))


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
