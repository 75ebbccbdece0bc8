"""Acquisition: proposes a new point, a repeat of a promising one, or nothing.

A proposal's value is its knowledge gradient (Frazier, Powell & Dayanik 2008) times its probability of success (Gelbart,
Snoek & Adams 2014), divided by the square root of the expected duration; the duration itself would favour cheap,
unpromising points (`python -m scripts.bench search`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autotune.records import Scalar, Values
from autotune.sampler.gaussian_process import (
    Array,
    GaussianProcess,
    Indices,
    Posterior,
    SuccessProbability,
    TrainingData,
    normal_cdf,
)
from autotune.sampler.observations import Observation
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, is_among, same_scalar
from autotune.space.space import Space

MOST_TRIALS_OF_A_POINT = 6
"""Maximum number of trials of a point, confirmation excluded."""

WORTH_THE_REST = 0.002
"""Expected gain of the remaining trials, in ln score, below which the search ends."""

_HEURISTIC_GAIN = 0.05  # gain of an untried proposal of the heuristics, in ln score
_LARGEST_FIT = 300  # best points, fitted by the model; the others are far from any useful proposal
_MOST_CLASSIFIED = 60  # latest failed points, and as many successful ones, to learn the probability of success from
_EXPECTED_GAIN = 0.08  # of a recommended value, in ln score
_DRAWS = 1_000
_EVEN_CHANCE = 0.5
_MOST_DRAWS = 50  # for a point of the initial design


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Proposed next trial.

    Attributes:
        gain: Knowledge gradient, in ln score.
    """

    values: Values
    gain: float
    is_repeat: bool = False


