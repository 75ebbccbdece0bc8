"""Benchmark of the verdicts on GPU utilization against the truth, on simulated driver windows.

A scenario is a course of utilization that is known at every moment, observed as a driver shows it: the average over
each sample window, in whole percent, with some windows lost, and each trial begun at another moment of the course.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autotune.measure.cycles import Series
from autotune.measure.utilization import LEAST_PERIOD_WINDOWS, Oscillation, Pattern, Segment, oscillation
from scripts.bench.results import Commands, markdown_table

_NOISE_S = 0.05  # how long a level stays before noise changes it
_CLOSE = 0.05
_BEFORE_S = 20.0  # a trial begins somewhere in this stretch


class Truth(StrEnum):
    """True behaviour of a scenario, as far as a driver can show it."""

    STEADY = "steady"
    CYCLE = "cycle"
    TOO_FAST = "cycle, under 3 windows"
    TOO_FAST_TOLD = "the same, step time told"
    TOO_SLOW = "cycle, under 3 times"
    BURSTS = "random bursts"
    DRIFT = "drift"
    NOISE = "white noise"


_CYCLES = frozenset({Truth.CYCLE, Truth.TOO_FAST, Truth.TOO_FAST_TOLD})


@dataclass(frozen=True, kw_only=True, eq=False)
class GpuTrace:
    """Utilization over time, as a step function.

    Attributes:
        borders_s: Start of each level, and the end of the last.
        levels: The levels, 0..1, one fewer than borders.
    """

    borders_s: Series
    levels: Series

    def busy_s(self, times_s: Series) -> Series:
        """Return the busy time from the first border until each of these times."""
        reached = np.concatenate(([0.0], np.cumsum(np.diff(self.borders_s) * self.levels)))
        return np.interp(times_s, self.borders_s, reached)

    def mean(self, t0_s: float, t1_s: float) -> float:
        """Return the true utilization of an interval."""
        before_s, after_s = self.busy_s(np.array([t0_s, t1_s]))
        return float(after_s - before_s) / (t1_s - t0_s)

    def cycle_s(self, t0_s: float, t1_s: float) -> float | None:
        """Return the mean distance of the rises in an interval, jitter included; None if there are fewer than two."""
        rises_s = self.borders_s[1:-1][np.diff(self.levels) > 0.0]
        rises_s = rises_s[(rises_s >= t0_s) & (rises_s <= t1_s)]
        return float(np.diff(rises_s).mean()) if len(rises_s) >= 2 else None

    def with_noise(self, rng: np.random.Generator, sd: float) -> "GpuTrace":
        """Return the same course with a noisy level every 50 ms, around the old one."""
        grid_s = np.arange(self.borders_s[0], self.borders_s[-1], _NOISE_S)
        borders_s = np.union1d(self.borders_s, grid_s)
        at = np.searchsorted(self.borders_s, borders_s[:-1], "right") - 1
        levels = self.levels[at] + rng.normal(0.0, sd, len(at))
        return GpuTrace(borders_s=borders_s, levels=np.clip(levels, 0.0, 1.0))

    def seen(self, t0_s: float, t1_s: float, driver: "DriverWindows", rng: np.random.Generator) -> Segment:
        """Return the driver's view of a steady window.

        Args:
            t0_s: Start of the steady window; the driver's windows begin anywhere.
        """
        borders_s = np.arange(t0_s - rng.uniform(0.0, driver.length_s), t1_s + driver.length_s, driver.length_s)
        borders_s += rng.uniform(-driver.wobble / 2, driver.wobble / 2, len(borders_s)) * driver.length_s
        lengths_s = np.diff(borders_s)
        busy = np.round(np.diff(self.busy_s(borders_s)) / lengths_s, 2)  # drivers say whole percent
        kept = rng.uniform(size=len(busy)) >= driver.lost
        rows = np.column_stack((borders_s[1:], lengths_s, np.clip(busy, 0.0, 1.0)))[kept]
        return Segment.within(t0_s, t1_s, [(end_s, length_s, share) for end_s, length_s, share in rows])


@dataclass(frozen=True, kw_only=True)
class DriverWindows:
    """Sample windows of a driver."""

    length_s: float
    wobble: float = 0.0
    lost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SquareWave:
    """Wave between two levels.

    Attributes:
        low: The low level, 0..1.
        high: The high level, 0..1.
    """

    period_s: float
    duty: float
    low: float
    high: float
    jitter: float = 0.0

    def trace(self, length_s: float, rng: np.random.Generator) -> GpuTrace:
        """Draw a course of at least this length, with a random phase."""
        cycles = int(1.5 * length_s / self.period_s) + 10
        periods_s = self.period_s * np.clip(rng.normal(1.0, self.jitter, cycles), 0.3, 3.0)
        ends_s = np.cumsum(periods_s) - rng.uniform(0.0, self.period_s)
        starts_s = ends_s - periods_s
        borders_s = np.append(np.column_stack((starts_s, starts_s + self.duty * periods_s)).ravel(), ends_s[-1])
        return GpuTrace(borders_s=borders_s, levels=np.tile([self.high, self.low], cycles))


def random_bursts(
    burst_s: float, pause_s: float, low: float, high: float, *, length_s: float, rng: np.random.Generator
) -> GpuTrace:
    """Return a telegraph signal: bursts and pauses of exponentially distributed length, without memory."""
    count = int(3 * length_s / (burst_s + pause_s)) + 50
    spans_s = np.column_stack((rng.exponential(burst_s, count), rng.exponential(pause_s, count))).ravel()
    borders_s = np.concatenate(([0.0], np.cumsum(spans_s)))
    return GpuTrace(borders_s=borders_s, levels=np.tile([high, low], count))


def ramp(first: float, last: float, *, length_s: float) -> GpuTrace:
    """Return a straight line, in steps of 50 ms."""
    borders_s = np.arange(0.0, length_s + _NOISE_S, _NOISE_S)
    return GpuTrace(borders_s=borders_s, levels=np.linspace(first, last, len(borders_s) - 1))


def white_noise(mean: float, sd: float, window_s: float, *, length_s: float, rng: np.random.Generator) -> GpuTrace:
    """Return a new random level for every interval of a driver window's length."""
    borders_s = np.arange(0.0, length_s + window_s, window_s)
    return GpuTrace(borders_s=borders_s, levels=np.clip(rng.normal(mean, sd, len(borders_s) - 1), 0.0, 1.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """Course of a GPU's utilization and the trials that observe it.

    Attributes:
        truth: True behaviour.
        starts_s: Starts of the trials, in the time of the course.
        period_s: The true period; None if there is none.
    """

    truth: Truth
    trace: GpuTrace
    window_s: float
    trial_s: float
    starts_s: Sequence[float]
    period_s: float | None

    def judged(self, segments: Sequence[Segment]) -> "Outcome":
        """Return the verdict on the driver's view of the trials."""
        seen = oscillation(segments, step_s=self.period_s if self.truth is Truth.TOO_FAST_TOLD else None)
        true_mean = float(np.mean([self.trace.mean(start_s, start_s + self.trial_s) for start_s in self.starts_s]))
        assert seen.mean is not None  # every scenario has windows
        return Outcome(truth=self.truth, period_s=self.period_s, seen=seen, mean_error=abs(seen.mean - true_mean))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One scenario with its verdict.

    Attributes:
        truth: True behaviour.
        period_s: The true period; None if there is none.
        mean_error: Error of the mean utilization, 0..1.
    """

    truth: Truth
    period_s: float | None
    seen: Oscillation
    mean_error: float

    @property
    def period_error(self) -> float | None:
        """Relative error of the period; None where none was found, or there is none."""
        if self.seen.period_s is None or self.period_s is None:
            return None
        return abs(self.seen.period_s / self.period_s - 1.0)


def benchmark_oscillation(*, scenarios: int, seed: int) -> str:
    """Judge random scenarios and return the accuracy of the verdicts, as Markdown.

    Args:
        scenarios: Number of scenarios, at least 1.
    """
    outcomes = [_judge_scenario(np.random.default_rng((seed, index))) for index in range(scenarios)]
    lost = "(In half of the scenarios a twentieth of the driver windows is lost.)"
    return "\n\n".join((f"{scenarios} scenarios, seed {seed}. {lost}", *tables(outcomes))) + "\n"


def _judge_scenario(rng: np.random.Generator) -> Outcome:
    """Draw a scenario, compute the driver's view of it, and judge that."""
    scenario = draw_scenario(rng)
    wobble, lost = float(rng.choice([0.0, 0.03])), float(rng.choice([0.0, 0.05]))
    driver = DriverWindows(length_s=scenario.window_s, wobble=wobble, lost=lost)
    return scenario.judged(
        [scenario.trace.seen(start_s, start_s + scenario.trial_s, driver, rng) for start_s in scenario.starts_s]
    )


def draw_scenario(rng: np.random.Generator) -> Scenario:
    """Draw a random scenario."""
    window_s = float(rng.choice([1 / 6, 1 / 6, 1 / 2, 1.0]))
    trial_s = float(rng.choice([20.0, 30.0, 60.0]))
    trials = int(rng.integers(1, 4))
    truth = Truth(rng.choice([truth.value for truth in Truth]))
    trace = _trace(truth, window_s, trial_s, rng)
    starts_s = [0.0] if truth is Truth.DRIFT else list(rng.uniform(0.0, _BEFORE_S, trials))
    return Scenario(
        truth=truth,
        trace=trace.with_noise(rng, float(rng.uniform(0.0, 0.1))),
        window_s=window_s,
        trial_s=trial_s,
        starts_s=starts_s,
        period_s=_period_s(trace, starts_s, trial_s) if truth in _CYCLES else None,
    )


def _trace(truth: Truth, window_s: float, trial_s: float, rng: np.random.Generator) -> GpuTrace:
    """Draw a course with that behaviour."""
    length_s = trial_s + _BEFORE_S
    low = float(rng.uniform(0.0, 0.4))
    high = low + float(rng.uniform(0.25, 0.6))
    if truth is Truth.STEADY:
        return GpuTrace(borders_s=np.array([0.0, length_s]), levels=np.array([high]))
    if truth is Truth.DRIFT:
        ends = (low, high) if rng.uniform() < 0.5 else (high, low)
        return ramp(*ends, length_s=trial_s)
    if truth is Truth.NOISE:
        return white_noise(high, float(rng.uniform(0.05, 0.25)), window_s, length_s=length_s, rng=rng)
    if truth is Truth.BURSTS:
        burst_s, pause_s = rng.uniform(0.5, 10.0, 2) * window_s
        return random_bursts(burst_s, pause_s, low, high, length_s=length_s, rng=rng)
    ends_s = {
        # Not quite a third: the driver windows at the ends of a trial are only partly in it.
        Truth.CYCLE: (LEAST_PERIOD_WINDOWS * window_s, trial_s / 3.5),
        Truth.TOO_SLOW: (trial_s / 2.8, trial_s / 1.5),
    }.get(truth, (0.4 * window_s, 0.98 * LEAST_PERIOD_WINDOWS * window_s))
    period_s = float(np.exp(rng.uniform(*np.log(ends_s))))
    duty, jitter = float(rng.uniform(0.2, 0.8)), float(rng.choice([0.0, 0.05]))
    return SquareWave(period_s=period_s, duty=duty, low=low, high=high, jitter=jitter).trace(length_s, rng)


def _period_s(trace: GpuTrace, starts_s: Sequence[float], trial_s: float) -> float | None:
    """Return the true period over all trials, so that jitter in the few cycles of one trial is no error."""
    cycles_s = [trace.cycle_s(start_s, start_s + trial_s) for start_s in starts_s]
    known_s = [cycle_s for cycle_s in cycles_s if cycle_s is not None]
    return float(np.mean(known_s)) if known_s else None


def tables(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the accuracy of the verdicts: paragraphs and tables, as Markdown."""
    errors = np.array([outcome.mean_error for outcome in outcomes])
    middle, high, most = 100 * np.percentile(errors, (50, 95, 100))
    mean = f"Utilization is off by {middle:.2f} points in the median, {high:.2f} in 95 %, {most:.2f} at most."
    counts = Counter((outcome.truth, outcome.seen.pattern) for outcome in outcomes)
    patterns = [pattern for pattern in Pattern if pattern is not Pattern.INSUFFICIENT]
    rows = [[truth.value, *(str(counts[truth, pattern] or "") for pattern in patterns)] for truth in Truth]
    verdicts = markdown_table(["in truth", *(pattern.value for pattern in patterns)], rows)
    found = [(outcome.period_s or 0.0, outcome.period_error) for outcome in outcomes if outcome.truth is Truth.CYCLE]
    period_rows = []
    for name, low_s, high_s in (("under 1 s", 0.0, 1.0), ("1 s and more", 1.0, np.inf)):
        some = [error for period_s, error in found if error is not None and low_s <= period_s < high_s]
        if some:
            quantiles = np.percentile(some, (50, 90, 100))
            period_rows.append([name, str(len(some)), *(f"{quantile:.2%}" for quantile in quantiles)])
    periods = markdown_table(["true period", "found", "off by, median", "90 %", "at most"], period_rows)
    wrong = sum(_has_wrong_period(outcome) for outcome in outcomes)
    claims = f"{wrong} of {len(outcomes)} are said to have a period that they do not have, or one off by over 5 %."
    return mean, "## Verdicts", verdicts, claims, "## Periods of what is a cycle and called one", periods


def _has_wrong_period(outcome: Outcome) -> bool:
    if outcome.seen.period_s is None:
        return False
    return outcome.period_error is None or outcome.period_error > _CLOSE


def add_oscillation(commands: Commands) -> None:
    """Add the parser of ``oscillation``."""
    parser = commands.add_parser("oscillation", help="judge simulated GPU utilization, and compare with the truth")
    parser.add_argument("--scenarios", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(
        run=lambda given: print(benchmark_oscillation(scenarios=given.scenarios, seed=given.seed), end="")
    )
