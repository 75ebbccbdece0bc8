"""Answer of a search, computed from the record alone."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
    UNCHANGED,
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
    CurrentAnswer,
    Finalist,
    HeldBack,
    Kinds,
    answers_by_search,
    chosen_finalist,
    comparable_trials,
    judged_finalists,
    until_the_end_of,
    withheld,
)
from autotune.study.data_effects import finding_of, labelled
from autotune.study.members import hosts_of, on_one_scale
from autotune.study.race_judgement import judge_race
from autotune.study.whole import whole_training


@dataclass(frozen=True, kw_only=True)
class RatedChange:
    """Gain from one change of a point; fields as in `Change`."""

    path: str
    worth: Ratio | None
    group: int
    needed: bool = False


@dataclass(frozen=True, kw_only=True)
class Rating:
    """Gain from each change of a search's answer, largest first; stored because it needs a fitted model."""

    point: str
    trials: int
    changes: tuple[RatedChange, ...]


Answers = Mapping[str | None, CurrentAnswer | None]
"""Answer of a study at the start of each search, and by None the current one."""


def latest_search(records: Sequence[TrialRecord], objective: Objective) -> str | None:
    """Return the last search with an answer (a complete confirmation, or no better point), otherwise the last one."""
    firsts = {trial.search: trial.purpose for trial in reversed(records)}
    searches = [name for name in dict.fromkeys(trial.search for trial in records) if firsts[name] not in NO_SEARCH]
    for search in reversed(searches):
        trials = [trial for trial in records if trial.search == search]
        baseline_point, good = trials[0].point, comparable_trials(trials, objective)
        explored = any(trial.purpose is Purpose.EXPLORE for trial in good)
        if (explored and not _best(good, baseline_point, objective)) or any(
            one.judgement and one.judgement.is_conclusive for one in judged_finalists(records, search, objective)
        ):
            return search
    return searches[-1] if searches else None


def answer_of(
    records: Sequence[TrialRecord],
    space: Space,
    *,
    objective: Objective,
    why_no_gpu: str | None = None,
    config_point: str | None = None,
    excluded: Kinds = frozenset(),
    ratings: Mapping[str, Rating] = MappingProxyType({}),
) -> SearchResult | None:
    """Compute the current answer of a study, otherwise that of its latest search; None without comparable trials.

    Args:
        records: Trials of the current code.
        space: Current search space, for the labels.
        why_no_gpu: Why utilization isn't measured on this machine.
        config_point: Name of the config's point; by default that of the latest search.
    """
    latest = latest_search(records, objective)
    if latest is None:
        return None
    shown, answers = latest, answers_by_search(records, objective, excluded=excluded)
    current = answers[None]
    if current is not None and current.search != latest:
        first = next(trial for trial in records if trial.search == latest)
        met = any(one.trial.point == current.point for one in judged_finalists(records, latest, objective))
        is_outside = first.conditions.outside_answer == current.point
        is_about_others = first.point == current.point or is_outside
        is_about_others |= met and first.point != current.baseline
        if not (is_about_others and config_point in (None, first.point)):
            shown = current.search
    result = summarize(
        records,
        shown,
        space,
        objective=objective,
        why_no_gpu=why_no_gpu,
        excluded=excluded,
        answers=answers,
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
    answers: Answers | None = None,
    ratings: Mapping[str, Rating] = MappingProxyType({}),
) -> SearchResult | None:
    """Compute the answer of one search; None without comparable trials.

    Args:
        records: The study's record. Other searches only contribute to the noise; later trials are ignored.
        space: Current search space, only for the labels.
        answers: Result of `answers_by_search`, if known.
    """
    measured = until_the_end_of(search, records)
    space = labelled(space, measured)
    records = on_one_scale(measured)
    trials = [trial for trial in records if trial.search == search]
    good = comparable_trials(trials, objective)
    # each search starts with the baseline; if its record is unreadable, there is nothing to compare with
    baseline = next((trial for trial in trials if trial.purpose is Purpose.BASELINE), None)
    if not good or baseline is None:
        return None
    searched = _Searched(records=records, trials=trials, good=good, baseline=baseline, space=space, objective=objective)
    if searched.of(baseline.point):
        previous = (answers or answers_by_search(records, objective, excluded=excluded))[search]
        result = _compared(searched, previous, excluded, ratings.get(search))
    else:
        result = _without_baseline(searched, ratings.get(search))
    shown = result.candidate if result.verdict in UNCHANGED else result.best
    if result.speedup is not None and shown is not None:
        result = replace(result, whole=_whole(measured, search, result.speedup, (baseline.point, shown.point)))
    return replace(result, why_no_gpu=why_no_gpu or _why_not_measured(good))


