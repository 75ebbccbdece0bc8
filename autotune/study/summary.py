"""Summary of a search, computed from the record alone.

So ``search``, ``status`` and ``apply`` give the same answer, at once or after a crash.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from statistics import fmean, median

import msgspec

from autotune.measure.gpu.usage import NOT_MEASURED
from autotune.measure.score import (
    LEAST_PAIRS,
    LEAST_SCORE_GAIN,
    LEAST_SPEED,
    Judgement,
    Objective,
    ln_score,
    ln_speed,
)
from autotune.metrics import METRICS, values_of
from autotune.records import (
    LEFT_OUT,
    OUTSIDE,
    VALIDATION_ASKED,
    BrokenPoint,
    Change,
    Measurement,
    MovedKey,
    Purpose,
    Race,
    Ratio,
    Scalar,
    SearchResult,
    Side,
    TrialRecord,
    Values,
    Verdict,
    changes_training,
)
from autotune.sampler.observations import expected_sd_of
from autotune.space.knob import Label, same_scalar
from autotune.space.space import Space
from autotune.stage_times import PipelineTimes
from autotune.study.answer import (
    Finalist,
    HeldBack,
    Kinds,
    Standing,
    chosen_finalist,
    held_back,
    judged_finalists,
    standing_answers,
    telling,
    until_the_end_of,
)
from autotune.study.members import hosts_of, on_one_scale
from autotune.study.pooled_gpus import pooled_gpus, study_busy_rate
from autotune.study.race_judgement import judge_race


@dataclass(frozen=True, kw_only=True)
class RatedChange:
    """Worth of one change of a point; the fields are those of `Change`."""

    path: str
    worth: Ratio | None
    group: int


@dataclass(frozen=True, kw_only=True)
class Rating:
    """Worth of each change of a search's answer, largest first, as the search has kept it with the study.

    A model was fitted for it; everything else of an answer is worked out from the trials whenever it is asked for.

    Attributes:
        point: Name of the point whose changes they are.
        trials: Number of trials of the search at that time.
    """

    point: str
    trials: int
    changes: tuple[RatedChange, ...]


Stood = Mapping[str | None, Standing | None]
"""Answer that a study stood by when each of its searches began."""

_UNVALIDATED = (
    "The answer is not validated, though that was asked for: there was no time, or the search was ended before it was. "
    "What breaks in a longer training is not known."
)
_NOT_RACED = "it was not raced"
_NOTHING_RATED: Mapping[str, Rating] = {}


def latest_search(records: Sequence[TrialRecord], objective: Objective) -> str | None:
    """Return the search to report: the last one with an answer, else the last; None for an empty record.

    An answer is a full confirmation, or the finding that nothing was better than the baseline. A search that was killed
    earlier does not hide the answer of an older one, and neither does a diagnosis, which is no search.
    """
    firsts = {trial.search: trial for trial in reversed(records)}
    searches = [name for name in dict.fromkeys(trial.search for trial in records) if not _is_diagnosis(firsts[name])]
    for search in reversed(searches):
        trials = [trial for trial in records if trial.search == search]
        baseline_point, good = trials[0].point, telling(trials, objective)
        explored = any(trial.purpose is Purpose.EXPLORE for trial in good)
        if (explored and not _best(good, baseline_point, objective)) or any(
            judgement for _, judgement in judged_finalists(records, search, objective)
        ):
            return search
    return searches[-1] if searches else None


def _is_diagnosis(first: TrialRecord) -> bool:
    """Return whether a search is none, by its first trial: a search begins with today's config as it is."""
    return first.purpose is Purpose.DIAGNOSE


