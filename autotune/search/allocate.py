"""Where the next run pays most: a new point, a promising point once more, or nowhere any more.

No tests are made on the way. What is believed of every point, measured or not, comes from one model of all runs
(`autotune.search.surrogate`), and each possible run is valued by the knowledge gradient (Frazier, Powell & Dayanik
2008): how much better the answer is expected to be for it, in ln score. The best value for its time wins. A point
that may fail counts by its chance to run.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median

import numpy as np

from autotune.records import Values
from autotune.search.levels import PointLevel, best_level
from autotune.search.propose import candidates
from autotune.search.surrogate import Array, Indices, Observations, Posterior, Surrogate
from autotune.space.space import Space

LARGEST_REPEATS = 6
"""Runs of one point, at most, while searching."""

WORTH_A_RUN = 0.001
"""Expected gain in ln score below which another run no longer pays."""

_ADVICE_GAIN = 0.05  # what an untried piece of an expert's advice promises
_LARGEST_FIT = 300  # points that the model is made of: the best ones; the rest is far from anything worth asking
_LOOKED_AROUND = 5  # best points whose neighbourhood is searched
_ACCIDENTS = 0.02  # variance of a success: some failures have nothing to do with the point
_LEAST_CHANCE = 0.02
_MOST_PROMISED = 64  # runs that are looked ahead
_DRAWS = 1_000


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A run to make next.

    Attributes:
        values: The point.
        gain: What the run promises, in ln score of the answer.
        is_repeat: Whether it was measured before.
    """

    values: Values
    gain: float
    is_repeat: bool = False


