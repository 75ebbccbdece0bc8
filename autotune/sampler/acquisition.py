"""Acquisition: the next proposal of a search, a new point, a repeat of a promising one, or none.

There are no tests on the way. One model of all trials predicts every point, measured or not
(`autotune.sampler.gaussian_process`), and each proposal is valued by the knowledge gradient (Frazier, Powell & Dayanik
2008): the expected improvement of the final answer, in ln score. A point that may fail is weighted by its probability
of success (Gelbart, Snoek & Adams 2014), and a long trial is discounted by the square root of its expected duration:
one that fails may be short. (Discounting by the duration itself prefers cheap points far from anything good to
expensive promising ones; `python -m scripts.bench search` shows it.)
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
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space

MOST_TRIALS_OF_A_POINT = 6
"""Most trials of one point during the search."""

WORTH_THE_REST = 0.002
"""Expected gain in ln score of the remaining trials, below which the search ends."""

_HEURISTIC_GAIN = 0.05  # gain of an untried proposal of the heuristics, in ln score
_LARGEST_FIT = 300  # points in the model: the best ones; the others are far from any useful proposal
_MOST_CLASSIFIED = 60  # latest points that failed, and as many that did not, of which the chances are learned
_EXPECTED_GAIN = 0.08  # of a recommended value, in ln score
_DRAWS = 1_000
_EVEN_CHANCE = 0.5
_MOST_DRAWS = 50  # for a point of the initial design


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Proposed next trial.

    Attributes:
        gain: Knowledge gradient: expected gain of the answer, in ln score.
        is_repeat: True if the point was measured before.
    """

    values: Values
    gain: float
    is_repeat: bool = False


