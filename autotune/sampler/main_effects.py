"""Main effects: the effect of each value of a knob in place of the baseline's, all else equal.

A Bayesian linear regression of ln score (or ln speed) on an indicator for each value that was tried instead of the
baseline's (Gelman et al., "Bayesian Data Analysis", 2013, section 14.8): each effect has a normal prior around 0, and
the noise is the larger of the spread between trials of one point and the residual of the fit. So interactions between
knobs, which the model lacks, widen all intervals.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.records import Scalar, Values
from autotune.space.knob import same_scalar

_Array = NDArray[np.float64]

_PRIOR_SD = 0.5  # of one effect, in ln score


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Mean of some trials of one point.

    Attributes:
        values: Knob values of the point.
        mean: Mean ln score, or ln speed, of the trials.
        trials: Their number.
    """

    values: Values
    mean: float
    trials: int = 1


@dataclass(frozen=True, kw_only=True)
class MainEffect:
    """Effect of one value of a knob in place of the baseline's.

    Attributes:
        path: The knob.
        choice: The value.
        mean: Posterior mean of the effect, in the samples' unit.
        sd: Posterior standard deviation of the effect.
    """

    path: str
    choice: Scalar
    mean: float
    sd: float


def main_effects(samples: Sequence[Sample], baseline: Values, sd: float) -> list[MainEffect]:
    """Return the effect of each value that was tried in place of the baseline's.

    Values that were only ever tried together share their effect evenly: its sum is known, its parts are not, and `sd`
    says so.

    Args:
        samples: All of them with the same knobs as `today`.
        baseline: Knob values of the baseline.
        sd: Standard deviation between trials of one point, in the samples' unit; above 0.
    """
    columns = _columns((sample.values for sample in samples), baseline)
    if not columns:
        return []
    design = np.array(
        [[1.0, *(float(same_scalar(sample.values[path], choice)) for path, choice in columns)] for sample in samples]
    )
    means = np.array([sample.mean for sample in samples])
    weights = np.array([float(sample.trials) for sample in samples])
    effects, deviations = _posterior(design, means, weights, sd)
    return [
        MainEffect(path=path, choice=choice, mean=float(mean), sd=float(deviation))
        for (path, choice), mean, deviation in zip(columns, effects, deviations, strict=True)
    ]


def _columns(points: Iterable[Values], baseline: Values) -> list[tuple[str, Scalar]]:
    """Return each pair of knob and value that differs from the baseline, in the baseline's order of knobs."""
    tried: dict[str, list[Scalar]] = {path: [] for path in baseline}
    for values in points:
        for path, value in values.items():
            if not any(same_scalar(value, known) for known in (baseline[path], *tried[path])):
                tried[path].append(value)
    return [(path, choice) for path, choices in tried.items() for choice in choices]


def _posterior(design: _Array, means: _Array, weights: _Array, sd: float) -> tuple[_Array, _Array]:
    """Posterior mean and standard deviation of each effect; the first column of the design is the intercept."""
    prior = np.diag([0.0, *([_PRIOR_SD**-2] * (design.shape[1] - 1))])
    noise = sd
    for _ in range(2):  # first with the known noise, then with the residual of that fit
        precision = design.T @ (design * (weights / noise**2)[:, None]) + prior
        effects = np.linalg.solve(precision, design.T @ (means * weights / noise**2))
        residuals = means - design @ effects
        left = math.sqrt(float(np.average(residuals**2 * weights)) * len(means) / max(1, len(means) - 1))
        noise = max(sd, left)
    deviations = np.sqrt(np.diag(np.linalg.inv(precision)))
    return np.asarray(effects[1:]), np.asarray(deviations[1:])
