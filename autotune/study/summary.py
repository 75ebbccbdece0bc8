"""Summary of a search, computed from the record alone.

So ``search``, ``status`` and ``apply`` give the same answer, at once or after a crash.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from statistics import fmean, median
from types import MappingProxyType

import msgspec

from autotune.measure.ranks import pooled_ranks
from autotune.measure.score import (
    FEWEST_PAIRS,
    LEAST_SCORE_GAIN,
    LEAST_SPEED,
    Judgement,
    Objective,
    ln_score,
    ln_speed,
)
from autotune.metrics import METRICS, values_of
from autotune.records import (
    CONFIRMED,
    DISTURBED,
    NO_LOSS,
    NO_SEARCH,
    BrokenPoint,
    Change,
    Measurement,
    MovedKey,
    PooledGpus,
    Purpose,
    Ratio,
    Scalar,
    SearchResult,
    Side,
    TrialRecord,
    Values,
    Verdict,
    WholeTraining,
)
from autotune.sampler.observations import expected_sd_of
from autotune.space.knob import Knob, Label, number_of, same_scalar
from autotune.space.space import Space
from autotune.study.achieved import achieved_with, claims_sd
from autotune.study.answer import (
    Finalist,
    HeldBack,
    Kinds,
    Standing,
    chosen_finalist,
    comparable_trials,
    judged_finalists,
    standing_answers,
    until_the_end_of,
    withheld,
)
from autotune.study.data_effects import finding_of, labelled
from autotune.study.members import hosts_of, on_one_scale
from autotune.study.race_judgement import judge_race
from autotune.study.whole import whole_training


@dataclass(frozen=True, kw_only=True)
class RatedChange:
    """Worth of one change of a point; the fields are those of `Change`."""

    path: str
    worth: Ratio | None
    group: int
    needed: bool = False


@dataclass(frozen=True, kw_only=True)
class Rating:
    """Worth of each change of a search's answer, largest first, as the search has kept it with the study.

    A model was fitted for it; everything else of an answer is worked out from the trials whenever it is asked for.
    """

    point: str
    trials: int
    changes: tuple[RatedChange, ...]


Stood = Mapping[str | None, Standing | None]
"""Answer that a study stood by when each of its searches began."""


def latest_search(records: Sequence[TrialRecord], objective: Objective) -> str | None:
    """Return the search to report: the last one with an answer, else the last; None for an empty record.

    An answer is a full confirmation, or the finding that nothing was better than the baseline. A search that was killed
    earlier does not hide the answer of an older one, and neither does what is no search: a diagnosis, a training.
    """
    firsts = {trial.search: trial for trial in reversed(records)}
    searches = [name for name in dict.fromkeys(trial.search for trial in records) if not _is_no_search(firsts[name])]
    for search in reversed(searches):
        trials = [trial for trial in records if trial.search == search]
        baseline_point, good = trials[0].point, comparable_trials(trials, objective)
        explored = any(trial.purpose is Purpose.EXPLORE for trial in good)
        if (explored and not _best(good, baseline_point, objective)) or any(
            one.judgement and one.judgement.is_conclusive for one in judged_finalists(records, search, objective)
        ):
            return search
    return searches[-1] if searches else None


def _is_no_search(first: TrialRecord) -> bool:
    """Return whether a search is none, by its first trial: a search begins with today's config as it is."""
    return first.purpose in NO_SEARCH


