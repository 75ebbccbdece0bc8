"""GPU utilization of a point: oscillation over time, pooled over trials, and the best busy rate.

A driver reports the busy share of each of its sample windows (1/6 s to 1 s). Cycles of 3 or more windows show in that
series; only the share of time waiting for data reveals shorter ones. One trial is too short for a verdict.

The trend is removed, the windows are split into a low and a high level, and the period is found in the autocorrelation
(Box, Jenkins, Reinsel & Ljung, "Time Series Analysis", 5th ed. 2015, chapter 2).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from autotune.measure.cycles import Series, integrated_autocorrelation_time, two_groups
from autotune.measure.statistics import moderated_interval, pooled_variance
from autotune.records import GpuRole

LEAST_WINDOWS = 12
"""Fewest driver windows for a verdict."""

LEAST_SWING = 0.15
"""Least distance between the means of the low and the high windows."""

LEAST_RISE = 0.15
"""Least change of a trend from end to end."""

LEAST_TREND_S = 8.0
"""Shortest trial that can show a trend; a shorter one may show a part of a wave."""

IDLE = 0.1
"""Busy share below which a driver window is idle."""

LEAST_SPLIT = 0.6
"""Share of the variance that the two levels of a cycle must explain."""

LEAST_PEAK = 0.4
"""Least autocorrelation of a cycle at one and at two periods."""

LEAST_PERIOD_WINDOWS = 3
"""Driver windows in the shortest period that they can show."""

LEAST_PERIOD_S = LEAST_PERIOD_WINDOWS / 6
"""Shortest period that any driver can show: its windows are 1/6 s or longer."""

_ROUNDING = 1e-9  # 0.40 - 0.25 must count as 0.15
_FINE = 16  # points of the interpolated autocorrelation per lag
_LANCZOS_LAGS = 8


class Pattern(StrEnum):
    """Pattern of utilization over time."""

    FLAT = "flat"
    CYCLIC = "cyclic"
    BURSTY = "bursty"  # not periodic, or too fast for the driver to show the period
    DRIFT = "drift"
    INSUFFICIENT = "insufficient"


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Driver windows of one trial, in time order.

    Attributes:
        asked_s: Length of the steady window that they were taken from.
        busy: Share of each in which a kernel ran, 0..1.
    """

    asked_s: float
    ends_s: Series
    lengths_s: Series
    busy: Series

    @classmethod
    def within(cls, t0_s: float, t1_s: float, windows: Iterable[tuple[float, float, float]]) -> "Segment":
        """Return the driver windows (end, length, busy share), in time order, that lie wholly in the steady window."""
        kept = [window for window in windows if window[0] - window[1] >= t0_s and window[0] <= t1_s]
        ends_s, lengths_s, busy = np.array(kept, dtype=float).reshape(-1, 3).T
        return cls(asked_s=t1_s - t0_s, ends_s=ends_s, lengths_s=lengths_s, busy=busy)

    @property
    def covered_s(self) -> float:
        return float(self.lengths_s.sum())

    @property
    def mids_s(self) -> Series:
        return self.ends_s - self.lengths_s / 2

    @property
    def span_s(self) -> float:
        return float(self.ends_s[-1] - self.ends_s[0] + self.lengths_s[0])


@dataclass(frozen=True, kw_only=True)
class Oscillation:
    """Verdict on utilization over time; levels are shares of the covered time, 0..1, and None without windows.

    Attributes:
        low, high: Level of the lower and upper group of driver windows, detrended if the trend counts.
        p10: 10th percentile.
        idle: Share of the time in windows that were busy for less than a tenth.
        duty: Share of the time at the high level, with windows between the levels in proportion.
        rise: Change of the trend over the longest segment; 0 if none is long enough.
        period_s: Length of a cycle; None unless `Pattern.CYCLIC`.
    """

    pattern: Pattern
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    p10: float | None = None
    idle: float | None = None
    duty: float | None = None
    rise: float = 0.0
    period_s: float | None = None