class Allocator:
    """Chooses the runs of one search.

    Args:
        space: What may vary.
        seed: Makes its choices repeatable.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._speed = Surrogate(space)
        self._success = Surrogate(space)
        self._rng = np.random.default_rng(seed)
        self._row_of: dict[str, Indices] = {}

    def next_run(
        self,
        levels: Mapping[str, PointLevel],
        today: str,
        sd: float,
        advice: Values | None,
        why_not: Callable[[Values], str | None],
    ) -> Allocation | None:
        """Values the possible next runs and takes the best.

        Args:
            levels: What is known of each point.
            today: Name of today's point; it is not repeated here, the confirmation measures it.
            sd: Standard deviation of ln score between runs of one point.
            advice: What an expert would try next; None if nothing.
            why_not: Says why a point will not run, None if it may.

        Returns:
            The next run; None if every point was tried often enough, or will not run.
        """
        ranked = self._ranked(levels, today, sd)
        if advice is not None:
            repeat = next((run for run in ranked if run.is_repeat), None)
            return repeat if repeat and repeat.gain > _ADVICE_GAIN else Allocation(values=advice, gain=_ADVICE_GAIN)
        return next((run for run in ranked if run.is_repeat or why_not(run.values) is None), None)

    def promise(
        self,
        levels: Mapping[str, PointLevel],
        today: str,
        sd: float,
        runs: int,
        why_not: Callable[[Values], str | None],
    ) -> float:
        """How much better the best point will probably be, in ln score, after that many more runs.

        As if they were all chosen now: one run each of the points that promise most (the parallel knowledge gradient;
        Wu & Frazier 2016), its expectation drawn by chance.

        Args:
            levels: As for `next_run`.
            today: As for `next_run`.
            sd: As for `next_run`.
            runs: Runs that there would be time for; beyond some dozens more make no difference.
            why_not: As for `next_run`.
        """
        if not any(level.scores for level in levels.values()):
            return 0.0
        possible = (run for run in self._ranked(levels, today, sd) if run.is_repeat or why_not(run.values) is None)
        chosen = [self._space.indices(run.values) for run in islice(possible, min(runs, _MOST_PROMISED))]
        best = best_level(levels)
        if not chosen or best is None:
            return 0.0
        points = np.unique(np.array([*chosen, self._space.indices(best.values)]), axis=0)
        means, covariance = self._speed.predict(points).mean, self._speed.covariance(points)
        # What a run of each makes of the beliefs: how they will spread around what they are now.
        learned = covariance @ np.linalg.solve(covariance + sd**2 * np.eye(len(points)), covariance)
        values, vectors = np.linalg.eigh(learned)
        draws = self._rng.standard_normal((_DRAWS, len(points))) * np.sqrt(np.maximum(values, 0.0))
        known = np.array([self._row(level) for level in levels.values() if level.scores])
        best_now = np.max(self._speed.predict(known).mean)
        return float(np.mean(np.max(means + draws @ vectors.T, axis=1)) - best_now)

    def _ranked(self, levels: Mapping[str, PointLevel], today: str, sd: float) -> Iterator[Allocation]:
        """The possible next runs, the one that promises most for its time first."""
        measured = sorted((level for level in levels.values() if level.scores), key=lambda one: -one.mean)
        rows = {self._row(level).tobytes(): level for level in levels.values()}
        if not measured:
            # Nothing has worked yet, so nothing is known but what did not.
            points = self._rng.permutation(candidates(self._space, [self._space.today], self._rng))
            yield from (
                Allocation(values=self._space.at(point), gain=_ADVICE_GAIN)
                for point in points
                if point.tobytes() not in rows
            )
            return
        measured = measured[:_LARGEST_FIT]
        known = np.array([self._row(level) for level in measured])
        self._speed.fit(
            Observations(
                points=known,
                scores=np.array([level.mean for level in measured]),
                variances=np.array([sd**2 / len(level.scores) for level in measured]),
            )
        )
        means = self._speed.predict(known).mean
        order = np.argsort(-means)
        points = candidates(self._space, [measured[index].values for index in order[:_LOOKED_AROUND]], self._rng)
        posterior = self._speed.predict(points)
        # What has to be beaten is the best point; the best point itself has to fall behind the next one.
        rivals = np.full(len(points), means[order[0]])
        if len(order) > 1:
            rivals[(points == known[order[0]]).all(axis=1)] = means[order[1]]
        gains = knowledge_gradient(posterior, rivals, sd) * self._chances(points, levels)
        logs_s = self._speed.regress(np.log([median(level.durations_s) for level in measured]), points)
        for index in np.argsort(-gains * np.exp(-logs_s)):
            level = rows.get(points[index].tobytes())
            if level is None or _may_repeat(level, today):
                yield Allocation(
                    values=self._space.at(points[index]), gain=float(gains[index]), is_repeat=level is not None
                )

    def _row(self, level: PointLevel) -> Indices:
        row = self._row_of.get(level.name)
        if row is None:
            row = self._row_of[level.name] = np.array(self._space.indices(level.values), dtype=np.int64)
        return row

    def _chances(self, points: Indices, levels: Mapping[str, PointLevel]) -> Array:
        """How probable it is that each point gives numbers at all."""
        tried = [level for level in levels.values() if level.scores or level.endings][-_LARGEST_FIT:]
        success = np.array([float(bool(level.scores)) for level in tried])
        if success.all():
            return np.ones(len(points))
        rows = np.array([self._row(level) for level in tried])
        self._success.fit(Observations(points=rows, scores=success, variances=np.full(len(tried), _ACCIDENTS)))
        chances: Array = np.clip(self._success.predict(points).mean, _LEAST_CHANCE, 1.0)
        return chances


def knowledge_gradient(posterior: Posterior, rivals: Array, sd: float) -> Array:
    """How much better the answer is expected to be for one more run of each point.

    Args:
        posterior: What is believed of the points.
        rivals: The mean that each has to beat, or to fall below.
        sd: Standard deviation of one run.
    """
    # Standard deviation of the change that one more run makes to the posterior mean.
    change = posterior.sd**2 / np.sqrt(posterior.sd**2 + sd**2)
    distance = -np.abs(posterior.mean - rivals) / change
    gains: Array = change * (distance * _cdf(distance) + np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi))
    return gains


def _cdf(z: Array) -> Array:
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])


def _may_repeat(level: PointLevel, today: str) -> bool:
    runs = len(level.scores) + len(level.endings)
    return level.name != today and bool(level.scores) and runs < LARGEST_REPEATS
