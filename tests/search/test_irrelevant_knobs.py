"""Tests of the knobs that a search leaves alone, because they cannot matter yet."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from autotune.clock import VirtualClock
from autotune.diagnose.diagnoser import Diagnoser
from autotune.options import SearchOptions
from autotune.records import Conditions, Purpose, TrialRecord
from autotune.search.model import irrelevant_knobs
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem
from autotune.search.schedule import Budget
from autotune.space.space import Space
from autotune.study.record import StudyRecord
from autotune.trial.instruments import Instruments
from scripts.bench.simulated_runner import PhaseTimes, SimulatedHostProbe, SimulatedRunner, Training
from tests.runs import MakeTrial, knob
from tests.search.simulated import CONFIG, Search

SPACE = Space(
    knobs=(
        knob("data.num_workers", 1, 2, kind="workers"),
        knob("data.batch_size", 8, 16, kind="batch_size"),
        knob("training.xla", False, True, kind="xla"),
    )
)


def phased(make_trial: MakeTrial, *, free_data: float, free_step: float) -> TrialRecord:
    """Return a trial of today's config in phases, with these bounds."""
    conditions = Conditions(
        free_data_ratio=free_data,
        free_data_ratio_high=1.01 * free_data,
        free_step_ratio=free_step,
        free_step_ratio_high=1.01 * free_step,
    )
    trial = make_trial(SPACE.baseline, 100.0, purpose=Purpose.DIAGNOSE, conditions=conditions)
    return replace(trial, point="today")


@pytest.mark.parametrize(
    ("free_data", "free_step", "paths"),
    [(1.0, 3.0, {"data.num_workers"}), (3.0, 1.0, {"data.batch_size", "training.xla"})],
)
def test_the_side_that_is_not_the_limit_is_left_alone(
    make_trial: MakeTrial, free_data: float, free_step: float, paths: set[str]
) -> None:
    """Where free data gains nothing these are the input's knobs; where a free step does not, the step's."""
    found = irrelevant_knobs([phased(make_trial, free_data=free_data, free_step=free_step)], SPACE, "today", "")
    assert found.paths == paths
    assert found.until == pytest.approx(0.8 * 3.0), "until the other side may be the limit"
    other = "data.batch_size" if "data.num_workers" in paths else "data.num_workers"
    value = {"data.batch_size": 16, "data.num_workers": 2}
    assert found.allows({**SPACE.baseline, other: value[other]})
    assert not found.allows({**SPACE.baseline, min(paths): 2})


def step_bound(config: Mapping[str, Any]) -> Training:
    """Train so that the step is the limit, with data that is there long before; a larger batch pays."""
    batch = config["data"]["batch_size"]
    step_s = 0.02 + 0.002 * batch
    times = PhaseTimes(train_s=step_s, wait_s=0.0, replay_s=step_s, load_s=0.05 * step_s)
    return Training(samples=batch, step_s=step_s, noise=0.01, epoch=50, phases=times)


def diagnosed(study: StudyRecord, problem: Problem, clock: VirtualClock) -> None:
    """Diagnose the training, on the record of the search that follows."""
    runner = SimulatedRunner(clock, lambda text: step_bound(yaml.safe_load(text)), seed=0)
    parts = SearchParts(
        name="diagnosis",
        options=SearchOptions(),
        problem=problem,
        study=study,
        runner=runner,
        budget=Budget(clock, started_s=clock.now_s(), budget_s=180.0),
        clock=clock,
        instruments=lambda: Instruments(SimulatedHostProbe(runner)),
    )
    Diagnoser(parts, busy_s=lambda: None, cores=2.0).run()


def test_a_search_after_a_diagnosis_leaves_the_loader_alone(search: Search) -> None:
    """Today's config in phases shows that the step is the limit: workers are not turned at first, and it says so."""
    wide = CONFIG.replace("[8, 32]", "[8, 16, 32, 64, 128]").replace("[1, 2]", "[1, 2, 4, 8]")
    done = search(step_bound, budget_s=300, config=wide, joins=diagnosed)
    first, *_ = done.of(Purpose.EXPLORE)
    assert first.values["data.num_workers"] == 1
    assert "data.num_workers" in done.said()
    assert done.answer.best.values["data.batch_size"] == 128
