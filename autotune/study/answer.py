"""Current answer of a study: the point confirmed by its searches.

A point becomes the answer by the pairs of one search. It is superseded by a point that beats it in pairs of one search,
after it failed there, or once the config's domains no longer contain it; but not by one that changes more of the
training, unless the user allowed it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.measure.score import (
    FEWEST_PAIRS,
    LEAST_PAIRS,
    THROUGHPUT,
    Judgement,
    Objective,
    judge,
    on_all_machines,
)
from autotune.records import (
    NO_SEARCH,
    Ending,
    Measurement,
    Purpose,
    Ratio,
    TrialRecord,
    Validation,
    Values,
)
from autotune.study.members import on_one_scale
from autotune.study.noise import pair_noise

Pair = tuple[Measurement, Measurement]
"""Complete confirming pair: baseline, candidate."""


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """Point confirmed, or scheduled for confirmation.

    Attributes:
        trial: First comparable confirming trial.
        pairs_of_machines: Complete pairs by machine.
        planned_pairs: Maximum of a sequential confirmation; None for a fixed number.
        has_failed: True if a confirming trial failed, other than at the end of the search.
        judgement: None if there are too few pairs.
    """

    trial: TrialRecord
    pairs_of_machines: Mapping[str, Sequence[Pair]]
    planned_pairs: int | None
    has_failed: bool
    validation: Validation | None
    judgement: Judgement | None = None

    @property
    def pairs(self) -> list[Pair]:
        return [pair for pairs in self.pairs_of_machines.values() for pair in pairs]

    @property
    def broke(self) -> bool:
        return self.validation is not None and bool(self.validation.broke)

    @property
    def wins(self) -> bool:
        """Whether it is better or steadier, and didn't break in validation."""
        return self.judgement is not None and self.judgement.wins and not self.broke


@dataclass(frozen=True, kw_only=True)
class HeldBack:
    """Confirmed finalist that isn't the answer."""

    finalist: Finalist
    speedup: Ratio
    why: str


Kinds = frozenset[str]
"""Kinds of change of the training: labels of `space.knob`."""

_NOTHING: Kinds = frozenset()


@dataclass(frozen=True, kw_only=True)
class CurrentAnswer:
    """Current answer and the name of the baseline that it was compared with."""

    search: str
    trial: TrialRecord
    baseline: str

    @property
    def point(self) -> str:
        return self.trial.point


def answers_by_search(
    records: Sequence[TrialRecord], objective: Objective, *, excluded: Kinds = _NOTHING
) -> dict[str | None, CurrentAnswer | None]:
    """Return the confirmed answer at the start of each search, and by None the current one.

    Args:
        records: Trials of the current code, oldest first.
        excluded: Kinds of change to exclude.
    """
    found: dict[str | None, CurrentAnswer | None] = {}
    current: CurrentAnswer | None = None
    for search in dict.fromkeys(trial.search for trial in records):
        found[search] = current
        current = _after(current, records, search, objective, excluded)
    return {**found, None: current}


def chosen_finalist(
    judged: Sequence[Finalist],
    current: CurrentAnswer | None,
    records: Sequence[TrialRecord],
    search: str,
    objective: Objective,
    *,
    excluded: Kinds = _NOTHING,
) -> Finalist | None:
    """Return the finalist that is the study's answer after a search."""
    better = [one for one in judged if one.wins and _kinds(one.trial).isdisjoint(excluded)]
    # better ones before steadier ones, then those that change the training: the others are the fallback
    better.sort(key=lambda one: (one.judgement is None or not one.judgement.better, not _kinds(one.trial)))
    if current is None or not better:
        return next(iter(better), None)
    trials = [trial for trial in records if trial.search == search]
    may_change = _may_change(current, trials[0])
    others = [one for one in better if one.trial.point != current.point]
    able = [one for one in others if _kinds(one.trial) <= may_change]
    is_outside = trials[0].conditions.outside_answer == current.point
    if trials[0].point == current.point or is_outside or _fails(current, judged, trials):
        return next(iter(able), None)
    against = judged_finalists(records, search, objective, against=current.point) if able else []
    winners = {one.trial.point for one in against if one.wins}
    own = [one for one in better if one.trial.point == current.point]
    return next((one for one in able if one.trial.point in winners), own[0] if own else None)


