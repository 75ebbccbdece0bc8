"""GPU utilization of a point over time: its oscillation, pooled over the trials, and the effective utilization.

A driver does not say when the GPU was busy, only for which share of each of its sample windows (1/6 s to 1 s). A cycle
shows in that series from 3 windows a period on. A faster one is averaged away, or folded into a slow beat that is
not there: the share of a step that waits for data tells about those. A single trial is too short for a verdict on its
GPU: the driver windows of all trials of a point are pooled, and there is no verdict before there are enough of them.

The method: take out the trend, split the windows into a low and a high level (Otsu, "A threshold selection method
from gray-level histograms", IEEE Trans. SMC 9(1), 1979), and look for the period in the autocorrelation (Box, Jenkins,
Reinsel & Ljung, "Time Series Analysis", 5th ed. 2015, chapter 2).
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
"""Driver windows below which there is no verdict."""

LEAST_SWING = 0.15
"""Distance between the means of the low and the high windows that counts; less is how steady steps look to a driver."""

LEAST_RISE = 0.15
"""Change of the trend from end to end that counts."""

LEAST_TREND_S = 8.0
"""Length of a trial from which on it can show a trend.

A shorter one sees a piece of a wave, and where waves begin with the trial, each of them the same piece: 2 cycles from
high to low fall like a slope. Stalls of an input pipeline come every few seconds at most, so this long a trial sees
several.
"""

IDLE = 0.1
"""Busy share below which a driver window counts as idle."""

LEAST_SPLIT = 0.6
"""Share of the variance that the two levels of a cycle must explain."""

LEAST_PEAK = 0.4
"""Autocorrelation that a cycle must have with the next one and with the one after that."""

LEAST_PERIOD_WINDOWS = 3
"""Driver windows in the shortest period that the driver can show."""

LEAST_PERIOD_S = LEAST_PERIOD_WINDOWS / 6
"""Shortest period that any driver can show: its windows are 1/6 s at least."""

_ROUNDING = 1e-9  # 0.40 - 0.25 must be the 15 points that it is
_FINE = 16  # points of the interpolated autocorrelation for each lag
_LANCZOS_LAGS = 8


class Pattern(StrEnum):
    """Pattern of utilization over time."""

    FLAT = "flat"
    CYCLIC = "cyclic"
    BURSTY = "bursty"  # up and down, but not periodic, or too fast for the period to be known
    DRIFT = "drift"
    INSUFFICIENT = "insufficient"


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Driver windows of one trial, in order of time.

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
        """Return the driver windows that lie wholly in the steady window.

        Args:
            t0_s: Start of the steady window.
            t1_s: End of the steady window.
            windows: End, length and busy share of each driver window, in order of time.
        """
        kept = [window for window in windows if window[0] - window[1] >= t0_s and window[0] <= t1_s]
        ends_s, lengths_s, busy = np.array(kept, dtype=float).reshape(-1, 3).T
        return cls(asked_s=t1_s - t0_s, ends_s=ends_s, lengths_s=lengths_s, busy=busy)

    @property
    def covered_s(self) -> float:
        """Time that the driver windows cover."""
        return float(self.lengths_s.sum())

    @property
    def mids_s(self) -> Series:
        """Middle of each driver window."""
        return self.ends_s - self.lengths_s / 2

    @property
    def span_s(self) -> float:
        """Time from the start of the first driver window to the end of the last, gaps included."""
        return float(self.ends_s[-1] - self.ends_s[0] + self.lengths_s[0])


@dataclass(frozen=True, kw_only=True)
class Oscillation:
    """Verdict on utilization over time; levels are shares of time, 0..1, and absent where there was no window.

    Attributes:
        low: Level of the lower of the two groups that the driver windows fall into; without the trend if that drifts.
        high: Level of the upper group.
        mean: Average over the time that the windows cover.
        p10: Level that at least a tenth of this time is at or below.
        idle: Share of this time in windows that were busy for less than a tenth.
        duty: Share of this time at the high level; what lies between the levels counts in proportion. None also where
            all windows are alike.
        rise: Change of the trend over the longest segment, negative where it falls; 0 where none is long enough.
        period_s: Length of a cycle; None unless the verdict is `Pattern.CYCLIC`.
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

    * ``cyclic``: the two groups are `LEAST_SWING` apart, mostly within segments, and explain `LEAST_SPLIT` of the
      variance, and the autocorrelation peaks at one period and again at two. The first peak must also be beyond chance.
    * ``drift``: not cyclic, and within segments of `LEAST_TREND_S` the trend rises or falls by `LEAST_RISE`, beyond
      what chance does to one of them: what begins with each trial, such as a wave, is alike in all, so that more trials
      do not make a trend surer. That one trial lies above another is no drift: trials differ for many reasons.
    * ``bursty``: neither, and the groups are `LEAST_SWING` apart.
    * ``flat``: none of these. ``insufficient``: fewer than `LEAST_WINDOWS` driver windows.

    Args:
        segments: One for each trial. Levels are those of all trials; the trend and the period are looked for within
            each, never across their borders, and must be common to all.
        step_s: Time of a training step, positive, where it is known and steady. A wave faster than the driver windows
            can show as a slow beat; with this it is recognized, and no period is claimed.
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
    # a trend must be this many times its standard error, or bursts would fake one
    drifts = abs(rise) >= LEAST_RISE and abs(slope) >= 3.0 * _slope_error_per_s(rows, window_s)
    # A cycle that does not fit the segment a whole number of times has a small trend too: the levels stay raw.
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
    if step_s is not None and _is_beat(period, levels.swing, mean, step_s / window_s):
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
    """Return the standard error of that slope, as from the longest segment alone; what is correlated counts less."""
    known = np.concatenate([row[~np.isnan(row)] for row in rows])
    spread = max(float(np.var(np.flatnonzero(~np.isnan(row))) * np.sum(~np.isnan(row))) for row in rows)
    if spread <= 0.0:
        return math.inf
    return math.sqrt(float(known.var()) * integrated_autocorrelation_time(known) / spread) / window_s


