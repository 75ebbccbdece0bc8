"""Steady window of a trial, and its `Measurement`.

A step's duration is the time since the previous step of its stream; the first has none. With gradient accumulation a
step is one batch, and the window has whole rounds, because one batch of each has the update.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.measure.cycles import Ends, Lengths, Series, find_cycles, first_end, speed_error, warm_up
from autotune.measure.probe import GpuUsage, HostUsage, MemorySeries
from autotune.measure.statistics import lacks_cycles
from autotune.records import PAUSE_FIELDS, PAUSES, Measurement, Pauses, TraineeEvent
from autotune.stage_times import PipelineTimes

_SHORTEST_S = 1e-3  # a shorter window is not training
# Of samples or work per step, against nonsense from a broken trainer.
_SMALLEST_AMOUNT, _LARGEST_AMOUNT = 1e-9, 1e12

Steps = NDArray[np.intp]
"""Indices of steps, counted from the second."""

STALL = 3.0
"""Least duration of a stall, in median steps."""

_PARTS = 6  # of a window, to find growth

LEAST_STEPS = 5
"""Fewest steps of a window (one batch of MSER-5)."""


class Stalls(NamedTuple):
    """Long steps.

    Attributes:
        fraction: Share of all time that they take beyond usual steps.
        wait_fraction: Share of their time spent waiting for data; None if unknown, or without any.
        epoch_fraction: Share of their time in steps at which a pass over the data ended.
    """

    fraction: float
    wait_fraction: float | None
    epoch_fraction: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """Steady part of a trial, step by step, without steps that contain a pause. None is unknown.

    Attributes:
        t0_s, t1_s: Start of the first and end of the last step.
        waits_s: Time that each step waited for data, NaN if not reported.
        samples: Samples of each step; None unless known for all.
        work: The same of frames or tokens.
        at_epoch_ends: Whether a pass over the data ended at the start of each step or in it.
        of_steps: Number of steps after the warm-up, from which it was taken.
        before: Number of the trial's steps before it.
        begin_s: Start of the trial's first step, its batch included.
        first_wait_s: Time that the trial's first step waited for data.
        cycle_ends: Ends of its whole cycles, from 0 to the number of steps; None if it does not consist of cycles.
        cycle_lengths: From `find_cycles`, like `beat_s`.
        has_stalls: Whether some steps are slow (`cycles.SLOW`).
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
        return float(self.durations_s.sum())

    @property
    def units(self) -> Series:
        """Work of each step in the best known unit: work, samples, or 1."""
        known = (one for one in (self.work, self.samples) if one is not None)
        return next(known, np.ones(self.steps))

    def samples_per_s(self, default_samples: float | None) -> float:
        """Return the throughput.

        Args:
            default_samples: Samples per step if steps don't report them: the config's batch size. None counts steps.
        """
        counted = (default_samples or 1.0) * self.steps
        return (counted if self.samples is None else float(self.samples.sum())) / self.time_s

    def filled_samples_per_s(self, default_samples: float | None) -> float | None:
        """Return the throughput without waiting for data, as with a full cache; None if unknown.

        Also None if waiting takes nearly all of the time.
        """
        if self.waits_s is None:
            return None
        working_s = self.time_s - float(np.nansum(self.waits_s))
        # below this share, the time that steps work is noise
        if working_s < 0.005 * self.time_s:
            return None
        return self.samples_per_s(default_samples) * self.time_s / working_s

    def fastest_step_samples_per_s(self, default_samples: float | None) -> float:
        """Return the throughput of the fastest step, which a warm-up does not lower."""
        samples = np.full(self.steps, default_samples or 1.0) if self.samples is None else self.samples
        return float((samples / self.durations_s).max())

    def speeds(self, parts: int) -> tuple[float, ...]:
        """Return the speeds of at most so many equal parts of the window: samples per second, else units of work."""
        amounts = self.units if self.samples is None else self.samples
        pieces = [piece for piece in np.array_split(np.arange(self.steps), parts) if len(piece)]
        return tuple(float(amounts[piece].sum() / self.durations_s[piece].sum()) for piece in pieces)

    @property
    def cycles(self) -> int | None:
        """Number of whole cycles in it; None without stalls."""
        if self.cycle_ends is not None:
            return len(self.cycle_ends) - 1
        if not self.has_stalls:
            return None
        return 0 if self.cycle_lengths is None else len(self.cycle_lengths)

    def cv(self) -> float:
        pace = self.durations_s / self.units
        return float(pace.std() / pace.mean())

    def growth(self) -> float:
        """Return how much slower the last sixth is than the first; 1 unless each is slower than the one before."""
        if self.steps < 10 * _PARTS:
            return 1.0
        # by chance, medians of six parts are in that order once in 720 windows
        levels = np.array([np.median(part) for part in np.array_split(self.durations_s / self.units, _PARTS)])
        return float(levels[-1] / levels[0]) if (np.diff(levels) > 0.0).all() else 1.0

    def stalls(self) -> Stalls:
        """Return the steps above `STALL` times the median time per unit of work."""
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
        return speed_error(self.durations_s, self.units, self.cycle_ends)

    def within_variance_s(self) -> float:
        """Return the relative variance of throughput over 1 s of the window, with autocorrelation."""
        return self.speed_error() ** 2 * self.time_s