def oscillation(segments: Sequence[Segment], *, step_s: float | None = None) -> Oscillation:
    """Return the verdict on the utilization of one point.

    * ``cyclic``: the two groups are `LEAST_SWING` apart, at least half of that within segments, and explain
      `LEAST_SPLIT` of the variance; the autocorrelation peaks at one period, significantly, and at two.
    * ``drift``: not cyclic, and the trend within segments of `LEAST_TREND_S` changes by `LEAST_RISE`, significantly for
      one of them: more trials add no evidence, because a wave may begin with each.
    * ``bursty``: neither, and the groups are `LEAST_SWING` apart.
    * ``flat``: none of these. ``insufficient``: fewer than `LEAST_WINDOWS` driver windows.

    Args:
        segments: One per trial; trend and period are found within segments.
        step_s: Time of a training step, if known and steady, of which a period may be an alias.
    """
    filled = [segment for segment in segments if len(segment.busy)]
    if not filled:
        return Oscillation(pattern=Pattern.INSUFFICIENT)
    busy = np.concatenate([segment.busy for segment in filled])
    lengths_s = np.concatenate([segment.lengths_s for segment in filled])
    mean = float(np.average(busy, weights=lengths_s))

    slope = _slope_per_s([segment for segment in filled if segment.span_s >= LEAST_TREND_S - _ROUNDING])
    trends = [slope * (segment.mids_s - _centre_s(segment)) for segment in filled]
    rise = slope * max(segment.span_s for segment in filled)
    window_s = float(np.median(lengths_s))
    rows = [_resampled(segment, trend, window_s) for segment, trend in zip(filled, trends, strict=True)]
    # 3 standard errors: bursts would otherwise look like a trend
    drifts = abs(rise) >= LEAST_RISE and abs(slope) >= 3.0 * _slope_error_per_s(rows, window_s)
    # Cycles that don't fit the segment a whole number of times have a small trend too: their levels stay raw.
    levelled = busy - np.concatenate(trends) if drifts else busy
    levels = _two_levels(levelled, lengths_s)
    verdict = Oscillation(
        pattern=Pattern.BURSTY if levels.are_apart else Pattern.FLAT,
        low=min(1.0, max(0.0, levels.low)),
        high=min(1.0, max(0.0, levels.high)),
        mean=mean,
        p10=_quantile(busy, lengths_s, 0.1),
        idle=float(lengths_s[busy < IDLE].sum() / lengths_s.sum()),
        duty=_duty(levelled, lengths_s, levels),
        rise=rise,
    )
    if len(busy) < LEAST_WINDOWS:
        return replace(verdict, pattern=Pattern.INSUFFICIENT)
    period = _cycle(rows, levels)
    if period is None:
        return replace(verdict, pattern=Pattern.DRIFT) if drifts else verdict
    if step_s is not None and _is_alias(period, levels.swing, mean, step_s / window_s):
        return verdict
    return replace(verdict, pattern=Pattern.CYCLIC, period_s=period * window_s)


def _centre_s(segment: Segment) -> float:
    return float(np.average(segment.mids_s, weights=segment.lengths_s))


def _slope_per_s(segments: Sequence[Segment]) -> float:
    covariance = variance = 0.0
    for segment in segments:
        offsets_s = segment.mids_s - _centre_s(segment)
        covariance += float(np.sum(segment.lengths_s * offsets_s * segment.busy))
        variance += float(np.sum(segment.lengths_s * offsets_s**2))
    return covariance / variance if variance > 0.0 else 0.0


def _slope_error_per_s(rows: Sequence[Series], window_s: float) -> float:
    known = np.concatenate([row[~np.isnan(row)] for row in rows])
    spread = max(float(np.var(np.flatnonzero(~np.isnan(row))) * np.sum(~np.isnan(row))) for row in rows)
    if spread <= 0.0:
        return math.inf
    return math.sqrt(float(known.var()) * integrated_autocorrelation_time(known) / spread) / window_s


@dataclass(frozen=True, kw_only=True)
class _Levels:
    """Two groups of driver windows, with the distance of their means and the share of variance between them."""

    low: float
    high: float
    swing: float
    split: float

    @property
    def are_apart(self) -> bool:
        return self.swing >= LEAST_SWING - _ROUNDING


def _two_levels(values: Series, weights: Series) -> _Levels:
    """Split the windows into two groups (`two_groups`).

    Windows with an edge lie between the levels, so a level is the median of windows near or beyond its group's mean.
    """
    groups = two_groups(values, weights)
    if groups is None:
        mean = float(np.average(values, weights=weights))
        return _Levels(low=mean, high=mean, swing=0.0, split=0.0)
    swing = groups.high - groups.low
    # a window this much further inside than its group's mean holds an edge
    margin = (1 / 8) * swing
    lowest, highest = values <= groups.low + margin, values >= groups.high - margin
    return _Levels(
        low=_quantile(values[lowest], weights[lowest], 0.5),
        high=_quantile(values[highest], weights[highest], 0.5),
        swing=swing,
        split=groups.explained,
    )


