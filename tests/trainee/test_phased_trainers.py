"""Trainers that are taken through phases: what each phase shows, and that they train on as ever."""

import os
from bisect import bisect
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.records import PHASE_VARIABLE, TrialPhase
from autotune.trainee import phases
from autotune.trainee.phases import MOST_KEPT
from tests.trainee import phased_trainers
from tests.trainee.conftest import Observed, interpreter_with, observe_here

TRAINERS = Path(phased_trainers.__file__)
PHASE_S = "0.02"
ORDER = [TrialPhase.REPLAY, TrialPhase.LOAD, TrialPhase.TRAIN]

Here = Callable[..., Observed]


def train_here(folder: Path, style: str, steps: int | None = None, **env: str) -> Observed:
    """Take a trainer of a style through phases in this process."""
    made: list[phased_trainers.Facts] = []

    def train() -> None:
        made.append(phased_trainers.Facts(steps))
        made[0].train(style)

    seen = observe_here(folder, train, **{PHASE_VARIABLE: PHASE_S, **env})
    seen.facts[style] = {"pid": os.getpid(), **vars(made[0])}
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, tensorflow: Any) -> Callable[[str], Observed]:
    """Take trainers of TensorFlow through phases, one of each style."""
    return cache(lambda style: train_here(tmp_path_factory.mktemp("study") / style, style))


def times_in(seen: Observed, style: str, what: str) -> dict[TrialPhase | None, int]:
    """Return how often a trainer did something in each phase until the first came again; None is before the first."""
    begins = seen.of(style, "phase")[:4]
    counts: dict[TrialPhase | None, int] = dict.fromkeys([None, *ORDER], 0)
    for t_s in seen.facts[style][what]:
        at = bisect([begin.t_s for begin in begins], t_s)
        if at < 4:
            counts[begins[at - 1].phase if at else None] += 1
    return counts


def unphased(seen: Observed, style: str) -> list[str]:
    """Return which phases were said to be impossible, with the reasons."""
    return [event.text or "" for event in seen.of(style, "unphased")]


def goes_through_phases(seen: Observed, style: str) -> None:
    """Assert that there are steps in replay and in training, and that drawn batches were reported."""
    steps = times_in(seen, style, "steps_s")
    assert steps[TrialPhase.REPLAY] >= 1
    assert steps[TrialPhase.TRAIN] >= 1
    assert [event.phase for event in seen.of(style, "phase")][:4] == [*ORDER, TrialPhase.REPLAY]
    assert unphased(seen, style) == []
    assert seen.of(style, "load")
    assert seen.facts[style]["least"] >= 1


def loads_are_those_of_the_phases(seen: Observed, style: str) -> None:
    """Assert that replay loads nothing, drawing loads what it reports, and training a batch for each step."""
    loads, steps = times_in(seen, style, "loads_s"), times_in(seen, style, "steps_s")
    assert loads[TrialPhase.REPLAY] <= 1  # the first of a pass is the trainer's own
    drawn = [load for load in seen.of(style, "load") if load.t_s <= seen.of(style, "phase")[2].t_s]
    # Compiled steps fetch a batch of their own behind those that are drawn.
    own = loads[TrialPhase.LOAD] - sum(load.batches or 0 for load in drawn)
    assert 0 <= own <= 1 + steps[TrialPhase.LOAD]
    for load in drawn:
        assert load.batches
        assert load.duration_s
        assert load.samples is not None
        assert 4 <= load.samples / load.batches <= 6
    assert 0 <= 1 + loads[TrialPhase.TRAIN] - steps[TrialPhase.TRAIN] <= 2 + MOST_KEPT  # kept for the next replay


@pytest.mark.parametrize("style", ["loop", "reports", "next_inside", "fit"])
def test_phases_train_without_loading_load_without_training_and_do_both(
    seen: Callable[[str], Observed], style: str
) -> None:
    """Loops in Python and in the graph, Keras's, and of trainers that report their own steps."""
    goes_through_phases(seen(style), style)
    loads_are_those_of_the_phases(seen(style), style)


@pytest.mark.parametrize("style", ["mirrored", "fit_several"])
def test_loops_over_several_devices_or_with_several_steps_in_a_call_have_phases(
    seen: Callable[[str], Observed], style: str
) -> None:
    """TensorFlow prefetches for several devices, so that batches are loaded in any phase."""
    goes_through_phases(seen(style), style)


def test_a_thread_of_the_trainers_own_is_not_passed_by(tmp_path: Path, tensorflow: Any) -> None:
    """What it does with a batch is part of the data's cost; the loader behind it can be measured."""
    style = "in_a_thread"
    trial = train_here(tmp_path / "run", style, 100)
    why = "replay: batches pass through one of the trainer's threads between the loader and the step"
    assert unphased(trial, style) == [why]
    assert TrialPhase.REPLAY not in [event.phase for event in trial.of(style, "phase")]
    assert trial.of(style, "load")


@pytest.mark.parametrize(
    ("style", "env", "reason"),
    [
        ("own_batches", {}, "its batches are fetched where they cannot be replaced"),
        ("loop", {"WORLD_SIZE": "2"}, "several processes train together"),
    ],
)
def test_a_loop_without_phases_says_so(
    tmp_path: Path, tensorflow: Any, style: str, env: dict[str, str], reason: str
) -> None:
    """Its steps are seen, but there is nothing to be replaced, or others would wait for it."""
    trial = train_here(tmp_path / "run", style, 100, **env)
    whys = unphased(trial, style)
    assert all(why.startswith(f"{phase}: {reason}") for phase, why in zip(("replay", "load"), whys, strict=True))
    assert {event.phase for event in trial.of(style, "phase")} <= {TrialPhase.TRAIN}
    assert len(trial.of(style, "step")) == 100


def test_an_error_of_ours_ends_the_phases_and_not_the_training(
    tmp_path: Path, tensorflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer goes on as if there were none; from then on all is plain training, and the reason is written."""
    fails = {"rotate": property(lambda self: self.there_is_no_such_thing)}
    monkeypatch.setattr(phases, "deque", type("Broken", (deque,), fails))
    trial = train_here(tmp_path / "run", "loop", 50)
    (why,) = unphased(trial, "loop")
    assert why.startswith("the observer has given up phases: AttributeError: ")
    assert [event.phase for event in trial.of("loop", "phase")] == [TrialPhase.REPLAY, TrialPhase.TRAIN]
    assert len(trial.of("loop", "step")) == 50


def test_without_the_variable_there_are_none(tmp_path: Path, tensorflow: Any) -> None:
    """No phase begins, and nothing is drawn."""
    trial = observe_here(tmp_path / "run", lambda: phased_trainers.Facts(30).train("loop"))
    assert not {"phase", "load", "unphased"} & {event.kind for event in trial.events}


@pytest.mark.services
@pytest.mark.parametrize("style", ["torch", "torch_workers"])
def test_loaders_of_torch_have_phases(run: Callable[..., Observed], style: str) -> None:
    """With and without workers; validation over the same data comes to its end."""
    trial = run(interpreter_with("torch"), TRAINERS, style, **{PHASE_VARIABLE: PHASE_S})
    goes_through_phases(trial, style)
    if style == "torch":  # the workers' loads are theirs to know
        loads_are_those_of_the_phases(trial, style)