def answer_of(
    records: Sequence[TrialRecord],
    space: Space,
    *,
    objective: Objective,
    why_no_gpu: str | None = None,
    today: str | None = None,
    excluded: Kinds = frozenset(),
    ratings: Mapping[str, Rating] = _NOTHING_RATED,
) -> SearchResult | None:
    """Compute the answer of a study: the one that it stands by, else that of its latest search.

    Args:
        records: The study's record, trials of other code left out.
        space: The present search space; gives the labels.
        why_no_gpu: Reason why utilization is not measured on this machine; None if it is.
        today: Name of the point that the config holds now; None takes that of the latest search.
        excluded: Kinds of change of the training that are out of the question.

    Returns:
        The answer; None if no trial gave comparable numbers.
    """
    latest = latest_search(records, objective)
    if latest is None:
        return None
    shown, stood = latest, standing_answers(records, objective, excluded=excluded)
    standing = stood[None]
    if standing is not None and standing.search != latest:
        first = next(trial for trial in records if trial.search == latest)
        met = any(one.trial.point == standing.point for one, _ in judged_finalists(records, latest, objective))
        is_outside = first.conditions.get(OUTSIDE) == standing.point
        is_about_others = first.point == standing.point or is_outside
        is_about_others |= met and first.point != standing.baseline
        if not (is_about_others and today in (None, first.point)):
            shown = standing.search
    result = summarize(
        records,
        shown,
        space,
        objective=objective,
        why_no_gpu=why_no_gpu,
        excluded=excluded,
        stood=stood,
        ratings=ratings,
    )
    return result and _with_later_evidence(result, records, space)


def summarize(
    records: Sequence[TrialRecord],
    search: str,
    space: Space,
    *,
    objective: Objective,
    why_no_gpu: str | None = None,
    excluded: Kinds = frozenset(),
    stood: Stood | None = None,
    ratings: Mapping[str, Rating] = _NOTHING_RATED,
) -> SearchResult | None:
    """Compute the answer of one search.

    Args:
        records: The study's record; trials of other searches only contribute to the spread between trials, and those
            after the search's last trial do not count: its answer stays the same.
        space: The present search space; gives the labels, and nothing that the verdict depends on.
        why_no_gpu: Reason why utilization is not measured on this machine; None if it is.
        excluded: Kinds of change of the training that are out of the question.
        stood: The answer that the study stood by when each search began, see `standing_answers`; None to find out.
        ratings: What the searches have kept of the worth of each change, by search.

    Returns:
        The answer; None if no trial of the search gave comparable numbers.
    """
    records = on_one_scale(until_the_end_of(search, records))
    trials = [trial for trial in records if trial.search == search]
    good = telling(trials, objective)
    # Each search starts with the baseline, also where that fails. Where its record could not be read, nothing means
    # anything.
    baseline_trial = next((trial for trial in trials if trial.purpose is Purpose.BASELINE), None)
    if not good or baseline_trial is None:
        return None
    searched = _Searched(
        trials=trials,
        good=good,
        baseline_trial=baseline_trial,
        space=space,
        objective=objective,
        busy_rate=study_busy_rate(records),
        why_no_gpu=why_no_gpu or _why_not_measured(good),
        excluded=excluded,
        stood=stood,
        rating=ratings.get(search),
    )
    if not searched.baseline_trials:
        return _without_baseline(searched)
    return _compared(searched, records)


def has_answer(records: Sequence[TrialRecord], baseline_point: str, objective: Objective) -> bool:
    """Return whether the last search that has an answer confirmed a point against these values, whatever came of it.

    Args:
        records: The study's record, oldest first.
        baseline_point: Name of the point that the config holds now.
    """
    search = latest_search(records, objective)
    made = [trial for trial in records if trial.search == search]
    if search is None or made[0].point != baseline_point:
        return False
    return any(judgement for _, judgement in judged_finalists(records, search, objective))


