"""Gain from each change of a point, estimated from the trials of a search."""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

import numpy as np

from autotune.events import KnobsRated
from autotune.measure.score import THROUGHPUT, Objective
from autotune.measure.statistics import student_t_quantile
from autotune.records import CONFIRMED, Purpose, Ratio, Scalar, SearchResult, Side, TrialRecord, Values, Verdict
from autotune.sampler.gaussian_process import GaussianProcess, Indices, TrainingData
from autotune.sampler.observations import expected_sd_of
from autotune.space.knob import Knob, Label, is_among, same_scalar, with_baseline
from autotune.space.space import Space
from autotune.study.answer import comparable_trials, has_failed, judged_finalists, until_the_end_of
from autotune.study.members import on_one_scale
from autotune.study.noise import Noise, trial_noise
from autotune.study.summary import RatedChange, Rating


def rate(
    result: SearchResult, records: Sequence[TrialRecord], space: Space, objective: Objective
) -> tuple[Rating | None, KnobsRated | None]:
    """Rate each change of a search's answer, or of its candidate, and each knob separately, if known."""
    if result.baseline is None:
        return None, None
    # of all its machines, on one scale
    trials = [one for one in on_one_scale(until_the_end_of(result.search, records)) if one.search == result.search]
    sd = expected_sd_of(comparable_trials(trials, objective), THROUGHPUT)
    shown = result.best if result.verdict in CONFIRMED else result.candidate
    around = (result.verdict in CONFIRMED and result.best) or result.baseline
    knobs = KnobsRated(around=around.values, effects=knob_effects(trials, around.values, space, sd=sd))
    if result.verdict is Verdict.NO_BASELINE or shown is None:
        return None, knobs
    changes = change_gains(
        trials,
        result.baseline.values,
        shown.values,
        space,
        sd=sd,
        noise=trial_noise(records, result.search, THROUGHPUT),
        whole=result.speedup,
        parts=_measured_parts(result.baseline.values, shown, records, result.search, objective),
    )
    return Rating(point=shown.point, trials=len(trials), changes=changes), knobs


Part = tuple[Values, Ratio]
"""Some changes of a point, and its speed relative to the point without them, by confirming pairs."""


def _measured_parts(
    baseline: Values, shown: Side, records: Sequence[TrialRecord], search: str, objective: Objective
) -> list[Part]:
    """Return the parts of a point measured in its pairs, by a third point between it and the baseline."""
    for finalist in judged_finalists(records, search, objective):
        trial, judgement = finalist.trial, finalist.judgement
        if judgement is None or trial.point == shown.point:
            continue
        first, second = _differing(trial.values, baseline), _differing(shown.values, trial.values)
        if first and second and first.keys().isdisjoint(second):
            against = judged_finalists(records, search, objective, against=trial.point)
            rest = [one.judgement.speed for one in against if one.judgement and one.trial.point == shown.point]
            return [(first, judgement.speed), *((second, ratio) for ratio in rest)]
    return []