class Acquisition:
    """Chooser of the next trial of a search; call `learn` first, and again after each trial."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._observations: Mapping[str, Observation] = {}
        self._measured: list[Observation] = []
        self._sd = 0.0
        self._expected_rows = 0  # of the model, that stand for pending trials
        self._something_failed = False
        self._failure_s = 0.0  # usual duration of a trial that fails
        self._speed = GaussianProcess(space, advice=[_advice(knob) for knob in space.knobs])
        self._success = SuccessProbability(space)
        self._rng = np.random.default_rng(seed)
        self._believed: Mapping[str, float] | None = None
        self._row_of: dict[str, Indices] = {}

    def learn(self, observations: Mapping[str, Observation], sd: float, pending: Sequence[Values] = ()) -> None:
        """Fit the model to all observations, in place of the earlier ones.

        Args:
            sd: Standard deviation of ln score between trials of one point, above 0.
            pending: Points that other machines measure now.
        """
        fitted = [
            (*_observed(observation, sd), observation)
            for observation in observations.values()
            if observation.scores or observation.rough_scores
        ]
        fitted = sorted(fitted, key=lambda one: -one[0])[:_LARGEST_FIT]
        measured, self._sd = [observation for *_, observation in fitted], sd
        if fitted:
            rows = self._rows(measured)
            scores = np.array([score for score, *_ in fitted])
            variances = np.array([variance for _, variance, _ in fitted])
            data = TrainingData(points=rows, scores=scores, variances=variances)
            self._speed.fit(data)
            self._expected_rows = 0
            if pending:
                data = self._with_pending(data, pending)
                self._expected_rows = len(data.scores) - len(scores)
                self._speed.fit(data, adapts=False)  # what is only expected tells nothing of them
        # last, as a signal may come while it fits, and what is believed is asked for then, too
        self._observations, self._measured, self._believed = observations, measured, None
        good = [one for one in observations.values() if one.scores or one.rough_scores]
        failed = [one for one in observations.values() if not (one.scores or one.rough_scores)]
        self._something_failed = bool(failed)
        if self._something_failed:
            self._failure_s = median(one_s for one in failed for one_s in one.durations_s)
            tried = [*failed[-_MOST_CLASSIFIED:], *good[-_MOST_CLASSIFIED:]]
            self._success.fit(self._rows(tried), np.array([bool(one.scores or one.rough_scores) for one in tried]))

    def _with_pending(self, data: TrainingData, pending: Sequence[Values]) -> TrainingData:
        """Return the data as if pending trials had shown just what is expected of them.

        That leaves the mean as it is, and makes the model sure of what will soon be known (the *Kriging believer* of
        Ginsbourger, Le Riche & Carraro, "Kriging is well-suited to parallelize optimization", 2010).
        """
        rows = np.unique(np.array([self._space.indices(values) for values in pending], dtype=np.int64), axis=0)
        means, variances = data.scores, data.variances.copy()
        known = {row.tobytes(): place for place, row in enumerate(data.points)}
        places = [known.get(row.tobytes()) for row in rows]
        for place in places:
            if place is not None:
                variances[place] = 1.0 / (1.0 / variances[place] + self._sd**-2)
        new = rows[[place is None for place in places]]
        if not len(new):
            return TrainingData(points=data.points, scores=means, variances=variances)
        return TrainingData(
            points=np.vstack([data.points, new]),
            scores=np.concatenate([means, self._speed.predict(new).mean]),
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
        """Return the proposal of the largest value.

        While fewer points are known than an initial design has, the next one is drawn at random: a model of points that
        are all near the first ones does not know of better ones elsewhere.

        Args:
            baseline: Name of the baseline; it is not repeated here, the confirmation measures it.
            heuristic_values: Next proposal of the heuristics; None if there is none.
            why_not: Returns the reason why a point is predicted to fail; None if it may run.
            longest_s: Longest expected duration of a trial that is allowed.
            design_points: Number of points of the initial design, those of the heuristics included.
            is_doubtful: Returns whether a point may fail by what is known of other machines, or is to be tried last: it
                has to promise more than others, and is not drawn at random.
            part: The part of the space that is searched, with the same knobs; None for all of it. The model is of the
                trials of all points.

        Returns:
            The proposal; None if every point has had its trials, is predicted to fail, or would take too long.
        """
        part = part or self._space
        ranked = self._ranked(baseline, part, longest_s)
        if heuristic_values is not None and self.may_take(heuristic_values, longest_s):
            repeat = next((trial for trial in ranked if trial.is_repeat), None)
            return (
                repeat
                if repeat and repeat.gain > _HEURISTIC_GAIN
                else Proposal(values=heuristic_values, gain=_HEURISTIC_GAIN)
            )
        if self.tried_in(part) < design_points:
            most_s = min(longest_s, self._longest_drawn_s())
            drawn = self._drawn(
                part,
                lambda values: why_not(values) is None and self.may_take(values, most_s) and not is_doubtful(values),
            )
            if drawn is not None:
                return Proposal(values=drawn, gain=_HEURISTIC_GAIN)
        doubted: Proposal | None = None
        for trial in ranked:
            if trial.is_repeat:
                break
            if why_not(trial.values) is not None:
                continue
            if not is_doubtful(trial.values):
                break
            doubted = doubted or trial
        else:
            return doubted
        # probability of success of a point that ran out of memory on another machine
        return doubted if doubted and 0.5 * doubted.gain > trial.gain else trial

    def _longest_drawn_s(self) -> float:
        """Return the longest expected trial of a point at random: what starts slowly is tried where it may win."""
        known_s = [median(observation.durations_s) for observation in self._measured]
        return 2.0 * median(known_s) if known_s else math.inf

    def _drawn(self, part: Space, may_try: Callable[[Values], bool]) -> Values | None:
        """Return a new point drawn at random, one that will rather succeed than fail if there is any; None for none."""
        sizes = [len(knob.choices) for knob in part.knobs]
        drawn = self._in_whole(part, self._rng.integers(0, sizes, (_MOST_DRAWS, len(sizes))))
        for point in drawn[np.argsort(-np.minimum(self._chances(drawn), _EVEN_CHANCE), kind="stable")]:
            values = self._space.at(point)
            if self._space.name(values) not in self._observations and may_try(values):
                return values
        return None

    def tried_in(self, part: Space) -> int:
        """Return the number of points of a part of the space that have a trial."""
        return len(self._within(part, list(self._observations.values())))

    def believed(self, part: Space | None = None) -> Mapping[str, float]:
        """Posterior mean ln score of each point that gave comparable numbers, by the point's name.

        Unlike the mean of its own trials, it is not biased towards a point that was lucky.

        Args:
            part: The part of the space that they are in; None for all of it.
        """
        if part is not None:
            return {one.name: self.believed()[one.name] for one in self._within(part, self._good)}
        if self._believed is None:
            good = self._good
            means = self._posterior(self._rows(good)).mean if good else ()
            self._believed = {observation.name: float(mean) for observation, mean in zip(good, means, strict=True)}
        return self._believed

    def predicted(self, points: Sequence[Values]) -> Sequence[float]:
        """Return the posterior mean ln score of these points, measured or not; some trial must have given numbers."""
        means: list[float] = self._speed.predict(
            np.array([self._space.indices(values) for values in points])
        ).mean.tolist()
        return means

    def promise(
        self, baseline: str, trials: int, why_not: Callable[[Values], str | None], part: Space | None = None
    ) -> float:
        """Return the expected gain of the best point, in ln score, from that many more trials.

        As if they were all chosen now: one trial of each of the most promising points (the parallel knowledge gradient;
        Wu & Frazier 2016); the expectation is a Monte Carlo estimate.

        Args:
            trials: Number of trials that there is time for; beyond some dozens more make no difference.
            part: The part of the space that is searched; None for all of it.
        """
        part = part or self._space
        believed = self.believed(part)
        if not believed:
            return 0.0
        ranked = self._ranked(baseline, part)
        possible = (trial for trial in ranked if trial.is_repeat or why_not(trial.values) is None)
        # so many trials are looked ahead at most
        chosen = [self._space.indices(trial.values) for trial in islice(possible, min(trials, 64))]
        best = self._observations[max(believed, key=lambda name: believed[name])]
        points = np.unique(np.array([*chosen, self._space.indices(best.values)]), axis=0)
        means, covariance = self._posterior(points).mean, self._speed.covariance(points)
        # Change of the posterior mean by a trial of each: its distribution around the present one.
        learned = covariance @ np.linalg.solve(covariance + self._sd**2 * np.eye(len(points)), covariance)
        values, vectors = np.linalg.eigh(learned)
        draws = self._rng.standard_normal((_DRAWS, len(points))) * np.sqrt(np.maximum(values, 0.0))
        return float(np.mean(np.max(means + draws @ vectors.T, axis=1)) - believed[best.name])

    @property
    def _good(self) -> list[Observation]:
        """Points of the model that gave comparable numbers."""
        return [observation for observation in self._measured if observation.scores]

    def _ranked(self, baseline: str, part: Space, longest_s: float = math.inf) -> Iterator[Proposal]:
        """Yield the possible proposals in a part of the space, best value for its duration first."""
        good, observations = self._within(part, self._good), self._observations
        known = {
            row.tobytes(): observation
            for row, observation in zip(self._rows(observations.values()), observations.values(), strict=True)
        }
        if not good:
            # No trial has succeeded yet: only the failures are known.
            points = self._rng.permutation(self._candidates(part, [part.baseline]))
            new = (point for point in points if point.tobytes() not in known)
            yield from (Proposal(values=self._space.at(point), gain=_HEURISTIC_GAIN) for point in new)
            return
        rows = self._rows(good)
        means = self._posterior(rows).mean
        order = np.argsort(-means)
        # best points whose neighbours are candidates
        points = self._candidates(part, [good[index].values for index in order[:5]])
        posterior = self._posterior(points)
        # A point has to exceed the best one; the best one itself has to fall behind the next.
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
        return self._in_whole(part, candidates(part, best, self._rng))

    def _in_whole(self, part: Space, points: Indices) -> Indices:
        """Return points of a part of the space by their positions in all of it."""
        if part is self._space:
            return points
        columns = zip(self._places(part), points.T, strict=True)
        return np.column_stack([places[column] for places, column in columns])

    def _within(self, part: Space, observations: Sequence[Observation]) -> Sequence[Observation]:
        """Return the points that are in a part of the space."""
        if part is self._space or not observations:
            return observations
        columns = zip(self._places(part), self._rows(observations).T, strict=True)
        is_there = np.all([np.isin(column, places) for places, column in columns], axis=0)
        return [observation for observation, inside in zip(observations, is_there, strict=True) if inside]

    def _places(self, part: Space) -> list[Indices]:
        """Return where the choices of each knob of a part are among those of the whole."""
        pairs = zip(self._space.knobs, part.knobs, strict=True)
        return [np.array([knob.index(choice) for choice in one.choices], dtype=np.int64) for knob, one in pairs]

    def _expected_s(self, points: Indices) -> Array:
        """Return the expected duration of a trial of each point, in seconds, shape (n_points,)."""
        known_s = np.log([median(observation.durations_s) for observation in self._measured])
        known_s = np.append(known_s, np.full(self._expected_rows, np.median(known_s)))  # pending trials: as usual
        return np.asarray(np.exp(self._speed.regress(known_s, points)))

    def may_take(self, values: Values, longest_s: float) -> bool:
        """Return whether a trial of a point is expected to be no longer than that; True as long as nothing is known."""
        return math.isinf(longest_s) or (self.expected_s(values) or 0.0) <= longest_s

    def expected_s(self, values: Values) -> float | None:
        """Return the expected duration of a trial of a point, in seconds; None as long as nothing is known."""
        if not self._measured:
            return None
        return float(self._expected_s(np.array([self._space.indices(values)]))[0])

    def _posterior(self, points: Indices) -> Posterior:
        posterior = self._speed.predict(points)
        # factor on the model's standard deviation, which leaves the error of the model itself out
        return Posterior(mean=posterior.mean, sd=1.5 * posterior.sd)

    def _rows(self, observations: Iterable[Observation]) -> Indices:
        rows = []
        for observation in observations:
            if observation.name not in self._row_of:
                self._row_of[observation.name] = np.array(self._space.indices(observation.values), dtype=np.int64)
            rows.append(self._row_of[observation.name])
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self._space.knobs))

    def _chances(self, points: Indices) -> Array:
        """Return the probability that a trial of each point succeeds, shape (n_points,)."""
        if not self._something_failed:
            return np.ones(len(points))
        return self._success.predict(points)


def knowledge_gradient(posterior: Posterior, rivals: Array, sd: float, is_new: NDArray[np.bool_]) -> Array:
    """Return the expected improvement of the answer by one more trial of each point, in ln score, shape (n_points,).

    The answer is a point that was measured: a new one that is believed to be better is an improvement once it is.

    Args:
        rivals: The mean that each has to exceed, or to fall below, shape (n_points,).
        sd: Standard deviation of one trial, in ln score.
        is_new: Whether it has no trial yet, shape (n_points,).
    """
    # Standard deviation of the change that one more trial makes to the posterior mean.
    change = posterior.sd**2 / np.sqrt(posterior.sd**2 + sd**2)
    beyond = posterior.mean - rivals
    distance = np.where(is_new, beyond, -np.abs(beyond)) / change
    gains: Array = change * (distance * normal_cdf(distance) + np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi))
    return gains


def _may_repeat(observation: Observation, baseline: str) -> bool:
    return observation.name != baseline and bool(observation.scores) and observation.trials < MOST_TRIALS_OF_A_POINT


def _observed(observation: Observation, sd: float) -> tuple[float, float]:
    """Return the mean ln score of a point's trials and the variance of that mean."""
    # additional standard deviation of a trial with too few steps
    weights = [*(sd**-2 for _ in observation.scores), *((sd**2 + 0.15**2) ** -1 for _ in observation.rough_scores)]
    scores = [*observation.scores, *observation.rough_scores]
    return sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights), 1 / sum(weights)