def has_answer(records: Sequence[TrialRecord], baseline_point: str, objective: Objective) -> bool:
    """Return whether the last search with an answer confirmed a point against these values, with any result."""
    search = latest_search(records, objective)
    trials = [trial for trial in records if trial.search == search]
    if search is None or trials[0].point != baseline_point:
        return False
    return any(one.judgement for one in judged_finalists(records, search, objective))


@dataclass(frozen=True, kw_only=True)
class _Searched:
    """Trials of one search with a baseline.

    Attributes:
        records: The record up to its last trial.
        good: Comparable trials, at least one.
        baseline: First trial of the baseline, possibly failed.
    """

    records: Sequence[TrialRecord]
    trials: Sequence[TrialRecord]
    good: Sequence[TrialRecord]
    baseline: TrialRecord
    space: Space
    objective: Objective

    def of(self, point: str | None) -> list[TrialRecord]:
        return [trial for trial in self.good if trial.point == point]

    def side(self, first: TrialRecord) -> Side:
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

    def _step_samples(self) -> float | None:
        measured = [trial.comparable for trial in self.of(self.baseline.point) if trial.comparable]
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
        old, new = self.baseline.values, candidate.values
        changed = [path for path in new if path in old and not same_scalar(new[path], old[path])]
        is_of_this = rating is not None and (rating.point, rating.trials) == (candidate.point, len(self.trials))
        rated = {change.path: change for change in rating.changes} if rating and is_of_this else {}
        if rated.keys() != set(changed):
            rated = {path: RatedChange(path=path, worth=None, group=place) for place, path in enumerate(changed)}
        knobs = {knob.path: knob for knob in self.space.knobs}
        ends = ((self.baseline.point, old), (candidate.point, new))
        shows_moved = all(self.space.is_named(name, values) for name, values in ends)
        step_samples = self._step_samples()
        return tuple(
            Change(
                path=path,
                old=old[path],
                new=new[path],
                worth=one.worth,
                group=one.group,
                needed=one.needed,
                label=self.space.label_of(path, new[path]).value,
                effective_batch=_effective_batch(knobs.get(path), old[path], new[path], step_samples),
                along=_moved_keys(knobs[path], old[path], new[path]) if shows_moved else (),
            )
            for path, one in rated.items()
        )


def _without_baseline(searched: _Searched, rating: Rating | None) -> SearchResult:
    baseline = searched.baseline
    candidate = searched.candidate(_best(searched.good, baseline.point, searched.objective))
    ended = f"{baseline.ending.value}: {baseline.detail}" if baseline.detail else baseline.ending.value
    return SearchResult(
        verdict=Verdict.NO_BASELINE,
        why=f"today's config has no measurement ({ended}), so there is nothing to compare with",
        search=baseline.search,
        baseline=searched.side(baseline),
        best=candidate,
        trials=len(searched.trials),
        outcomes=dict(Counter(trial.ending.value for trial in searched.trials)),
        changes=searched.changes_of(candidate, rating),
        objective=searched.objective.name,
    )