@dataclass(frozen=True, kw_only=True)
class _Searched:
    """Trials of one search that has a baseline on record, and what is needed to read them.

    Attributes:
        good: Those with comparable numbers that tell the objective; at least one.
        baseline_trial: The first trial of the baseline, which may have failed.
        why_no_gpu: Reason why utilization was not measured; None if it was, or that is not known.
        excluded: Kinds of change of the training that are out of the question.
        stood: The answer that the study stood by when each search began; None where that is not known.
    """

    trials: Sequence[TrialRecord]
    good: Sequence[TrialRecord]
    baseline_trial: TrialRecord
    space: Space
    objective: Objective
    busy_rate: float | None
    why_no_gpu: str | None
    excluded: Kinds
    stood: Stood | None
    rating: Rating | None

    @property
    def baseline_trials(self) -> list[TrialRecord]:
        return [trial for trial in self.good if trial.point == self.baseline_trial.point]

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of trials with each ending."""
        return dict(Counter(trial.ending.value for trial in self.trials))

    def baseline(self) -> Side:
        return _side(self.baseline_trial, self.baseline_trials, self.busy_rate)

    def candidate(self, finalist: Finalist | None) -> Side | None:
        """Pool the trials of a finalist, without one those of the best point; None if none beats the baseline."""
        best = finalist.trial.point if finalist else _best(self.good, self.baseline_trial.point, self.objective)
        trials = [trial for trial in self.good if trial.point == best]
        return _side(trials[0], trials, self.busy_rate) if trials else None

    def changes_of(self, candidate: Side | None) -> tuple[Change, ...]:
        if candidate is None:
            return ()
        baseline, rating = self.baseline_trial, self.rating
        is_of_this = rating is not None and (rating.point, rating.trials) == (candidate.point, len(self.trials))
        changes = changes_of(baseline.values, candidate.values, self.space, rating if is_of_this else None)
        ends = ((baseline.point, baseline.values), (candidate.point, candidate.values))
        if all(self.space.is_named(name, values) for name, values in ends):
            changes = with_moved_keys(changes, self.space)
        return tuple(changes)

    def race(self, candidate: Side | None) -> Race | None:
        if candidate is None:
            return None
        changes = self.space.labels_of(candidate.values, self.baseline_trial.values)
        return judge_race(self.trials, candidate.point, changes=changes)


def _without_baseline(searched: _Searched) -> SearchResult:
    candidate, baseline_trial = searched.candidate(None), searched.baseline_trial
    ended = (
        f"{baseline_trial.ending.value}: {baseline_trial.detail}"
        if baseline_trial.detail
        else baseline_trial.ending.value
    )
    return SearchResult(
        verdict=Verdict.NO_BASELINE,
        why=f"today's config gave no numbers ({ended}), so there is nothing to compare with",
        search=baseline_trial.search,
        baseline=searched.baseline(),
        best=candidate,
        candidate=None,
        speedup=None,
        score_ratio=None,
        smallest_gain=None,
        same_training=None,
        trials=len(searched.trials),
        outcomes=searched.outcomes,
        changes=searched.changes_of(candidate),
        objective=searched.objective.name,
        why_no_gpu=searched.why_no_gpu,
    )


def _compared(searched: _Searched, records: Sequence[TrialRecord]) -> SearchResult:
    """Return the answer of a search with a baseline; the record gives the prior of the spread of its pairs."""
    good, objective = searched.good, searched.objective
    search = searched.baseline_trial.search
    confirmed = judged_finalists(records, search, objective)
    excluded = searched.excluded
    stood = standing_answers(records, objective, excluded=excluded) if searched.stood is None else searched.stood
    is_limited = LEFT_OUT in searched.trials[0].conditions  # what stands could not be met: it speaks for itself
    standing = None if is_limited else stood[search]
    chosen = chosen_finalist(confirmed, standing, records, search, objective, excluded=excluded)
    withheld = held_back(confirmed, chosen, standing, searched.trials[0])
    finalist, judgement = chosen or (confirmed[0] if confirmed else (None, None))
    baseline, candidate = searched.baseline(), searched.candidate(finalist)
    hosts = hosts_of(searched.trials)
    confirmed_on = tuple(hosts[machine] for machine in finalist.pairs_of_machines) if finalist else ()
    broke = finalist is not None and finalist.broke
    better = chosen is not None
    changes, race = searched.changes_of(candidate), searched.race(candidate)
    evidence = Evidence(
        judgement=judgement,
        pairs=len(finalist.pairs) if finalist else 0,
        broke=broke,
        broke_before=any(trial.validation and trial.validation.broke for trial in records),
        has_candidate=candidate is not None,
        explored=any(trial.purpose is Purpose.EXPLORE for trial in searched.trials),
        filling=any(trial.measurement and trial.measurement.filled_samples_per_s for trial in good),
        by_utilization=objective.by_utilization,
        hosts=confirmed_on,
    )
    return SearchResult(
        verdict=Verdict.BETTER if better else Verdict.NO_CHANGE,
        why=reason(evidence) if better or not withheld else f"something is faster, and held back: {withheld[0].why}",
        baseline=baseline,
        best=candidate if better else baseline,
        candidate=None if better else candidate,
        speedup=judgement.speed if judgement else None,
        score_ratio=judgement.score if judgement else None,
        smallest_gain=judgement.smallest_gain if judgement else None,
        same_training=_same_training(searched),
        trials=len(searched.trials),
        outcomes=searched.outcomes,
        changes=changes,
        objective=objective.name,
        why_no_gpu=searched.why_no_gpu,
        validation=finalist.validation if finalist else None,
        race=race,
        why_not_raced=_NOT_RACED if better and race is None and changes_training(one.label for one in changes) else "",
        search=search,
        is_apart=is_limited or bool(excluded),
        confirmed_on=confirmed_on,
        broken=tuple(_broken(searched, other, of) for other, of in confirmed if other.broke and other is not finalist),
        cautions=(
            *_unvalidated(searched, finalist if better else None),
            *(_held_back_text(one, searched.baseline_trial) for one in withheld),
            *_unevenness(searched.baseline_trials),
            *(race.cautions if race else ()),
        ),
    )


def _unvalidated(searched: _Searched, answer: Finalist | None) -> tuple[str, ...]:
    asked = any(VALIDATION_ASKED in trial.conditions for trial in searched.trials)
    return (_UNVALIDATED,) if asked and answer is not None and answer.validation is None else ()


def _held_back_text(one: HeldBack, baseline: TrialRecord) -> str:
    new = one.finalist.trial.values
    changes = ", ".join(f"{path}={value}" for path, value in new.items() if baseline.values.get(path) != value)
    return f"{changes} was confirmed at {one.judgement.speed.ratio:.2f}x, and is held back: {one.why}."


def _with_later_evidence(result: SearchResult, records: Sequence[TrialRecord], space: Space) -> SearchResult:
    shown = result.best if result.verdict is Verdict.BETTER else None
    if shown is None or result.baseline is None:
        return result
    searches = list(dict.fromkeys(trial.search for trial in records))
    for search in reversed(searches[searches.index(result.search) + 1 :]):
        trials = [trial for trial in records if trial.search == search]
        if trials[0].point != result.baseline.point:
            continue
        changes = space.labels_of(shown.values, result.baseline.values)
        race = judge_race(trials, shown.point, changes=changes)
        checked = [trial.validation for trial in trials if trial.point == shown.point and trial.validation]
        if race is not None and result.race is None:
            result = replace(result, race=race, why_not_raced="")
        if checked and result.validation is None:
            result = replace(result, validation=checked[-1])
    return result


def _broken(searched: _Searched, finalist: Finalist, judgement: Judgement | None) -> BrokenPoint:
    assert finalist.validation is not None
    old = searched.baseline_trial.values
    return BrokenPoint(
        changes={path: value for path, value in finalist.trial.values.items() if old.get(path) != value},
        speedup=judgement.speed if judgement else None,
        validation=finalist.validation,
    )


def _why_not_measured(good: Sequence[TrialRecord]) -> str | None:
    if any(trial.comparable and trial.comparable.gpu_utilization is not None for trial in good):
        return None
    reasons = (trial.conditions.get(NOT_MEASURED) for trial in reversed(good))
    return next((str(reason) for reason in reasons if reason), None)


def _side(point: TrialRecord, trials: Sequence[TrialRecord], busy_rate: float | None) -> Side:
    measured = [trial.comparable for trial in trials if trial.comparable]
    return Side(
        point=point.point,
        values=point.values,
        metrics=pooled(trials),
        gpus=pooled_gpus(measured, busy_rate),
        stages=_stages(measured),
    )


def _stages(trials: Sequence[Measurement]) -> PipelineTimes | None:
    times = [trial.stages for trial in trials if trial.stages]
    return reduce(add, times) if times else None


def pooled(trials: Sequence[TrialRecord]) -> dict[str, float | None] | None:
    """Return the median of each metric over the comparable trials of a point; None if there is none."""
    measured = [values_of(trial.comparable) for trial in trials if trial.comparable]
    if not measured:
        return None
    known = {name: [value for values in measured if (value := values[name]) is not None] for name in METRICS}
    return {name: median(values) if values else None for name, values in known.items()}


def _best(good: Sequence[TrialRecord], baseline_point: str, objective: Objective) -> str | None:
    """Return the point with the best mean score; None if that is the baseline, or ahead of it by no more than noise."""
    means = _mean_scores(good, baseline_point, objective)
    best = max(means, key=lambda point: means[point], default=None)
    if best is None or best == baseline_point or baseline_point not in means:
        return best if best != baseline_point else None
    counts = Counter(trial.point for trial in good)
    sd = expected_sd_of(good, objective) * math.sqrt(1 / counts[best] + 1 / counts[baseline_point])
    lead = means[best] - means[baseline_point]
    # standard errors: one point in twenty that is no better looks so
    return best if lead > max(math.log(LEAST_SCORE_GAIN), 1.64 * sd) else None


def _mean_scores(good: Sequence[TrialRecord], baseline_point: str, objective: Objective) -> dict[str, float]:
    measured = [(trial.point, trial.comparable) for trial in good if trial.comparable]
    scores: dict[str, list[float]] = {}
    speeds: dict[str, list[float]] = {}
    for point, measurement in measured:
        scores.setdefault(point, []).append(ln_score(measurement, measured[0][1], objective))
        speeds.setdefault(point, []).append(ln_speed(measurement, measured[0][1]))
    means = {point: sum(values) / len(values) for point, values in scores.items()}
    if baseline_point not in means:
        return means
    paces = {point: sum(values) / len(values) for point, values in speeds.items()}
    return {
        point: mean - objective.penalty(mean - means[baseline_point], paces[point] - paces[baseline_point])
        for point, mean in means.items()
    }


def _same_training(searched: _Searched) -> tuple[Side, float] | None:
    good, baseline = searched.good, searched.baseline_trials
    baseline_point = baseline[0].point
    means = _mean_scores(good, baseline_point, searched.objective)
    alike = {
        trial.point: trial
        for trial in good
        if trial.point != baseline_point and searched.space.is_same_training(trial.values, baseline[0].values)
    }
    if not alike:
        return None
    best = max(alike, key=lambda point: means[point])
    if means[best] <= means[baseline_point]:
        return None
    trials = [trial for trial in good if trial.point == best]
    return _side(alike[best], trials, searched.busy_rate), speed_over(trials, baseline)


def speed_over(trials: Sequence[TrialRecord], baseline: Sequence[TrialRecord]) -> float:
    """Return the geometric mean speed of some trials over that of others, both comparable."""
    return math.exp(fmean(_ln_speeds(trials, baseline[0])) - fmean(_ln_speeds(baseline, baseline[0])))


def _ln_speeds(trials: Sequence[TrialRecord], unit: TrialRecord) -> list[float]:
    assert unit.comparable is not None
    return [ln_speed(trial.comparable, unit.comparable) for trial in trials if trial.comparable]


def _unevenness(baseline: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return remarks on a baseline whose own trials differ widely."""
    speeds = _ln_speeds(baseline, baseline[0])
    ratio = math.exp(max(speeds) - min(speeds))
    if ratio < 1.3:  # trials that differ by 8 % are within that 99 times in 100
        return ()
    return (
        f"Of {len(speeds)} trials of today's config, one was {ratio:.2f} times as fast as another: something else may "
        "be at work on this machine, or a few seconds do not show how fast this training is.",
    )


