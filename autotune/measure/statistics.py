"""Statistics of repeated trials, in ln throughput: a variance of 0.0064 is a spread of 8 %."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist, median, median_high
from typing import NamedTuple

SLOW_OUTLIER_FLOOR = 0.3
"""Least distance in ln speed of an outlier below its config's median.

At 0.15, A/A confirmations are positive in 5.8 %.
"""

TYPICAL_CV = 0.08
"""Prior spread of ln throughput between trials of one config, observed on several machines."""

LEAST_CYCLES = 3
"""Whole cycles that a window must hold to end with one."""

SHORT_STALL = 0.02
"""Relative error of a speed from one stall too many or too few that is ordinary noise."""

_LARGEST_TRIAL_VARIANCE = SLOW_OUTLIER_FLOOR**2  # more is not noise but a disturbance


def lacks_cycles(cycles: int | None, speed_error: float) -> bool:
    """Return whether stalls make a speed uncertain, and too few whole cycles were seen."""
    return cycles is not None and cycles < LEAST_CYCLES and speed_error > SHORT_STALL


@lru_cache(maxsize=1024)  # judging a record needs the same few many times
def student_t_quantile(p: float, df: float) -> float:
    """Return the t with ``P(T <= t) = p`` of Student's distribution; ``df`` is positive, and may be infinite.

    Newton's method from the normal quantile, below the answer for every ``df``, where the distribution function is
    concave: steps never overshoot.

    Raises:
        ValueError: ``p`` or ``df`` is out of range.
    """
    if not 0.0 < p < 1.0 or not df > 0.0:
        raise ValueError(f"a t quantile needs 0 < p < 1 and df > 0, got p={p}, df={df}")
    if p < 0.5:
        return -student_t_quantile(1.0 - p, df)
    z = NormalDist().inv_cdf(p)
    if df > 1e6:  # the expansion around the normal is then exact to 1e-11
        return z + (z**3 + z) / (4.0 * df)  # Abramowitz & Stegun 26.7.5, first terms
    tail = 1.0 - p
    log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    t = z
    for _ in range(500):  # a handful for df > 2; heavy tails (df = 0.01) need more
        excess = 0.5 * _regularized_beta(df / 2, 0.5, df / (df + t * t)) - tail
        step = excess / math.exp(log_scale - (df + 1) / 2 * math.log1p(t * t / df))
        t += step
        if step <= 1e-13 * t:
            break
    return t


def _regularized_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by Lentz's continued fraction (NIST DLMF 8.17.22)."""
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below this point
        return 1.0 - _regularized_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or tiny)
            c = 1.0 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return math.exp(log_front) * fraction / a


