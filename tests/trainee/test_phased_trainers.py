"""Trainers that are taken through phases: what each phase shows, and that they train on as ever."""

import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.records import PHASE_VARIABLE, TraineeEvent, TrialPhase
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner
from tests.trainee.conftest import Observed, interpreter_with, observe_run

pytestmark = pytest.mark.services

TRAINERS = Path(__file__).with_name("phased_trainers.py")
LOAD_S = 0.04
PHASE_S = 0.4
TENSORFLOW = ("loop", "reports", "in_a_thread", "next_inside", "mirrored", "fit", "fit_several", "own_batches")

Phased = dict[TrialPhase | None, list[float]]
"""Phase, None before the first → times of the steps that lie in it."""


def phased(events: Sequence[TraineeEvent]) -> Phased:
    """Return the times of the steps in each phase; a pause belongs to no step."""
    phase, last_s, times = None, None, dict[TrialPhase | None, list[float]]()
    for event in sorted(events, key=lambda event: event.t_s):
        if event.kind == "phase":
            phase = event.phase
        if event.kind == "step" and last_s is not None:
            times.setdefault(phase, []).append(event.t_s - last_s)
        if event.kind in ("step", "phase", "eval"):
            last_s = event.t_s
    return times


def drawn(events: Sequence[TraineeEvent]) -> list[TraineeEvent]:
    """Return the reports of what was drawn."""
    return [event for event in events if event.kind == "load"]


def unphased(events: Sequence[TraineeEvent]) -> list[str]:
    """Return which phases were said to be impossible, with the beginning of the reasons."""
    return [event.text or "" for event in events if event.kind == "unphased"]


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """One process that imports TensorFlow and forks a trainer of each style, which are taken through phases."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    folder = tmp_path_factory.mktemp("study") / "run"
    with Guard() as guard:
        runner = ProcessRunner(guard, SystemClock())
        yield observe_run(runner, folder, sys.executable, TRAINERS, *TENSORFLOW, **{PHASE_VARIABLE: str(PHASE_S)})


def shows_what_data_costs(seen: Observed, style: str) -> None:
    """Asserts that steps wait for a load of `LOAD_S` when training, and not in replay."""
    times = phased(seen.of(style))
    assert statistics.median(times[TrialPhase.REPLAY]) < LOAD_S * 0.75
    assert statistics.median(times[TrialPhase.TRAIN]) > LOAD_S * 0.95


def shows_the_loader(seen: Observed, style: str) -> None:
    """Asserts that as many batches were drawn as such a loader gives, and that their samples are those it has."""
    loads = drawn(seen.of(style))
    assert sum(load.batches or 0 for load in loads) >= 3
    for load in loads:
        assert load.batches
        assert load.duration_s is not None
        assert load.duration_s >= load.batches * LOAD_S * 0.95 - 0.01
        assert load.samples is not None
        assert 4 <= load.samples / load.batches <= 6


@pytest.mark.parametrize("style", ["loop", "reports", "next_inside", "fit"])
def test_phases_show_what_data_costs_and_what_the_loader_gives(tensorflow: Observed, style: str) -> None:
    """Loops in Python and in the graph, Keras's, and of trainers that report their own steps."""
    shows_what_data_costs(tensorflow, style)
    shows_the_loader(tensorflow, style)
    assert unphased(tensorflow.of(style)) == []


def test_loops_over_several_devices_have_phases(tensorflow: Observed) -> None:
    """TensorFlow prefetches for them, so that the first batches of a pass may be there already when they are drawn."""
    shows_what_data_costs(tensorflow, "mirrored")
    assert sum(load.batches or 0 for load in drawn(tensorflow.of("mirrored"))) >= 3


def test_several_steps_in_one_call_have_phases(tensorflow: Observed) -> None:
    """Replayed batches are as many as the call takes."""
    shows_what_data_costs(tensorflow, "fit_several")
    shows_the_loader(tensorflow, "fit_several")