def change_gains(
    records: Sequence[TrialRecord],
    baseline: Values,
    point: Values,
    space: Space,
    *,
    sd: float,
    noise: Noise,
    whole: Ratio | None = None,
    parts: Sequence[Part] = (),
) -> tuple[RatedChange, ...]:
    """Rate each change of a point: its speed relative to the point without that change.

    Uses ablation trials (`Ablation`), else a model of all trials, in which changes that only occur together form one
    group. If a part measured in confirming pairs is certain but not each of its changes, the part is one group; the
    remaining uncertain changes form a group if that is certain.

    Args:
        records: Trials under the same conditions.
        sd: SD of ln throughput between trials of one point, for the model.
        noise: The same, for ablation.
        whole: Speed relative to the baseline by confirming pairs.
        parts: Parts measured in these pairs.

    Returns:
        One rating per change, groups contiguous: required changes first, then by decreasing effect.
    """
    changed = list(_differing(point, baseline))
    known = Ablation(records, baseline, point, noise)
    trials = _comparable_points(records, baseline) if _has_no_nan(baseline) and _has_no_nan(point) else []
    groups: dict[tuple[bool, ...], list[str]] = {}
    for path in changed:
        if path in known or path in known.needed:
            continue
        column = tuple(same_scalar(values[path], point[path]) for values, _ in trials)
        groups.setdefault(column, []).append(path)

    # A change in no trial, or in every trial, cannot be rated.
    shown = {column: paths for column, paths in groups.items() if any(column) and not all(column)}
    gains: dict[tuple[bool, ...], Ratio] = {}
    if shown:
        tried = _tried_space(baseline, [point, *(values for values, _ in trials)], space)
        without = [without_changes(point, paths, tried) for paths in shown.values()]
        ratios = speed_ratios(trials, point, without, tried, sd=sd)
        for column, left, ratio in zip(shown, without, ratios, strict=True):
            gains[column] = whole if whole and not tried.changes(left) else ratio
    rated = [(gains.get(column), paths) for column, paths in groups.items()]
    rated += [(known.ratio(path), [path]) for path in known]
    measured = [(ratio, [path for path in values if path not in known.needed]) for values, ratio in parts]
    rated = _in_parts(rated, measured)
    rated = known.together(rated)
    unsure = [(worth, paths) for worth, paths in rated if worth is None or worth.low <= 1.0 <= worth.high]
    if trials and len(unsure) > 1:
        paths = [path for _, some in unsure for path in some]
        tried = _tried_space(baseline, [point, *(values for values, _ in trials)], space)
        left = without_changes(point, paths, tried)
        together = whole if not tried.changes(left) else _wider(speed_ratios(trials, point, [left], tried, sd=sd)[0])
        if together and together.low > 1.0:
            rated = [*(one for one in rated if one not in unsure), (together, paths)]
    rated.sort(key=lambda item: -(item[0].ratio if item[0] else 0.0))
    rated = [*((None, [path]) for path in changed if path in known.needed), *rated]
    return tuple(
        RatedChange(path=path, worth=worth, group=number, needed=path in known.needed)
        for number, (worth, paths) in enumerate(rated)
        for path in paths
    )


Rated = tuple[Ratio | None, list[str]]
"""Changes, and their joint gain."""


def _in_parts(rated: Sequence[Rated], parts: Iterable[tuple[Ratio, list[str]]]) -> list[Rated]:
    """Group the changes of each certain part, unless each of them is certain."""
    sure = [(ratio, paths) for ratio, paths in parts if ratio.low > 1.0]
    part_of = {path: number for number, (_, paths) in enumerate(sure) for path in paths}
    found: list[Rated] = []
    for worth, paths in rated:  # parts can split a group
        pieces = [[path for path in paths if part_of.get(path) == number] for number in range(len(sure))]
        is_split = max(map(len, pieces), default=0) < len(paths) == sum(map(len, pieces))
        found += [(None, piece) for piece in pieces if piece] if is_split else [(worth, paths)]
    for ratio, paths in sure:
        inside = [one for one in found if set(one[1]) <= set(paths)]
        is_whole = sorted(path for _, some in inside for path in some) == sorted(paths)
        if is_whole and any(worth is None or worth.low <= 1.0 for worth, _ in inside):
            found = [*(one for one in found if one not in inside), (ratio, paths)]
    return found


def _wider(ratio: Ratio) -> Ratio:
    """Widen the interval of a ratio to a point far from all trials, to cover the true value."""
    wider = 4.0 / 3.0  # on simulated trainers
    return Ratio(
        ratio=ratio.ratio,
        low=ratio.ratio * (ratio.low / ratio.ratio) ** wider,
        high=ratio.ratio * (ratio.high / ratio.ratio) ** wider,
    )


