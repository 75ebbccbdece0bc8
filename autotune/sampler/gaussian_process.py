"""Gaussian process: the model of ln score over the whole space, fitted to the trials so far.

The kernel is made for configs: a few ordered or categorical values for each knob, most knobs of little effect, effects
that add up in ln score with a few interactions (workers help only where loading is the bottleneck)::

    k(x, x') = level + linear · ⟨z, z'⟩ + joint · exp(-|z - z'|² / 2) + own · [x = x']

``z`` holds one coordinate for an ordered knob (its position among the choices, 0 to 1) and an indicator for each
choice of any other, scaled by the relevance of the knob. ``own`` is the variance of a point's own deviation, which its
repeats share.
Relevances and variances are fitted to the trials (automatic relevance determination; maximum a posteriori; Rasmussen &
Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2 and 5.4).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.space.space import Space

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
"""Points as rows: for each knob the position of its value among the choices."""

_LARGEST_HYPER_FIT = 120  # points that hyperparameters are fitted to: the cost of a step is cubic in their number
_STEPS = 12  # optimizer steps of a fit; the next fit continues from there
_FIRST_STEP, _SMALLEST_STEP, _LARGEST_STEP = 0.2, 1e-3, 0.5  # of the logarithm of a hyperparameter
_LEVEL = 4.0  # prior variance of the level, in (ln score)²: nearly uninformative
# Prior of the hyperparameters, as mean and standard deviation of the logarithm.
_RELEVANCE = (math.log(0.5), 1.2)
_LINEAR = (math.log(0.25), 1.0)
_JOINT = (math.log(0.25), 1.0)
_OWN = (math.log(0.02**2), 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingData:
    """Observations that the model is fitted to.

    Attributes:
        points: One row for each point, shape (n, knobs).
        scores: Mean observation of each point, e.g. ln score, shape (n,).
        variances: Variance of each mean, shape (n,).
    """

    points: Indices
    scores: Array
    variances: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """Posterior of some points.

    Attributes:
        mean: Posterior mean of each.
        sd: Posterior standard deviation of each.
    """

    mean: Array
    sd: Array


class GaussianProcess:
    """Gaussian process over one space; its hyperparameters are kept from fit to fit.

    Args:
        space: The search space.
    """

    def __init__(self, space: Space) -> None:
        self._knobs = space.knobs
        widths = [1 if knob.ordered else len(knob.choices) for knob in space.knobs]
        self._first_column = np.cumsum([0, *widths])
        self._knob_of_column = np.repeat(np.arange(len(widths)), widths)
        prior = [_RELEVANCE] * len(widths) + [_LINEAR, _JOINT, _OWN]
        self._prior_mean = np.array([mean for mean, _ in prior])
        self._prior_sd = np.array([sd for _, sd in prior])
        self._logs = self._prior_mean.copy()
        self._steps = np.full(len(prior), _FIRST_STEP)
        self._slopes = np.zeros(len(prior))

    def fit(self, data: TrainingData) -> None:
        """Fit the model to these observations, in place of the earlier ones, and adapt the hyperparameters."""
        # A subset of many points, evenly from the best to the worst: the effects of knobs show in their differences.
        stride = -(-len(data.scores) // _LARGEST_HYPER_FIT)
        some = np.argsort(-data.scores)[::stride]
        self._adapt(self._features(data.points[some]), data.scores[some], data.variances[some])
        self._rows = {row.tobytes(): number for number, row in enumerate(data.points)}
        self._z = self._scaled(self._features(data.points))
        linear, joint, own = np.exp(self._logs[-3:])
        covariance = _LEVEL + linear * self._z @ self._z.T + joint * _similarity(self._z, self._z)
        covariance[np.diag_indices_from(covariance)] += own + data.variances
        self._factor = np.linalg.cholesky(covariance)
        self._center = float(np.mean(data.scores))
        self._weights = self._solve(data.scores - self._center)

    def predict(self, points: Indices) -> Posterior:
        """Return the posterior of these points, measured or not."""
        z = self._scaled(self._features(points))
        linear, joint, own = np.exp(self._logs[-3:])
        cross = self._covariance_with(points)
        half = np.linalg.solve(self._factor, cross.T)
        prior = _LEVEL + linear * np.sum(z * z, axis=1) + joint + own
        variance = np.maximum(prior - np.sum(half * half, axis=0), 1e-12)
        return Posterior(mean=self._center + cross @ self._weights, sd=np.sqrt(variance))

    def covariance(self, points: Indices) -> Array:
        """Return the posterior covariance matrix of these points, which must be distinct."""
        z = self._scaled(self._features(points))
        linear, joint, own = np.exp(self._logs[-3:])
        prior = _LEVEL + linear * z @ z.T + joint * _similarity(z, z) + own * np.eye(len(points))
        half = np.linalg.solve(self._factor, self._covariance_with(points).T)
        covariance: Array = prior - half.T @ half
        return covariance

    def regress(self, targets: Array, points: Indices) -> Array:
        """Predict another quantity at these points from its values at the observations."""
        center = float(np.median(targets))
        expected: Array = center + self._covariance_with(points) @ self._solve(targets - center)
        return expected

    def _covariance_with(self, points: Indices) -> Array:
        z = self._scaled(self._features(points))
        linear, joint, own = np.exp(self._logs[-3:])
        cross: Array = _LEVEL + linear * z @ self._z.T + joint * _similarity(z, self._z)
        for number, row in enumerate(points):
            known = self._rows.get(row.tobytes())
            if known is not None:
                cross[number, known] += own
        return cross

    def _solve(self, target: Array) -> Array:
        weights: Array = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, target))
        return weights

    def _features(self, points: Indices) -> Array:
        rows = np.zeros((len(points), self._first_column[-1]))
        numbers = np.arange(len(points))
        for number, knob in enumerate(self._knobs):
            column = self._first_column[number]
            if knob.ordered:
                rows[:, column] = points[:, number] / max(1, len(knob.choices) - 1)
            else:
                rows[numbers, column + points[:, number]] = math.sqrt(0.5)  # two choices are then 1 apart
        return rows

    def _scaled(self, features: Array) -> Array:
        scaled: Array = features * np.exp(0.5 * self._logs[:-3])[self._knob_of_column]
        return scaled

    def _adapt(self, features: Array, scores: Array, variances: Array) -> None:
        """Maximize the posterior of the hyperparameters by resilient steps (Rprop; Riedmiller & Braun 1993)."""
        target = scores - np.mean(scores)
        centered = features - features.mean(axis=0)
        knobs = len(self._knobs)
        # Of each knob alone, before scaling: products and squared distances of all pairs.
        parts = [centered[:, self._knob_of_column == knob] for knob in range(knobs)]
        products = np.array([part @ part.T for part in parts])
        squares = np.array([np.diag(p)[:, None] + np.diag(p)[None, :] - 2 * p for p in products])
        for _ in range(_STEPS):
            relevance = np.exp(self._logs[:-3])
            linear, joint, own = np.exp(self._logs[-3:])
            inner = np.tensordot(relevance, products, 1)
            alike = np.exp(-0.5 * np.tensordot(relevance, squares, 1))
            covariance = _LEVEL + linear * inner + joint * alike
            covariance[np.diag_indices_from(covariance)] += own + variances
            inverse = np.linalg.inv(covariance)
            weights = inverse @ target
            # Twice the derivative of the ln likelihood by an entry of the covariance (Rasmussen & Williams, 5.9).
            pull = np.outer(weights, weights) - inverse
            by_knob = linear * np.tensordot(products, pull, 2) - 0.5 * joint * np.tensordot(squares, alike * pull, 2)
            slopes = np.empty_like(self._logs)
            slopes[:-3] = 0.5 * relevance * by_knob
            slopes[-3:] = (
                0.5 * linear * np.sum(inner * pull),
                0.5 * joint * np.sum(alike * pull),
                0.5 * own * np.trace(pull),
            )
            slopes -= (self._logs - self._prior_mean) / self._prior_sd**2
            self._step(slopes)

    def _step(self, slopes: Array) -> None:
        agree = slopes * self._slopes
        self._steps = np.clip(
            np.where(agree > 0, 1.2 * self._steps, np.where(agree < 0, 0.5 * self._steps, self._steps)),
            _SMALLEST_STEP,
            _LARGEST_STEP,
        )
        self._slopes = np.where(agree < 0, 0.0, slopes)
        self._logs = self._logs + np.sign(self._slopes) * self._steps


def _similarity(z: Array, others: Array) -> Array:
    squares = np.sum(z * z, axis=1)[:, None] + np.sum(others * others, axis=1)[None, :] - 2 * z @ others.T
    alike: Array = np.exp(-0.5 * np.maximum(squares, 0.0))
    return alike