def withheld(
    judged: Sequence[Finalist], chosen: Finalist | None, current: CurrentAnswer | None, first: TrialRecord
) -> list[HeldBack]:
    """Return the winners of a search that aren't its answer."""
    if current is None:
        return []
    known = {current.point, chosen.trial.point if chosen else current.point}
    may_change = _may_change(current, first)
    return [
        HeldBack(finalist=one, speedup=one.judgement.speed, why=_why_withheld(one, may_change))
        for one in judged
        if one.judgement is not None and one.wins and one.trial.point not in known
    ]


def _why_withheld(finalist: Finalist, may_change: Kinds) -> str:
    beyond = sorted(_kinds(finalist.trial) - may_change)
    if not beyond:
        return "it is not shown to be faster than the current answer in pairs with it"
    how = "--batch 4x" if beyond == ["batch"] else "its key under knobs:"
    return f"it changes the {' and the '.join(beyond)}; allow that with {how}"


def _may_change(current: CurrentAnswer, first: TrialRecord) -> Kinds:
    # an answer in use is the baseline: a further change of the same kind needs permission again
    granted = _NOTHING if first.point == current.point else _kinds(current.trial)
    return granted.union(first.conditions.allowed_changes)


def _after(
    current: CurrentAnswer | None, records: Sequence[TrialRecord], search: str, objective: Objective, excluded: Kinds
) -> CurrentAnswer | None:
    trials = [trial for trial in records if trial.search == search]
    if not any(trial.purpose is Purpose.CONFIRM or trial.validation for trial in trials):
        return current
    judged = judged_finalists(records, search, objective)
    chosen = chosen_finalist(judged, current, records, search, objective, excluded=excluded)
    baseline = trials[0].point
    if chosen is None:
        return None if current is not None and _fails(current, judged, trials) else current
    if current is not None and (current.point, current.baseline) == (chosen.trial.point, baseline):
        return current  # with its original figures
    return CurrentAnswer(search=search, trial=chosen.trial, baseline=baseline)


def _fails(current: CurrentAnswer, judged: Iterable[Finalist], trials: Iterable[TrialRecord]) -> bool:
    """Return whether the current answer failed in a search, broke, or was slower than the baseline."""
    for finalist in judged:
        if finalist.trial.point == current.point:
            return finalist.broke or (finalist.judgement is not None and finalist.judgement.score.high < 1.0)
    return has_only_failed(current.point, trials)


def has_only_failed(point: str, trials: Iterable[TrialRecord]) -> bool:
    """Return whether some trials of a point failed and none is comparable."""
    own = [trial for trial in trials if trial.point == point and trial.purpose in _TRIED]
    return any(map(has_failed, own)) and not any(trial.comparable for trial in own)


def has_failed(trial: TrialRecord) -> bool:
    """Return whether a trial failed because of its point."""
    return trial.ending not in NO_FAILURES and not trial.comparable


_TRIED = (Purpose.EXPLORE, Purpose.REPEAT, Purpose.TAKE_BACK, Purpose.CONFIRM)


def _kinds(trial: TrialRecord) -> Kinds:
    return frozenset(trial.conditions.changes)


def judged_finalists(
    records: Sequence[TrialRecord], search: str, objective: Objective, *, against: str | None = None
) -> list[Finalist]:
    """Judge the finalists of a search by the record up to its last trial, in order of confirmation."""
    records = until_the_end_of(search, records)
    trials = [trial for trial in records if trial.search == search]
    baseline = next((trial for trial in trials if trial.purpose is Purpose.BASELINE), None)
    if baseline is None:
        return []
    records = on_one_scale(_recent(records))
    others = [trial for trial in records if trial.purpose is not Purpose.CONFIRM or trial.search != search]
    found = finalists(comparable_trials(trials, objective), trials, against or baseline.point)
    return [replace(finalist, judgement=_judgement(finalist, others, search, objective)) for finalist in found]


