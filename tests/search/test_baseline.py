"""Requirements on the baseline."""

from pathlib import Path

import pytest

from autotune.errors import TrialError
from autotune.records import Ending, Validity
from autotune.search.explore import require_baseline
from autotune.search.problem import Problem, open_problem
from tests.runs import MakeTrial
from tests.search.simulated import CONFIG


def test_a_baseline_with_numbers_or_a_failure_of_its_own_is_let_through(
    problem: Problem, make_trial: MakeTrial
) -> None:
    """Also where the budget ended it; other values may work, and a failure is told in the end."""
    for ending in (Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.CRASHED):
        require_baseline(make_trial(problem.space.baseline, 80.0, ending=ending), problem, budget_s=60.0)
    require_baseline(make_trial(problem.space.baseline, None), problem, budget_s=60.0)


@pytest.mark.parametrize(
    ("first", "validity", "said", "remedy"),
    [
        (None, Validity.UNMEASURED, "no valid training step was seen within the budget of 1m", "step(samples"),
        (None, Validity.NOT_STEADY, "the budget of 1m is too short to measure today's config", "ten times"),
        (None, Validity.COLD, "the budget of 1m is too short to measure today's config", "ten times"),
        (Validity.COLD, Validity.UNMEASURED, "the budget of 1m is too short to measure today's config", "ten times"),
        (Validity.UNMEASURED, Validity.UNMEASURED, "The trainer failed", "stderr.log"),
    ],
)
def test_a_budget_that_ends_before_the_baseline_is_measured_says_what_would_help(
    problem: Problem, make_trial: MakeTrial, first: Validity | None, validity: Validity, said: str, remedy: str
) -> None:
    """More time, where steps were seen; else the trainer may not report them, or has failed before."""
    values, earlier = problem.space.baseline, []
    if first is Validity.COLD:
        earlier = [make_trial(values, 80.0, validity=first)]
    elif first is not None:
        earlier = [make_trial(values, None, ending=Ending.CRASHED, validity=first)]
    record = make_trial(values, None, ending=Ending.KILLED_BY_BUDGET, validity=validity)
    with pytest.raises(TrialError, match=said) as caught:
        require_baseline(record, problem, budget_s=60.0, earlier=[*earlier, record])
    assert remedy in str(caught.value.remedy)


def test_utilization_that_is_searched_for_has_to_be_measured(problem: Problem, make_trial: MakeTrial) -> None:
    """A search for it could not compare anything."""
    Path("config.yaml").write_text(CONFIG.replace("autotune:\n", "autotune:\n    objective: utilization\n"))
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    with pytest.raises(TrialError, match="no GPU utilization was measured"):
        require_baseline(make_trial(problem.space.baseline, 80.0), problem, budget_s=60.0)
