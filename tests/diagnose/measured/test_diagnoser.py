"""Tests of whole diagnoses of simulated trainers."""

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.diagnose.findings import GainBasis, Limit
from autotune.records import NOT_COMPARED, Purpose
from scripts.bench.simulated_runner import PhaseTimes, Training
from tests.diagnose.measured.simulated import CONFIG, Diagnose

BASE_S = 0.03


def trainer(
    *, load_s: float = 0.005, step_s: float = BASE_S, load_cores: float = 1.0, fixed: float = 0.1, **changes: Any
) -> Any:
    """Return a trainer whose loader runs ahead of the step; more workers share the loading."""

    def train(config: Mapping[str, Any]) -> Training:
        data = config["data"]
        factor = data["batch_size"] / 8
        loading_s = load_s * factor / min(2, data["num_workers"] or 1)
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


@pytest.mark.parametrize(
    ("behaves", "limit", "said"),
    [
        ({}, Limit.STEP, "No worthwhile change"),
        ({"load_s": 0.09}, Limit.PREPARING, "Input-bound"),  # three times the step
        ({"load_s": 0.09, "load_cores": 0.1}, Limit.READING, "Input-bound"),  # one that waits reads
        ({"fixed": 0.9, "load_s": 0.001}, Limit.HOST, "is independent of the batch size"),
        ({"long_steps": 0.05, "long_step": 10.0}, Limit.STALLS, "instead of"),  # a third of the time
        ({"steps": 0, "exit_code": 1, "stderr": "ValueError: no such data"}, Limit.NOT_SEEN, "no such data"),
    ],
)
def test_the_limit_of_a_training_is_named(diagnose: Diagnose, behaves: dict[str, Any], limit: Limit, said: str) -> None:
    """With what the loader does, or the step, or what the trainer said where one trial is enough to know."""
    done = diagnose(trainer(**behaves))
    assert done.verdict.limit is limit
    assert said in done.verdict.sentence
    if limit is Limit.STEP:
        assert not [issue for issue in done.diagnosis.issues if issue.check != "switches"]
    if "Input-bound" in said:
        assert done.verdict.bound is not None
        assert done.verdict.bound.low < 3.0 < done.verdict.bound.high * 1.05
    if limit is Limit.NOT_SEEN:
        assert len(done.trials) == 1
    else:
        assert sum(share.fraction for share in done.diagnosis.shares) == pytest.approx(1.0)


def test_what_phases_do_not_see_is_no_matter_of_the_input_or_the_step(diagnose: Diagnose) -> None:
    """Where slow steps take half of the time, what a faster step gains is bounded by the other half."""
    done = diagnose(trainer(fixed=0.9, load_s=0.001, long_steps=0.02, long_step=50.0))
    assert done.verdict.limit is Limit.STALLS
    slow, fixed, rest = done.diagnosis.shares
    assert (slow.limit, fixed.limit, rest.limit) == (Limit.STALLS, Limit.HOST, Limit.STEP)
    assert slow.fraction == pytest.approx(0.6, abs=0.1)
    assert slow.fraction + fixed.fraction <= 1.0
    bounds = [one.bound for one in done.diagnosis.issues if one.limit is Limit.HOST]
    assert all(bound.ratio <= 1.0 / slow.fraction * 1.05 for bound in bounds)


def test_what_helps_is_measured_with_its_interval(diagnose: Diagnose) -> None:
    """A second worker halves the loading, so that it gains twofold, and the step's own switches are left alone."""
    done = diagnose(trainer(load_s=0.09))
    best = done.diagnosis.recommendations[0]
    assert best.evidence is GainBasis.MEASURED
    assert best.values == {"data.num_workers": 2}
    assert best.gain is not None
    assert best.gain.low < 2.0 < best.gain.high
    assert best.gain.high / best.gain.low < 1.4


def test_what_the_study_has_measured_is_not_measured_again(diagnose: Diagnose) -> None:
    """A second diagnosis tells what the first one's trials have shown, and tries none of these changes."""
    first = diagnose(trainer(load_s=0.09))
    before = len(first.trials)
    again = diagnose(trainer(load_s=0.09))
    tried = [trial for trial in again.trials[before:] if trial.purpose in (Purpose.EXPLORE, Purpose.REPEAT)]
    assert not any(trial.values == {**trial.values, "data.num_workers": 2} for trial in tried)
    best = again.diagnosis.recommendations[0]
    assert (best.values, best.evidence) == ({"data.num_workers": 2}, GainBasis.MEASURED)


