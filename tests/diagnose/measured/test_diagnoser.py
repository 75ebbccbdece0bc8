"""Tests of whole diagnoses of simulated trainers."""

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.diagnose.findings import Evidence, Limit
from autotune.records import NOT_COMPARED, Purpose
from autotune.testing.simulated_phases import PhaseTimes
from autotune.testing.simulated_runner import Training
from tests.diagnose.measured.simulated import CONFIG, Diagnose

BASE_S = 0.03


def trainer(
    *, load_s: float = 0.005, step_s: float = BASE_S, load_cores: float = 1.0, fixed: float = 0.1, **changes: Any
) -> Any:
    """Return a trainer whose loader runs ahead of the step; more workers share the loading."""

    def train(config: Mapping[str, Any]) -> Training:
        data = config["data"]
        factor = data["batch_size"] / 8
        loading_s = load_s * factor / min(2, data["num_workers"])
        stepping_s = step_s * (fixed + (1 - fixed) * factor)
        whole_s = max(loading_s, stepping_s)
        phases = PhaseTimes(
            train_s=whole_s, wait_s=whole_s - stepping_s, replay_s=stepping_s, load_s=loading_s, load_cores=load_cores
        )
        fields = {
            "samples": data["batch_size"],
            "step_s": whole_s,
            "wait_fraction": 1 - stepping_s / whole_s,
            "noise": 0.02,
            "phases": phases,
        }
        return Training(**{**fields, **changes})

    return train


def test_a_balanced_training_has_nothing_worth_doing(diagnose: Diagnose) -> None:
    """Where the loader keeps up and little of a step is fixed, the step is the limit, and no issue is made of it."""
    done = diagnose(trainer())
    assert done.verdict.limit is Limit.STEP
    assert done.verdict.sentence.startswith("Nothing worth doing")
    assert not [issue for issue in done.diagnosis.issues if issue.check != "switches"]


@pytest.mark.parametrize(("cores", "limit"), [(1.0, Limit.PREPARING), (0.1, Limit.READING)])
def test_a_slow_loader_is_named_with_what_it_does(diagnose: Diagnose, cores: float, limit: Limit) -> None:
    """A loader that takes three times the step limits it; one that computes prepares, one that waits reads."""
    done = diagnose(trainer(load_s=0.09, load_cores=cores))
    assert done.verdict.limit is limit
    assert done.verdict.bound is not None
    assert done.verdict.bound.low < 3.0 < done.verdict.bound.high * 1.05
    assert "Input-bound" in done.verdict.sentence


def test_what_helps_is_measured_with_its_interval(diagnose: Diagnose) -> None:
    """A second worker halves the loading, so that it gains twofold, and the step's own switches are left alone."""
    done = diagnose(trainer(load_s=0.09))
    best = done.diagnosis.recommendations[0]
    assert best.evidence is Evidence.MEASURED
    assert best.values == {"data.num_workers": 2}
    assert best.gain is not None
    assert best.gain.low < 2.0 < best.gain.high
    assert best.gain.high / best.gain.low < 1.4


def test_loading_and_step_in_turn_are_told_from_a_slow_loader(diagnose: Diagnose) -> None:
    """A loop that waits for each batch as long as it takes to load has nothing loaded ahead."""

    def train(config: Mapping[str, Any]) -> Training:
        batch = config["data"]["batch_size"]
        times = PhaseTimes(
            train_s=0.006 * batch, wait_s=0.003 * batch, replay_s=0.003 * batch, load_s=0.003 * batch, load_cores=1.0
        )
        return Training(samples=batch, step_s=0.006 * batch, wait_fraction=0.5, phases=times, noise=0.01)

    none_ahead = CONFIG.replace("prefetch_buffer_size: 1", "prefetch_buffer_size: 0")
    done = diagnose(train, config=none_ahead)
    assert done.verdict.limit is Limit.OVERLAP
    assert diagnose(train).verdict.limit is Limit.PREPARING, "batches are loaded ahead: they hold each other up"