@dataclass(frozen=True, kw_only=True)
class _Levels:
    """Two groups of driver windows.

    Attributes:
        swing: Distance of the means of the groups.
        split: Share of the variance that lies between the groups.
    """

    low: float
    high: float
    swing: float
    split: float

    @property
    def are_apart(self) -> bool:
        return self.swing >= LEAST_SWING - _ROUNDING


def _two_levels(values: Series, weights: Series) -> _Levels:
    """Split the windows into two groups (`two_groups`).

    The windows that contain an edge lie between the levels and pull the means of the groups together. A level is
    the median of those that lie beyond the mean of their group, or little before it.
    """
    groups = two_groups(values, weights)
    if groups is None:
        mean = float(np.average(values, weights=weights))
        return _Levels(low=mean, high=mean, swing=0.0, split=0.0)
    swing = groups.high - groups.low
    # of the swing: a window this much further inside than its group's mean holds an edge
    margin = (1 / 8) * swing
    lowest, highest = values <= groups.low + margin, values >= groups.high - margin
    return _Levels(
        low=_quantile(values[lowest], weights[lowest], 0.5),
        high=_quantile(values[highest], weights[highest], 0.5),
        swing=swing,
        split=groups.explained,
    )


def _cycle(rows: Sequence[Series], levels: _Levels) -> float | None:
    """Return the driver windows in one cycle; None if there is no cycle, or none that the driver can show."""
    if not levels.are_apart or levels.split < LEAST_SPLIT or _swing_within(rows) < levels.swing / 2:
        return None
    period = period_of(rows)
    # a period is found to 1-2 %: one of exactly 3 windows may be read as a little less
    return period if period is not None and period >= 0.97 * LEAST_PERIOD_WINDOWS else None


def _swing_within(rows: Sequence[Series]) -> float:
    """Return the distance of the two levels of the windows about the means of their own trials.

    Without it, trials at unlike levels would lend their distance to any ripple in them; one alone cannot.
    """
    if len(rows) == 1:
        return math.inf
    known = np.concatenate([row[~np.isnan(row)] for row in rows])
    return _two_levels(known, np.ones(len(known))).swing


def _duty(values: Series, weights: Series, levels: _Levels) -> float | None:
    """Return the share of time at the high level; a window between the levels counts in proportion."""
    if levels.high <= levels.low:
        return None
    shares = np.clip((values - levels.low) / (levels.high - levels.low), 0.0, 1.0)
    return float(np.average(shares, weights=weights))


