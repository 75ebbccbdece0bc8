"""Gaussian process: regression of ln score on points, and classification of success.

The kernel suits configs: few values per knob, most knobs of little effect, effects partly additive in ln score::

    k(x, x') = level + additive · ⟨z, z'⟩ + joint · exp(-|z - z'|²) + own · [x = x'] + prior effects

``z`` has for an ordered knob a coordinate per step between neighbouring choices (1 above it, 0 below), for others an
indicator per choice, times the knob's relevance. An ordered knob's main effect is thus a random walk, and the joint
part an exponential kernel, rough like measured systems (`python -m scripts.bench tables`). ``own`` is a point's. The
prior mean is the sum of expected effects, each with a factor of 1 ± `_PRIOR_EFFECT_SD`. Hyperparameters are maximum a
posteriori (Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2, 2.7, 4.2.1 and 5.4).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from autotune.space.knob import Knob
from autotune.space.space import Space

_Method = TypeVar("_Method", bound=Callable[..., Any])
Array = NDArray[np.float64]
Indices = NDArray[np.int64]
"""Points, shape (n_points, n_knobs): positions of the values among each knob's choices."""

_STEPS = 12  # optimizer steps of a fit; the next fit continues from there
_FIRST_STEP, _SMALLEST_STEP, _LARGEST_STEP = 0.2, 1e-3, 0.5  # of a hyperparameter's logarithm
_LEVEL = 4.0  # prior variance of the level, in (ln score)²: nearly uninformative
_PRIOR_EFFECT_SD = 0.7  # standard deviation of the factor of a knob's expected effects


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingData:
    """Observations to fit: mean score of each point and its variance, shape (n_points,)."""

    points: Indices
    scores: Array
    variances: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """Posterior mean and standard deviation of points, shape (n_points,)."""

    mean: Array
    sd: Array


_BLAS = ThreadpoolController()


def _on_one_thread(method: _Method) -> _Method:
    """Limit a method's linear algebra to one thread; the trainer needs the other cores."""

    @wraps(method)
    def limited(*args: Any, **kwargs: Any) -> Any:
        with _BLAS.limit(limits=1, user_api="blas"):
            return method(*args, **kwargs)

    return cast("_Method", limited)


