"""Steady window of a trial, found in the steps that it reported, and the `Measurement` made of it.

A step's time is the distance from the step before it in the same stream. The first step has none: it holds
the start of the process, tracing and compiling. Where gradients are accumulated, a step is one of the batches, and the
window has whole rounds of them: the optimizer's update takes its time in one of each.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.measure.cycles import Ends, Lengths, Series, find_cycles, first_end, speed_error, warm_up
from autotune.measure.probe import GpuUsage, HostUsage, MemorySeries
from autotune.measure.statistics import lacks_cycles
from autotune.records import PAUSES, Measurement, Pauses, RankMeasurement, TraineeEvent
from autotune.stage_times import PipelineTimes

_SHORTEST_S = 1e-3  # stamps closer than this are no training
# Of samples or work in a step: what a broken trainer reports must not become a speed.
_SMALLEST_AMOUNT, _LARGEST_AMOUNT = 1e-9, 1e12

STALL = 3.0
"""Times the median step that a step takes at least that is a stall."""

_PARTS = 6  # of a window, in which growth shows

LEAST_STEPS = 5
"""Steps (one batch of MSER-5) below which there is no window at all."""


class Stalls(NamedTuple):
    """Long steps.

    Attributes:
        fraction: Share of all time that they take beyond usual ones.
        wait_fraction: Share of their time that they waited for data; None where it is not known, or without any.
        epoch_fraction: Share of their time that those took at which a pass over the data ended; None without any.
    """

    fraction: float
    wait_fraction: float | None
    epoch_fraction: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """Steady part of a trial, step by step; steps that contain a pause are left out.

    Attributes:
        t0_s: Start of the first step of the window.
        t1_s: End of the last step of the window.
        waits_s: Time for which each step waited for data; NaN where not reported, None if by none.
        samples: Samples of each step; None unless known for all.
        work: Frames or tokens of each step; None unless known for all.
        at_epoch_ends: Whether a pass over the data ended at each step's begin or in it.
        of_steps: Number of steps that it was taken from, after the warm-up.
        before: Number of the trial's steps before it.
        begin_s: Begin of the first step, its batch included; None where it is not known.
        first_wait_s: Time that the first step waited for data; None where it is not known.
        cycle_ends: Ends of its whole cycles, from 0 to the number of steps; None where it does not consist of them.
        cycle_lengths: Steps in each of the longest cycles that were seen whole.
        beat_s: Time of the longest cycles of which one at least was seen whole; None without any.
        has_stalls: Whether some steps are slow, of another kind than the others.
    """

    first_step_end_s: float
    t0_s: float
    t1_s: float
    durations_s: Series
    waits_s: Series | None
    samples: Series | None
    work: Series | None
    at_epoch_ends: NDArray[np.bool_]
    of_steps: int = 0
    before: int = 0
    begin_s: float | None = None
    first_wait_s: float | None = None
    cycle_ends: Ends | None = None
    cycle_lengths: Lengths | None = None
    beat_s: float | None = None
    has_stalls: bool = False

    @property
    def steps(self) -> int:
        return len(self.durations_s)

    @property
    def time_s(self) -> float:
        """Time of these steps: at most ``t1_s - t0_s``, less where pauses were left out."""
        return float(self.durations_s.sum())

    @property
    def units(self) -> Series:
        """Units of work of each step: its work, else its samples, else 1."""
        if self.work is not None:
            return self.work
        return self.samples if self.samples is not None else np.ones(self.steps)

    def samples_per_s(self, default_samples: float | None) -> float:
        """Return the throughput.

        Args:
            default_samples: Samples in a step where the steps do not say: the batch size of the config. None counts
                steps instead of samples.
        """
        counted = (default_samples or 1.0) * self.steps
        return (counted if self.samples is None else float(self.samples.sum())) / self.time_s

    def filled_samples_per_s(self, default_samples: float | None) -> float | None:
        """Return the throughput without waiting for data; None where steps do not report it, or do nothing else.

        Where a cache is still being filled, this is about what it will be once it is full: loading costs next to
        nothing then.
        """
        if self.waits_s is None:
            return None
        working_s = self.time_s - float(np.nansum(self.waits_s))
        # share of the time that steps must do something but wait, for that to be told from noise
        if working_s < 0.005 * self.time_s:
            return None
        return self.samples_per_s(default_samples) * self.time_s / working_s

    def fastest_step_samples_per_s(self, default_samples: float | None) -> float:
        """Return the throughput if all steps were like the fastest: an upper bound that a warm-up cannot pull down."""
        samples = np.full(self.steps, default_samples or 1.0) if self.samples is None else self.samples
        return float((samples / self.durations_s).max())

    def speeds(self, parts: int) -> tuple[float, ...]:
        """Return the speed in each of so many parts of the window: samples per second, else units of work.

        Args:
            parts: Their number; fewer where there are fewer steps.
        """
        amounts = self.units if self.samples is None else self.samples
        pieces = [piece for piece in np.array_split(np.arange(self.steps), parts) if len(piece)]
        return tuple(float(amounts[piece].sum() / self.durations_s[piece].sum()) for piece in pieces)

    @property
    def cycles(self) -> int | None:
        """Number of cycles that it consists of, or that were seen whole in it; None without any stall."""
        if self.cycle_ends is not None:
            return len(self.cycle_ends) - 1
        if not self.has_stalls:
            return None
        return 0 if self.cycle_lengths is None else len(self.cycle_lengths)

    def cv(self) -> float:
        """Return the coefficient of variation of the steps' time per unit of work."""
        pace = self.durations_s / self.units
        return float(pace.std() / pace.mean())

    def growth(self) -> float:
        """Return how much slower its last sixth is than its first; 1 unless each sixth is slower than the one before.

        Of steps that do not change, the medians of six parts are in that order once in 720 times.
        """
        if self.steps < 10 * _PARTS:
            return 1.0
        levels = np.array([np.median(part) for part in np.array_split(self.durations_s / self.units, _PARTS)])
        return float(levels[-1] / levels[0]) if (np.diff(levels) > 0.0).all() else 1.0

    def stalls(self) -> Stalls:
        """Return what long steps take, those of more than `STALL` times the median time per unit of work."""
        usual_s = float(np.median(self.durations_s / self.units)) * self.units
        long = self.durations_s > STALL * usual_s
        if not long.any():
            return Stalls(0.0, None, None)
        beyond, long_s = float((self.durations_s - usual_s)[long].sum()), float(self.durations_s[long].sum())
        waits_s = None if self.waits_s is None else float(np.nansum(self.waits_s[long]))
        return Stalls(
            beyond / self.time_s,
            None if waits_s is None else min(1.0, waits_s / long_s),
            float(self.durations_s[long & self.at_epoch_ends].sum()) / long_s,
        )

    def speed_error(self) -> float:
        """Return the relative standard error of its units of work per second."""
        return speed_error(self.durations_s, self.units, self.cycle_ends)

    def within_variance_s(self) -> float:
        """Return the relative variance of this trial's throughput over 1 s of its window, autocorrelation included.

        Over ``L`` seconds it is this divided by ``L``; an input of `statistics.optimal_window_s`.
        """
        return self.speed_error() ** 2 * self.time_s


