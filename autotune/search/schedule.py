"""Schedule of a search: how long trials take and may take, and what of the budget is left for what."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from statistics import median

from autotune.clock import Clock, format_duration
from autotune.measure.score import FEWEST_PAIRS, LEAST_PAIRS
from autotune.options import SearchOptions
from autotune.records import Ending, PooledGpus, Purpose, TrialRecord
from autotune.sampler.acquisition import WORTH_THE_REST, Proposal
from autotune.space.space import Space
from autotune.trial.stop_rule import LEAST_VALIDATION_S

STOPPING_S = 1.0
"""Before the end of the budget, work ends: SIGTERM now, SIGKILL half a second later, the rest for the report."""

CAUTION = 1.2
"""Factor on expected durations where a trial that does not fit would cost the answer."""

SLOWER_THAN_USUAL = 3.0
"""Times the usual length that one trial may take while exploring ..."""

MOST_OF_THE_REST = 0.15
"""... or this share of the time left, if that is more."""

MOST_FOR_CONFIRMING = 0.4
"""Share of the budget that a confirmation may take."""

PAIRS_WITH_TIME_TO_SPARE = 6
"""Pairs of a confirmation that has the time: four show a large gain, but not how large."""

RACES_FROM_S = 900.0
"""Budget from which on a search races an answer that changes the batch or the precision, without being asked."""

# Trials without anything better, and as many in relation to those until then: with `_LITTLE`, 20 searches of 120 trials
# on measured tables lost 0.4 % of speed on average, and saved 16 % of the trials (without it, and half as many: 4.5 %).
_PATIENCE, _PATIENT_SHARE = 15, 0.75
_REPEATS, _PARTLY_TRIED = 3, 0.3  # in a row, of a space that is known so far: only which of near-ties is best is left
_LITTLE = 0.01  # what the rest of the trials would gain on average, as the model promises

_LEAST_START_S = 6.0  # of idle waiting for a first step, however soon the others came
_MOST_FOR_HANGS, _LONGEST_IDLE_START_S = 0.14, 120.0  # of the budget for trials that idle, and for one of them
_LEAST_FOR_RACING_S = 40.0
MOSTLY_TRIED = 0.5
"""Share of all points that has to be tried before a promise can end exploring.

A model that promises little is right about what it knows: in larger spaces there are better points elsewhere, see
`python -m scripts.bench promises`.
"""


class Budget:
    """A budget that started with the process.

    Args:
        started_s: When the process started, on the clock's monotonic time.
    """

    def __init__(self, clock: Clock, *, started_s: float, budget_s: float) -> None:
        self._clock = clock
        self.started_s = started_s
        self.budget_s = budget_s

    @property
    def wall_s(self) -> float:
        """When the last trial must end, on the clock's monotonic time."""
        return self.started_s + self.budget_s - STOPPING_S

    def elapsed_s(self) -> float:
        """Time since the process started."""
        return self._clock.now_s() - self.started_s

    def left_s(self) -> float:
        """Time until the wall; negative behind it."""
        return self.wall_s - self._clock.now_s()


def expected_trial_s(trials: Sequence[TrialRecord], point: str | None = None) -> float:
    """Predict the length of the next trial: as the trials of this point took, else as all did.

    Args:
        trials: Trials of this search; those of other searches may have run on a colder machine.
        point: Name of the point; None for a new one.
    """
    durations_s = _usual_durations_s(trials)
    good = [(trial, duration_s) for trial, duration_s in zip(trials, durations_s, strict=True) if trial.comparable]
    own = [duration_s for trial, duration_s in good if trial.point == point]
    everybody = [duration_s for _, duration_s in good] or durations_s
    return median(own or everybody or [10.0])


def _usual_durations_s(trials: Sequence[TrialRecord]) -> list[float]:
    """Return the trials' lengths without what only some take.

    The first starts with nothing imported or cached, that of today's config looks longer, and so do confirming ones.
    """
    measured = [trial.measurement for trial in trials if trial.measurement]
    usual_window_s = median(one.window_s for one in measured) if measured else 0.0
    usual_start_s = median(one.first_step_s for one in measured[1:]) if measured[1:] else math.inf
    durations_s = []
    for place, trial in enumerate(trials):
        beyond_s = 0.0
        if trial.measurement:
            beyond_s += max(0.0, trial.measurement.window_s - usual_window_s)
            beyond_s += 0.0 if place else max(0.0, trial.measurement.first_step_s - usual_start_s)
        durations_s.append(trial.duration_s - beyond_s)
    return durations_s


def shortest_trial_s(trials: Sequence[TrialRecord], point: str, *, least_s: float, min_steps: int) -> float:
    """Predict the length of the next trial of this point if it measures no longer than it has to.

    Args:
        least_s: Shortest measuring window.
        min_steps: Fewest steps in it.
    """
    own = [trial.comparable for trial in trials if trial.point == point]
    usual_s = median([trial.measurement.window_s for trial in trials if trial.measurement] or [0.0])
    spare_s = [
        min(usual_s, one.window_s) - max(least_s, min_steps * one.window_s / one.steps)
        for one in own
        if one is not None
    ]
    return expected_trial_s(trials, point) - max(0.0, min(spare_s, default=0.0))


