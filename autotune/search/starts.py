"""Times to the first step, by value: one that starts slowly gets a longer limit, or is not tried."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from autotune.clock import format_duration
from autotune.records import Ending, Scalar, TrialRecord, Values
from autotune.space.space import Space

CAUTION = 1.5
"""Safety factor on a known start."""

_AGAIN = 2.0  # next limit, relative to one that was too short
_MOST_OF_THE_REST = 0.25  # for one start
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
        return max([*(_AGAIN * one for one in waited), CAUTION * (self.needed_s(space, values) or 0.0)])

    def why_not(self, space: Space, values: Values, left_s: float, longest_s: float = math.inf) -> str | None:
        """Return why there is no time for the start of a point."""
        if (needed_s := self.needed_s(space, values) or 0.0) > longest_s:
            return f"it takes {format_duration(needed_s)} to start"
        for path, value in space.changes(values).items():
            if (waited_s := self.waited_s.get((path, value), 0.0)) and _AGAIN * waited_s > _MOST_OF_THE_REST * left_s:
                return f"{path}: {value} takes more than {format_duration(waited_s)} to start"
        return None

    def explain(self, space: Space, trial: TrialRecord) -> bool:
        """Return whether a trial without a step was too short for a value that started later in another."""
        is_unknown = trial.measurement is None and trial.ending in (Ending.HUNG, *_STILL_STARTING)
        known_s = _of_changes(self.known_s, space, trial.values)
        return is_unknown and max(known_s, default=0.0) >= trial.duration_s

    def untried(self) -> Iterator[str]:
        for (path, value), waited_s in self.waited_s.items():
            waited, budget = map(format_duration, (waited_s, 2.0 * _AGAIN * waited_s / _MOST_OF_THE_REST))
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
