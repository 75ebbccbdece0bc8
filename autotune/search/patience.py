"""How long one trial may take, so that it does not eat the time of the others, or of the confirmation."""

from collections.abc import Sequence

from autotune.records import TrialRecord
from autotune.score import LEAST_PAIRS
from autotune.search.budget import expected_trial_s

SLOWER_THAN_USUAL = 3.0
"""How many times the usual length one trial may take while exploring ..."""

MOST_OF_THE_REST = 0.1
"""... or this share of the time left, if that is more."""

_LEAST_START_S = 60.0  # that a new point may take to its first step ...
_SLOWER_START = 5.0  # ... or this many times the longest start so far
# Share of the budget that one trial may wait for its caches to fill: a confirmation has at least four such runs, and
# eight where today's config fills caches too.
_MOST_OF_A_PASS = 0.1
_MOST_OF_TODAYS_PASS = 0.06
_LEAST_OF_A_PASS_S = 10.0


def start_timeout_s(trials: Sequence[TrialRecord], limit_s: float) -> float:
    """How long a new point may take to its first step: compiling takes time, but not many times all others.

    Args:
        trials: Runs of this search.
        limit_s: The limit in the config.
    """
    starts_s = [trial.measurement.first_step_s for trial in trials if trial.measurement]
    return min(limit_s, max(_LEAST_START_S, _SLOWER_START * max(starts_s))) if starts_s else limit_s


def patience_s(trials: Sequence[TrialRecord], *, settles: bool, left_s: float, budget_s: float) -> float:
    """How long one trial may take while exploring.

    Args:
        trials: Runs of this search.
        settles: Whether it waits for its caches to fill.
        left_s: What is left of the time for exploring.
        budget_s: The whole budget.
    """
    if settles:
        return min(left_s, expected_trial_s(trials) + _LEAST_OF_A_PASS_S + _MOST_OF_A_PASS * budget_s)
    return min(left_s, max(SLOWER_THAN_USUAL * expected_trial_s(trials), MOST_OF_THE_REST * left_s))


def patience_with_todays_caches_s(budget_s: float) -> float:
    """How long today's config may take to fill its caches and be measured."""
    return _LEAST_OF_A_PASS_S + _MOST_OF_TODAYS_PASS * budget_s


def longest_trial_s(trials: Sequence[TrialRecord], today: str, left_s: float) -> float:
    """How long a trial of a new point may be expected to take, so that there is time to confirm it afterwards.

    Args:
        trials: Runs of this search.
        today: Name of today's point.
        left_s: What is left of the budget.
    """
    return (left_s - LEAST_PAIRS * expected_trial_s(trials, today)) / (1 + LEAST_PAIRS)