def _advice(knob: Knob) -> Array:
    """Return the effect that an expert expects of each choice, in ln score over the baseline, shape (n_choices,)."""
    prior = np.zeros(len(knob.choices))
    baseline = knob.index(knob.baseline)
    for value in knob.heuristic_values:
        recommended = knob.index(value)
        assert recommended is not None
        assert baseline is not None
        prior[recommended] = _EXPECTED_GAIN
        if knob.ordered:  # choices further that way share the gain, those the other way its negative
            further = np.arange(len(prior)) > baseline if recommended > baseline else np.arange(len(prior)) < baseline
            prior[further] = _EXPECTED_GAIN
            prior[~further] = -_EXPECTED_GAIN
            prior[baseline] = 0.0
    return prior


# Candidate points of the acquisition: all of a small space, else neighbours of the best points and random draws.


LISTED_POINTS = 2_000
"""Largest space, in points, that is enumerated as a whole."""

_ANYWHERE = 300  # points drawn from the whole space


def candidates(space: Space, best: Sequence[Values], rng: np.random.Generator) -> Indices:
    """Return the candidates: the whole of a small space, else points around the best ones and random ones.

    Args:
        best: The points whose neighbourhoods are candidates, as knob values.

    Returns:
        Points without duplicates, shape (n_points, n_knobs), with a knob that has no effect at the baseline's value;
        those that cannot work are included.
    """
    return np.unique(_without_inert(_candidates(space, best, rng), space), axis=0)