@dataclass(frozen=True, kw_only=True)
class WindowGoal:
    """Length that a window has to have, and the times at which to look for it.

    Looking costs a pass over all steps, so it happens at chosen times only. The goal is a *length*, never a
    precision: a rule that stops once the numbers look precise would stop at lucky moments (it holds its ±5 % 56-90 %
    of the time). Each next look is due when the goal could be met at the earliest, and at least a quarter
    of its length later. A warm-up is at most half, so about five looks settle any trial.

    Attributes:
        target_s: Length that the study's noise makes worthwhile (`statistics.optimal_window_s`).
        most_s: Length up to which a window that shows stalls has to hold `LEAST_CYCLES` of whole ones.
        steps: Number of its steps, where it was fixed before the trial: the mean time of a fixed number of steps is
            right whatever their times are, that over a fixed time leaves out a part of the long ones.
        cycle: Number of steps in a cycle, of which these are a multiple; None where there are no regular ones.
        until_step: Step of the trial that it ends with, where steps get slower: then it begins with a fixed one too, so
            that points are compared over the same steps; None where they do not.
    """

    min_s: float
    min_steps: int
    target_s: float
    most_s: float = 0.0
    steps: int | None = None
    cycle: int | None = None
    until_step: int | None = None

    @property
    def length_s(self) -> float:
        """Time that the steps of the window must add up to, if they show no cycles."""
        return max(self.min_s, self.target_s)

    def is_met_by(self, window: Window | None) -> bool:
        """Return True if the window is long enough."""
        if self.steps is not None:
            is_whole = self.cycle is None or (window is not None and window.cycle_ends is not None)
            return window is not None and window.of_steps >= self.steps and is_whole
        if window is None or window.time_s < self.length_s or window.steps < self.min_steps:
            return False
        return window.time_s >= self.most_s or not lacks_cycles(window.cycles, window.speed_error())

    def next_look_s(self, now_s: float, window: Window | None) -> float:
        """Return the time of the next look, after one that did not meet the goal.

        Args:
            window: Window so far; None if there was none yet.
        """
        if window is None:
            return now_s + self.length_s / 4
        missing_s = ((self.steps or self.min_steps) - window.of_steps) * window.time_s / window.steps
        if self.steps is not None:
            return now_s + missing_s
        return now_s + max(self.length_s / 4, self.length_s - window.time_s, missing_s)