def _recent(records: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    names: set[str] = set()
    for place in range(len(records) - 1, -1, -1):
        names |= {records[place].search} if records[place].purpose not in NO_SEARCH else set()
        if len(names) > 12:  # more than twice the searches of `pair_noise`, which skips those without repeats
            return records[place + 1 :]
    return records


def until_the_end_of(search: str, records: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    """Return the record up to the last trial of a search."""
    last = max((place for place, trial in enumerate(records) if trial.search == search), default=-1)
    return records[: last + 1]


def comparable_trials(trials: Iterable[TrialRecord], objective: Objective) -> list[TrialRecord]:
    """Return the comparable trials with the objective."""
    return [trial for trial in trials if trial.comparable and objective.can_score(trial.comparable)]


def _judgement(
    finalist: Finalist, others: Sequence[TrialRecord], search: str, objective: Objective
) -> Judgement | None:
    judged = [
        _judged_on_one(finalist, pairs, others, search, objective) for pairs in finalist.pairs_of_machines.values()
    ]
    known = [judgement for judgement in judged if judgement is not None]
    if not known:
        return None
    # several machines don't reduce the error that claims have in common
    return on_all_machines(known).widened(finalist.trial.conditions.claims_sd or 0.0)


def _judged_on_one(
    finalist: Finalist, measured: Sequence[Pair], others: Sequence[TrialRecord], search: str, objective: Objective
) -> Judgement | None:
    pairs = len(measured)
    if pairs < FEWEST_PAIRS or (pairs < LEAST_PAIRS and finalist.has_failed):
        return None
    # cut short by the budget, a fixed number of pairs may show a large gain, like a sequential one
    planned = finalist.planned_pairs or (LEAST_PAIRS if pairs < LEAST_PAIRS else None)
    variance, df = pair_noise(others, search, objective, pairs=pairs)
    judgement = judge(
        measured,
        prior_variance=variance,
        prior_df=df,
        speed_prior=pair_noise(others, search, THROUGHPUT, pairs=pairs) if objective.by_utilization else None,
        objective=objective,
        planned_pairs=planned,
    )
    return judgement if pairs >= LEAST_PAIRS else replace(judgement, steadiness=None, utilization=None)


NO_FAILURES = frozenset(
    {Ending.COMPLETED, Ending.STOPPED, Ending.UNCOUNTED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED}
)
"""Endings that aren't a failure of the point."""


def finalists(good: Iterable[TrialRecord], trials: Sequence[TrialRecord], baseline_point: str) -> list[Finalist]:
    """Return the finalists of a search, in order of confirmation."""
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
            pairs_of_machines=_pairs_of_machines(confirming, point, baseline_point),
            planned_pairs=trial.conditions.pairs_planned or None,
            has_failed=point in failed,
            validation=validations.get(point),
        )
        for point, trial in first.items()
    ]


def _pairs_of_machines(confirming: Sequence[TrialRecord], point: str, baseline_point: str) -> dict[str, list[Pair]]:
    """Return the complete pairs of a point by machine."""
    halves: dict[tuple[str, int | None], dict[str, Measurement]] = {}
    for trial in confirming:
        if trial.point in (point, baseline_point) and trial.comparable:
            halves.setdefault((trial.machine, trial.pair), {})[trial.point] = trial.comparable
    found: dict[str, list[Pair]] = {}
    for (machine, pair), both in halves.items():
        if pair is not None and len(both) == 2:
            found.setdefault(machine, []).append((both[baseline_point], both[point]))
    return found


def broken_points(trials: Iterable[TrialRecord]) -> list[Values]:
    """Return the points that broke in validation, or failed in their latest pairs."""
    trials = list(trials)
    latest = {trial.point: trial for trial in trials if trial.purpose is Purpose.CONFIRM}
    broke = (trial for trial in trials if trial.validation and trial.validation.broke)
    return [trial.values for trial in (*broke, *filter(has_failed, latest.values()))]