def expected_measuring_s(trials: Sequence[TrialRecord]) -> float:
    """Predict the time of the next trial from its first step on."""
    return median([trial.duration_s - trial.measurement.first_step_s for trial in trials if trial.measurement] or [0.0])


def is_dear(pair_length_s: float, budget_s: float) -> bool:
    """Return True if pairs take so much of the budget that a confirmation stops as soon as it is sure."""
    # of the budget, for those: such a confirmation stops as soon as it is sure
    return PAIRS_WITH_TIME_TO_SPARE * pair_length_s > (1 / 6) * budget_s


def expected_start_s(trials: Sequence[TrialRecord]) -> float:
    """Predict the time from the start of a trial to its first step."""
    starts_s = [trial.measurement.first_step_s for trial in trials if trial.measurement]
    return median(starts_s) if starts_s else 5.0


def why_no_time(options: SearchOptions) -> tuple[str, str] | None:
    """Return which of ``validate`` and ``race`` was asked for and does not fit the budget, and why; None if all fit."""
    left = f"leaves too little of a budget of {format_duration(options.budget_s)} for the search: at most"
    short = "is too short to show anything: it takes"
    if (asked_s := options.validate_s) is not None:
        asked = format_duration(asked_s)
        if asked_s < LEAST_VALIDATION_S:
            return "validate", f"{asked} {short} {LEAST_VALIDATION_S:g}s at least"
        if asked_s > 0.25 * options.budget_s:
            trains = f"to validate trains two configs for up to {asked} each, which"
            return "validate", f"{trains} {left} a quarter of it may go to each"
    if asked_s := options.race_s:
        asked = format_duration(asked_s)
        if asked_s < _LEAST_FOR_RACING_S:
            return "race", f"{asked} {short} {_LEAST_FOR_RACING_S:g}s at least"
        if asked_s > 0.5 * options.budget_s:
            return "race", f"{asked} {left} half of it may go to the race"
    return None


def race_s(asked_s: float | None, budget_s: float) -> float:
    """Return the time for the race of an answer that calls for one; 0 where there is none.

    Args:
        asked_s: Time that was asked for; 0 for no race, None where nothing was said.
    """
    if asked_s is not None:
        return asked_s
    return 0.2 * budget_s if budget_s >= RACES_FROM_S else 0.0


def hang_or_start_s(trials: Sequence[TrialRecord], budget_s: float) -> float:
    """Return how long one trial may idle before its first step, to tell a slow start from a hang.

    That is what earlier trials that hung have left of a share of the budget.
    """
    lost_s = math.fsum(trial.duration_s for trial in trials if trial.ending is Ending.HUNG)
    return min(_LONGEST_IDLE_START_S, _MOST_FOR_HANGS * budget_s - lost_s)


def start_timeout_s(trials: Sequence[TrialRecord], limit_s: float, waits_s: float = 0.0) -> float | None:
    """Limit the time of a new point to its first step, unless it is seen to work; None before any trial has started.

    Compiling takes time, but not many times all others. A larger batch may have more to do before its first step, e.g.
    evaluate: a trial that is still at work then is waited for, see `StopRule`.

    Args:
        limit_s: The longest that the config allows.
        waits_s: What it has in any case.
    """
    starts_s = [trial.measurement.first_step_s for trial in trials if trial.measurement]
    return min(limit_s, max(_LEAST_START_S, 5.0 * max(starts_s), waits_s)) if starts_s else None


def time_limit_s(trials: Sequence[TrialRecord], *, settles: bool, left_s: float, budget_s: float) -> float:
    """Limit the length of one trial while exploring.

    Args:
        settles: Whether it waits for its caches to fill.
    """
    if settles:
        return min(left_s, expected_trial_s(trials) + 10.0 + 0.1 * budget_s)
    return min(left_s, max(SLOWER_THAN_USUAL * expected_trial_s(trials), MOST_OF_THE_REST * left_s))


def baseline_cache_time_limit_s(budget_s: float) -> float:
    """Limit the time that the baseline may take to fill its caches and be measured."""
    # A confirmation has at least four trials that wait for caches, and eight where today's config fills them too.
    return 10.0 + 0.06 * budget_s


def longest_trial_s(trials: Sequence[TrialRecord], baseline: str, left_s: float, *, budget_s: float) -> float:
    """Return the longest expected length of a new point's trial that leaves time to confirm it.

    Args:
        baseline: Name of today's point.
    """
    baseline_s, pairs = expected_trial_s(trials, baseline), _fewest_pairs(trials, baseline, budget_s)
    return (left_s - pairs * baseline_s) / (1 + pairs)


def _fewest_pairs(trials: Sequence[TrialRecord], baseline: str, budget_s: float) -> int:
    return FEWEST_PAIRS if is_dear(2 * expected_trial_s(trials, baseline), budget_s) else LEAST_PAIRS