def answer_of(
    records: Sequence[TrialRecord],
    space: Space,
    *,
    objective: Objective,
    why_no_gpu: str | None = None,
    today: str | None = None,
    excluded: Kinds = frozenset(),
    ratings: Mapping[str, Rating] = MappingProxyType({}),
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
        met = any(one.trial.point == standing.point for one in judged_finalists(records, latest, objective))
        is_outside = first.conditions.outside_answer == standing.point
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
    return result and _with_later_evidence(result, records, space, objective)


def summarize(
    records: Sequence[TrialRecord],
    search: str,
    space: Space,
    *,
    objective: Objective,
    why_no_gpu: str | None = None,
    excluded: Kinds = frozenset(),
    stood: Stood | None = None,
    ratings: Mapping[str, Rating] = MappingProxyType({}),
) -> SearchResult | None:
    """Compute the answer of one search.

    Args:
        records: The study's record; trials of other searches only contribute to the spread between trials, and those
            after the search's last trial do not count: its answer stays the same.
        space: The present search space; gives the labels, and nothing that the verdict depends on.
        why_no_gpu: Reason why utilization is not measured on this machine; None if it is.
        excluded: Kinds of change of the training that are out of the question.
        stood: The answer that the study stood by when each search began, see `standing_answers`; None to find out.

    Returns:
        The answer; None if no trial of the search gave comparable numbers.
    """
    measured = until_the_end_of(search, records)
    space = labelled(space, measured)
    records = on_one_scale(measured)
    trials = [trial for trial in records if trial.search == search]
    good = comparable_trials(trials, objective)
    # Each search starts with the baseline, also where that fails. Where its record could not be read, nothing means
    # anything.
    baseline = next((trial for trial in trials if trial.purpose is Purpose.BASELINE), None)
    if not good or baseline is None:
        return None
    why_no_gpu = why_no_gpu or _why_not_measured(good)
    searched = _Searched(records=records, trials=trials, good=good, baseline=baseline, space=space, objective=objective)
    if not searched.of(baseline.point):
        result = _without_baseline(searched, ratings.get(search))
        return replace(result, why_no_gpu=why_no_gpu)
    if stood is None:
        stood = standing_answers(records, objective, excluded=excluded)
    result = _compared(searched, stood[search], excluded, ratings.get(search))
    shown = result.candidate if result.verdict is Verdict.NO_CHANGE else result.best
    if result.speedup is not None and shown is not None:
        result = replace(result, whole=_whole(measured, search, result.speedup, (baseline.point, shown.point)))
    return replace(result, why_no_gpu=why_no_gpu)


def has_answer(records: Sequence[TrialRecord], baseline_point: str, objective: Objective) -> bool:
    """Return whether the last search that has an answer confirmed a point against these values, whatever came of it.

    Args:
        records: The study's record, oldest first.
    """
    search = latest_search(records, objective)
    made = [trial for trial in records if trial.search == search]
    if search is None or made[0].point != baseline_point:
        return False
    return any(one.judgement for one in judged_finalists(records, search, objective))


@dataclass(frozen=True, kw_only=True)
class _Searched:
    """Trials of one search that has a baseline on record, and what is needed to read them.

    Attributes:
        records: The record up to its last trial.
        good: Those of its trials with comparable numbers that tell the objective; at least one.
        baseline: The first trial of the baseline, which may have failed.
    """

    records: Sequence[TrialRecord]
    trials: Sequence[TrialRecord]
    good: Sequence[TrialRecord]
    baseline: TrialRecord
    space: Space
    objective: Objective

    def of(self, point: str | None) -> list[TrialRecord]:
        """Return the good trials of a point."""
        return [trial for trial in self.good if trial.point == point]

    def side(self, first: TrialRecord) -> Side:
        """Pool the good trials of the point of a trial."""
        measured = [trial.comparable for trial in self.of(first.point) if trial.comparable]
        times = [one.stages for one in measured if one.stages]
        return Side(
            point=first.point,
            values=first.values,
            metrics=_medians(measured),
            gpus=self._gpus(measured),
            stages=reduce(add, times) if times else None,
            ranks=pooled_ranks([one.ranks for one in measured]),
        )

    def _step_samples(self, point: str) -> float | None:
        """Return the samples of a step of all ranks and devices together; None without a good trial."""
        measured = [trial.comparable for trial in self.of(point) if trial.comparable]
        return median([one.samples_per_s * one.window_s / one.steps for one in measured]) if measured else None

    def _gpus(self, measured: Sequence[Measurement]) -> PooledGpus | None:
        if not any(trial.gpus for trial in measured):
            return None
        from autotune.study.gpu_pool import pooled_gpus  # imports NumPy

        return pooled_gpus(measured, self._busy_rate)

    @cached_property
    def _busy_rate(self) -> float | None:
        from autotune.study.gpu_pool import study_busy_rate

        return study_busy_rate(self.records)

    def candidate(self, point: str | None) -> Side | None:
        trials = self.of(point)
        return self.side(trials[0]) if trials else None

    def changes_of(self, candidate: Side | None, rating: Rating | None) -> tuple[Change, ...]:
        if candidate is None:
            return ()
        is_of_this = rating is not None and (rating.point, rating.trials) == (candidate.point, len(self.trials))
        changes = changes_of(
            self.baseline.values,
            candidate.values,
            self.space,
            rating if is_of_this else None,
            step_samples=self._step_samples(self.baseline.point),
        )
        ends = ((self.baseline.point, self.baseline.values), (candidate.point, candidate.values))
        if all(self.space.is_named(name, values) for name, values in ends):
            changes = with_moved_keys(changes, self.space)
        return tuple(changes)


def _without_baseline(searched: _Searched, rating: Rating | None) -> SearchResult:
    baseline = searched.baseline
    candidate = searched.candidate(_best(searched.good, baseline.point, searched.objective))
    ended = f"{baseline.ending.value}: {baseline.detail}" if baseline.detail else baseline.ending.value
    return SearchResult(
        verdict=Verdict.NO_BASELINE,
        why=f"today's config gave no numbers ({ended}), so there is nothing to compare with",
        search=baseline.search,
        baseline=searched.side(baseline),
        best=candidate,
        trials=len(searched.trials),
        outcomes=dict(Counter(trial.ending.value for trial in searched.trials)),
        changes=searched.changes_of(candidate, rating),
        objective=searched.objective.name,
    )


def _compared(searched: _Searched, stood: Standing | None, excluded: Kinds, rating: Rating | None) -> SearchResult:
    """Return the answer of a search whose baseline gave numbers.

    Args:
        stood: The answer that the study stood by when it began.
        excluded: Kinds of change of the training that are out of the question.
    """
    first, objective, search = searched.trials[0], searched.objective, searched.baseline.search
    confirmed = judged_finalists(searched.records, search, objective)
    is_limited = first.conditions.left_out_answer is not None  # what stands could not be met: it speaks for itself
    standing = None if is_limited else stood
    chosen = chosen_finalist(confirmed, standing, searched.records, search, objective, excluded=excluded)
    others = withheld(confirmed, chosen, standing, first)
    judged = [one for one in confirmed if one.judgement is not None]
    finalist = chosen or next(iter(judged or confirmed), None)
    judgement = finalist.judgement if finalist else None
    best = finalist.trial.point if finalist else _best(searched.good, searched.baseline.point, objective)
    baseline, candidate = searched.side(searched.baseline), searched.candidate(best)
    hosts = hosts_of(searched.trials)
    confirmed_on = tuple(hosts[machine] for machine in finalist.pairs_of_machines) if finalist else ()
    changes, race = searched.changes_of(candidate, rating), None
    if candidate is not None:
        labels = searched.space.labels_of(candidate.values, searched.baseline.values)
        race = judge_race(searched.trials, candidate.point, changes=labels)
    if chosen is None and others:
        why = f"something is faster, and held back: {others[0].why}"
    elif candidate is None:
        why = _why_nothing(searched)
    elif judgement is None:
        why = _why_unconfirmed(len(finalist.pairs) if finalist else 0)
    else:
        is_filling = any(trial.measurement and trial.measurement.filled_samples_per_s for trial in searched.good)
        why = _why_judged(judgement, objective, confirmed_on, is_filling=is_filling)
        if judgement.wins and finalist and finalist.broke:
            why += ", but it broke in a longer training"
    alike = _same_training(searched)
    result = SearchResult(
        verdict=_verdict(chosen),
        why=why,
        baseline=baseline,
        best=candidate if chosen else baseline,
        candidate=None if chosen else candidate,
        speedup=judgement.speed if judgement else None,
        score_ratio=judgement.score if judgement else None,
        steadiness=judgement.steadiness if judgement else None,
        utilization=judgement.utilization if judgement else None,
        smallest_gain=judgement.smallest_gain if judgement else None,
        same_training=alike,
        same_training_confirmed=_same_training_confirmed(confirmed, chosen),
        trials=len(searched.trials),
        outcomes=dict(Counter(trial.ending.value for trial in searched.trials)),
        changes=changes,
        objective=objective.name,
        validation=finalist.validation if finalist else None,
        race=race,
        search=search,
        is_apart=is_limited or bool(excluded),
        confirmed_on=confirmed_on,
        broken=tuple(_broken(searched, other) for other in confirmed if other.broke and other is not finalist),
        data=finding_of(searched.trials, candidate.point) if candidate else None,
        same_training_data=finding_of(searched.trials, alike[0].point) if alike else None,
        cautions=(
            *_unvalidated(searched, finalist if chosen else None),
            *(_held_back_text(one, searched.baseline) for one in others),
            *_unevenness(searched.of(searched.baseline.point)),
            *_slower(searched.trials),
            *(race.cautions if race else ()),
        ),
    )
    is_open = chosen is not None and race is None and result.changes_training
    why_not_raced = NO_LOSS if searched.baseline.conditions.no_loss else "it was not raced"
    return replace(result, why_not_raced=why_not_raced) if is_open else result


def _whole(records: Sequence[TrialRecord], search: str, speed: Ratio, points: tuple[str, str]) -> WholeTraining:
    """Return the speed of whole training with a point over the baseline, by all that trials and trainings came to.

    Args:
        records: The record as measured; of the machines that of the search's first trial tells.
        points: The baseline and the other.
    """
    machine = next(one.machine for one in records if one.search == search)
    here = [one for one in records if one.machine == machine and one.validity not in DISTURBED]
    tried = [[one.comparable for one in here if (one.search, one.point) == (search, point)] for point in points]
    today, other = ([one for one in side if one] for side in tried)
    known = [(one.point, one.measurement) for one in here if one.measurement and one.purpose is not Purpose.DIAGNOSE]
    pauses = ([one.pauses for at, one in known if at == point and one.pauses] for point in points)
    return whole_training(speed, (today, other), *pauses) if today else WholeTraining()


def _verdict(chosen: Finalist | None) -> Verdict:
    if chosen is None or chosen.judgement is None:
        return Verdict.NO_CHANGE
    return Verdict.BETTER if chosen.judgement.better else Verdict.STEADIER


def _why_nothing(searched: _Searched) -> str:
    """Return why a search has no candidate, without a full stop."""
    if not any(trial.purpose is Purpose.EXPLORE for trial in searched.trials):
        if any(trial.validation and trial.validation.broke for trial in searched.records):
            return "what looked better broke when it was validated, and is not tried again"
        return "nothing but today's values was tried: there was no time, or nothing else promised a gain"
    if searched.objective.by_utilization:
        return "nothing that was tried keeps the GPU busier without being slower than today's values"
    return "nothing that was tried is faster than today's values, beyond what trials differ by"


def _why_unconfirmed(pairs: int) -> str:
    if pairs == 0:
        return "the best point was not confirmed against today's config: its pairs did not fit, or failed"
    return f"only {pairs} of at least {FEWEST_PAIRS} confirming pairs could be measured"


def _why_judged(judgement: Judgement, objective: Objective, hosts: Sequence[str], *, is_filling: bool) -> str:
    """Return what pairs show, without a full stop."""
    pairs = f"{judgement.pairs} interleaved pairs with today's config"
    if len(hosts) > 1:
        pairs += f" on {len(hosts)} machines ({', '.join(hosts)})"
    if judgement.better and is_filling:
        return (
            f"confirmed by {pairs}; caches take longer to fill than there was time, so trials were compared without "
            "the time they waited for data, and the interval holds whatever full caches will make of the two"
        )
    if judgement.better:
        return f"confirmed by {pairs}"
    if judgement.steadier:
        known = {"steadiness of steps": judgement.steadiness, "GPU utilization": judgement.utilization}
        shown = [f"{what} {ratio.low:.2f}x to {ratio.high:.2f}x" for what, ratio in known.items() if ratio]
        return f"confirmed by {pairs}: {', '.join(shown)}, and no loss of speed beyond {1 - LEAST_SPEED:.0%}"
    if objective.by_utilization and judgement.score.low > LEAST_SCORE_GAIN:
        return (
            f"{pairs} show a busier GPU, but not that training is no slower: the interval of its speed begins at "
            f"{judgement.speed.low:.2f}x, and {LEAST_SPEED}x is needed"
        )
    if is_filling:
        return (
            f"{pairs} do not show a gain that would stay: caches take longer to fill than there was time, and with "
            f"full ones it may be from {judgement.speed.low:.2f}x to {judgement.speed.high:.2f}x as fast"
        )
    return f"{pairs} do not show a gain; one of {judgement.smallest_gain:.0%} or more would probably have been seen"


def _unvalidated(searched: _Searched, answer: Finalist | None) -> Iterator[str]:
    asked = any(trial.conditions.validate_s is not None for trial in searched.trials)
    if asked and answer is not None and answer.validation is None:
        yield (
            "The answer is not validated, though that was asked for: there was no time, or the search was ended before "
            "it was. What breaks in a longer training is not known."
        )


def _held_back_text(one: HeldBack, baseline: TrialRecord) -> str:
    changes = ", ".join(f"{path}={value}" for path, value in _differing(one.finalist, baseline).items())
    return f"{changes} was confirmed at {one.speedup.ratio:.2f}x, and is held back: {one.why}."


def _differing(finalist: Finalist, baseline: TrialRecord) -> Values:
    old = baseline.values
    return {path: value for path, value in finalist.trial.values.items() if old.get(path) != value}


def _with_later_evidence(
    result: SearchResult, records: Sequence[TrialRecord], space: Space, objective: Objective
) -> SearchResult:
    shown = result.best if result.verdict in CONFIRMED else None
    if shown is None or result.baseline is None:
        return result
    baseline, today = result.baseline.point, result.baseline.values
    searches = list(dict.fromkeys(trial.search for trial in records))
    for search in reversed(searches[searches.index(result.search) + 1 :]):
        trials = [trial for trial in records if trial.search == search]
        if trials[0].point != baseline:
            continue
        changes = labelled(space, records).labels_of(shown.values, today)
        race = judge_race(trials, shown.point, changes=changes)
        checked = [trial.validation for trial in trials if trial.point == shown.point and trial.validation]
        if race is not None and result.race is None:
            result = replace(result, race=race, why_not_raced="")
        if checked and result.validation is None:
            result = replace(result, validation=checked[-1])
    if result.speedup is None or not any(trial.purpose is Purpose.TRAINING for trial in records):
        return result
    claims = [(shown.point, result.speedup)]  # and the one that `apply` writes
    if result.same_training is not None and result.same_training_confirmed is not None:
        claims.append((result.same_training[0].point, result.same_training_confirmed))
    achieved = (achieved_with(records, baseline, point, claimed=claimed) for point, claimed in claims)
    latest = max(filter(None, achieved), key=lambda one: one.trainings[-1].ended_utc, default=None)
    if latest is not None:
        latest = replace(latest, is_same_training=latest.point != shown.point, claims_sd=claims_sd(records, objective))
    whole = _whole(records, result.search, result.speedup, (baseline, shown.point))
    return replace(result, whole=whole, achieved=latest)


def _broken(searched: _Searched, finalist: Finalist) -> BrokenPoint:
    assert finalist.validation is not None
    return BrokenPoint(
        changes=_differing(finalist, searched.baseline),
        speedup=finalist.judgement.speed if finalist.judgement else None,
        validation=finalist.validation,
    )


def _why_not_measured(good: Sequence[TrialRecord]) -> str | None:
    if any(trial.comparable and trial.comparable.gpu_utilization is not None for trial in good):
        return None
    gpus = (trial.conditions.gpu for trial in reversed(good))
    return next((gpu.not_measured for gpu in gpus if gpu and gpu.not_measured), None)


def pooled(trials: Sequence[TrialRecord]) -> dict[str, float | None] | None:
    """Return the median of each metric over the comparable trials of a point; None if there is none."""
    return _medians([trial.comparable for trial in trials if trial.comparable])


def _medians(measured: Sequence[Measurement]) -> dict[str, float | None] | None:
    if not measured:
        return None
    told = [values_of(one) for one in measured]
    known = {name: [value for values in told if (value := values[name]) is not None] for name in METRICS}
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


def _same_training_confirmed(confirmed: Sequence[Finalist], chosen: Finalist | None) -> Ratio | None:
    """Return the speed of a finalist that leaves the training as it is, beside an answer that does not."""
    if chosen is None or not chosen.trial.conditions.changes:
        return None
    alike = (finalist.judgement for finalist in confirmed if not finalist.trial.conditions.changes)
    return next((judged.speed for judged in alike if judged is not None and judged.wins), None)


def _same_training(searched: _Searched) -> tuple[Side, float] | None:
    baseline, good = searched.baseline, searched.good
    means = _mean_scores(good, baseline.point, searched.objective)
    alike = {
        trial.point: trial
        for trial in good
        if trial.point != baseline.point
        and searched.space.is_same_training(trial.values, baseline.values)
        and not _was_not_heeded(trial, baseline)
    }
    confirmed = [point for point, trial in alike.items() if any(map(_confirms, searched.of(point)))]
    best = max(confirmed or alike, key=lambda point: means[point], default=None)
    if best is None or means[best] <= means[baseline.point]:
        return None
    return searched.side(alike[best]), speed_over(searched.of(best), searched.of(baseline.point))


def _was_not_heeded(trial: TrialRecord, baseline: TrialRecord) -> bool:
    """Return whether nothing that a trial changes can have had an effect in it."""
    changed = {path for path, value in trial.values.items() if not same_scalar(value, baseline.values.get(path))}
    return changed <= set(trial.conditions.unheeded)


def _confirms(trial: TrialRecord) -> bool:
    return trial.purpose is Purpose.CONFIRM


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


def _slower(trials: Iterable[TrialRecord]) -> Iterator[str]:
    """Yield a remark on training whose steps get slower."""
    until = max((trial.conditions.until_step or 0 for trial in trials), default=0)
    if until:
        yield f"Steps get slower as training goes on: all speeds are those up to the {until}th step, on either side."


# Changes of a point, and what the study has kept of their worth.


def rating_of(attribute: object) -> Rating | None:
    """Read a rating back, as JSON gives it; None for what is none."""
    try:
        rating = msgspec.convert(attribute, Rating)
    except (ValueError, RecursionError):
        return None
    ratios = [change.worth for change in rating.changes if change.worth]
    return rating if all(0.0 < one.low <= one.ratio <= one.high < math.inf for one in ratios) else None


RATING = "worth of changes:"
"""Beginning of the attributes of a study that hold the rating of a search; its name follows."""


def ratings_among(attributes: Mapping[str, object]) -> dict[str, Rating]:
    """Return the ratings among the attributes of a study, by search."""
    found = {name: rating_of(some) for name, some in attributes.items() if name.startswith(RATING)}
    return {name.removeprefix(RATING): rating for name, rating in found.items() if rating}


def changes_of(
    baseline: Values,
    point: Values,
    space: Space,
    rating: Rating | None = None,
    *,
    step_samples: float | None = None,
) -> list[Change]:
    """Return what a point changes.

    Args:
        space: The present space; gives the labels.
        step_samples: Samples of a step of the baseline, of all ranks together; None if unknown.

    Returns:
        One change for each knob that differs, in the order of the rating.
    """
    changed = [path for path in point if path in baseline and not same_scalar(point[path], baseline[path])]
    rated = {change.path: change for change in rating.changes} if rating else {}
    if rated.keys() != set(changed):
        rated = {path: RatedChange(path=path, worth=None, group=place) for place, path in enumerate(changed)}
    knobs = {knob.path: knob for knob in space.knobs}
    return [
        Change(
            path=path,
            old=baseline[path],
            new=point[path],
            worth=one.worth,
            group=one.group,
            needed=one.needed,
            label=space.label_of(path, point[path]).value,
            effective_batch=_effective_batch(knobs.get(path), baseline[path], point[path], step_samples),
        )
        for path, one in rated.items()
    ]


def with_moved_keys(changes: Iterable[Change], space: Space) -> list[Change]:
    """Return changes of points of a space with the further keys that change along."""
    knobs = {knob.path: knob for knob in space.knobs}
    found = []
    for change in changes:
        knob = knobs[change.path]
        old, new = knob.keys(change.old), knob.keys(change.new)
        moved = [path for path in knob.paths[1:] if not same_scalar(old[path], new[path])]
        found.append(replace(change, along=tuple(MovedKey(path=one, old=old[one], new=new[one]) for one in moved)))
    return found


def _effective_batch(knob: Knob | None, old: Scalar, new: Scalar, step_samples: float | None) -> str:
    if knob is None or knob.batch is None or knob.label_of(new) is not Label.BATCH:
        return ""
    before, after = number_of(old), number_of(new)
    if not (isinstance(before, int) and isinstance(after, int)):
        return ""
    times = 1.0 if step_samples is None else step_samples / before
    devices = round(times)
    # a smaller last batch, or batches by length, are no devices
    is_whole = devices > 1 and abs(times - devices) < 0.02 * devices
    return knob.batch.change(before, after, devices if is_whole else 1)