def _compared(
    searched: _Searched, previous: CurrentAnswer | None, excluded: Kinds, rating: Rating | None
) -> SearchResult:
    """Return the answer of a search with a measured baseline."""
    first, objective, search = searched.trials[0], searched.objective, searched.baseline.search
    confirmed = judged_finalists(searched.records, search, objective)
    is_limited = first.conditions.left_out_answer is not None  # it left the previous answer out
    current = None if is_limited else previous
    chosen = chosen_finalist(confirmed, current, searched.records, search, objective, excluded=excluded)
    others = withheld(confirmed, chosen, current, first)
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
        why = f"a faster point is held back: {others[0].why}"
    elif candidate is None:
        why = _why_nothing(searched)
    elif judgement is None:
        pairs = len(finalist.pairs) if finalist else 0
        why = f"{pairs} of at least {FEWEST_PAIRS} confirming pairs were measured: out of time, or trials failed"
    else:
        is_filling = any(trial.measurement and trial.measurement.filled_samples_per_s for trial in searched.good)
        why = _why_judged(judgement, objective, confirmed_on, is_filling=is_filling)
        if judgement.wins and finalist and finalist.broke:
            why += ", but it broke in a longer training"
    verdict = Verdict.NO_CHANGE if candidate is None or judgement else Verdict.NOT_CONFIRMED
    if chosen:
        verdict = Verdict.BETTER if judgement and judgement.better else Verdict.STEADIER
    same_training = _same_training(searched)
    result = SearchResult(
        verdict=verdict,
        why=why,
        baseline=baseline,
        best=candidate if chosen else baseline,
        candidate=None if chosen else candidate,
        speedup=judgement.speed if judgement else None,
        score_ratio=judgement.score if judgement else None,
        steadiness=judgement.steadiness if judgement else None,
        utilization=judgement.utilization if judgement else None,
        smallest_gain=judgement.smallest_gain if judgement else None,
        same_training=same_training,
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
        same_training_data=finding_of(searched.trials, same_training[0].point) if same_training else None,
        cautions=(
            *_unvalidated(searched, finalist if chosen else None),
            *(_held_back_text(one, searched.baseline) for one in others),
            *_noise_cautions(searched.of(searched.baseline.point)),
            *_slowdown_cautions(searched.trials),
            *(race.cautions if race else ()),
        ),
    )
    is_open = chosen is not None and race is None and result.changes_training
    why_not_raced = NO_LOSS if searched.baseline.conditions.no_loss else "it was not raced"
    return replace(result, why_not_raced=why_not_raced) if is_open else result


def _whole(records: Sequence[TrialRecord], search: str, speed: Ratio, points: tuple[str, str]) -> WholeTraining:
    """Return the speed of whole training with a point over the baseline, on the search's first machine."""
    machine = next(one.machine for one in records if one.search == search)
    here = [one for one in records if one.machine == machine and one.validity not in DISTURBED]
    tried = [[one.comparable for one in here if (one.search, one.point) == (search, point)] for point in points]
    baseline, other = ([one for one in side if one] for side in tried)
    known = [(one.point, one.measurement) for one in here if one.measurement and one.purpose is not Purpose.DIAGNOSE]
    pauses = ([one.pauses for at, one in known if at == point and one.pauses] for point in points)
    return whole_training(speed, (baseline, other), *pauses) if baseline else WholeTraining()


def _why_nothing(searched: _Searched) -> str:
    if not any(trial.purpose is Purpose.EXPLORE for trial in searched.trials):
        if any(trial.validation and trial.validation.broke for trial in searched.records):
            return "a point that looked better broke in validation and is not retried"
        return "only the current values were tried: out of time, or no other point promised a gain"
    if searched.objective.by_utilization:
        return "no tried point keeps the GPU busier without being slower than the current values"
    return "no tried point is faster than the current values by more than the noise"


