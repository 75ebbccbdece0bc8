"""Finalists of a search: the points that were confirmed, one after the other, and what became of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.records import PAIRS_PLANNED, Ending, Measurement, Purpose, TrialRecord, Validation, Values

NO_FAILURES = frozenset(
    {Ending.COMPLETED, Ending.STOPPED, Ending.UNCOUNTED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED}
)
"""Endings that say nothing against a point."""

Pair = tuple[Measurement, Measurement]
"""A complete pair of a confirmation: the trial of the baseline, that of the point."""


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """A point that was confirmed, or was to be.

    Attributes:
        trial: Its first confirming trial with comparable numbers.
        pairs_of_machines: Its complete pairs, by machine; the first that confirmed it comes first.
        planned_pairs: The most pairs of its sequential confirmation; None where their number was fixed.
        has_failed: True if one of its confirming trials failed, by no fault of the search's end.
        validation: Findings of its validation trial; None if there was none, or it was cut short.
    """

    trial: TrialRecord
    pairs_of_machines: Mapping[str, Sequence[Pair]]
    planned_pairs: int | None
    has_failed: bool
    validation: Validation | None

    @property
    def pairs(self) -> list[Pair]:
        """Its complete pairs, of all machines."""
        return [pair for pairs in self.pairs_of_machines.values() for pair in pairs]

    @property
    def broke(self) -> bool:
        """True if it broke in its validation trial."""
        return self.validation is not None and bool(self.validation.broke)


def finalists(good: Iterable[TrialRecord], trials: Sequence[TrialRecord], baseline_point: str) -> list[Finalist]:
    """Return the finalists of a search, in the order of their confirmations.

    Args:
        good: Its trials with comparable numbers.
        trials: All its trials.
        baseline_point: Name of the baseline.
    """
    confirming = [trial for trial in good if trial.purpose is Purpose.CONFIRM]
    first: dict[str, TrialRecord] = {}
    for trial in confirming:
        if trial.point != baseline_point:
            first.setdefault(trial.point, trial)
    failed = {trial.point for trial in trials if trial.purpose is Purpose.CONFIRM and trial.ending not in NO_FAILURES}
    validations = {trial.point: trial.validation for trial in trials if trial.validation}
    return [
        Finalist(
            trial=trial,
            pairs_of_machines=_by_machine(
                [half for half in confirming if half.point in (point, baseline_point)], baseline_point
            ),
            planned_pairs=_planned_pairs(trial),
            has_failed=point in failed,
            validation=validations.get(point),
        )
        for point, trial in first.items()
    ]


def _planned_pairs(trial: TrialRecord) -> int | None:
    planned = trial.conditions.get(PAIRS_PLANNED)
    return planned if isinstance(planned, int) and planned > 0 else None


def _by_machine(halves: Sequence[TrialRecord], baseline_point: str) -> dict[str, Sequence[Pair]]:
    """Return the complete pairs of each machine that has some: a pair never crosses machines."""
    machines = dict.fromkeys(half.machine for half in halves)
    made = {machine: [half for half in halves if half.machine == machine] for machine in machines}
    pairs = {machine: pairs_of(some, baseline_point) for machine, some in made.items()}
    return {machine: some for machine, some in pairs.items() if some}


def pairs_of(trials: Iterable[TrialRecord], baseline_point: str) -> list[Pair]:
    """Return the complete pairs of a confirmation on one machine, (baseline, candidate) each."""
    halves: dict[int, dict[bool, Measurement]] = {}
    for trial in trials:
        measured = trial.comparable
        if trial.purpose is Purpose.CONFIRM and trial.pair is not None and measured:
            halves.setdefault(trial.pair, {})[trial.point == baseline_point] = measured
    return [(both[True], both[False]) for both in halves.values() if len(both) == 2]


def broken_points(trials: Iterable[TrialRecord]) -> list[Values]:
    """Return the values of the points that broke in a validation trial."""
    return [trial.values for trial in trials if trial.validation and trial.validation.broke]
