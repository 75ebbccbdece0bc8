"""Requirements on the baseline."""

from pathlib import Path

import pytest

from autotune.errors import TrialError
from autotune.records import Ending, Validity
from autotune.search.problem import Problem, open_problem
from autotune.search.tuner import require_baseline
from tests.runs import MakeTrial
from tests.search.simulated import CONFIG


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """Problem of a search that is about to begin."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    return open_problem(Path("config.yaml"), command=None, state_dir=None)


@pytest.mark.parametrize("ending", [Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.CRASHED])
def test_numbers_are_enough_however_the_trial_ended(problem: Problem, make_trial: MakeTrial, ending: Ending) -> None:
    """Also where the budget ended it."""
    require_baseline(make_trial(problem.space.baseline, 80.0, ending=ending), problem, budget_s=60.0)


def test_a_crash_is_no_reason_to_stop(problem: Problem, make_trial: MakeTrial) -> None:
    """Other values may work, and the failure is told in the end."""
    require_baseline(make_trial(problem.space.baseline, None), problem, budget_s=60.0)


@pytest.mark.parametrize(
    ("validity", "said"),
    [
        (Validity.UNMEASURED, "no training step that counts was seen within the budget of 1m"),
        (Validity.NOT_STEADY, "the budget of 1m is too short for one trial of today's config"),
        (Validity.COLD, "the budget of 1m is too short for one trial of today's config"),
    ],
)
def test_a_budget_that_ends_before_the_baseline_is_measured(
    problem: Problem, make_trial: MakeTrial, validity: Validity, said: str
) -> None:
    """Steps that were seen show that more time helps; without any, the trainer may not report them."""
    record = make_trial(problem.space.baseline, None, ending=Ending.KILLED_BY_BUDGET, validity=validity)
    with pytest.raises(TrialError, match=said):
        require_baseline(record, problem, budget_s=60.0)


def test_a_budget_that_ends_while_it_is_measured_again(problem: Problem, make_trial: MakeTrial) -> None:
    """The first trial made steps, so that nobody has to look for what hides them."""
    first = make_trial(problem.space.baseline, 80.0, validity=Validity.COLD)
    record = make_trial(problem.space.baseline, None, ending=Ending.KILLED_BY_BUDGET, validity=Validity.UNMEASURED)
    with pytest.raises(TrialError, match="its first trial was taken to fill caches"):
        require_baseline(record, problem, budget_s=60.0, earlier=[first, record])


def test_a_budget_that_ends_while_a_failed_baseline_is_tried_again(problem: Problem, make_trial: MakeTrial) -> None:
    """The failure is the reason, and no advice about steps that are not reported helps."""
    first = make_trial(problem.space.baseline, None, ending=Ending.CRASHED, validity=Validity.UNMEASURED)
    record = make_trial(problem.space.baseline, None, ending=Ending.KILLED_BY_BUDGET, validity=Validity.UNMEASURED)
    with pytest.raises(TrialError, match="The trainer failed") as caught:
        require_baseline(record, problem, budget_s=60.0, earlier=[first, record])
    assert "stderr.log" in str(caught.value.remedy)


def test_utilization_that_is_searched_for_has_to_be_measured(problem: Problem, make_trial: MakeTrial) -> None:
    """A search for it could not compare anything."""
    Path("config.yaml").write_text(CONFIG.replace("autotune:\n", "autotune:\n    objective: utilization\n"))
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    with pytest.raises(TrialError, match="the GPU's utilization was not measured"):
        require_baseline(make_trial(problem.space.baseline, 80.0), problem, budget_s=60.0)
