"""Findings that a search makes on the way, and says once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.clock import SystemClock
from autotune.records import CALLS_MADE, Conditions, Ending, Purpose, Scalar, TrialRecord
from autotune.sampler.observations import Observations
from autotune.search.findings import Findings, untunable_knobs
from autotune.search.problem import Problem, open_problem
from autotune.space.space import Space
from autotune.trial.folders import TrialFolder
from autotune.trial.outcome import Losses
from autotune.trial.protection import TRIALS_LOOKED_AROUND
from tests.runs import MakeTrial, knob

Learn = Callable[..., TrialRecord]


@pytest.fixture
def remarks() -> list[str]:
    """What the user was told."""
    return []


@pytest.fixture
def findings(problem: Problem, remarks: list[str], tmp_path: Path) -> Findings:
    """Findings without any trial."""
    return Findings(problem, SystemClock(), remarks.append)


@pytest.fixture
def learn(findings: Findings, problem: Problem, make_trial: MakeTrial, tmp_path: Path) -> Learn:
    """Tell the findings of a trial: speed, purpose, samples of its steps, stdout, and differences from the baseline."""
    trials: list[TrialRecord] = []

    def tell(
        speed: float | None,
        output: str = "",
        purpose: Purpose = Purpose.EXPLORE,
        samples: float | None = None,
        **changes: Scalar,
    ) -> TrialRecord:
        values = {**problem.space.baseline, **{f"data.{name}": value for name, value in changes.items()}}
        trials.append(make_trial(values, speed, purpose=purpose))
        (tmp_path / "stdout.log").write_text(output)
        findings.learn(
            trials[-1],
            Losses(),
            tmp_path / "stdout.log",
            samples=None if samples is None else np.full(20, samples),
            space=problem.space,
        )
        observations = Observations(problem.space, problem.objective, trials)
        findings.find_unused(trials, observations, space=problem.space, sd=0.02)
        return trials[-1]

    return tell


def test_a_value_that_the_trainer_prints_otherwise(findings: Findings, learn: Learn, remarks: list[str]) -> None:
    """The value is said once, its knob is not turned any more, and the answer says it again."""
    learn(100.0, "num_workers: 1\n")
    learn(100.0, "num_workers: 1\n", cache="memory")
    learn(101.0, "num_workers: 1\n", num_workers=2)
    learn(100.0, "num_workers: 1\n", num_workers=2, cache="memory")
    why = "the trainer printed 1 every time, with 1 and 2 set"
    assert findings.unused == {"data.num_workers": why}
    assert len(remarks) == 1
    assert findings.cautions == remarks
    assert findings.cautions[0].startswith(f"data.num_workers: {why}; it is kept fixed from now on")


def test_a_printed_value_is_no_evidence_against_a_measured_difference(findings: Findings, learn: Learn) -> None:
    """Whatever the log says: training is faster with it."""
    for number in range(4):
        learn(100.0, "num_workers: 1\n", cache="memory" if number % 2 else "none")
        learn(150.0, "num_workers: 1\n", num_workers=2, cache="memory" if number % 2 else "none")
    assert findings.unused == {}


def test_steps_unlike_the_config_are_said_once(findings: Findings, learn: Learn, remarks: list[str]) -> None:
    """Batches that hold other samples than the config says are remarked on once; the answer says it again."""
    learn(100.0)
    learn(100.0, samples=8.0)
    learn(None, samples=4.0)
    assert not findings.cautions
    learn(320.0, samples=32.0, batch_size=32, num_workers=2)
    assert not findings.cautions
    learn(100.0, samples=16.0, batch_size=8)
    learn(100.0, samples=16.0, batch_size=8)
    (said,) = findings.cautions
    assert said.startswith("data.batch_size is 8, but each step had 16 samples")
    assert remarks == [said]


def test_side_effects_are_looked_for_after_the_first_trials_only(findings: Findings, tmp_path: Path) -> None:
    """Later files are not reported; looking for them costs time."""
    for number in range(TRIALS_LOOKED_AROUND):
        (tmp_path / f"{number}.log").touch()
        assert not findings.check_side_effects(number)
    (tmp_path / "late.log").touch()
    assert not findings.check_side_effects(9)
    assert [f"{number}.log" in said for number, said in enumerate(findings.cautions)] == [True] * TRIALS_LOOKED_AROUND
    assert not any("late.log" in said for said in findings.cautions)


def test_a_call_that_is_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_trial: MakeTrial) -> None:
    """A loader that another one replaces: its values change nothing, whatever the noise says."""
    monkeypatch.chdir(tmp_path)
    loader = "code:train.py:2 DataLoader.num_workers"
    (tmp_path / "train.py").write_text("from torch.utils.data import DataLoader\nDataLoader(x)\n")
    (tmp_path / "config.yaml").write_text("a: 1\nautotune: {command: 'python train.py', folder: .}\n")
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    assert problem.space.baseline[loader] == 0
    findings = Findings(problem, SystemClock())
    trials = [make_trial({**problem.space.baseline, loader: workers}, speed) for workers, speed in ((0, 1.0), (2, 9.0))]
    folder = TrialFolder(tmp_path)
    folder.stdout.write_text("")
    assert findings.unread_knobs(trials[0].values, folder, problem.space) == ()
    unread = findings.unread_knobs(trials[1].values, folder, problem.space)
    assert unread == (loader,)
    trials[1] = replace(trials[1], conditions=Conditions(unheeded=unread))
    for trial in trials:
        findings.learn(trial, Losses(), folder.stdout, samples=None, space=problem.space)
    assert findings.find_unused(trials, {}, space=problem.space, sd=0.08)
    assert "trained without that call" in findings.unused[loader]
    (tmp_path / CALLS_MADE).write_text(f"{loader}\n")
    assert findings.unread_knobs(trials[1].values, folder, problem.space) == ()
    later = Findings(problem, SystemClock())
    later.recall(trials, problem.space)
    assert list(later.unused) == [loader]


def test_what_a_trial_did_not_come_by_or_failed_by_is_known_from_the_record(make_trial: MakeTrial) -> None:
    """Of arguments of calls alone: an error that names a key of the config speaks of that value."""
    workers, together = "code:train.py:4 DataLoader.num_workers", "code:train.py:9 Model.fit.steps_per_execution"
    space = Space(knobs=(knob(workers, 0, 2), knob(together, 1, 4), knob("batch_size", 8, 16)))
    today = space.baseline
    failed = {
        "ending": Ending.CRASHED,
        "detail": "ValueError: with steps_per_execution, batch_size has to be known",
    }
    trials = [
        make_trial({**today, workers: 2}, 50.0, conditions=Conditions(unheeded=(workers,))),
        make_trial({**today, "batch_size": 16}, None, **failed),
    ]
    assert list(untunable_knobs(trials, space)) == [workers]
    trials.append(make_trial({**today, "batch_size": 16, together: 4}, None, **failed))
    assert "trial 2 failed with it: ValueError" in untunable_knobs(trials, space)[together]