class Ablation:
    """Gains by ablation: effects on ln speed by regularised least squares, from ablation and confirming trials.

    Args:
        noise: Of ln speed; replaced by the residual variance if that is larger.

    Attributes:
        needed: Changes without which the trainer failed.
    """

    def __init__(self, records: Iterable[TrialRecord], baseline: Values, point: Values, noise: Noise) -> None:
        changed, records = _differing(point, baseline), list(records)
        failed = ((record.values, _differing(point, record.values)) for record in records if has_failed(record))
        single = ((path, values[path]) for values, paths in failed if len(paths) == 1 for path in paths)
        self.needed = {path for path, value in single if same_scalar(value, baseline[path])}
        fitted = (one for one in records if one.purpose is Purpose.TAKE_BACK or _confirms(one, point))
        made = [(one.values, math.log(one.comparable.speed)) for one in fitted if one.comparable]
        tried = {(path, value) for values, _ in made for path, value in _differing(values, baseline).items()}
        terms = sorted(tried, key=repr)
        rows = [[1.0, *(float(same_scalar(values[path], value)) for path, value in terms)] for values, _ in made]
        design = np.array(rows).reshape(len(made), len(terms) + 1)
        speeds = np.array([speed for _, speed in made])
        # prior: ln effects of standard deviation 1; terms that only occur together share their gain
        precision = design.T @ design + noise.variance * np.diag([1e-6, *([1.0] * len(terms))])
        self._covariance = np.linalg.inv(precision)
        self._effects = self._covariance @ design.T @ speeds
        left = speeds - design @ self._effects
        self._variance = max(noise.variance, float(left @ left) / max(1.0, len(made) - len(terms) - 1.0))
        self._quantile = student_t_quantile(0.975, noise.df)
        self._columns = {
            path: column
            for column, (path, value) in enumerate(terms, start=1)
            if path in changed and path not in self.needed
            if same_scalar(value, point[path]) and any(same_scalar(one[path], baseline[path]) for one, _ in made)
        }

    def __contains__(self, path: str) -> bool:
        return path in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def ratio(self, *paths: str) -> Ratio:
        contrast = np.zeros(len(self._effects))
        contrast[[self._columns[path] for path in paths]] = 1.0
        mean = float(contrast @ self._effects)
        margin = self._quantile * math.sqrt(self._variance * float(contrast @ self._covariance @ contrast))
        return Ratio(ratio=math.exp(mean), low=math.exp(mean - margin), high=math.exp(mean + margin))

    def together(self, rated: Sequence[Rated]) -> list[Rated]:
        """Group the uncertain changes if their joint gain is certain."""
        unsure = [path for worth, paths in rated for path in paths if path in self and worth and worth.low <= 1.0]
        if len(unsure) < 2 or (worth := self.ratio(*unsure)).low <= 1.0:
            return list(rated)
        return [*(one for one in rated if not set(one[1]) & set(unsure)), (worth, unsure)]


def _confirms(record: TrialRecord, point: Values) -> bool:
    return record.purpose is Purpose.CONFIRM and not _differing(record.values, point)


def _differing(one: Values, other: Values) -> Values:
    return {path: one[path] for path in one if path in other and not same_scalar(one[path], other[path])}


def knob_effects(
    records: Sequence[TrialRecord], around: Values, space: Space, *, sd: float
) -> dict[str, list[tuple[Scalar, Ratio]]]:
    """Return the speed with each tried value of each knob, relative to a point, by a model of all trials.

    Args:
        records: Trials under the same conditions; other spaces are ignored.
        sd: SD of ln throughput between trials of one point.
    """
    trials = _comparable_points(records, around)
    if not trials or not _has_no_nan(around):
        return {}
    tried = _tried_space(around, [values for values, _ in trials], space)
    slices = [(knob.path, choice) for knob in tried.knobs if len(knob.choices) > 1 for choice in knob.choices]
    others = [{**around, path: choice} for path, choice in slices]
    effects: dict[str, list[tuple[Scalar, Ratio]]] = {}
    for (path, choice), gain in zip(slices, speed_ratios(trials, around, others, tried, sd=sd), strict=True):
        inverse = Ratio(ratio=1.0 / gain.ratio, low=1.0 / gain.high, high=1.0 / gain.low)
        effects.setdefault(path, []).append((choice, inverse))
    return effects