def verdict_s(gpus: PooledGpus | None) -> float:
    """Return the time that shows what a trial's GPU does: 20 s, or three periods if that is more.

    Args:
        gpus: What is known of it; None where utilization is not measured.

    Returns:
        0 where there is nothing to see.
    """
    seen = [device for device in gpus.devices if device.scored and device.samples] if gpus else []
    return max((max(20.0, 3.0 * (device.period_s or 0.0)) for device in seen), default=0.0)


def least_confirmation_s(trials: Sequence[TrialRecord], baseline: str, *, budget_s: float) -> float:
    """Return what the pairs of a confirmation take at least, starts left out: that of the first trial is slower.

    Args:
        baseline: Name of today's point.
    """
    measured = [
        trial.duration_s - trial.measurement.first_step_s
        for trial in trials
        if trial.point == baseline and trial.measurement
    ]
    return 2 * _fewest_pairs(trials, baseline, budget_s) * min(measured, default=0.0)


class ExploringEnd(Enum):
    """Kind of reason for which exploring ends."""

    TIME = auto()  # the rest of the budget is kept
    SETTLED = auto()  # more of it gains little, though there is time, see `_PATIENCE`
    EXHAUSTED = auto()  # nothing is left that can be tried, or promises a gain


@dataclass(frozen=True)
class EndOfExploring:
    """Reason for which exploring ends, and that in words."""

    kind: ExploringEnd
    why: str


def why_exploring_ends(
    trials: Sequence[TrialRecord],
    proposal: Proposal | None,
    space: Space,
    *,
    tried_share: float,
    left_s: float,
    since_better: int = 0,
    gain_of: Callable[[int], float | None] = lambda _trials: None,
) -> EndOfExploring | None:
    """Return the reason why no further point is tried; None if the proposed one is worth a trial.

    Args:
        proposal: The trial that promises most; None if there is none.
        since_better: Number of the latest trials that found nothing better, once something better stands.
        gain_of: Predicts what some more trials gain on average, e.g. 0.02; None where one can't tell.
    """
    if nothing_works(trials):
        return EndOfExploring(ExploringEnd.EXHAUSTED, f"{len(trials)} trials in a row gave no numbers")
    if proposal is None:
        why = "every combination was tried, or takes too long for the time that is left"
        return EndOfExploring(ExploringEnd.EXHAUSTED, why)
    if expected_trial_s(trials, space.name(proposal.values) if proposal.is_repeat else None) > left_s:
        return EndOfExploring(ExploringEnd.TIME, "the rest of the budget is for the confirmation")
    if tried_share >= MOSTLY_TRIED and promised_by_the_rest(trials, proposal, left_s) < WORTH_THE_REST:
        return EndOfExploring(ExploringEnd.EXHAUSTED, "nothing left to try promises a gain")
    latest = [trial.purpose for trial in trials[-_REPEATS:]]
    is_settled = tried_share >= _PARTLY_TRIED and proposal.is_repeat and latest == _REPEATS * [Purpose.REPEAT]
    if since_better >= max(_PATIENCE, _PATIENT_SHARE * (len(trials) - since_better)) or (since_better and is_settled):
        gain = gain_of(max(1, int(left_s / expected_trial_s(trials))))
        if gain is not None and gain < _LITTLE:
            how = ", and nothing new promises more" if is_settled else f" in {since_better} trials"
            return EndOfExploring(ExploringEnd.SETTLED, f"nothing better was found{how}")
    return None


def promised_by_the_rest(trials: Sequence[TrialRecord], proposal: Proposal, left_s: float) -> float:
    """Return the gain of the answer, in ln score, that exploring on promises: as if all trials gained what one does.

    Args:
        trials: Trials of this search; tell how long one takes.
    """
    return proposal.gain * trials_ahead(trials, left_s)


def trials_ahead(trials: Sequence[TrialRecord], left_s: float) -> float:
    """Return the number of trials that fit into a time, not necessarily whole, as far as it can be looked ahead.

    Args:
        trials: Trials of this search; tell how long one takes.
    """
    return min(10, max(0.0, left_s) / expected_trial_s(trials))


def design_points(trials: Sequence[TrialRecord], points: int, left_s: float) -> int:
    """Return the number of points of the initial design: some of all trials that there is time for."""
    in_all = len(trials) + max(0.0, left_s) / expected_trial_s(trials)
    # of all trials, and of all points: few make no model, and many leave it no time
    return min(10, int(0.15 * min(in_all, points)))


def nothing_works(trials: Sequence[TrialRecord]) -> bool:
    """Return whether the trials of a search give no hope that another one would show numbers."""
    is_tried = len(trials) >= 5  # trials that all gave nothing, before the search gives up
    return never_trains(trials) or (is_tried and not any(trial.comparable for trial in trials))


def never_trains(trials: Sequence[TrialRecord]) -> bool:
    """Return whether at least two trials were made, and none showed a step, for a reason that all have in common."""
    whatever_the_values = (Ending.NEVER_STARTED, Ending.NO_STEPS, Ending.OBSERVER_MISSING, Ending.UNCOUNTED)
    return len(trials) >= 2 and all(trial.ending in whatever_the_values for trial in trials)