def main_stream(events: Sequence[TraineeEvent]) -> str | None:
    """Return the stream with the most steps, the earliest of equals; None if no step was reported."""
    steps = Counter(event.stream for event in events if event.kind == "step")
    return max(steps, key=steps.__getitem__) if steps else None


def steady_window(
    events: Sequence[TraineeEvent],
    *,
    after_s: float | None = None,
    cut_s: float | None = None,
    steps: int | None = None,
    cycle: int | None = None,
    until_step: int | None = None,
) -> Window | None:
    """Find the steady window of a trial.

    The first step is dropped, then those whose batches were ready before it began, then what came before ``after_s``,
    then the steps with pauses in them, then the warm-up (`cycles.warm_up`), then rounds of gradient accumulation of
    which a part is missing by now, then what is beyond the number of steps that was fixed for it, or not whole cycles.

    Args:
        events: All events of the trial so far, each stream in order of time.
        after_s: End of the first pass over the data, for a config whose caches have to fill first.
        cut_s: When the trial was cut short; None where it ended with a step. A step under way that takes longer than
            others by then counts, as half done: without it, speed would be too high by selection.
        steps: Number of steps that it is to have, see `WindowGoal`; None for all that there are.
        cycle: Number of steps in a cycle, where these are known to be a multiple of it.
        until_step: The last step that counts, where steps get slower; the first quarter of them is the warm-up then.

    Returns:
        None while fewer than `LEAST_STEPS` steps remain.
    """
    stream = main_stream(events)
    if stream is None:
        return None
    made = [event for event in events if event.kind == "step" and event.stream == stream]
    if cut_s is not None:
        made += _under_way(made, cut_s)
    ends_s = np.array([step.t_s for step in made])
    starts_s, stops_s = ends_s[:-1], ends_s[1:]
    keep = stops_s > starts_s
    began = next((event for event in events if event.kind == "begin" and event.stream == stream), None)
    if began is not None and began.batches:
        # one that is ended before they are used up is measured by its second half
        most = len(keep) - LEAST_STEPS if cut_s is None else len(keep) // 2
        keep[: max(0, min(most, _used_up(made, stops_s - starts_s, began.batches)))] = False
    if after_s is not None:
        keep &= starts_s >= after_s
    pid = made[0].pid
    pauses_s = np.sort([event.t_s for event in events if event.kind in PAUSES and event.pid == pid])
    keep &= np.searchsorted(pauses_s, starts_s, "right") == np.searchsorted(pauses_s, stops_s, "right")
    kept = np.flatnonzero(keep)
    if len(kept) < LEAST_STEPS:
        return None

    epochs_s = np.sort([event.t_s for event in events if event.kind == "epoch_end" and event.pid == pid])
    at_epoch_ends = np.searchsorted(epochs_s, starts_s) != np.searchsorted(epochs_s, stops_s)
    window = _window(made, kept, at_epoch_ends)
    if window.time_s < _SHORTEST_S:
        return None
    if until_step is not None:
        kept = kept[(kept >= until_step // 4) & (kept < until_step)]
        if len(kept) < LEAST_STEPS:
            return None
        of_steps = until_step - until_step // 4 if len(keep) >= until_step else len(kept)
        return replace(_window(made, kept, at_epoch_ends), of_steps=of_steps)
    kept = kept[warm_up(window.durations_s, window.units) :]
    if cycle is not None:
        window = _window(made, kept, at_epoch_ends)
        begin = _between_stalls(first_end(window.durations_s, window.units), cycle)
        if begin is None or len(kept) < begin + LEAST_STEPS:
            cycle = None
        else:
            kept = kept[begin:]
    rounds = _whole_rounds(kept, np.array([step.update for step in made]))
    if steps is not None and len(kept) > max(LEAST_STEPS, steps) and len(rounds) == len(kept):
        rounds = kept[:steps]
    window = _whole_cycles(_window(made, rounds, at_epoch_ends), made, rounds, at_epoch_ends, cycle)
    begin_s = None if began is None else began.t_s
    return replace(window, of_steps=len(rounds), begin_s=begin_s, first_wait_s=made[0].wait_s)


def _used_up(steps: Sequence[TraineeEvent], durations_s: Series, ready: int) -> int:
    """Return how many steps, counted from the second, had a batch that may have been ready before the first began.

    No more than those before one that waited for its batch for most of its time: there was no batch left then.
    """
    for place, step in enumerate(steps[1 : ready + 1]):
        if step.wait_s is not None and step.wait_s > 0.5 * durations_s[place]:
            return place
    return ready


def _between_stalls(first_end: int | None, cycle: int) -> int | None:
    """Return the step that a window of whole cycles begins with: about half a cycle from any stall.

    There a stall that comes a little early or late is in the window all the same. The first one may come much later
    than one cycle after the first step.

    Args:
        first_end: Number of steps up to the end of the first stall; None where none has ended yet.

    Returns:
        None where it cannot be told yet.
    """
    if first_end is None:
        return None
    if first_end < cycle / 4:
        return first_end + cycle // 2
    return max(0, first_end - cycle // 2) if first_end > 3 * cycle / 4 else 0


def _under_way(steps: Sequence[TraineeEvent], cut_s: float) -> list[TraineeEvent]:
    """Return the step under way when a trial was cut short, as half done; none if it may still be a usual one."""
    lengths_s = [after.t_s - before.t_s for before, after in pairwise(steps)]
    last = steps[-1]
    if len(lengths_s) < LEAST_STEPS or cut_s - last.t_s <= STALL * median(lengths_s):
        return []
    samples, work = (amount and amount / 2.0 for amount in (last.samples, last.work))
    return [replace(last, t_s=cut_s, wait_s=None, samples=samples, work=work)]


def _whole_cycles(
    window: Window,
    steps: Sequence[TraineeEvent],
    kept: NDArray[np.intp],
    at_epoch_ends: NDArray[np.bool_],
    cycle: int | None,
) -> Window:
    """Return the part of a window that is whole cycles; all of it where these are too few, or not regular.

    Args:
        cycle: Number of steps in a cycle, where that is known: then it may begin anywhere.
    """
    ends, lengths, beat_s, has_stalls = find_cycles(window.durations_s, window.units)
    if cycle is not None and len(kept) >= max(cycle, LEAST_STEPS):
        ends = np.arange(0, len(kept) + 1, cycle)
        beat_s = beat_s or window.time_s * cycle / len(kept)
    if ends is not None:
        kept = kept[ends[0] : ends[-1]]
        window = replace(_window(steps, kept, at_epoch_ends), cycle_ends=ends - ends[0])
    return replace(window, cycle_lengths=lengths, beat_s=beat_s, has_stalls=has_stalls)


def _whole_rounds(kept: NDArray[np.intp], updates: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the steps of whole rounds of gradient accumulation; all where these are too few for a window.

    Args:
        kept: Indices of steps, counted from the second.
        updates: Whether each step, counted from the first, has an update in it.
    """
    if updates.all():
        return kept
    ends = np.cumsum(updates)
    rounds = ends[kept]  # updates before each step: a round ends with one
    sizes, present = np.bincount(ends[:-1]), np.bincount(rounds)
    # The last round has no update yet, and the rounds are numbered from 0, before the first update.
    whole = (present == sizes[: len(present)]) & (np.arange(len(present)) > 0) & (np.arange(len(present)) < ends[-1])
    chosen = kept[whole[rounds]]
    return chosen if len(chosen) >= LEAST_STEPS else kept


def _window(steps: Sequence[TraineeEvent], kept: NDArray[np.intp], at_epoch_ends: NDArray[np.bool_]) -> Window:
    """Return the window of those steps; ``kept`` and the flags count from the second, the first that has a time."""
    ends_s = np.array([step.t_s for step in steps])
    chosen = [steps[index + 1] for index in kept]
    return Window(
        first_step_end_s=float(ends_s[0]),
        before=int(kept[0]) + 1,
        t0_s=float(ends_s[kept[0]]),
        t1_s=float(ends_s[kept[-1] + 1]),
        durations_s=np.diff(ends_s)[kept],
        waits_s=_waits([step.wait_s for step in chosen]),
        samples=_amounts([step.samples for step in chosen]),
        work=_amounts([step.work for step in chosen]),
        at_epoch_ends=at_epoch_ends[kept],
    )


def _amounts(column: list[float | None]) -> Series | None:
    """Return the column as an array, if every step has a plausible positive amount."""
    if any(amount is None or not _SMALLEST_AMOUNT < amount < _LARGEST_AMOUNT for amount in column):
        return None
    return np.array(column, dtype=float)


def _waits(column: list[float | None]) -> Series | None:
    """Return the column with NaN for None, if any step has a value."""
    waits_s = np.array(column, dtype=float)
    return None if np.isnan(waits_s).all() else waits_s


def measure_trial(
    window: Window,
    *,
    started_s: float,
    default_samples: float | None = None,
    host: HostUsage | None = None,
    gpu: GpuUsage = GpuUsage(),  # noqa: B008 - immutable
    filling: bool = False,
    stages: PipelineTimes | None = None,
    pauses: Pauses | None = None,
    ranks: tuple[RankMeasurement, ...] = (),
) -> Measurement:
    """Condense a window to the numbers that are kept.

    Args:
        host: Usage of the host between the window's ends; None if not sampled.
        gpu: Usage of the GPUs between the window's ends.
        filling: True if the trial's caches were still being filled.
        stages: Times of its pipeline's stages, see `stages_between`; None where it has no such pipeline.
        pauses: What it came to between its steps, see `pauses_of`; None for nothing.
        ranks: Its ranks, see `ranks_of`; empty for a training of one process.
    """
    p50_s, p95_s, p99_s, max_s = np.percentile(window.durations_s, (50, 95, 99, 100))
    stalls = window.stalls()
    samples_per_s = window.samples_per_s(default_samples)
    return Measurement(
        window_s=window.time_s,
        steps=window.steps,
        samples_per_s=samples_per_s,
        speed_error=window.speed_error(),
        cycles=window.cycles,
        beat_s=window.beat_s,
        cv=window.cv(),
        step_p50_s=float(p50_s),
        step_p95_s=float(p95_s),
        step_p99_s=float(p99_s),
        step_max_s=float(max_s),
        stall_fraction=stalls.fraction,
        stall_wait_fraction=stalls.wait_fraction,
        stall_epoch_fraction=stalls.epoch_fraction,
        pauses=pauses,
        data_wait_fraction=_data_wait_fraction(window),
        first_step_s=window.first_step_end_s - started_s,
        setup_s=None if window.begin_s is None else window.begin_s - started_s,
        first_batch_s=window.first_wait_s,
        cpu_cores=None if host is None else host.cpu_cores,
        peak_memory_bytes=None if host is None else host.peak_memory_bytes,
        gpu_utilization=gpu.utilization,
        gpu_memory_bytes=gpu.peak_memory_bytes,
        energy_per_sample_j=None if gpu.power_w is None else gpu.power_w / samples_per_s,
        gpus=gpu.devices,
        filled_samples_per_s=window.filled_samples_per_s(default_samples) if filling else None,
        stages=stages,
        ranks=ranks,
    )


def stages_between(events: Sequence[TraineeEvent], window: Window) -> PipelineTimes | None:
    """Return the times of a pipeline's stages over a window, as far as two reports are in it; None without."""
    stream = main_stream(events)
    within = [
        event.stages
        for event in events
        if event.stages is not None and event.stream == stream and window.t0_s <= event.t_s <= window.t1_s
    ]
    if len(within) < 2 or within[-1].passed_s <= within[0].passed_s:
        return None
    return within[-1] - within[0]


def _data_wait_fraction(window: Window) -> float | None:
    if window.waits_s is None:
        return None
    known = ~np.isnan(window.waits_s)
    # The two are stamped by different clock calls: a loop that only waits may read a hair above 1.
    return min(1.0, float(window.waits_s[known].sum() / window.durations_s[known].sum()))


# Growth of the memory that a trial uses: one that goes on, unlike the filling of a cache.


_LEAST_READINGS = 12
_LEAST_S = 8.0
_GOES_ON = 0.5  # times the growth of the third before


def growth_bytes_per_s(series: MemorySeries) -> float | None:
    """Return the growth of the memory in use that still goes on at the end; 0 where there is none.

    The medians of the three thirds of the time are compared: a single reading, such as one while workers are
    replaced, says nothing, and growth that has slowed down by half comes to an end by itself.

    Returns:
        None if there are too few readings, or too short a time.
    """
    if len(series) < _LEAST_READINGS or series[-1][0] - series[0][0] < _LEAST_S:
        return None
    begin_s, length_s = series[0][0], series[-1][0] - series[0][0]
    thirds: list[list[int]] = [[], [], []]
    for t_s, used_bytes in series:
        thirds[min(2, int(3 * (t_s - begin_s) / length_s))].append(used_bytes)
    if not all(thirds):
        return None
    first, second, third = (median(part) for part in thirds)
    growth = third - second
    # of the memory in use, in a third of the time: allocators breathe by as much
    if growth < max(1 << 24, 0.01 * third) or growth < _GOES_ON * (second - first):
        return 0.0
    if second < first:  # some was freed at first, which is no part of the growth
        return 3 * growth / length_s
    return (third - first) / (2 / 3 * length_s)