class Acquisition:
    """Acquisition function over one space. Call `learn` first and after each trial."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._observations: Mapping[str, Observation] = {}
        self._measured: list[Observation] = []
        self._sd = 0.0
        self._pending_rows = 0  # rows of the model without a result yet
        self._something_failed = False
        self._failure_s = 0.0  # median duration of failed trials
        self._speed = GaussianProcess(space, [_prior_effects(knob) for knob in space.knobs])
        self._success = SuccessProbability(space)
        self._rng = np.random.default_rng(seed)
        self._believed: Mapping[str, float] | None = None
        self._row_of: dict[str, Indices] = {}

    def learn(self, observations: Mapping[str, Observation], sd: float, pending: Sequence[Values] = ()) -> None:
        """Refit the model.

        Args:
            sd: Standard deviation of ln score between trials of one point, above 0.
            pending: Points being measured elsewhere.
        """
        good = [one for one in observations.values() if one.scores or one.rough_scores]
        failed = [one for one in observations.values() if not (one.scores or one.rough_scores)]
        fitted = sorted(((*_observed(one, sd), one) for one in good), key=lambda one: -one[0])[:_LARGEST_FIT]
        measured, self._sd = [one for *_, one in fitted], sd
        if fitted:
            rows = self._rows(measured)
            scores = np.array([score for score, *_ in fitted])
            variances = np.array([variance for _, variance, _ in fitted])
            data = TrainingData(points=rows, scores=scores, variances=variances)
            self._speed.fit(data)
            self._pending_rows = 0
            if pending:
                data = self._with_pending(data, pending)
                self._pending_rows = len(data.scores) - len(scores)
                self._speed.fit(data, adapts=False)  # predictions don't inform the hyperparameters
        # assigned last: a signal handler may read `believed` during a fit
        self._observations, self._measured, self._believed = observations, measured, None
        self._something_failed = bool(failed)
        if self._something_failed:
            self._failure_s = median(one_s for one in failed for one_s in one.durations_s)
            tried = [*failed[-_MOST_CLASSIFIED:], *good[-_MOST_CLASSIFIED:]]
            self._success.fit(self._rows(tried), np.array([bool(one.scores or one.rough_scores) for one in tried]))

    def _with_pending(self, data: TrainingData, pending: Sequence[Values]) -> TrainingData:
        """Return the data with predictions in place of the results of pending trials.

        Kriging believer: Ginsbourger, Le Riche & Carraro, "Kriging is well-suited to parallelize optimization", 2010.
        """
        rows = np.unique(np.array([self._space.indices(values) for values in pending], dtype=np.int64), axis=0)
        variances = data.variances.copy()
        known = {row.tobytes(): place for place, row in enumerate(data.points)}
        places = [known.get(row.tobytes()) for row in rows]
        for place in places:
            if place is not None:
                variances[place] = 1.0 / (1.0 / variances[place] + self._sd**-2)
        new = rows[[place is None for place in places]]
        return TrainingData(
            points=np.vstack([data.points, new]),
            scores=np.concatenate([data.scores, self._speed.predict(new).mean]),
            variances=np.concatenate([variances, np.full(len(new), self._sd**2)]),
        )

    def next_trial(
        self,
        baseline: str,
        heuristic_values: Values | None,
        why_not: Callable[[Values], str | None],
        longest_s: float = math.inf,
        design_points: int = 0,
        is_doubtful: Callable[[Values], bool] = lambda _values: False,
        part: Space | None = None,
    ) -> Proposal | None:
        """Return the most valuable proposal, if any.

        The initial design is random: a model of points near the first ones would miss better ones elsewhere.

        Args:
            baseline: Name of the baseline, which isn't repeated: confirmation measures it.
            why_not: Returns why a point is predicted to fail.
            design_points: Size of the initial design, with the heuristics.
            is_doubtful: Returns whether a point needs a larger gain.
            part: Subspace to search, with the same knobs.
        """
        part = part or self._space
        ranked = self._ranked(baseline, part, longest_s)
        if heuristic_values is not None and self.may_take(heuristic_values, longest_s):
            repeat = next((trial for trial in ranked if trial.is_repeat), None)
            if repeat and repeat.gain > _HEURISTIC_GAIN:
                return repeat
            return Proposal(values=heuristic_values, gain=_HEURISTIC_GAIN)
        if self.tried_in(part) < design_points:
            # slow points run only if they may win
            known_s = [median(observation.durations_s) for observation in self._measured]
            most_s = min(longest_s, 2.0 * median(known_s)) if known_s else longest_s
            drawn = self._drawn(
                part,
                lambda values: why_not(values) is None and self.may_take(values, most_s) and not is_doubtful(values),
            )
            if drawn is not None:
                return Proposal(values=drawn, gain=_HEURISTIC_GAIN)
        doubtful: Proposal | None = None
        for trial in ranked:
            if trial.is_repeat:
                break
            if why_not(trial.values) is not None:
                continue
            if not is_doubtful(trial.values):
                break
            doubtful = doubtful or trial
        else:
            return doubtful
        # 0.5: probability of success of a point that ran out of memory on another machine
        return doubtful if doubtful and 0.5 * doubtful.gain > trial.gain else trial

    def _drawn(self, part: Space, may_try: Callable[[Values], bool]) -> Values | None:
        sizes = [len(knob.choices) for knob in part.knobs]
        drawn = self._to_full_space(part, self._rng.integers(0, sizes, (_MOST_DRAWS, len(sizes))))
        for point in drawn[np.argsort(-np.minimum(self._chances(drawn), _EVEN_CHANCE), kind="stable")]:
            values = self._space.at(point)
            if self._space.name(values) not in self._observations and may_try(values):
                return values
        return None

    def tried_in(self, part: Space) -> int:
        return len(self._within(part, list(self._observations.values())))

    def believed(self, part: Space | None = None) -> Mapping[str, float]:
        """Return the posterior mean ln score by point."""
        if part is not None:
            return {one.name: self.believed()[one.name] for one in self._within(part, self._good)}
        if self._believed is None:
            good = self._good
            means = self._posterior(self._rows(good)).mean if good else ()
            self._believed = {observation.name: float(mean) for observation, mean in zip(good, means, strict=True)}
        return self._believed

    def predicted(self, points: Sequence[Values]) -> list[float]:
        """Return the posterior mean ln score of points; some trial must have succeeded."""
        means = self._speed.predict(np.array([self._space.indices(values) for values in points])).mean
        return [float(mean) for mean in means]

    def promise(
        self, baseline: str, trials: int, why_not: Callable[[Values], str | None], part: Space | None = None
    ) -> float:
        """Return the expected gain of the best point, in ln score, from this many more trials.

        Monte Carlo estimate of the parallel knowledge gradient (Wu & Frazier 2016): one trial of each promising point.
        """
        part = part or self._space
        believed = self.believed(part)
        if not believed:
            return 0.0
        ranked = self._ranked(baseline, part)
        possible = (trial for trial in ranked if trial.is_repeat or why_not(trial.values) is None)
        # look ahead at most 64 trials: more make no difference
        chosen = [self._space.indices(trial.values) for trial in islice(possible, min(trials, 64))]
        best = self._observations[max(believed, key=lambda name: believed[name])]
        points = np.unique(np.array([*chosen, self._space.indices(best.values)]), axis=0)
        means, covariance = self._posterior(points).mean, self._speed.covariance(points)
        # covariance of the change of the posterior mean by one trial of each
        learned = covariance @ np.linalg.solve(covariance + self._sd**2 * np.eye(len(points)), covariance)
        values, vectors = np.linalg.eigh(learned)
        draws = self._rng.standard_normal((_DRAWS, len(points))) * np.sqrt(np.maximum(values, 0.0))
        return float(np.mean(np.max(means + draws @ vectors.T, axis=1)) - believed[best.name])

    @property
    def _good(self) -> list[Observation]:
        return [observation for observation in self._measured if observation.scores]

    def _ranked(self, baseline: str, part: Space, longest_s: float = math.inf) -> Iterator[Proposal]:
        good, observations = self._within(part, self._good), self._observations
        rows = self._rows(observations.values())
        known = {row.tobytes(): observation for row, observation in zip(rows, observations.values(), strict=True)}
        if not good:
            # no trial has succeeded yet
            points = self._rng.permutation(self._candidates(part, [part.baseline]))
            new = (point for point in points if point.tobytes() not in known)
            yield from (Proposal(values=self._space.at(point), gain=_HEURISTIC_GAIN) for point in new)
            return
        rows = self._rows(good)
        means = self._posterior(rows).mean
        order = np.argsort(-means)
        # neighbours of the 5 best points are candidates
        points = self._candidates(part, [good[index].values for index in order[:5]])
        posterior = self._posterior(points)
        # a point has to exceed the best one, which itself has to fall behind the next
        rivals = np.full(len(points), means[order[0]])
        if len(order) > 1:
            rivals[(points == rows[order[0]]).all(axis=1)] = means[order[1]]
        chances = self._chances(points)
        is_new = np.array([point.tobytes() not in known for point in points])
        gains = knowledge_gradient(posterior, rivals, self._sd, is_new) * chances
        expected_s = self._expected_s(points)
        cost_s = chances * expected_s + (1.0 - chances) * self._failure_s
        for index in np.argsort(-gains / np.sqrt(cost_s)):
            observation = known.get(points[index].tobytes())
            if expected_s[index] <= longest_s and (observation is None or _may_repeat(observation, baseline)):
                yield Proposal(
                    values=self._space.at(points[index]), gain=float(gains[index]), is_repeat=observation is not None
                )

    def _candidates(self, part: Space, best: Sequence[Values]) -> Indices:
        return self._to_full_space(part, candidates(part, best, self._rng))

    def _to_full_space(self, part: Space, points: Indices) -> Indices:
        if part is self._space:
            return points
        columns = zip(self._places(part), points.T, strict=True)
        return np.column_stack([places[column] for places, column in columns])

    def _within(self, part: Space, observations: Sequence[Observation]) -> Sequence[Observation]:
        if part is self._space or not observations:
            return observations
        columns = zip(self._places(part), self._rows(observations).T, strict=True)
        is_there = np.all([np.isin(column, places) for places, column in columns], axis=0)
        return [observation for observation, inside in zip(observations, is_there, strict=True) if inside]

    def _places(self, part: Space) -> list[Indices]:
        pairs = zip(self._space.knobs, part.knobs, strict=True)
        return [np.array([knob.index(choice) for choice in one.choices], dtype=np.int64) for knob, one in pairs]

    def _expected_s(self, points: Indices) -> Array:
        known_s = np.log([median(observation.durations_s) for observation in self._measured])
        known_s = np.append(known_s, np.full(self._pending_rows, np.median(known_s)))  # pending trials: the median
        return np.asarray(np.exp(self._speed.regress(known_s, points)))

    def may_take(self, values: Values, longest_s: float) -> bool:
        """Return whether a trial is expected to take no longer; True if nothing is known yet."""
        return math.isinf(longest_s) or (self.expected_s(values) or 0.0) <= longest_s

    def expected_s(self, values: Values) -> float | None:
        """Return the expected duration of a trial; None if nothing is known yet."""
        if not self._measured:
            return None
        return float(self._expected_s(np.array([self._space.indices(values)]))[0])

    def _posterior(self, points: Indices) -> Posterior:
        posterior = self._speed.predict(points)
        # 1.5: the standard deviation excludes the error of the model itself
        return Posterior(mean=posterior.mean, sd=1.5 * posterior.sd)

    def _rows(self, observations: Iterable[Observation]) -> Indices:
        rows = []
        for observation in observations:
            if observation.name not in self._row_of:
                self._row_of[observation.name] = np.array(self._space.indices(observation.values), dtype=np.int64)
            rows.append(self._row_of[observation.name])
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self._space.knobs))

    def _chances(self, points: Indices) -> Array:
        if not self._something_failed:
            return np.ones(len(points))
        return self._success.predict(points)


def knowledge_gradient(posterior: Posterior, rivals: Array, sd: float, is_new: NDArray[np.bool_]) -> Array:
    """Return the knowledge gradient of one more trial of each point, in ln score, shape (n_points,).

    Args:
        rivals: Mean to exceed, or fall below, shape (n_points,).
        sd: Standard deviation of one trial, in ln score.
        is_new: Whether a point has no trial, shape (n_points,).
    """
    # standard deviation of the change of the posterior mean by one more trial
    change = posterior.sd**2 / np.sqrt(posterior.sd**2 + sd**2)
    beyond = posterior.mean - rivals
    distance = np.where(is_new, beyond, -np.abs(beyond)) / change
    gains: Array = change * (distance * normal_cdf(distance) + np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi))
    return gains


def _may_repeat(observation: Observation, baseline: str) -> bool:
    return observation.name != baseline and bool(observation.scores) and observation.trials < MOST_TRIALS_OF_A_POINT


def _observed(observation: Observation, sd: float) -> tuple[float, float]:
    # 0.15: additional standard deviation of a trial with too few steps
    weights = [*(sd**-2 for _ in observation.scores), *((sd**2 + 0.15**2) ** -1 for _ in observation.rough_scores)]
    scores = [*observation.scores, *observation.rough_scores]
    return sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights), 1 / sum(weights)


def _prior_effects(knob: Knob) -> Array:
    """Return the expected effect of each choice, in ln score over the baseline, shape (n_choices,)."""
    prior = np.zeros(len(knob.choices))
    baseline = knob.index(knob.baseline)
    for value in knob.heuristic_values:
        recommended = knob.index(value)
        assert recommended is not None
        assert baseline is not None
        prior[recommended] = _EXPECTED_GAIN
        if knob.ordered:  # choices on the recommended side share the gain, those on the other side its negative
            further = np.arange(len(prior)) > baseline if recommended > baseline else np.arange(len(prior)) < baseline
            prior[further] = _EXPECTED_GAIN
            prior[~further] = -_EXPECTED_GAIN
            prior[baseline] = 0.0
    return prior


# Candidates


LISTED_POINTS = 2_000
"""Largest space, in points, to enumerate."""

_RANDOM_POINTS = 300


def candidates(space: Space, best: Sequence[Values], rng: np.random.Generator) -> Indices:
    """Return the whole of a small space, otherwise neighbours of the best points and random points.

    They are distinct, perhaps invalid, of shape (n_points, n_knobs), with unused knobs at the baseline's value.
    """
    sizes = [len(knob.choices) for knob in space.knobs]
    if space.size <= LISTED_POINTS:
        points = np.array(list(product(*map(range, sizes))), dtype=np.int64)
        return _without_unused(points.reshape(space.size, len(sizes)), space)
    anywhere = np.column_stack([rng.integers(0, size, _RANDOM_POINTS) for size in sizes])
    found = [anywhere]
    for values in best:
        center = np.array(space.indices(values))
        found.append(_neighbours(center, sizes))
        pairs = np.tile(center, (300 // len(best), 1))  # random points, two changes away
        columns = np.argsort(rng.random(pairs.shape), axis=1)[:, :2]
        np.put_along_axis(pairs, columns, rng.integers(0, np.array(sizes)[columns]), axis=1)
        found.append(pairs)
    return _without_unused(np.concatenate(found), space)


def _without_unused(points: Indices, space: Space) -> Indices:
    columns = {knob.path: column for column, knob in enumerate(space.knobs)}
    baseline = space.indices(space.baseline)
    for column, knob in enumerate(space.knobs):
        if knob.inactive_if and knob.inactive_if.path in columns:
            other = columns[knob.inactive_if.path]
            places = (space.knobs[other].index(value) for value in knob.inactive_if.values)
            under = [place for place in places if place is not None]
            points[np.isin(points[:, other], under), column] = baseline[column]
    return np.unique(points, axis=0)


def _neighbours(center: Indices, sizes: Sequence[int]) -> Indices:
    """Return the points that differ from one in at most one knob, shape (n_points, n_knobs)."""
    rows = np.tile(center, (sum(sizes), 1))
    number = 0
    for column, size in enumerate(sizes):
        rows[number : number + size, column] = np.arange(size)
        number += size
    return rows


# Heuristics of the initial design


def heuristic_proposals(
    space: Space,
    observations: Mapping[str, Observation],
    data_wait: float | None,
    *,
    has_gpu: bool,
    short_passes: bool,
    pending: Sequence[Values] = (),
) -> Iterator[Values]:
    """Yield untried heuristic proposals, most urgent first.

    The first sets all bundled knobs, each other one a knob of the best point. A larger recommended value follows only
    if the best point has the previous one; after a failure, a value halfway.

    Args:
        data_wait: Fraction of the time that the baseline's loop waits for data, 0 to 1.
        short_passes: Whether a trial covers a full pass over the data; otherwise caches come last.
        pending: Points being measured elsewhere; a pending first proposal counts as the best point.
    """
    # a loader that shares its processor with the step may slow it down without any wait
    is_not_input_bound = has_gpu and data_wait is not None and data_wait < 0.05
    bundle = space.baseline
    for knob in space.knobs:
        is_cheap = knob.bundled and (short_passes or not _settles(knob)) and not knob.is_inactive(bundle)
        if is_cheap and knob.heuristic_values:
            extended = space.with_heuristic(bundle, knob.path, knob.heuristic_values[0])
            bundle = bundle if space.is_late(extended) else extended
    is_pending = space.name(bundle) not in observations and space.name(bundle) in map(space.name, pending)
    if space.name(bundle) not in observations and not is_pending and not is_not_input_bound:
        yield bundle
    good = [observation for observation in observations.values() if observation.scores]
    best = max(good, key=lambda observation: observation.mean, default=None)
    start = best.values if best and not is_pending else bundle
    tried = [*(observation.values for observation in observations.values()), *pending]
    # a longer wait points to the loader
    device_first = is_not_input_bound or (data_wait is not None and data_wait < 0.3)

    def urgency(knob: Knob) -> tuple[bool, bool]:
        return _settles(knob) and not short_passes, traits_of(knob).on_step != device_first

    with_effect = [knob for knob in space.knobs if not knob.is_inactive(start)]
    for knob in sorted(with_effect, key=urgency):
        for before, value in zip((None, *knob.heuristic_values), knob.heuristic_values, strict=False):
            has_helped = before is None or same_scalar(start[knob.path], before)
            if has_helped and not is_among(value, (values[knob.path] for values in tried)):
                yield space.with_heuristic(start, knob.path, value)
        if (half := _half_way(knob, start, observations.values())) is not None:
            yield space.with_heuristic(start, knob.path, half)


def _half_way(knob: Knob, start: Values, observations: Iterable[Observation]) -> Scalar:
    known = [(knob.index(one.values[knob.path]) or 0, bool(one.scores)) for one in observations]
    worked = {place for place, has_worked in known if has_worked}
    failed = {place for place, _ in known if knob.choices[place] in knob.heuristic_values} - worked
    place = knob.index(start[knob.path])
    if not failed or not knob.ordered or place is None:
        return None
    nearest = min(failed, key=lambda other: abs(other - place))
    half = (place + nearest) // 2 if nearest > place else -(-(place + nearest) // 2)
    return None if half == place or half in dict(known) else knob.choices[half]


def _settles(knob: Knob) -> bool:
    return any(is_among(value, knob.settling) for value in knob.heuristic_values)