def _quantile(values: Series, weights: Series, share: float) -> float:
    """Return the smallest of the values that at least this share of the weight is at or below."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1] * (1 - 1e-9))])


def _resampled(segment: Segment, trend: Series, cell_s: float) -> Series:
    """Return averages over equal cells, without trend and mean; NaN where less than half of a cell is covered."""
    # Stamps may be rounded so that windows overlap a little: each counts from the end of the one before.
    starts_s = np.maximum(segment.ends_s - segment.lengths_s, np.concatenate(([-math.inf], segment.ends_s[:-1])))
    lengths_s = segment.ends_s - starts_s
    values = segment.busy - trend
    values -= np.average(values, weights=segment.lengths_s)
    # Both integrals are straight within a window and level in a gap, so interpolating them is exact.
    knots_s = np.column_stack((starts_s, segment.ends_s)).ravel()
    cells = max(1, round((knots_s[-1] - knots_s[0]) / cell_s))
    borders_s = knots_s[0] + cell_s * np.arange(cells + 1)
    covered_s = np.diff(np.interp(borders_s, knots_s, _integral(lengths_s)))
    integrals = np.diff(np.interp(borders_s, knots_s, _integral(lengths_s * values)))
    known = covered_s >= cell_s / 2
    return np.where(known, integrals / np.where(known, covered_s, 1.0), math.nan)


def _integral(amounts: Series) -> Series:
    """Return the running sum at the start and the end of each window."""
    after = np.cumsum(amounts)
    return np.column_stack((after - amounts, after)).ravel()


def period_of(rows: Sequence[Series]) -> float | None:
    """Return the period in cells; None if the series is not periodic, or has fewer than 3 cycles.

    One peak is not enough: random bursts have one in up to a case of ten, and two that fit together in one of fifty.

    Args:
        rows: Values at equal distances, without trend and mean, in stretches that have nothing to do with each other;
            NaN where one is missing.
    """
    lags = 2 * max(len(row) for row in rows) // 3  # in the longest segment: lags up to a third of it
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
    # The first, also where a later one is higher: narrow pulses line up with the windows best after several periods.
    peaks = _peaks(fine, int(crossings[0]), (len(fine) - 1) // 2)
    first = next((peak for peak in peaks if fine[peak] >= least_peak), None)
    return None if first is None else _refined(fine, first)


def _autocorrelation(rows: Sequence[Series], lags: int) -> Series | None:
    """Return the autocorrelation at lags 0 to ``lags``, averaged over the pairs there are; None if nothing varies."""
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
    """Return the autocorrelation at `_FINE` points a lag, by a windowed sinc (Duchon, "Lanczos filtering", 1979).

    From two cells a period on this is right between the lags as well. A peak at 2.5 lags would otherwise be missed, and
    the one at 5 taken for the period.
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
    """Return the highest place of each positive stretch that begins after ``first`` and peaks before ``last``."""
    positive = (fine > 0.0).astype(int)
    positive[: first + 1] = 0
    changes = np.diff(np.concatenate(([0], positive, [0])))
    stretches = zip(np.flatnonzero(changes == 1), np.flatnonzero(changes == -1), strict=True)
    highest = [int(start + np.argmax(fine[start:stop])) for start, stop in stretches]
    return [peak for peak in highest if peak <= last]


def _refined(fine: Series, first: int) -> float | None:
    """Return the period in cells from all peaks that repeat the first, by least squares; None if none does."""
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


def _is_beat(period: float, swing: float, mean: float, step: float) -> bool:
    """Return True if a wave at the pace of the steps would look like this through driver windows.

    A window holds a whole number of steps and a remainder; only the remainder moves the window's share, and by no
    more than there is busy or idle time in it.

    Args:
        period: Period that was found, in driver windows.
        swing: Distance between its groups.
        step: Time of a step, in driver windows.
    """
    remainder = (1.0 / step) % 1.0
    apart = min(remainder, 1.0 - remainder)
    most = step * min(apart, mean, 1.0 - mean)
    # a beat's period moves quickly with the step time, which varies
    return step < 2.0 and swing <= most + 0.01 and abs(period * apart - 1.0) <= 0.1


LEAST_SAMPLES = 60
"""Driver windows, over all trials of a point, below which there is no verdict."""