def _why_judged(judgement: Judgement, objective: Objective, hosts: Sequence[str], *, is_filling: bool) -> str:
    pairs = f"{judgement.pairs} interleaved pairs with today's config"
    if len(hosts) > 1:
        pairs += f" on {len(hosts)} machines ({', '.join(hosts)})"
    if judgement.better:
        filling = "; caches did not fill in time, so trials were compared without their wait for data"
        return f"confirmed by {pairs}{filling if is_filling else ''}"
    if judgement.steadier:
        known = {"steadiness of steps": judgement.steadiness, "GPU utilization": judgement.utilization}
        shown = [f"{what} {ratio.low:.2f}-{ratio.high:.2f}x" for what, ratio in known.items() if ratio]
        return f"confirmed by {pairs}: {', '.join(shown)}, and no loss of speed beyond {100 - 100 * LEAST_SPEED:.0f} %"
    if objective.by_utilization and judgement.score.low > LEAST_SCORE_GAIN:
        return (
            f"{pairs} show a busier GPU, but training may be slower: the interval of its speed starts at "
            f"{judgement.speed.low:.2f}x, and {LEAST_SPEED}x is needed"
        )
    if is_filling:
        return (
            f"{pairs} do not show a lasting gain: caches did not fill in time, and with full caches the speed may be "
            f"{judgement.speed.low:.2f}-{judgement.speed.high:.2f}x"
        )
    gain = f"{100 * judgement.smallest_gain:.0f} %"
    return f"{pairs} do not show a gain; one of {gain} or more would probably have been detected"


def _unvalidated(searched: _Searched, answer: Finalist | None) -> Iterator[str]:
    is_requested = any(trial.conditions.validate_s is not None for trial in searched.trials)
    if is_requested and answer is not None and answer.validation is None:
        yield (
            "The answer is not validated, although requested: out of time, or the search was stopped before. Whether "
            "it breaks in a longer training is unknown."
        )


def _held_back_text(one: HeldBack, baseline: TrialRecord) -> str:
    changes = ", ".join(f"{path}={value}" for path, value in _differing(one.finalist, baseline).items())
    return f"{changes} was confirmed at {one.speedup.ratio:.2f}x but is held back: {one.why}."


def _differing(finalist: Finalist, baseline: TrialRecord) -> Values:
    old = baseline.values
    return {path: value for path, value in finalist.trial.values.items() if old.get(path) != value}


def _with_later_evidence(
    result: SearchResult, records: Sequence[TrialRecord], space: Space, objective: Objective
) -> SearchResult:
    shown = result.best if result.verdict in CONFIRMED else None
    if shown is None or result.baseline is None:
        return result
    baseline = result.baseline.point
    searches = list(dict.fromkeys(trial.search for trial in records))
    for search in reversed(searches[searches.index(result.search) + 1 :]):
        trials = [trial for trial in records if trial.search == search]
        if trials[0].point != baseline:
            continue
        changes = labelled(space, records).labels_of(shown.values, result.baseline.values)
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


def _medians(measured: Sequence[Measurement]) -> dict[str, float | None] | None:
    if not measured:
        return None
    metrics = [values_of(one) for one in measured]
    known = {name: [value for values in metrics if (value := values[name]) is not None] for name in METRICS}
    return {name: median(values) if values else None for name, values in known.items()}


def _best(good: Sequence[TrialRecord], baseline_point: str, objective: Objective) -> str | None:
    """Return the point with the best mean score, if it exceeds the baseline by more than noise."""
    means = _mean_scores(good, baseline_point, objective)
    best = max(means, key=lambda point: means[point], default=None)
    if best is None or best == baseline_point or baseline_point not in means:
        return best if best != baseline_point else None
    counts = Counter(trial.point for trial in good)
    sd = expected_sd_of(good, objective) * math.sqrt(1 / counts[best] + 1 / counts[baseline_point])
    lead = means[best] - means[baseline_point]
    # 1.64 standard errors: one in twenty points that aren't better passes
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
    """Return the speed of a winner that keeps the training unchanged, if the answer doesn't."""
    if chosen is None or not chosen.trial.conditions.changes:
        return None
    unchanged = (finalist.judgement for finalist in confirmed if not finalist.trial.conditions.changes)
    return next((judged.speed for judged in unchanged if judged is not None and judged.wins), None)