_FILLING = (
    "; caches take longer to fill than there was time, so trials were compared without the time they waited for data, "
    "and the interval holds whatever full caches will make of the two"
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence that a verdict rests on.

    Attributes:
        judgement: Result of the pairs; None if there were too few.
        has_candidate: True if a point was confirmed, or looked better than the baseline.
        explored: True if any point but the baseline was tried.
        filling: True if the caches of the trials were still being filled.
        by_utilization: True if the objective is GPU utilization.
        broke: True if the point broke when it was validated.
        broke_before: True if some point of the study broke when it was validated: it is not tried again.
        hosts: Hosts of the machines that made the pairs.
    """

    judgement: Judgement | None
    pairs: int
    has_candidate: bool
    explored: bool
    filling: bool
    by_utilization: bool
    broke: bool = False
    broke_before: bool = False
    hosts: tuple[str, ...] = ()


def reason(evidence: Evidence) -> str:
    """Return the reason for the verdict, without a full stop."""
    if not evidence.has_candidate:
        return _nothing_better(evidence)
    if evidence.judgement is None:
        return _unconfirmed(evidence.pairs)
    return _judged(evidence.judgement, evidence)


def _nothing_better(evidence: Evidence) -> str:
    if not evidence.explored and evidence.broke_before:
        return "what looked better broke when it was validated, and is not tried again"
    if not evidence.explored:
        return "nothing but today's values was tried: there was no time, or nothing else promised a gain"
    if evidence.by_utilization:
        return "nothing that was tried keeps the GPU busier without being slower than today's values"
    return "nothing that was tried is faster than today's values, beyond what trials differ by"


def _unconfirmed(pairs: int) -> str:
    if pairs == 0:
        return "the best point was not confirmed against today's config: its pairs did not fit, or failed"
    return f"only {pairs} of at least {LEAST_PAIRS} confirming pairs could be measured"


def _left_out(judgement: Judgement) -> str:
    if not judgement.left_out:
        return ""
    return (
        f" ({judgement.left_out} of {judgement.pairs} pairs left out: something made a trial far slower than the "
        "others of its config)"
    )


def _judged(judgement: Judgement, evidence: Evidence) -> str:
    pairs = f"{judgement.pairs} interleaved pairs with today's config{_left_out(judgement)}"
    if len(evidence.hosts) > 1:
        pairs += f" on {len(evidence.hosts)} machines ({', '.join(evidence.hosts)})"
    if judgement.better:
        confirmed = f"confirmed by {pairs}" + (_FILLING if evidence.filling else "")
        return f"{confirmed}, but it broke in a longer training" if evidence.broke else confirmed
    if evidence.by_utilization and judgement.score.low > LEAST_SCORE_GAIN:
        return (
            f"{pairs} show a busier GPU, but not that training is no slower: the interval of its speed begins at "
            f"{judgement.speed.low:.2f}x, and {LEAST_SPEED}x is needed"
        )
    if evidence.filling:
        return (
            f"{pairs} do not show a gain that would stay: caches take longer to fill than there was time, and with "
            f"full ones it may be from {judgement.speed.low:.2f}x to {judgement.speed.high:.2f}x as fast"
        )
    return f"{pairs} do not show a gain; one of {judgement.smallest_gain:.0%} or more would probably have been seen"


# Changes of a point, and what the study has kept of their worth.


def rating_of(attribute: object) -> Rating | None:
    """Read a rating back, as JSON gives it; None for what is none."""
    try:
        rating = msgspec.convert(attribute, Rating)
    except (ValueError, RecursionError):
        return None
    ratios = [change.worth for change in rating.changes if change.worth]
    return rating if all(0.0 < one.low <= one.ratio <= one.high < math.inf for one in ratios) else None


def changes_of(baseline: Values, point: Values, space: Space, rating: Rating | None = None) -> list[Change]:
    """Return what a point changes.

    Args:
        space: The present space; gives the labels.
        rating: What each change is worth; None where that is not known.

    Returns:
        One change for each knob that differs, in the order of the rating.
    """
    changed = [path for path in point if path in baseline and not same_scalar(point[path], baseline[path])]
    rated = {change.path: change for change in rating.changes} if rating else {}
    if rated.keys() != set(changed):
        rated = {path: RatedChange(path=path, worth=None, group=place) for place, path in enumerate(changed)}
    return [
        Change(
            path=path,
            old=baseline[path],
            new=point[path],
            worth=one.worth,
            group=one.group,
            label=_label(space, path),
            effective_batch=_effective_batch(space, path, baseline[path], point[path]),
        )
        for path, one in rated.items()
    ]


def with_moved_keys(changes: Iterable[Change], space: Space) -> list[Change]:
    """Return changes of points of a space with the further keys that change along."""
    knobs = {knob.path: knob for knob in space.knobs}
    found = []
    for change in changes:
        old, new = (knobs[change.path].keys(value) for value in (change.old, change.new))
        along = tuple(
            MovedKey(path=path, old=old[path], new=new[path])
            for path in knobs[change.path].paths[1:]
            if not same_scalar(old[path], new[path])
        )
        found.append(replace(change, along=along))
    return found


def _effective_batch(space: Space, path: str, old: Scalar, new: Scalar) -> str:
    knob = next((knob for knob in space.knobs if knob.path == path), None)
    if knob is None or knob.batch is None or knob.label is not Label.BATCH:
        return ""
    return knob.batch.change(old, new) if isinstance(old, int) and isinstance(new, int) else ""


def _label(space: Space, path: str) -> str:
    return next((knob.label.value for knob in space.knobs if knob.path == path), Label.UNKNOWN.value)