class GaussianProcess:
    """Gaussian process over one space. Hyperparameters are kept between fits.

    Args:
        prior_effects: Expected effect of each choice of each knob, each of shape (n_choices,).
        scale: Typical size of the target: 1 for ln score.
    """

    def __init__(self, space: Space, prior_effects: Sequence[Array] | None = None, *, scale: float = 1.0) -> None:
        self._knobs = space.knobs
        self._prior_effects = prior_effects
        self._codes = [_code(knob) for knob in space.knobs]
        widths = [code.shape[1] for code in self._codes]
        self._knob_of_column = np.repeat(np.arange(len(widths)), widths)
        self._hyper = _Hyperparameters(len(widths), scale)

    @_on_one_thread
    def fit(self, data: TrainingData, *, adapts: bool = True) -> None:
        """Refit the model; `adapts` includes the hyperparameters."""
        residuals = data.scores - self._expected(data.points).sum(axis=1)
        if adapts:
            # at most 80 points, evenly from best to worst: the cost is cubic in their number
            stride = -(-len(data.scores) // 80)
            some = np.argsort(-data.scores)[::stride]
            self._adapt(data.points[some], residuals[some], data.variances[some])
        self._cross: tuple[Indices, Array] | None = None
        self._rows = {row.tobytes(): number for number, row in enumerate(data.points)}
        self._points = data.points
        self._z = self._scaled(data.points)
        own = np.exp(self._hyper.logs[-1])
        covariance = self._shared(data.points, self._z)
        covariance[np.diag_indices_from(covariance)] += own + data.variances
        self._whitening = np.linalg.inv(np.linalg.cholesky(covariance))
        self._center = float(np.mean(residuals))
        self._weights = self._solve(residuals - self._center)

    @_on_one_thread
    def predict(self, points: Indices) -> Posterior:
        """Return the posterior of points of shape (n_points, n_knobs)."""
        additive, joint, own = np.exp(self._hyper.logs[-3:])
        z, expected = self._scaled(points), self._expected(points)
        cross = self._covariance_with(points)
        half = self._whitening @ cross.T
        prior = _LEVEL + additive * np.sum(z * z, axis=1) + joint + own
        prior += _PRIOR_EFFECT_SD**2 * np.sum(expected * expected, axis=1)
        variance = np.maximum(prior - np.sum(half * half, axis=0), 1e-12)
        return Posterior(mean=expected.sum(axis=1) + self._center + cross @ self._weights, sd=np.sqrt(variance))

    @_on_one_thread
    def covariance(self, points: Indices) -> Array:
        """Return the posterior covariance of distinct points, shape (n_points, n_points)."""
        prior = self._shared(points, self._scaled(points)) + np.exp(self._hyper.logs[-1]) * np.eye(len(points))
        half = self._whitening @ self._covariance_with(points).T
        covariance: Array = prior - half.T @ half
        return covariance

    @_on_one_thread
    def regress(self, targets: Array, points: Indices) -> Array:
        """Predict another quantity at points from its values at the observations."""
        center = float(np.median(targets))
        expected: Array = center + self._covariance_with(points) @ self._solve(targets - center)
        return expected

    def _covariance_with(self, points: Indices) -> Array:
        """Return the prior covariance of points with the observations, cached."""
        if self._cross is not None and self._cross[0] is points:
            return self._cross[1]
        cross = self._shared(points, self._scaled(points), self._points, self._z)
        own = np.exp(self._hyper.logs[-1])
        for number, row in enumerate(points):
            if (known := self._rows.get(row.tobytes())) is not None:
                cross[number, known] += own
        self._cross = points, cross
        return cross

    def _shared(self, points: Indices, z: Array, others: Indices | None = None, z_others: Array | None = None) -> Array:
        """Return the prior covariance without ``own``, shape (n_points, n_others)."""
        z_others = z if z_others is None else z_others
        additive, joint, _ = np.exp(self._hyper.logs[-3:])
        expected = self._expected(points)
        expected_others = expected if others is None else self._expected(others)
        products = z @ z_others.T
        squares = np.sum(z * z, axis=1)[:, None] + np.sum(z_others * z_others, axis=1)[None, :] - 2 * products
        covariance: Array = _LEVEL + additive * products + joint * np.exp(-np.maximum(squares, 0.0))
        return covariance + _PRIOR_EFFECT_SD**2 * expected @ expected_others.T

    def _expected(self, points: Indices) -> Array:
        if self._prior_effects is None:
            return np.zeros((len(points), 0))
        return np.column_stack([effects[points[:, number]] for number, effects in enumerate(self._prior_effects)])

    def _solve(self, target: Array) -> Array:
        weights: Array = self._whitening.T @ (self._whitening @ target)
        return weights

    def _features(self, points: Indices) -> Array:
        """Return the unscaled ``z``, shape (n_points, n_features)."""
        return np.hstack([code[points[:, number]] for number, code in enumerate(self._codes)])

    def _scaled(self, points: Indices) -> Array:
        scaled: Array = self._features(points) * np.exp(0.5 * self._hyper.logs[:-3])[self._knob_of_column]
        return scaled

    def _adapt(self, points: Indices, scores: Array, variances: Array) -> None:
        target = scores - np.mean(scores)
        features, expected = self._features(points), self._expected(points)
        centered = features - features.mean(axis=0)
        fixed = _LEVEL + _PRIOR_EFFECT_SD**2 * expected @ expected.T
        # products and squared distances of all pairs by knob, before scaling
        parts = [centered[:, self._knob_of_column == knob] for knob in range(len(self._knobs))]
        products = np.array([part @ part.T for part in parts])
        squares = np.array([np.diag(p)[:, None] + np.diag(p)[None, :] - 2 * p for p in products])
        for _ in range(_STEPS):
            relevance = np.exp(self._hyper.logs[:-3])
            additive, joint, own = np.exp(self._hyper.logs[-3:])
            inner = np.tensordot(relevance, products, 1)
            similar = np.exp(-np.tensordot(relevance, squares, 1))
            covariance = fixed + additive * inner + joint * similar
            covariance[np.diag_indices_from(covariance)] += own + variances
            inverse = np.linalg.inv(covariance)
            weights = inverse @ target
            # twice the derivative of the ln likelihood by the covariance (Rasmussen & Williams, 5.9)
            pull = np.outer(weights, weights) - inverse
            by_knob = additive * np.tensordot(products, pull, 2) - joint * np.tensordot(squares, similar * pull, 2)
            slopes = np.empty_like(self._hyper.logs)
            slopes[:-3] = 0.5 * relevance * by_knob
            slopes[-3:] = (
                0.5 * additive * np.sum(inner * pull),
                0.5 * joint * np.sum(similar * pull),
                0.5 * own * np.trace(pull),
            )
            self._hyper.step(slopes)


class _Hyperparameters:
    """Logarithms of the relevances, then of the additive, joint and own variance.

    Moved to the posterior mode by Rprop (Riedmiller & Braun 1993).
    """

    def __init__(self, knobs: int, scale: float) -> None:
        variances = [(math.log(scale**2 * typical), 1.0) for typical in (0.25, 0.25, 0.08**2)]
        prior = [(0.0, 1.5)] * knobs + variances  # mean and standard deviation of each
        self._prior_mean = np.array([mean for mean, _ in prior])
        self._prior_sd = np.array([sd for _, sd in prior])
        self.logs = self._prior_mean.copy()
        self._steps = np.full(len(prior), _FIRST_STEP)
        self._slopes = np.zeros(len(prior))

    def step(self, slopes: Array) -> None:
        slopes = slopes - (self.logs - self._prior_mean) / self._prior_sd**2
        agree = slopes * self._slopes
        self._steps = np.clip(
            np.where(agree > 0, 1.2 * self._steps, np.where(agree < 0, 0.5 * self._steps, self._steps)),
            _SMALLEST_STEP,
            _LARGEST_STEP,
        )
        self._slopes = np.where(agree < 0, 0.0, slopes)
        self.logs = self.logs + np.sign(self._slopes) * self._steps


class SuccessProbability:
    """Gaussian process classification of points into successes and failures.

    Expectation propagation (Rasmussen & Williams, section 3.6), damped and in parallel.
    """

    def __init__(self, space: Space) -> None:
        self._latent = GaussianProcess(space, scale=_LATENT_SCALE)

    def fit(self, points: Indices, successes: NDArray[np.bool_]) -> None:
        """Refit the model to points and whether some trial of each succeeded, shape (n_points,)."""
        signs = np.where(successes, 1.0, -1.0)
        precisions, shifts = np.full(len(points), _LEAST_PRECISION), np.zeros(len(points))
        mean, variance = np.zeros(len(points)), np.full(len(points), _LATENT_SCALE**2)
        for step in range(_SWEEPS):
            # cavity distribution
            spread = 1.0 / np.maximum(1.0 / variance - precisions, 1e-6)
            center = spread * (mean / variance - shifts)
            scale = np.sqrt(1.0 + spread)
            z = signs * center / scale
            ratio = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi) / np.maximum(normal_cdf(z), 1e-12)
            tilted = center + signs * spread * ratio / scale
            left = spread - spread**2 * ratio * (z + ratio) / (1.0 + spread)
            damping = 1.0 if step == 0 else 0.6
            wanted = np.maximum(1.0 / left - 1.0 / spread, _LEAST_PRECISION)
            precisions = (1.0 - damping) * precisions + damping * wanted
            shifts = (1.0 - damping) * shifts + damping * (tilted / left - center / spread)
            sites = TrainingData(points=points, scores=shifts / precisions, variances=1.0 / precisions)
            self._latent.fit(sites, adapts=step in (1, 3))
            posterior = self._latent.predict(points)
            mean, variance = posterior.mean, posterior.sd**2

    def predict(self, points: Indices) -> Array:
        latent = self._latent.predict(points)
        return normal_cdf(latent.mean / np.sqrt(1.0 + latent.sd**2))


_LATENT_SCALE = 4.0  # a single knob may decide whether a trial fails
_SWEEPS = 8
_LEAST_PRECISION = 1e-4


def normal_cdf(z: Array) -> Array:
    """Return the standard normal CDF."""
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])


def _code(knob: Knob) -> Array:
    """Return the coordinates of each choice, shape (n_choices, n_features), at most 1 apart squared."""
    count = len(knob.choices)
    if knob.ordered:
        return np.tril(np.ones((count, max(1, count - 1))), -1) / math.sqrt(max(1, count - 1))
    return np.eye(count) * math.sqrt(0.5)