LEAST_COVERAGE = 0.9
"""Share of the steady windows that driver windows must cover."""

LEAST_BUSY_TRIALS = 2
"""Trials that a point needs for its rate to be a limit for others."""

LEAST_BUSY = 0.3
"""Utilization that such a point needs: a rate per busy second is uncertain where few seconds were busy."""

MEANINGS: Mapping[Pattern, str] = {
    Pattern.FLAT: (
        "every step looks alike: where it is high the GPU is the limit, and only a faster step helps (XLA, mixed "
        "precision); where it is low each step waits or its kernels are too small (larger batch, XLA, prefetch)"
    ),
    Pattern.CYCLIC: "the step waits for data at a regular beat: more prefetch, more workers or a cache",
    Pattern.BURSTY: (
        "the GPU is starved now and then, or too fast for the driver to show the beat: see how long steps wait for "
        "data; more prefetch, more workers, evaluation and checkpoints less often"
    ),
    Pattern.DRIFT: "it has not settled: caches still fill, clocks are throttled, or batches change over the epoch",
    Pattern.INSUFFICIENT: "too little was seen to tell: measure longer",
}
"""Usual cause of each pattern, and its usual remedy."""

REFERENCES: Mapping[GpuRole, tuple[float, float]] = {GpuRole.DATA: (0.60, 0.80), GpuRole.MODEL: (0.85, 0.95)}
"""Utilization of two GPUs that share the work well, as users of two RTX 4090 state it; no part of the score."""


def against_reference(utilization: float, role: GpuRole) -> str:
    """Compare the utilization of a GPU with `REFERENCES`, both ends of which are ``within``."""
    low, high = REFERENCES[role]
    return "below" if utilization < low else "above" if utilization > high else "within"


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """Utilization over all trials of a point.

    Attributes:
        samples: Number of driver windows.
        covered_fraction: Share of the steady windows that they cover, 0..1.
        oscillation: Levels, mean and verdict. They are there before there is enough to be shown: see `missing`.
    """

    samples: int
    covered_fraction: float
    oscillation: Oscillation

    @property
    def missing(self) -> str | None:
        """Reason, for people, why there is no verdict yet; None once there is enough."""
        if self.samples < LEAST_SAMPLES:
            return f"{self.samples} of {LEAST_SAMPLES} driver samples"
        if self.covered_fraction < LEAST_COVERAGE - 1e-9:  # 13.5 s of 15 s are enough
            # Rounded down: 89.9 % must not be shown as the 90 % that it is not.
            return f"{math.floor(self.covered_fraction * 100)} % of the time covered, {LEAST_COVERAGE:.0%} needed"
        return None

    @property
    def mean(self) -> float | None:
        """Share of time in which the GPU was busy, 0..1; None while not enough is known."""
        return None if self.missing else self.oscillation.mean


def pooled_utilization(segments: Sequence[Segment], *, step_s: float | None = None) -> Utilization:
    """Pool the trials of a point; each driver window counts with its length.

    Args:
        segments: One for each trial, also those without any driver window: their time was asked for.
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
    """Return the rate that the GPU has shown to be able to keep up: ``r*``.

    For each point of at least `LEAST_BUSY_TRIALS` trials and a utilization of `LEAST_BUSY`, the lower end of the 95 %
    interval of its rate, on logarithms, by a moderated t: the variance of trials is pooled with that of the other
    points (`moderated_interval`). Of these the highest, so that one lucky trial does not become a limit that nothing
    reaches.

    Args:
        points: Of each point of a study its utilization over all trials, None while not enough is known, and the rate
            ``T / U`` of each trial: samples per second that the GPU was busy. Those that do not qualify are left out.

    Returns:
        Training samples per busy second; None ("not known yet") while no point qualifies.
    """
    repeated = [(busy, list(map(math.log, rates))) for busy, rates in points if len(rates) >= LEAST_BUSY_TRIALS]
    lows = []
    for index, (utilization, ln_rates) in enumerate(repeated):
        if utilization is not None and utilization >= LEAST_BUSY:
            others = (other for place, (_, other) in enumerate(repeated) if place != index)
            mean, half_width = moderated_interval(ln_rates, *pooled_variance(others))
            lows.append(mean - half_width)
    return math.exp(max(lows)) if lows else None