def test_what_a_search_has_confirmed_is_recommended(diagnose: Diagnose) -> None:
    """Several changes together, none of which was tried alone: what is measured comes before what is not."""
    changes = {"data.num_workers": 2, "data.prefetch_buffer_size": 2}
    done = diagnose(trainer(load_s=0.09), confirmed=changes, budget_s=60.0)
    best = done.diagnosis.recommendations[0]
    assert (best.values, best.evidence) == (changes, GainBasis.MEASURED)
    assert best.gain is not None
    assert best.gain.low < 2.0 < best.gain.high
    assert {path: one.evidence for path, one in done.diagnosis.changes.items()} == dict.fromkeys(
        changes, GainBasis.MEASURED
    )


def test_a_change_that_was_slower_with_another_one_is_not_recommended(diagnose: Diagnose) -> None:
    """It was never tried alone; the measurement with the other one is on record, and is stated."""

    def train(config: Mapping[str, Any]) -> Training:
        slower = 0.9 if config["data"]["num_workers"] == 2 else 1.0
        return trainer(load_s=0.09 / slower, start_s=6.0)({"data": {**config["data"], "num_workers": 1}})

    done = diagnose(train, confirmed={"data.num_workers": 2, "data.prefetch_buffer_size": 2}, budget_s=100.0)
    advised = [one.values for one in done.diagnosis.recommendations]
    assert not [values for values in advised if "data.num_workers" in values]
    assert "data.num_workers: 2, data.prefetch_buffer_size: 2 0.9" in done.result("switches").sentence


def test_a_short_diagnosis_measures_the_first_change(diagnose: Diagnose) -> None:
    """Where the input takes most of the time, a minute is spent on its remedy, not on the cost of a step."""
    done = diagnose(trainer(load_s=0.09, start_s=2.0), budget_s=60.0)
    best = done.diagnosis.recommendations[0]
    assert (best.values, best.evidence) == ({"data.num_workers": 2}, GainBasis.MEASURED)


def test_more_workers_than_cores_help_where_loading_waits(diagnose: Diagnose) -> None:
    """As many as make that no limit; where it computes, as many as there are cores."""
    config = CONFIG.replace("autotune:\n", "autotune:\n    knobs: {data.num_workers: [1, 2, 4, 8, 16, 32]}\n")
    for cores, workers in ((0.1, 8), (1.0, 2)):
        done = diagnose(trainer(load_s=0.09, load_cores=cores), config=config, budget_s=60.0)
        assert done.diagnosis.recommendations[0].values == {"data.num_workers": workers}


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


def test_a_trainer_whose_batches_cannot_be_replayed_is_still_diagnosed(diagnose: Diagnose) -> None:
    """The input is not seen, with the reason, and the changes are tried all the same."""
    done = diagnose(trainer(phases=None))
    assert done.result("input").why_not == "its batches cannot be seen"
    assert done.result("switches").sentence or done.result("switches").issues


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


@pytest.mark.parametrize(("start_s", "most_s"), [(3.0, 60.0), (6.0, 120.0), (30.0, 180.0)])
def test_it_takes_as_long_as_a_trainer_that_starts_so_quickly_needs(
    diagnose: Diagnose, start_s: float, most_s: float
) -> None:
    """Without a budget that was asked for: a minute where a start takes three seconds."""
    done = diagnose(trainer(load_s=0.09, start_s=start_s), is_brief=True)
    assert done.verdict.limit is Limit.PREPARING
    assert done.took_s <= most_s


def test_a_config_without_knobs_is_diagnosed(diagnose: Diagnose) -> None:
    """Nothing can be tried, and the limit is named all the same."""
    config = CONFIG.replace("num_workers", "nw").replace("prefetch_buffer_size", "pb")
    config = config.replace("enable_graph_mode", "egm").replace("batch_size: 8", "bs: 8")

    def train(config: Mapping[str, Any]) -> Training:
        return trainer(load_s=0.09)({"data": {"batch_size": 8, "num_workers": 1}})

    done = diagnose(train, config=config)
    assert done.verdict.limit is Limit.PREPARING
    assert "no knob" in done.result("switches").why_not


@pytest.mark.parametrize(("busy", "is_one"), [(2.0, True), (1.0, False)])
def test_a_neighbour_on_the_cpu_makes_the_limit_doubtful(diagnose: Diagnose, busy: float, is_one: bool) -> None:
    """Cores that others use are told behind the limit; CPU time that is all the trainer's is nobody else's."""
    done = diagnose(trainer(load_s=0.09, cpu_cores=1.2), busy_s=lambda clock: busy * clock.now_s())
    assert done.verdict.limit is Limit.PREPARING
    assert ("The numbers are doubtful: other processes" in done.verdict.sentence) is is_one
    assert bool(done.result("neighbours").issues) is is_one
