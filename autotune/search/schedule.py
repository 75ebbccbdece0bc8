"""Schedule of a search: expected and allowed lengths of trials, and division of the budget."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median

from autotune.clock import Clock, format_duration
from autotune.measure.score import FEWEST_PAIRS, LEAST_PAIRS
from autotune.options import SearchOptions
from autotune.records import Ending, PooledGpus, Purpose, Scalar, TrialRecord, Values
from autotune.sampler.acquisition import WORTH_THE_REST, Proposal
from autotune.space.space import Space
from autotune.trial.stop_rule import LEAST_VALIDATION_S

STOPPING_S = 1.0
"""Time to stop before the end of the budget: SIGTERM, SIGKILL half a second later, then the report."""

CAUTION = 1.2
"""Safety factor on expected durations whose overrun would cost the answer."""

SLOWER_THAN_USUAL = 3.0
"""Limit of an exploring trial, in usual lengths ..."""

MOST_OF_THE_REST = 0.15
"""... or as a share of the time left, if that is more."""

MOST_FOR_CONFIRMING = 0.4
"""Largest share of the budget for a confirmation."""

PAIRS_WITH_TIME_TO_SPARE = 6
"""Pairs of a confirmation with enough time: four show a large gain, but not how large."""

RACES_FROM_S = 900.0
"""Budget from which a changed batch or precision is raced by default."""

# Trials without an improvement, absolute and relative to those before: with `_LITTLE`, 20 searches of 120 trials on
# measured tables lost 0.4 % of speed on average and saved 16 % of the trials (without it, and half as many: 4.5 %).
_PATIENCE, _PATIENT_SHARE = 15, 0.75
_REPEATS, _PARTLY_TRIED = 3, 0.3  # in a row, of a space tried to this share: they only order near-ties
_LITTLE = 0.01  # predicted average gain of the remaining trials

_LEAST_START_S = 6.0  # shortest idle wait for a first step
_MOST_FOR_HANGS, _LONGEST_IDLE_START_S = 0.14, 120.0  # of the budget for trials that idle, and for one of them
_LEAST_FOR_RACING_S = 40.0
MOSTLY_TRIED = 0.5
"""Share of points to try before a small predicted gain can end exploring.

In larger spaces the model is only right about the known part (`python -m scripts.bench promises`).
"""


class Budget:
    """Budget of a search.

    Args:
        started_s: Monotonic start of the process.
    """

    def __init__(self, clock: Clock, *, started_s: float, budget_s: float) -> None:
        self._clock = clock
        self.started_s = started_s
        self.budget_s = budget_s

    @property
    def wall_s(self) -> float:
        """Monotonic deadline of the last trial."""
        return self.started_s + self.budget_s - STOPPING_S

    def elapsed_s(self) -> float:
        return self._clock.now_s() - self.started_s

    def left_s(self) -> float:
        """Time until the deadline; negative after it."""
        return self.wall_s - self._clock.now_s()


def expected_trial_s(trials: Sequence[TrialRecord], point: str | None = None) -> float:
    """Predict the length of the next trial from those of its point in this search, else from all."""
    durations_s = _usual_durations_s(trials)
    good = [(trial, duration_s) for trial, duration_s in zip(trials, durations_s, strict=True) if trial.comparable]
    own = [duration_s for trial, duration_s in good if trial.point == point]
    all_s = [duration_s for _, duration_s in good] or durations_s
    return median(own or all_s or [10.0])


def _usual_durations_s(trials: Sequence[TrialRecord]) -> list[float]:
    """Return the trials' lengths without longer windows, and without the slow start of the first."""
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
    """Predict the length of this point's next trial with the shortest window."""
    own = [measured for trial in trials if trial.point == point and (measured := trial.comparable)]
    usual_s = median([trial.measurement.window_s for trial in trials if trial.measurement] or [0.0])
    spare_s = [min(usual_s, one.window_s) - max(least_s, min_steps * one.window_s / one.steps) for one in own]
    return expected_trial_s(trials, point) - max(0.0, min(spare_s, default=0.0))


def expected_measuring_s(trials: Sequence[TrialRecord]) -> float:
    """Predict the time of the next trial after its first step."""
    return median([trial.duration_s - trial.measurement.first_step_s for trial in trials if trial.measurement] or [0.0])


def is_expensive(pair_length_s: float, budget_s: float) -> bool:
    """Return whether pairs take so much of the budget that a confirmation stops once decided."""
    return PAIRS_WITH_TIME_TO_SPARE * pair_length_s > (1 / 6) * budget_s