def _comparable_points(records: Sequence[TrialRecord], like: Values) -> list[tuple[Values, float]]:
    """Return values and ln speeds of comparable trials with the knobs of a point."""
    points = [(record.values, math.log(measured.speed)) for record in records if (measured := record.comparable)]
    return [(values, speed) for values, speed in points if set(values) == set(like) and _has_no_nan(values)]


def _has_no_nan(values: Values) -> bool:
    return all(same_scalar(value, value) for value in values.values())


def _tried_space(baseline: Values, points: Sequence[Values], space: Space) -> Space:
    """Return the space of the tried values, of which the current one may lack some."""
    present = {knob.path: knob for knob in space.knobs}
    tried = {path: [values[path] for values in points] for path in baseline}
    knobs = (_tried_knob(path, today, tried[path], present.get(path)) for path, today in baseline.items())
    return Space(knobs=tuple(knobs))


def _tried_knob(path: str, baseline: Scalar, values: Iterable[Scalar], present: Knob | None) -> Knob:
    tried = [baseline]
    for value in values:
        if not is_among(value, tried):
            tried.append(value)
    choices, ordered = with_baseline(tried, baseline)
    return Knob(
        path=path,
        choices=choices,
        ordered=ordered,
        baseline=baseline,
        label=Label.UNKNOWN,
        kind=present.kind if present else None,
        inactive_if=present.inactive_if if present else None,
    )


def without_changes(point: Values, paths: Iterable[str], space: Space) -> Values:
    """Return a point without some changes and all that needs them."""
    left = {**point, **{path: space.baseline[path] for path in paths}}
    while (why := space.why_infeasible(left)) and (others := list(space.changes(left))):
        fewer = [{**left, path: space.baseline[path]} for path in others]
        left = next((values for values in fewer if space.why_infeasible(values) != why), fewer[0])
    return left


# Contrasts: speed of one point relative to others, measured or not, from all trials of a search.


def speed_ratios(
    trials: Sequence[tuple[Values, float]], point: Values, others: Sequence[Values], space: Space, *, sd: float
) -> list[Ratio]:
    """Return the speed of a point relative to each of some others, measured or not.

    Args:
        trials: Values and ln speed of at least one trial, in this space.
        sd: SD of ln speed between trials of one point, above 0.
    """
    speeds: dict[tuple[int, ...], list[float]] = {}
    for values, speed in trials:
        speeds.setdefault(space.indices(values), []).append(speed)
    here = np.array(space.indices(point))
    rows = [space.indices(other) for other in others]
    # limited to the points most similar to this one
    near = sorted(speeds, key=lambda row: (row not in rows, np.count_nonzero(here != row)))[:300]
    data = TrainingData(
        points=np.array(near),
        scores=np.array([fmean(speeds[row]) for row in near]),
        variances=np.array([sd**2 / len(speeds[row]) for row in near]),
    )
    model = GaussianProcess(space)
    for _ in range(3):  # each fit continues from the hyperparameters of the last one
        model.fit(data)
    # On the model's standard deviation, which omits model error; for measured and unmeasured points. On simulated
    # trainers, changed ones included, these intervals contain the true value in 98 % and 91 % of cases.
    factors = [1.1 if row in near else 1.5 for row in rows]
    return [_ratio(model, np.array([here, row]), factor) for row, factor in zip(rows, factors, strict=True)]


def _ratio(model: GaussianProcess, points: Indices, factor: float) -> Ratio:
    """Return the speed of the first of two points relative to the second."""
    first, second = model.predict(points).mean
    (own, shared), (_, other) = model.covariance(points)
    mean = float(first - second)
    # standard deviations to either side: 95 %
    margin = 1.96 * factor * math.sqrt(max(0.0, float(own - 2 * shared + other)))
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - margin), high=math.exp(mean + margin))