def test_a_tiny_batch_leaves_the_fixed_cost_of_a_step(diagnose: Diagnose) -> None:
    """A step that takes nearly as long for twice the batch is launches and Python."""
    done = diagnose(trainer(fixed=0.9, load_s=0.001))
    assert done.verdict.limit is Limit.HOST
    (issue,) = done.result("fixed-cost").issues
    assert issue.numbers["fixed_fraction"] == pytest.approx(0.9, abs=0.07)


def test_slow_steps_that_recur_are_counted(diagnose: Diagnose) -> None:
    """One step in twenty that takes ten times as long is a third of the time."""
    done = diagnose(trainer(long_steps=0.05, long_step=10.0))
    assert done.verdict.limit is Limit.STALLS
    assert "instead of" in done.verdict.sentence


def test_a_trainer_whose_batches_cannot_be_replayed_is_still_diagnosed(diagnose: Diagnose) -> None:
    """The input is not seen, with the reason, and the changes are tried all the same."""
    done = diagnose(trainer(phases=None))
    assert done.result("input").why_not == "its batches cannot be seen"
    assert done.result("switches").sentence or done.result("switches").issues


def test_no_steps_are_a_verdict(diagnose: Diagnose) -> None:
    """A trainer that crashes is not seen, with what it said, and one trial is enough to know."""
    done = diagnose(trainer(steps=0, exit_code=1, stderr="ValueError: no such dataset"))
    assert done.verdict.limit is Limit.NOT_SEEN
    assert "no such dataset" in done.verdict.sentence
    assert len(done.trials) == 1


def test_trials_of_a_diagnosis_are_told_apart(diagnose: Diagnose) -> None:
    """Those that take work away are never compared; those of switches are trials as a search makes them."""
    done = diagnose(trainer(load_s=0.09))
    assert {trial.purpose for trial in done.trials} == {
        Purpose.DIAGNOSE,
        Purpose.BASELINE,
        Purpose.EXPLORE,
        Purpose.REPEAT,
    }
    assert all(trial.comparable is None for trial in done.trials if trial.purpose in NOT_COMPARED)
    assert all(trial.comparable for trial in done.trials if trial.purpose not in NOT_COMPARED)


def test_it_stays_within_its_budget(diagnose: Diagnose) -> None:
    """The wall holds, also for a trainer that takes long to start."""
    assert diagnose(trainer(start_s=12.0), budget_s=120.0).took_s <= 120.0


def test_a_config_without_knobs_is_diagnosed(diagnose: Diagnose) -> None:
    """Nothing can be tried, and the limit is named all the same."""
    config = CONFIG.replace("num_workers", "nw").replace("prefetch_buffer_size", "pb")
    config = config.replace("enable_graph_mode", "egm").replace("batch_size: 8", "bs: 8")

    def train(config: Mapping[str, Any]) -> Training:
        return trainer(load_s=0.09)({"data": {"batch_size": 8, "num_workers": 1}})

    done = diagnose(train, config=config)
    assert done.verdict.limit is Limit.PREPARING
    assert "no knob" in done.result("switches").why_not


def test_a_neighbour_on_the_cpu_comes_first(diagnose: Diagnose) -> None:
    """Cores that others use make every other number doubtful."""
    done = diagnose(trainer(load_s=0.09, cpu_cores=1.2), busy_s=lambda clock: 2.0 * clock.now_s())
    assert done.verdict.limit is Limit.NEIGHBOUR


def test_an_idle_machine_has_no_neighbour(diagnose: Diagnose) -> None:
    """CPU time that is all the trainer's is nobody else's."""

    def busy_s(clock: VirtualClock) -> float:
        return 1.0 * clock.now_s()

    done = diagnose(trainer(), busy_s=busy_s)
    assert not done.result("neighbours").issues