def expected_start_s(trials: Sequence[TrialRecord]) -> float:
    """Predict the time to the first step of a trial."""
    starts_s = [trial.measurement.first_step_s for trial in trials if trial.measurement]
    return median(starts_s) if starts_s else 5.0


def why_no_time(options: SearchOptions) -> tuple[str, str] | None:
    """Return which of ``validate`` and ``race`` does not fit the budget, and why."""
    budget = format_duration(options.budget_s)
    for what, asked_s, least_s, share, most in (
        ("validate", options.validate_s, LEAST_VALIDATION_S, 0.25, "a quarter of it may go to each of two trainings"),
        ("race", options.race_s or None, _LEAST_FOR_RACING_S, 0.5, "half of it may go to the race"),
    ):
        asked = format_duration(asked_s or 0.0)
        if asked_s is not None and asked_s < least_s:
            return what, f"{asked} is too short: the minimum is {least_s:g}s"
        if asked_s is not None and asked_s > share * options.budget_s:
            return what, f"{asked} leaves too little of a budget of {budget} for the search: at most {most}"
    return None


def race_s(asked_s: float | None, budget_s: float) -> float:
    """Return the time for a race, 0 for none; None asks for the default."""
    if asked_s is not None:
        return asked_s
    return 0.2 * budget_s if budget_s >= RACES_FROM_S else 0.0


def hang_or_start_s(trials: Sequence[TrialRecord], budget_s: float) -> float:
    """Return how long a trial may idle before its first step: the rest of a share for hangs."""
    lost_s = math.fsum(trial.duration_s for trial in trials if trial.ending is Ending.HUNG)
    return min(_LONGEST_IDLE_START_S, _MOST_FOR_HANGS * budget_s - lost_s)


def start_timeout_s(trials: Sequence[TrialRecord], limit_s: float, waits_s: float = 0.0) -> float | None:
    """Limit the time to the first step of a new point; None before any trial has started.

    Compiling does not take many times longer than all other starts. A trial still active then is waited for
    (`StopRule`).
    """
    starts_s = [trial.measurement.first_step_s for trial in trials if trial.measurement]
    return min(limit_s, max(_LEAST_START_S, 5.0 * max(starts_s), waits_s)) if starts_s else None


def time_limit_s(trials: Sequence[TrialRecord], *, settles: bool, left_s: float, budget_s: float) -> float:
    """Limit the length of an exploring trial."""
    if settles:
        return min(left_s, expected_trial_s(trials) + 10.0 + 0.1 * budget_s)
    return min(left_s, max(SLOWER_THAN_USUAL * expected_trial_s(trials), MOST_OF_THE_REST * left_s))


def baseline_cache_time_limit_s(budget_s: float) -> float:
    """Limit the baseline's time to fill caches and be measured."""
    # A confirmation has at least four trials that fill caches, and eight if the baseline fills them too.
    return 10.0 + 0.06 * budget_s


def longest_trial_s(trials: Sequence[TrialRecord], baseline: str, left_s: float, *, budget_s: float) -> float:
    """Return the longest expected trial of a new point that leaves time to confirm it."""
    baseline_s, pairs = expected_trial_s(trials, baseline), _fewest_pairs(trials, baseline, budget_s)
    return (left_s - pairs * baseline_s) / (1 + pairs)


def _fewest_pairs(trials: Sequence[TrialRecord], baseline: str, budget_s: float) -> int:
    return FEWEST_PAIRS if is_expensive(2 * expected_trial_s(trials, baseline), budget_s) else LEAST_PAIRS


def verdict_s(gpus: PooledGpus | None) -> float:
    """Return the time that shows what a GPU does: 20 s or three periods; 0 if utilization is not measured."""
    seen = [device for device in gpus.devices if device.scored and device.samples] if gpus else []
    return max((max(20.0, 3.0 * (device.period_s or 0.0)) for device in seen), default=0.0)


def usual_confirmation_s(trials: Sequence[TrialRecord], baseline: str, *, budget_s: float) -> float:
    """Return the usual time of a confirmation's fewest pairs."""
    return 2 * _fewest_pairs(trials, baseline, budget_s) * expected_trial_s(trials, baseline)


def smallest_budget_s(trials: Sequence[TrialRecord]) -> float:
    """Return a budget in which a search probably tries and confirms something: that of ten trials."""
    return 10.0 * expected_trial_s(trials)


