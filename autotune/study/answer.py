"""Standing answer of a study: what its searches have confirmed, and what stands after all of them.

A point becomes the standing answer by the pairs of one search. It is replaced only by a point that beats it in pairs of
one search, after it failed there, or where the config's domains do not have it any more; and never by one that changes
more of the training, unless the user has allowed that kind of change. Worked out from the record alone, so that
everybody who asks is told the same.
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
        judgement: Judgement of its pairs; None while it is not judged, and for too few pairs.
    """

    trial: TrialRecord
    pairs_of_machines: Mapping[str, Sequence[Pair]]
    planned_pairs: int | None
    has_failed: bool
    validation: Validation | None
    judgement: Judgement | None = None

    @property
    def pairs(self) -> list[Pair]:
        """Its complete pairs, of all machines."""
        return [pair for pairs in self.pairs_of_machines.values() for pair in pairs]

    @property
    def broke(self) -> bool:
        """True if it broke in its validation trial."""
        return self.validation is not None and bool(self.validation.broke)

    @property
    def wins(self) -> bool:
        """True if its pairs show that it is better, or steadier, and it did not break."""
        return self.judgement is not None and self.judgement.wins and not self.broke


@dataclass(frozen=True, kw_only=True)
class HeldBack:
    """Finalist that was confirmed, and is not the answer.

    Attributes:
        speedup: Its speed over that of the baseline.
        why: Reason for which it is held back, one clause.
    """

    finalist: Finalist
    speedup: Ratio
    why: str


Kinds = frozenset[str]
"""Kinds of change of the training, by the labels of `space.knob`."""

_NOTHING: Kinds = frozenset()


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Answer that a study stands by.

    Attributes:
        baseline: Name of the point that it was compared with.
    """

    search: str
    trial: TrialRecord
    baseline: str

    @property
    def point(self) -> str:
        return self.trial.point


def standing_answer(
    records: Sequence[TrialRecord], objective: Objective, *, excluded: Kinds = _NOTHING
) -> Standing | None:
    """Return the answer that a study stands by; None where nothing has been confirmed.

    Args:
        records: The study's record, oldest first, trials of other code left out.
        excluded: Kinds of change of the training that are out of the question.
    """
    return standing_answers(records, objective, excluded=excluded)[None]


def standing_answers(
    records: Sequence[TrialRecord], objective: Objective, *, excluded: Kinds = _NOTHING
) -> dict[str | None, Standing | None]:
    """Return the answer that a study stood by when each of its searches began, and by None that of now.

    The arguments are those of `standing_answer`.
    """
    found: dict[str | None, Standing | None] = {}
    standing: Standing | None = None
    for search in dict.fromkeys(trial.search for trial in records):
        found[search] = standing
        standing = _after(standing, records, search, objective, excluded)
    return {**found, None: standing}


def chosen_finalist(
    judged: Sequence[Finalist],
    standing: Standing | None,
    records: Sequence[TrialRecord],
    search: str,
    objective: Objective,
    *,
    excluded: Kinds = _NOTHING,
) -> Finalist | None:
    """Return the finalist of a search that is the study's answer after it; None if no finalist of it is.

    Args:
        excluded: Kinds of change of the training that are out of the question.
    """
    better = [one for one in judged if one.wins and _kinds(one.trial).isdisjoint(excluded)]
    # What leaves the training as it is was measured beside what does not, and is what is left without that.
    better.sort(key=lambda one: (one.judgement is None or not one.judgement.better, not _kinds(one.trial)))
    if standing is None or not better:
        return next(iter(better), None)
    trials = [trial for trial in records if trial.search == search]
    may_change = _may_change(standing, trials[0])
    others = [one for one in better if one.trial.point != standing.point]
    able = [one for one in others if _kinds(one.trial) <= may_change]
    is_outside = trials[0].conditions.outside_answer == standing.point
    if trials[0].point == standing.point or is_outside or _fails(standing, judged, trials):
        return next(iter(able), None)
    against = judged_finalists(records, search, objective, against=standing.point) if able else []
    winners = {one.trial.point for one in against if one.wins}
    own = [one for one in better if one.trial.point == standing.point]
    return next((one for one in able if one.trial.point in winners), own[0] if own else None)


def withheld(
    judged: Sequence[Finalist], chosen: Finalist | None, standing: Standing | None, first: TrialRecord
) -> list[HeldBack]:
    """Return the finalists of a search that are better than its baseline, and are not what stands after it.

    Args:
        chosen: The one that is the study's answer after it, see `chosen_finalist`; None for none.
    """
    if standing is None:
        return []
    known = {standing.point, chosen.trial.point if chosen else standing.point}
    may_change = _may_change(standing, first)
    return [
        HeldBack(finalist=one, speedup=one.judgement.speed, why=_why_withheld(one, may_change))
        for one in judged
        if one.judgement is not None and one.wins and one.trial.point not in known
    ]


def _why_withheld(finalist: Finalist, may_change: Kinds) -> str:
    beyond = sorted(_kinds(finalist.trial) - may_change)
    if not beyond:
        return "it is not shown to be faster than the answer that stands, in pairs with that"
    how = "--batch 4x" if beyond == ["batch"] else "its key listed under knobs:"
    return f"it changes the {' and the '.join(beyond)}, and {how} would have to allow that"


def _may_change(standing: Standing, first: TrialRecord) -> Kinds:
    # What the answer in force changed is the training of today: another change of the kind is one more.
    granted = _NOTHING if first.point == standing.point else _kinds(standing.trial)
    return granted.union(first.conditions.allowed_changes)


def _after(
    standing: Standing | None, records: Sequence[TrialRecord], search: str, objective: Objective, excluded: Kinds
) -> Standing | None:
    trials = [trial for trial in records if trial.search == search]
    if not any(trial.purpose is Purpose.CONFIRM or trial.validation for trial in trials):
        return standing
    judged = judged_finalists(records, search, objective)
    chosen = chosen_finalist(judged, standing, records, search, objective, excluded=excluded)
    baseline = trials[0].point
    if chosen is None:
        return None if standing is not None and _fails(standing, judged, trials) else standing
    if standing is not None and (standing.point, standing.baseline) == (chosen.trial.point, baseline):
        return standing  # by the figures that it was given for
    return Standing(search=search, trial=chosen.trial, baseline=baseline)


def _fails(standing: Standing, judged: Iterable[Finalist], trials: Iterable[TrialRecord]) -> bool:
    """Return whether the standing answer failed in a search: it gave no numbers, broke, or was slower than today's."""
    for finalist in judged:
        if finalist.trial.point == standing.point:
            return finalist.broke or (finalist.judgement is not None and finalist.judgement.score.high < 1.0)
    return gave_no_numbers(standing.point, trials)