@pytest.mark.parametrize("style", ["loop", "reports", "next_inside", "fit"])
def test_phases_come_in_their_order(tensorflow: Observed, style: str) -> None:
    """The first is replay; drawing follows, which empties the buffers, and then training."""
    phases = [event.phase for event in tensorflow.of(style) if event.kind == "phase"]
    order = [TrialPhase.REPLAY, TrialPhase.LOAD, TrialPhase.TRAIN]
    assert phases == [order[number % 3] for number in range(len(phases))]
    assert len(phases) >= 3


@pytest.mark.parametrize("style", ["loop", "next_inside"])
def test_each_pass_trains_on_a_batch(tensorflow: Observed, style: str) -> None:
    """Whatever is drawn without training, a trainer that divides by the batches of a pass goes on."""
    assert tensorflow.facts[style]["least"] >= 1


def test_a_thread_of_the_trainers_own_is_not_passed_by(tensorflow: Observed) -> None:
    """What it does with a batch is part of the data's cost; the loader behind it can be measured."""
    (why,) = unphased(tensorflow.of("in_a_thread"))
    assert why == "replay: between the loader and the step, batches pass through a thread of the trainer's own"
    shows_the_loader(tensorflow, "in_a_thread")
    assert TrialPhase.REPLAY not in phased(tensorflow.of("in_a_thread"))


def test_a_loop_without_a_loader_says_so(tensorflow: Observed) -> None:
    """Its steps are seen, but there is nothing to be replaced."""
    events = tensorflow.of("own_batches")
    assert [why.partition(":")[0] for why in unphased(events)] == ["replay", "load"]
    assert not any(event.kind == "phase" for event in events)
    assert len(tensorflow.steps_of("own_batches")) == tensorflow.facts["own_batches"]["steps"]


def test_loaders_of_torch_have_phases(run: Callable[..., Observed]) -> None:
    """With and without workers; validation over the same data comes to its end."""
    words = (interpreter_with("torch"), TRAINERS, "torch", "torch_workers")
    seen = run(*words, **{PHASE_VARIABLE: str(PHASE_S)})
    shows_what_data_costs(seen, "torch")
    shows_the_loader(seen, "torch")
    replay = statistics.median(phased(seen.of("torch_workers"))[TrialPhase.REPLAY])
    assert replay < LOAD_S / 2 * 0.75
    assert sum(load.batches or 0 for load in drawn(seen.of("torch_workers"))) >= 3
    assert all(unphased(seen.of(style)) == [] for style in ("torch", "torch_workers"))


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_an_error_of_ours_ends_the_phases_and_not_the_training(run: Callable[..., Observed]) -> None:
    """The trainer goes on as if there were none; from then on all is plain training, and the reason is written."""
    seen = run(sys.executable, TRAINERS, "loop", "--break", "--seconds", "2", **{PHASE_VARIABLE: "0.1"})
    events = seen.of("loop")
    (why,) = unphased(events)
    assert why.startswith("the observer has given up phases: AttributeError: ")
    assert [event.phase for event in events if event.kind == "phase"] == [TrialPhase.REPLAY, TrialPhase.TRAIN]
    assert len(seen.steps_of("loop")) == seen.facts["loop"]["steps"]
    assert phased(events)[TrialPhase.TRAIN]


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_processes_that_train_together_have_no_phases(run: Callable[..., Observed]) -> None:
    """Each would wait for the others in its phases."""
    seen = run(sys.executable, TRAINERS, "loop", "--seconds", "1", **{PHASE_VARIABLE: "0.1", "WORLD_SIZE": "2"})
    whys = ["replay: several processes train together", "load: several processes train together"]
    assert unphased(seen.of("loop")) == whys
    assert set(phased(seen.of("loop"))) <= {None, TrialPhase.TRAIN}


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_without_the_variable_there_are_none(run: Callable[..., Observed]) -> None:
    """No phase begins, and nothing is drawn."""
    seen = run(sys.executable, TRAINERS, "loop", "--seconds", "1")
    assert not {"phase", "load", "unphased"} & {event.kind for event in seen.events}