def least_confirmation_s(trials: Sequence[TrialRecord], baseline: str, *, budget_s: float) -> float:
    """Return the shortest time of a confirmation's pairs, without starts, because the first is slow."""
    own = (trial for trial in trials if trial.point == baseline)
    measured_s = [trial.duration_s - trial.measurement.first_step_s for trial in own if trial.measurement]
    return 2 * _fewest_pairs(trials, baseline, budget_s) * min(measured_s, default=0.0)


class Outcome(Enum):
    """Result of a stage of a search."""

    DONE = auto()
    MEASURED = auto()  # pairs can be judged
    FAR_SLOWER = auto()  # the first pairs show that the finalist is no gain
    FAILED = auto()  # a point failed in its pairs
    TIME_FREED = auto()  # nothing to confirm, and its time is available again
    ENDED = auto()  # nothing more can be confirmed
    HELD = auto()  # the answer passed
    BROKE = auto()  # the point failed in a longer training
    UNCONFIRMED = auto()  # not shown to be better, although exploring ended early for it


class ExploringEnd(Enum):
    """Kind of reason that ends exploring."""

    TIME = auto()  # the rest of the budget is reserved
    SETTLED = auto()  # further trials gain little, see `_PATIENCE`
    EXHAUSTED = auto()  # no further trial is possible or promising


@dataclass(frozen=True)
class EndOfExploring:
    """Reason that ended exploring."""

    kind: ExploringEnd
    why: str


def why_exploring_ends(
    trials: Sequence[TrialRecord],
    proposal: Proposal | None,
    space: Space,
    *,
    tried_share: float,
    left_s: float,
    exhaustive: bool = False,
    since_better: int = 0,
    gain_of: Callable[[int], float | None] = lambda _trials: None,
) -> EndOfExploring | None:
    """Return why to stop exploring; None if the proposal is worth a trial.

    Args:
        exhaustive: Whether to try every point that fits, even without a predicted gain.
        since_better: Latest trials without an improvement, after the first one.
        gain_of: Predicts the average relative gain of more trials, e.g. 0.02; None if unknown.
    """
    if nothing_works(trials):
        return EndOfExploring(ExploringEnd.EXHAUSTED, f"none of {len(trials)} trials has a measurement")
    if proposal is None:
        why = "every combination was tried"
        if tried_share < 1.0:
            is_late = expected_trial_s(trials) > left_s
            why = "no time is left to explore" if is_late else "what was not tried yet would fail or take too long"
        return EndOfExploring(ExploringEnd.EXHAUSTED, why)
    if expected_trial_s(trials, space.name(proposal.values) if proposal.is_repeat else None) > left_s:
        return EndOfExploring(ExploringEnd.TIME, "the rest of the budget is reserved for the confirmation")
    if not exhaustive and tried_share >= MOSTLY_TRIED and gain_of_rest(trials, proposal, left_s) < WORTH_THE_REST:
        return EndOfExploring(ExploringEnd.EXHAUSTED, "no further trial promises a gain")
    latest = [trial.purpose for trial in trials[-_REPEATS:]]
    is_settled = tried_share >= _PARTLY_TRIED and proposal.is_repeat and latest == _REPEATS * [Purpose.REPEAT]
    if since_better >= max(_PATIENCE, _PATIENT_SHARE * (len(trials) - since_better)) or (since_better and is_settled):
        gain = gain_of(max(1, int(left_s / expected_trial_s(trials))))
        if gain is not None and gain < _LITTLE:
            how = ", and no new point promises more" if is_settled else f" in {since_better} trials"
            return EndOfExploring(ExploringEnd.SETTLED, f"nothing better was found{how}")
    return None


def gain_of_rest(trials: Sequence[TrialRecord], proposal: Proposal, left_s: float) -> float:
    """Return the gain of further exploring, in ln score, if every trial gained as much as the next."""
    return proposal.gain * trials_ahead(trials, left_s)


def trials_ahead(trials: Sequence[TrialRecord], left_s: float) -> float:
    """Return the (fractional) trials that fit into a time, up to the prediction horizon."""
    return min(10, max(0.0, left_s) / expected_trial_s(trials))


def design_points(trials: Sequence[TrialRecord], points: int, left_s: float) -> int:
    """Return the size of the initial design."""
    in_all = len(trials) + max(0.0, left_s) / expected_trial_s(trials)
    # of all trials and all points: too few make no model, too many leave it no time
    return min(10, int(0.15 * min(in_all, points)))


def nothing_works(trials: Sequence[TrialRecord]) -> bool:
    """Return whether the trials so far make another attempt hopeless."""
    is_tried = len(trials) >= 5  # failures before the search gives up
    return never_trains(trials) or (is_tried and not any(trial.comparable for trial in trials))