def _candidates(space: Space, best: Sequence[Values], rng: np.random.Generator) -> Indices:
    sizes = [len(knob.choices) for knob in space.knobs]
    if space.size <= LISTED_POINTS:
        return np.array(list(product(*(range(size) for size in sizes))), dtype=np.int64).reshape(space.size, len(sizes))
    anywhere = np.column_stack([rng.integers(0, size, _ANYWHERE) for size in sizes])
    found = [anywhere]
    for values in best:
        center = np.array(space.indices(values))
        found.append(_neighbours(center, sizes))
        pairs = np.tile(center, (300 // len(best), 1))  # points two changes away from one of the best, drawn at random
        columns = np.argsort(rng.random(pairs.shape), axis=1)[:, :2]
        np.put_along_axis(pairs, columns, rng.integers(0, np.array(sizes)[columns]), axis=1)
        found.append(pairs)
    return np.concatenate(found)


def _without_inert(points: Indices, space: Space) -> Indices:
    columns = {knob.path: column for column, knob in enumerate(space.knobs)}
    points, baseline = points.copy(), space.indices(space.baseline)
    for column, knob in enumerate(space.knobs):
        if knob.inactive_if and knob.inactive_if.path in columns:
            other = columns[knob.inactive_if.path]
            places = (space.knobs[other].index(value) for value in knob.inactive_if.values)
            under = [place for place in places if place is not None]
            points[np.isin(points[:, other], under), column] = baseline[column]
    return points


def _neighbours(center: Indices, sizes: Sequence[int]) -> Indices:
    """Return all points that differ from one of shape (n_knobs,) in one knob at most, shape (n_points, n_knobs)."""
    rows = np.tile(center, (sum(sizes), 1))
    number = 0
    for column, size in enumerate(sizes):
        rows[number : number + size, column] = np.arange(size)
        number += size
    return rows


# Initial design by rules of thumb: the values that an expert would try first, given what the trials showed so far.


def heuristic_proposals(
    space: Space,
    observations: Mapping[str, Observation],
    data_wait: float | None,
    *,
    has_gpu: bool,
    short_passes: bool,
    pending: Sequence[Values] = (),
) -> Iterator[Values]:
    """Yield the untried proposals of an expert, the most urgent first, each based on the best point so far.

    The first sets all bundled knobs at once (they are cheap, safe, and rarely harm each other). Each further one
    changes one knob of the best point so far to a recommended value that no trial has tried, so improvements are kept.
    Of several recommended values of a knob (larger and larger batches) each is proposed only if the best point holds
    the one before it; where one fails, the value half way to it is.

    Args:
        data_wait: Fraction of its time that the baseline's training loop waits for data, 0 to 1; None if unknown.
        has_gpu: True if the step runs on a device of its own. Where step and loader share the processor, the loader may
            slow down even a loop that does not wait.
        short_passes: True if a trial covers a whole pass over the data. Otherwise every trial with a cache has to wait
            for one, and the cache comes last.
        pending: Points that other machines measure now. While the first proposal is one of them, further ones build on
            it, as if it had kept its promise.
    """
    # ... or, where the loader does not share its processor with the step, it is not
    loader_is_innocent = has_gpu and data_wait is not None and data_wait < 0.05
    bundle = space.baseline
    for knob in space.knobs:
        is_cheap = knob.bundled and (short_passes or not _settles(knob)) and not knob.is_inactive(bundle)
        if is_cheap and knob.heuristic_values:
            extended = space.with_heuristic(bundle, knob.path, knob.heuristic_values[0])
            bundle = bundle if space.is_late(extended) else extended
    is_tried_now = space.name(bundle) not in observations and space.name(bundle) in map(space.name, pending)
    if space.name(bundle) not in observations and not is_tried_now and not loader_is_innocent:
        yield bundle
    good = [observation for observation in observations.values() if observation.scores]
    best = max(good, key=lambda observation: observation.mean, default=None)
    start = best.values if best and not is_tried_now else bundle
    tried = [*(observation.values for observation in observations.values()), *pending]
    # share of the time that the baseline's loop waits for data: the loader is to blame ...
    device_first = loader_is_innocent or (data_wait is not None and data_wait < 0.3)

    def urgency(knob: Knob) -> tuple[bool, bool]:
        return _settles(knob) and not short_passes, traits_of(knob).on_step != device_first

    with_effect = [knob for knob in space.knobs if not knob.is_inactive(start)]
    for knob in sorted(with_effect, key=urgency):
        for before, value in zip((None, *knob.heuristic_values), knob.heuristic_values, strict=False):
            has_helped = before is None or same_scalar(start[knob.path], before)
            if has_helped and not any(same_scalar(values[knob.path], value) for values in tried):
                yield space.with_heuristic(start, knob.path, value)
        if (half := _half_way(knob, start, observations.values())) is not None:
            yield space.with_heuristic(start, knob.path, half)


def _half_way(knob: Knob, start: Values, observations: Iterable[Observation]) -> Scalar:
    """Return the value half way to a recommended one with which every trial failed; None for none that is new."""
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
    return any(same_scalar(value, late) for value in knob.heuristic_values for late in knob.settling)