def pooled_variance(groups: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Return the variance within groups of repeats, pooled over the groups.

    Args:
        groups: Results of each point's trials; groups of one are ignored.

    Returns:
        Variance of one trial (half that of a difference) and degrees of freedom; ``(0.0, 0.0)`` without repeats, which
        `moderated_interval` takes as no prior.
    """
    squares, df = 0.0, 0
    for group in groups:
        if len(group) >= 2:
            mean = math.fsum(group) / len(group)
            squares += math.fsum((value - mean) ** 2 for value in group)
            df += len(group) - 1
    return (squares / df, float(df)) if df else (0.0, 0.0)


def robust_pooled_variance(groups: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Return the pooled variance within groups of repeats, without slow outliers.

    Outliers are more than ``max(0.3, 6 MAD)`` below the (upper) median of their group, with the MAD over all groups;
    the variance is at most that of a spread of 30 %.

    Args:
        groups: ln speed or ln score of each point's trials.

    Returns:
        Like `pooled_variance`.
    """
    repeated = [group for group in groups if len(group) >= 2]
    if not repeated:
        return 0.0, 0.0
    deviations = [abs(value - median(group)) for group in repeated for value in group]
    # groups of two or three repeats lie closer to their own median
    limit = max(SLOW_OUTLIER_FLOOR, 6.0 * median(deviations))
    kept = [[value for value in group if value >= median_high(group) - limit] for group in repeated]
    variance, df = pooled_variance(kept)
    return min(variance, _LARGEST_TRIAL_VARIANCE), df


def moderated_interval(
    differences: Sequence[float], prior_variance: float, prior_df: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the mean of paired differences with its half-width, by a moderated t.

    The variance is pooled with a prior, ``(d0 * s0² + d * s²) / (d0 + d)`` with ``d0 + d`` degrees of freedom (Smyth,
    "Linear models and empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3, 2004). If
    four or more differences spread wider than the prior, its weight falls in proportion.

    Args:
        prior_df: ``d0``; 0 gives the ordinary t interval.

    Raises:
        ValueError: One difference and no prior.
    """
    n = len(differences)
    df = prior_df + n - 1
    if n < 1 or not df > 0:
        raise ValueError(f"{n} differences with {prior_df} prior degrees of freedom give no interval")
    mean = math.fsum(differences) / n
    squares = math.fsum((value - mean) ** 2 for value in differences)
    if n >= 4 and squares > (n - 1) * prior_variance > 0.0:
        prior_df *= (n - 1) * prior_variance / squares
        df = prior_df + n - 1
    variance = (prior_df * prior_variance + squares) / df
    return mean, student_t_quantile((1.0 + confidence) / 2.0, df) * math.sqrt(variance / n)


def weighted_mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the mean of the known values, weighted by duration; None without any.

    Args:
        values: Value and its duration in seconds.
    """
    known = [(value, length_s) for value, length_s in values if value is not None]
    total_s = math.fsum(length_s for _, length_s in known)
    return math.fsum(value * length_s for value, length_s in known) / total_s if total_s else None


class Winsorized(NamedTuple):
    """Paired differences with a few outliers pulled in.

    Attributes:
        pulled: Number of outliers.
    """

    values: Sequence[float]
    pulled: int

    def interval(self, prior: tuple[float, float], confidence: float) -> tuple[float, float]:
        """Return the mean and half-width like `moderated_interval`, widened for the outliers.

        Tukey & McLaughlin, "Less vulnerable confidence and significance procedures for location based on a single
        sample", Sankhya A 25, 1963.
        """
        mean, half_width = moderated_interval(self.values, *prior, confidence)
        return mean, half_width * len(self.values) / (len(self.values) - self.pulled)


def winsorized(differences: Sequence[float], prior_variance: float) -> Winsorized:
    """Return paired differences, with outliers pulled to the nearest other value.

    Outliers are beyond ``max(0.3, 4 MAD)`` and three prior standard deviations from the median, of at least five
    differences of which most are nearer.
    """
    middle = median(differences)
    usual = max(
        SLOW_OUTLIER_FLOOR,
        3.0 * math.sqrt(prior_variance),
        4.0 * median(abs(value - middle) for value in differences),
    )
    near = [value for value in differences if abs(value - middle) <= usual]
    if len(differences) < 5 or 2 * len(near) <= len(differences):
        return Winsorized(differences, 0)
    values = [min(max(near), max(min(near), value)) for value in differences]
    return Winsorized(values, len(differences) - len(near))


def optimal_window_s(
    start_cost_s: float, within_variance_s: float, between_variance: float, *, min_s: float, max_s: float
) -> float:
    """Return the measuring window that minimizes the error of a mean over trials in a given total time.

    ``√(start cost · within-trial variance / between-trial variance)`` (Kalibera & Jones, "Rigorous benchmarking in
    reasonable time", ISMM 2013, section 6).

    Args:
        start_cost_s: Time of a trial before its window.
        within_variance_s: Variance within a trial of a mean over 1 s of steady state.
        between_variance: Further variance between trials of one point; 0 gives ``max_s``.
    """
    if between_variance <= 0.0:
        return max_s
    return min(max_s, max(min_s, math.sqrt(start_cost_s * within_variance_s / between_variance)))