def gave_no_numbers(point: str, trials: Iterable[TrialRecord]) -> bool:
    """Return whether a point failed in some trials, and gave comparable numbers in none."""
    own = [trial for trial in trials if trial.point == point and trial.purpose in _TRIED]
    return any(map(has_failed, own)) and not any(trial.comparable for trial in own)


def has_failed(trial: TrialRecord) -> bool:
    """Return whether a trial gave no numbers by a fault of its point's."""
    return trial.ending not in NO_FAILURES and not trial.comparable


_TRIED = (Purpose.EXPLORE, Purpose.REPEAT, Purpose.TAKE_BACK, Purpose.CONFIRM)


def _kinds(trial: TrialRecord) -> Kinds:
    return frozenset(trial.conditions.changes)


def judged_finalists(
    records: Sequence[TrialRecord], search: str, objective: Objective, *, against: str | None = None
) -> list[Finalist]:
    """Judge each finalist of a search by the record up to the search's last trial.

    Args:
        records: The study's record, oldest first.

    Returns:
        The finalists in the order of their confirmations. One with a single pair has no judgement, and two or three can
        show no more than a large gain.
    """
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
    """Return the trials of the last searches: those before tell the noise of the last one no more."""
    names: set[str] = set()
    for place in range(len(records) - 1, -1, -1):
        names |= {records[place].search} if records[place].purpose not in NO_SEARCH else set()
        if len(names) > 12:  # more than twice those that `pair_noise` looks at: some of them have repeated nothing
            return records[place + 1 :]
    return records


def until_the_end_of(search: str, records: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    """Return the record as it was at the last trial of a search."""
    last = max((place for place, trial in enumerate(records) if trial.search == search), default=-1)
    return records[: last + 1]


def comparable_trials(trials: Iterable[TrialRecord], objective: Objective) -> list[TrialRecord]:
    """Return the trials with comparable numbers that tell the objective."""
    return [trial for trial in trials if trial.comparable and objective.is_told_by(trial.comparable)]


def _judgement(
    finalist: Finalist, others: Sequence[TrialRecord], search: str, objective: Objective
) -> Judgement | None:
    """Judge a finalist on each machine that has confirmed it; None if no machine has enough pairs."""
    judged = [
        _judged_on_one(finalist, pairs, others, search, objective) for pairs in finalist.pairs_of_machines.values()
    ]
    known = [judgement for judgement in judged if judgement is not None]
    if not known:
        return None
    # An error that claims have in common is no smaller where several machines make them.
    return on_all_machines(known).widened(finalist.trial.conditions.claims_sd or 0.0)


def _judged_on_one(
    finalist: Finalist, made: Sequence[Pair], others: Sequence[TrialRecord], search: str, objective: Objective
) -> Judgement | None:
    pairs = len(made)
    if pairs < FEWEST_PAIRS or (pairs < LEAST_PAIRS and finalist.has_failed):
        return None
    # A fixed number of pairs that the end of the budget cut short may show a large gain too, as a sequential one does.
    planned = finalist.planned_pairs or (LEAST_PAIRS if pairs < LEAST_PAIRS else None)
    variance, df = pair_noise(others, search, objective, pairs=pairs)
    judgement = judge(
        made,
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
"""Endings that say nothing against a point."""


def finalists(good: Iterable[TrialRecord], trials: Sequence[TrialRecord], baseline_point: str) -> list[Finalist]:
    """Return the finalists of a search, in the order of their confirmations."""
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
            planned_pairs=trial.conditions.pairs_planned or None,
            has_failed=point in failed,
            validation=validations.get(point),
        )
        for point, trial in first.items()
    ]


def _by_machine(halves: Sequence[TrialRecord], baseline_point: str) -> dict[str, Sequence[Pair]]:
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
    """Return the values of the points that broke in a validation trial, or failed in their pairs the last time."""
    trials = list(trials)
    latest = {trial.point: trial for trial in trials if trial.purpose is Purpose.CONFIRM}
    broke = (trial for trial in trials if trial.validation and trial.validation.broke)
    return [trial.values for trial in (*broke, *filter(has_failed, latest.values()))]