def _same_training(searched: _Searched) -> tuple[Side, float] | None:
    baseline, good = searched.baseline, searched.good
    means = _mean_scores(good, baseline.point, searched.objective)
    unchanged = {
        trial.point: trial
        for trial in good
        if trial.point != baseline.point
        and searched.space.is_same_training(trial.values, baseline.values)
        and not _had_no_effect(trial, baseline)
    }
    confirmed = [trial.point for trial in good if trial.purpose is Purpose.CONFIRM and trial.point in unchanged]
    best = max(confirmed or unchanged, key=lambda point: means[point], default=None)
    if best is None or means[best] <= means[baseline.point]:
        return None
    return searched.side(unchanged[best]), speed_over(searched.of(best), searched.of(baseline.point))


def _had_no_effect(trial: TrialRecord, baseline: TrialRecord) -> bool:
    changed = {path for path, value in trial.values.items() if not same_scalar(value, baseline.values.get(path))}
    return changed <= set(trial.conditions.unheeded)


def speed_over(trials: Sequence[TrialRecord], baseline: Sequence[TrialRecord]) -> float:
    """Return the geometric mean speed of comparable trials over that of others."""
    return math.exp(fmean(_ln_speeds(trials, baseline[0])) - fmean(_ln_speeds(baseline, baseline[0])))


def _ln_speeds(trials: Sequence[TrialRecord], unit: TrialRecord) -> list[float]:
    assert unit.comparable is not None
    return [ln_speed(trial.comparable, unit.comparable) for trial in trials if trial.comparable]


def _noise_cautions(baseline: Sequence[TrialRecord]) -> tuple[str, ...]:
    speeds = _ln_speeds(baseline, baseline[0])
    ratio = math.exp(max(speeds) - min(speeds))
    if ratio < 1.3:  # trials that differ by 8 % are within that 99 times in 100
        return ()
    return (
        f"Of {len(speeds)} trials of today's config, one was {ratio:.2f}x as fast as another: another process may "
        "be using this machine, or a few seconds are too short to measure this training.",
    )


def _slowdown_cautions(trials: Iterable[TrialRecord]) -> Iterator[str]:
    until = max((trial.conditions.until_step or 0 for trial in trials), default=0)
    if until:
        yield f"Steps get slower during training: all speeds are measured up to step {until}, with both configs."


# Changes of a point and their stored ratings


RATING = "worth of changes:"
"""Prefix of the study attributes with the rating of a search, followed by its name."""


def ratings_among(attributes: Mapping[str, object]) -> dict[str, Rating]:
    """Return the valid ratings in a study's attributes, by search."""
    found = {}
    for name, attribute in attributes.items():
        if name.startswith(RATING):
            with suppress(ValueError, RecursionError):
                rating = msgspec.convert(attribute, Rating)
                ratios = [change.worth for change in rating.changes if change.worth]
                if all(0.0 < one.low <= one.ratio <= one.high < math.inf for one in ratios):
                    found[name.removeprefix(RATING)] = rating
    return found


def _moved_keys(knob: Knob, old: Scalar, new: Scalar) -> tuple[MovedKey, ...]:
    """Return the coupled keys that change too."""
    before, after = knob.keys(old), knob.keys(new)
    moved = [path for path in knob.paths[1:] if not same_scalar(before[path], after[path])]
    return tuple(MovedKey(path=one, old=before[one], new=after[one]) for one in moved)


def _effective_batch(knob: Knob | None, old: Scalar, new: Scalar, step_samples: float | None) -> str:
    if knob is None or knob.batch is None or knob.label_of(new) is not Label.BATCH:
        return ""
    before, after = number_of(old), number_of(new)
    if not (isinstance(before, int) and isinstance(after, int)):
        return ""
    times = 1.0 if step_samples is None else step_samples / before
    devices = round(times)
    # a fraction comes from a smaller last batch, or batches by length
    is_whole = devices > 1 and abs(times - devices) < 0.02 * devices
    return knob.batch.change(before, after, devices if is_whole else 1)