def never_trains(trials: Sequence[TrialRecord]) -> bool:
    """Return whether two or more trials all lack steps, for reasons independent of the values."""
    independent_of_values = (Ending.NEVER_STARTED, Ending.NO_STEPS, Ending.OBSERVER_MISSING, Ending.UNCOUNTED)
    return len(trials) >= 2 and all(trial.ending in independent_of_values for trial in trials)


# Times to the first step, by value: one that starts slowly gets a longer limit, or is not tried.


_START_CAUTION = 1.5  # safety factor on a known start
_AGAIN = 2.0  # next limit, relative to one that was too short
_MOST_FOR_A_START = 0.25  # of the time left, for one start
_STILL_STARTING = (Ending.NEVER_STARTED, Ending.OBSERVER_MISSING)  # an idle one hangs

Choice = tuple[str, Scalar]
"""Path of a knob, and a value other than the baseline's."""


@dataclass(frozen=True, kw_only=True)
class StartTimes:
    """Times to the first step.

    Attributes:
        usual_s: Of the baseline.
        known_s: Shortest start with each value.
        waited_s: Longest wait without a step, for values that never started.
    """

    usual_s: float | None = None
    known_s: Mapping[Choice, float] = field(default_factory=dict)
    waited_s: Mapping[Choice, float] = field(default_factory=dict)

    def needed_s(self, space: Space, values: Values) -> float | None:
        known = _of_changes(self.known_s, space, values)
        return max([*known, *([] if self.usual_s is None else [self.usual_s])], default=None)

    def has_waited(self, space: Space, values: Values) -> bool:
        """Return whether a value of a point has never started."""
        return bool(_of_changes(self.waited_s, space, values))

    def least_limit_s(self, space: Space, values: Values) -> float:
        """Return the least start limit of a point, longer than earlier waits."""
        waited = _of_changes(self.waited_s, space, values)
        return max([*(_AGAIN * one for one in waited), _START_CAUTION * (self.needed_s(space, values) or 0.0)])

    def why_not(self, space: Space, values: Values, left_s: float, longest_s: float = math.inf) -> str | None:
        """Return why there is no time for the start of a point."""
        if (needed_s := self.needed_s(space, values) or 0.0) > longest_s:
            return f"it takes {format_duration(needed_s)} to start"
        for path, value in space.changes(values).items():
            if (waited_s := self.waited_s.get((path, value), 0.0)) and _AGAIN * waited_s > _MOST_FOR_A_START * left_s:
                return f"{path}: {value} takes more than {format_duration(waited_s)} to start"
        return None

    def explain(self, space: Space, trial: TrialRecord) -> bool:
        """Return whether a trial without a step was too short for a value that started later in another."""
        is_unknown = trial.measurement is None and trial.ending in (Ending.HUNG, *_STILL_STARTING)
        known_s = _of_changes(self.known_s, space, trial.values)
        return is_unknown and max(known_s, default=0.0) >= trial.duration_s

    def untried(self) -> Iterator[str]:
        for (path, value), waited_s in self.waited_s.items():
            waited, budget = map(format_duration, (waited_s, 2.0 * _AGAIN * waited_s / _MOST_FOR_A_START))
            why = f"{path}: {value} was not measured, because it takes more than {waited} to start"
            yield f"{why}; --budget {budget} gives it the time."


def _of_changes(times_s: Mapping[Choice, float], space: Space, values: Values) -> list[float]:
    return [times_s[one] for one in space.changes(values).items() if one in times_s]


def start_times(trials: Iterable[TrialRecord], space: Space) -> StartTimes:
    """Return the start times of trials of this machine and space."""
    usual_s: float | None = None
    known_s: dict[Choice, float] = {}
    waits: list[tuple[Values, float]] = []
    for trial in trials:
        changes = space.changes(trial.values)
        if trial.measurement is not None:
            start_s = trial.measurement.first_step_s
            if not changes:
                usual_s = start_s if usual_s is None else min(start_s, usual_s)
            for one in changes.items():
                known_s[one] = min(start_s, known_s.get(one, start_s))
        elif trial.ending in _STILL_STARTING:
            waits.append((changes, trial.duration_s))
    waited_s: dict[Choice, float] = {}
    for changes, wait_s in waits:
        if max((known_s.get(one, 0.0) for one in changes.items()), default=0.0) >= wait_s:
            continue  # that value explains the wait
        for one in changes.items():
            if one not in known_s:
                waited_s[one] = max(wait_s, waited_s.get(one, 0.0))
    return StartTimes(usual_s=usual_s, known_s=known_s, waited_s=waited_s)