@dataclass(frozen=True, kw_only=True)
class WindowGoal:
    """Required length of a window, and the times at which to check it.

    The goal is a *length*, not a precision: to stop once the numbers look precise is to stop at lucky moments (±5 %
    then holds in 56-90 %).

    Attributes:
        target_s: Length that the study's noise justifies (`statistics.optimal_window_s`).
        most_s: Length until which a window with stalls must have `LEAST_CYCLES` whole cycles.
        steps: Number of steps, if fixed before the trial: a fixed time would omit part of the long steps.
        cycle: Steps in a cycle, of which `steps` is a multiple: the window may then begin anywhere in one.
        until_step: Last step, if steps get slower; the first quarter of them is then the warm-up.
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
        """Time that the steps of a window without cycles must add up to."""
        return max(self.min_s, self.target_s)

    def is_met_by(self, window: Window | None) -> bool:
        if self.steps is not None:
            is_whole = self.cycle is None or (window is not None and window.cycle_ends is not None)
            return window is not None and window.of_steps >= self.steps and is_whole
        if window is None or window.time_s < self.length_s or window.steps < self.min_steps:
            return False
        return window.time_s >= self.most_s or not lacks_cycles(window.cycles, window.speed_error())

    def next_look_s(self, now_s: float, window: Window | None) -> float:
        # A look passes over all steps. A warm-up is at most half, so about five suffice.
        if window is None:
            return now_s + self.length_s / 4
        missing_s = ((self.steps or self.min_steps) - window.of_steps) * window.time_s / window.steps
        if self.steps is not None:
            return now_s + missing_s
        return now_s + max(self.length_s / 4, self.length_s - window.time_s, missing_s)


def main_stream(events: Sequence[TraineeEvent]) -> str | None:
    """Return the stream with the most steps, the first of equals; None without steps."""
    steps = Counter(event.stream for event in events if event.kind == "step")
    return max(steps, key=steps.__getitem__) if steps else None


def steady_window(
    events: Sequence[TraineeEvent],
    *,
    after_s: float | None = None,
    cut_s: float | None = None,
    goal: WindowGoal | None = None,
) -> Window | None:
    """Find the steady window of a trial; None if fewer than `LEAST_STEPS` steps remain.

    Dropped are, in this order, the first step, steps whose batches were prefetched before it, steps before ``after_s``,
    steps with pauses, the warm-up (`cycles.warm_up`), incomplete rounds of gradient accumulation, and steps beyond the
    fixed number or outside of whole cycles.

    Args:
        events: All events so far, each stream in time order.
        after_s: End of the first pass over the data, if the config has caches to fill.
        cut_s: Time at which the trial was cut short. A step in progress that is already longer than others counts as
            half done: to omit it would select for speed.
        goal: None takes all steps.
    """
    steps, cycle, until_step = (goal.steps, goal.cycle, goal.until_step) if goal else (None, None, None)
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
        # a trial that is cut short before they are used up is measured by its second half
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
    window_of = partial(_window, made, at_epoch_ends)
    window = window_of(kept)
    if window.time_s < _SHORTEST_S:
        return None
    if until_step is not None:
        kept = kept[(kept >= until_step // 4) & (kept < until_step)]
        if len(kept) < LEAST_STEPS:
            return None
        of_steps = until_step - until_step // 4 if len(keep) >= until_step else len(kept)
        return replace(window_of(kept), of_steps=of_steps)
    kept = kept[warm_up(window.durations_s, window.units) :]
    if cycle is not None:
        window = window_of(kept)
        begin = _between_stalls(first_end(window.durations_s, window.units), cycle)
        if begin is None or len(kept) < begin + LEAST_STEPS:
            cycle = None
        else:
            kept = kept[begin:]
    rounds = _whole_rounds(kept, np.array([step.update for step in made]))
    if steps is not None and len(kept) > max(LEAST_STEPS, steps) and len(rounds) == len(kept):
        rounds = kept[:steps]
    window = _whole_cycles(window_of, rounds, cycle)
    begin_s = None if began is None else began.t_s
    return replace(window, of_steps=len(rounds), begin_s=begin_s, first_wait_s=made[0].wait_s)


def _used_up(steps: Sequence[TraineeEvent], durations_s: Series, ready: int) -> int:
    """Return how many steps after the first may have had a prefetched batch: until one mostly waits."""
    for place, step in enumerate(steps[1 : ready + 1]):
        if step.wait_s is not None and step.wait_s > 0.5 * durations_s[place]:
            return place
    return ready


def _between_stalls(first_end: int | None, cycle: int) -> int | None:
    """Return the step at which a window of whole cycles begins, about half a cycle from any stall.

    Args:
        first_end: Number of steps up to the end of the first stall, which may come much later than a cycle.
    """
    if first_end is None:
        return None
    if first_end < cycle / 4:
        return first_end + cycle // 2
    return max(0, first_end - cycle // 2) if first_end > 3 * cycle / 4 else 0


def _under_way(steps: Sequence[TraineeEvent], cut_s: float) -> list[TraineeEvent]:
    """Return the step in progress when a trial was cut short, as half done; none if it may be a usual one."""
    lengths_s = [after.t_s - before.t_s for before, after in pairwise(steps)]
    last = steps[-1]
    if len(lengths_s) < LEAST_STEPS or cut_s - last.t_s <= STALL * median(lengths_s):
        return []
    samples, work = (amount and amount / 2.0 for amount in (last.samples, last.work))
    return [replace(last, t_s=cut_s, wait_s=None, samples=samples, work=work)]


def _whole_cycles(window_of: Callable[[Steps], Window], kept: Steps, cycle: int | None) -> Window:
    """Return the whole cycles of a window; all of it if these are too few, or irregular."""
    window = window_of(kept)
    ends, lengths, beat_s, has_stalls = find_cycles(window.durations_s, window.units)
    if cycle is not None and len(kept) >= max(cycle, LEAST_STEPS):
        ends = np.arange(0, len(kept) + 1, cycle)
        beat_s = beat_s or window.time_s * cycle / len(kept)
    if ends is not None:
        kept = kept[ends[0] : ends[-1]]
        window = replace(window_of(kept), cycle_ends=ends - ends[0])
    return replace(window, cycle_lengths=lengths, beat_s=beat_s, has_stalls=has_stalls)


def _whole_rounds(kept: Steps, updates: NDArray[np.bool_]) -> Steps:
    """Return the steps of whole rounds of gradient accumulation; all if these are too few for a window.

    Args:
        updates: Whether each step, counted from the first, has an update.
    """
    if updates.all():
        return kept
    ends = np.cumsum(updates)
    rounds = ends[kept]  # number of updates before each step, which end the rounds
    sizes, present = np.bincount(ends[:-1]), np.bincount(rounds)
    # Round 0 lacks the first step, the last one its update.
    whole = (present == sizes[: len(present)]) & (np.arange(len(present)) > 0) & (np.arange(len(present)) < ends[-1])
    chosen = kept[whole[rounds]]
    return chosen if len(chosen) >= LEAST_STEPS else kept


def _window(steps: Sequence[TraineeEvent], at_epoch_ends: NDArray[np.bool_], kept: Steps) -> Window:
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
    if any(amount is None or not _SMALLEST_AMOUNT < amount < _LARGEST_AMOUNT for amount in column):
        return None
    return np.array(column, dtype=float)


def _waits(column: list[float | None]) -> Series | None:
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
) -> Measurement:
    """Condense a window to a `Measurement`.

    Args:
        host, gpu: Usage within the window.
        filling: Whether the trial's caches were still being filled.
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
    )