def _cycle(rows: Sequence[Series], levels: _Levels) -> float | None:
    """Return the driver windows per cycle; None if there is no cycle that the driver can show."""
    if not levels.are_apart or levels.split < LEAST_SPLIT or _swing_within(rows) < levels.swing / 2:
        return None
    period = period_of(rows)
    # the error of a period is 1-2 %: 3 windows may be found as slightly less
    return period if period is not None and period >= 0.97 * LEAST_PERIOD_WINDOWS else None


def _swing_within(rows: Sequence[Series]) -> float:
    """Return the distance of the two levels relative to each trial's mean, without differences between trials."""
    if len(rows) == 1:
        return math.inf
    known = np.concatenate([row[~np.isnan(row)] for row in rows])
    return _two_levels(known, np.ones(len(known))).swing


def _duty(values: Series, weights: Series, levels: _Levels) -> float | None:
    if levels.high <= levels.low:
        return None
    shares = np.clip((values - levels.low) / (levels.high - levels.low), 0.0, 1.0)
    return float(np.average(shares, weights=weights))


def _quantile(values: Series, weights: Series, share: float) -> float:
    """Return the smallest value that at least this share of the weight is at or below."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1] * (1 - 1e-9))])


def _resampled(segment: Segment, trend: Series, cell_s: float) -> Series:
    """Return averages over equal cells, detrended and centred; NaN if less than half of a cell is covered."""
    # Rounded stamps may make windows overlap a little: each counts from the end of the one before.
    starts_s = np.maximum(segment.ends_s - segment.lengths_s, np.concatenate(([-math.inf], segment.ends_s[:-1])))
    lengths_s = segment.ends_s - starts_s
    values = segment.busy - trend
    values -= np.average(values, weights=segment.lengths_s)
    # Both integrals are linear within a window and constant in a gap, so interpolation is exact.
    knots_s = np.column_stack((starts_s, segment.ends_s)).ravel()
    cells = max(1, round((knots_s[-1] - knots_s[0]) / cell_s))
    borders_s = knots_s[0] + cell_s * np.arange(cells + 1)
    covered_s = np.diff(np.interp(borders_s, knots_s, _integral(lengths_s)))
    integrals = np.diff(np.interp(borders_s, knots_s, _integral(lengths_s * values)))
    known = covered_s >= cell_s / 2
    return np.where(known, integrals / np.where(known, covered_s, 1.0), math.nan)


def _integral(amounts: Series) -> Series:
    after = np.cumsum(amounts)
    return np.column_stack((after - amounts, after)).ravel()


def period_of(rows: Sequence[Series]) -> float | None:
    """Return the period in cells; None if the series is not periodic, or has fewer than 3 cycles.

    Two matching peaks are needed: random bursts have one in up to a tenth of cases, and two in a fiftieth.

    Args:
        rows: From `_resampled`.
    """
    lags = 2 * max(len(row) for row in rows) // 3  # two periods: each is at most a third of the longest segment
    correlation = _autocorrelation(rows, lags)
    if correlation is None:
        return None
    fine = _interpolated(correlation)
    crossings = np.flatnonzero(fine <= 0.0)
    if not len(crossings):
        return None
    # Bartlett's error of an autocorrelation beyond the lags where it is known to be positive (Box & Jenkins, 2.1.6).
    samples = sum(int(np.sum(~np.isnan(row))) for row in rows)
    near = correlation[1 : 1 + int(crossings[0]) // _FINE]
    least_peak = max(LEAST_PEAK, 1.96 * math.sqrt((1.0 + 2.0 * float(near @ near)) / samples))
    # The first, even if a later one is higher: narrow pulses align best with the windows after several periods.
    peaks = _peaks(fine, int(crossings[0]), (len(fine) - 1) // 2)
    first = next((peak for peak in peaks if fine[peak] >= least_peak), None)
    return None if first is None else _refined(fine, first)


def _autocorrelation(rows: Sequence[Series], lags: int) -> Series | None:
    products, pairs = np.zeros(lags + 1), np.zeros(lags + 1)
    for row in rows:
        known = (~np.isnan(row)).astype(float)
        values = np.nan_to_num(row)
        reach = min(lags + 1, len(row))
        products[:reach] += np.correlate(values, values, "full")[len(row) - 1 :][:reach]
        pairs[:reach] += np.correlate(known, known, "full")[len(row) - 1 :][:reach]
    covariance = products / np.maximum(pairs, 1.0)
    return None if covariance[0] <= 1e-12 else np.asarray(covariance / covariance[0])


def _interpolated(correlation: Series) -> Series:
    """Return the autocorrelation at `_FINE` points per lag, by a windowed sinc (Duchon, "Lanczos filtering", 1979).

    Otherwise a peak at 2.5 lags would be missed, and the one at 5 taken for the period.
    """
    even = np.concatenate((correlation[:0:-1], correlation))
    spaced = np.zeros(_FINE * (len(even) - 1) + 1)
    spaced[::_FINE] = even
    offsets = np.arange(-_LANCZOS_LAGS * _FINE, _LANCZOS_LAGS * _FINE + 1) / _FINE
    kernel = np.sinc(offsets) * np.sinc(offsets / _LANCZOS_LAGS)
    full = np.convolve(spaced, kernel)
    centre = len(full) // 2
    return np.asarray(full[centre : centre + _FINE * (len(correlation) - 1) + 1])


def _peaks(fine: Series, first: int, last: int) -> list[int]:
    """Return the maximum of each positive stretch that begins after ``first`` and peaks before ``last``."""
    positive = (fine > 0.0).astype(int)
    positive[: first + 1] = 0
    changes = np.diff(np.concatenate(([0], positive, [0])))
    stretches = zip(np.flatnonzero(changes == 1), np.flatnonzero(changes == -1), strict=True)
    highest = [int(start + np.argmax(fine[start:stop])) for start, stop in stretches]
    return [peak for peak in highest if peak <= last]


def _refined(fine: Series, first: int) -> float | None:
    """Return the period in cells from the peaks at multiples of the first, by least squares; None without any."""
    weighted, weight = float(first), 1.0
    for multiple in range(2, len(fine)):
        period = weighted / weight
        start, stop = int((multiple - 0.25) * period), int((multiple + 0.25) * period) + 1
        if multiple > 2 and stop > len(fine):
            break
        place = start + int(np.argmax(fine[start:stop]))
        if fine[place] < LEAST_PEAK:
            if multiple == 2:
                return None
            break
        weighted += multiple * place
        weight += multiple**2
    return weighted / weight / _FINE


def _is_alias(period: float, swing: float, mean: float, step: float) -> bool:
    """Return whether a period, in driver windows, may be an alias of the steps.

    Of the steps in a window, only the fraction of the last one changes its share, and by no more than its busy or idle
    time.

    Args:
        swing: Distance between its groups.
        step: Time of a step, in driver windows.
    """
    remainder = (1.0 / step) % 1.0
    apart = min(remainder, 1.0 - remainder)
    most = step * min(apart, mean, 1.0 - mean)
    # an alias's period changes quickly with the step time, which varies
    return step < 2.0 and swing <= most + 0.01 and abs(period * apart - 1.0) <= 0.1


LEAST_SAMPLES = 60
"""Fewest driver windows over all trials of a point for a verdict."""

LEAST_COVERAGE = 0.9
"""Share of the steady windows that driver windows must cover."""

LEAST_BUSY_TRIALS = 2
"""Trials that a point needs for its rate to be a limit for others."""

LEAST_BUSY = 0.3
"""Utilization that such a point needs."""

MEANINGS: Mapping[Pattern, str] = {
    Pattern.FLAT: (
        "all steps are similar: if utilization is high the GPU is the limit, and only a faster step helps (XLA, mixed "
        "precision); if it is low each step waits or its kernels are too small (larger batch, XLA, prefetch)"
    ),
    Pattern.CYCLIC: "the step waits for data at regular intervals: more prefetch, more workers or a cache",
    Pattern.BURSTY: (
        "the GPU is starved irregularly, or at a period too short for the driver to show: check how long steps wait "
        "for data; more prefetch, more workers, less frequent evaluation and checkpoints"
    ),
    Pattern.DRIFT: "not settled yet: caches are filling, clocks are throttled, or batches change over the epoch",
    Pattern.INSUFFICIENT: "too little data: measure longer",
}
"""Usual cause and remedy of each pattern."""

REFERENCES: Mapping[GpuRole, tuple[float, float]] = {GpuRole.DATA: (0.60, 0.80), GpuRole.MODEL: (0.85, 0.95)}
"""Utilization of two GPUs that share the work well, as reported by users of two RTX 4090; not part of the score."""


def against_reference(utilization: float, role: GpuRole) -> str:
    """Compare the utilization of a GPU with `REFERENCES`, whose ends are ``within``."""
    low, high = REFERENCES[role]
    return "below" if utilization < low else "above" if utilization > high else "within"


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """Utilization over all trials of a point.

    Attributes:
        samples: Number of driver windows.
        covered_fraction: Share of the steady windows that they cover, 0..1.
        oscillation: Not to be shown while `missing`.
    """

    samples: int
    covered_fraction: float
    oscillation: Oscillation

    @property
    def missing(self) -> str | None:
        if self.samples < LEAST_SAMPLES:
            return f"{self.samples} of {LEAST_SAMPLES} driver samples"
        if self.covered_fraction < LEAST_COVERAGE - 1e-9:  # 13.5 s of 15 s are enough
            # Rounded down: 89.9 % must not be shown as 90 %.
            covered = math.floor(self.covered_fraction * 100)
            return f"{covered} % of the time covered, {100 * LEAST_COVERAGE:.0f} % needed"
        return None

    @property
    def mean(self) -> float | None:
        return None if self.missing else self.oscillation.mean


def pooled_utilization(segments: Sequence[Segment], *, step_s: float | None = None) -> Utilization:
    """Pool the trials of a point, each driver window weighted by its length.

    Args:
        segments: One per trial, also without driver windows: their time counts as not covered.
    """
    asked_s = math.fsum(segment.asked_s for segment in segments)
    covered_s = math.fsum(segment.covered_s for segment in segments)
    return Utilization(
        samples=sum(len(segment.busy) for segment in segments),
        covered_fraction=min(1.0, covered_s / asked_s) if asked_s > 0.0 else 0.0,
        oscillation=oscillation(segments, step_s=step_s),
    )


def describe(utilization: Utilization) -> str:
    """Return the verdict in words, e.g. ``2-40 % cyclic, period 2.1 s``, ``91 % flat`` or ``not enough yet: ...``."""
    seen = utilization.oscillation
    if utilization.missing or seen.mean is None or seen.low is None or seen.high is None:
        return f"not enough yet: {utilization.missing}"
    if seen.pattern is Pattern.FLAT:
        return f"{_percent(seen.mean)} % flat"
    if seen.pattern is Pattern.DRIFT:
        ends = (_percent(seen.mean - seen.rise / 2), _percent(seen.mean + seen.rise / 2))
        return f"{ends[0]} to {ends[1]} % drifting {'up' if seen.rise > 0 else 'down'}"
    levels = f"{_percent(seen.low)}-{_percent(seen.high)} % {seen.pattern.value}"
    if seen.period_s is None:
        return levels
    decimals = 2 if seen.period_s < 1.0 else 1 if seen.period_s < 10.0 else 0
    return f"{levels}, period {seen.period_s:.{decimals}f} s"


def _percent(share: float) -> int:
    return round(100 * min(1.0, max(0.0, share)))


def best_busy_rate(points: Iterable[tuple[float | None, Sequence[float]]]) -> float | None:
    """Return the rate ``r*``, in samples per busy second, that the GPU has been shown to sustain; None if unknown.

    It is the highest, over points with `LEAST_BUSY_TRIALS` trials and a utilization of `LEAST_BUSY`, of the lower ends
    of the 95 % intervals of ln rate, with the variance pooled over points (`moderated_interval`).

    Args:
        points: Utilization of each point, None if unknown, and the rate ``T / U`` of each trial.
    """
    repeated = [(busy, list(map(math.log, rates))) for busy, rates in points if len(rates) >= LEAST_BUSY_TRIALS]
    lows = []
    for index, (utilization, ln_rates) in enumerate(repeated):
        if utilization is not None and utilization >= LEAST_BUSY:
            others = (other for place, (_, other) in enumerate(repeated) if place != index)
            mean, half_width = moderated_interval(ln_rates, *pooled_variance(others))
            lows.append(mean - half_width)
    return math.exp(max(lows)) if lows else None