def stages_between(events: Sequence[TraineeEvent], window: Window) -> PipelineTimes | None:
    """Return the times of a pipeline's stages within a window; None without two reports in it."""
    stream = main_stream(events)
    within = [
        event.stages
        for event in events
        if event.stages is not None and event.stream == stream and window.t0_s <= event.t_s <= window.t1_s
    ]
    if len(within) < 2 or within[-1].passed_s <= within[0].passed_s:
        return None
    return within[-1] - within[0]


def pauses_of(events: Sequence[TraineeEvent], window: Window, *, default_samples: float | None = None) -> Pauses | None:
    """Return the pauses of a trial after which training resumed, without those within the first steps.

    A pause costs what its step takes beyond the window's median step.

    Args:
        default_samples: Samples per step if steps don't report them; None counts steps.
    """
    stream = main_stream(events)
    steps = [event for event in events if event.kind == "step" and event.stream == stream]
    ends_s = np.array([step.t_s for step in steps])
    usual_s = float(np.median(window.durations_s))
    counts, held = dict.fromkeys(PAUSE_FIELDS.values(), 0), set[int]()
    for event in events:
        if event.kind not in PAUSE_FIELDS or event.pid != steps[0].pid or not ends_s[0] <= event.t_s < ends_s[-1]:
            continue
        # at equal times, an epoch's end comes after the step before it, a pause before the end of its step
        place = int(np.searchsorted(ends_s, event.t_s, "right" if event.kind == "epoch_end" else "left"))
        if place > LEAST_STEPS:
            counts[PAUSE_FIELDS[event.kind]] += 1
            held.add(place)
    if not held:
        return None
    places = np.array(sorted(held))
    beyond_s = np.maximum(np.diff(ends_s)[places - 1] - usual_s, 0.0)
    in_window_s = np.maximum(window.durations_s[window.at_epoch_ends] - usual_s, 0.0)
    amounts = [step.samples or default_samples or 1.0 for step in steps[: places[-1] + 1]]
    return Pauses(
        time_s=float(beyond_s.sum()), samples=float(sum(amounts)), in_window_s=float(in_window_s.sum()), **counts
    )


def _data_wait_fraction(window: Window) -> float | None:
    if window.waits_s is None:
        return None
    known = ~np.isnan(window.waits_s)
    # Different clock calls: a loop that only waits may come out slightly above 1.
    return min(1.0, float(window.waits_s[known].sum() / window.durations_s[known].sum()))


_LEAST_READINGS = 12
_LEAST_S = 8.0
_CONTINUES = 0.5  # least growth of the last third over that of the one before


def growth_bytes_per_s(series: MemorySeries) -> float | None:
    """Return the growth of memory use that continues at the end, else 0; None with too few readings.

    Compares the medians of three thirds of the time: growth that has slowed down by half will end.
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
    # allocators fluctuate by this much
    if growth < max(1 << 24, 0.01 * third) or growth < _CONTINUES * (second - first):
        return 0.0
    if second < first:  # memory was freed first
        return 3 * growth / length_s
    return (third - first) / (2 / 3 * length_s)
