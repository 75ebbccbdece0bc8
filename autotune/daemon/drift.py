"""Slowdown detection for a training, by the logarithm of its pace (seconds per unit of work)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from math import exp, sqrt
from statistics import fmean, median

from autotune.records import NOT_COMPARED, TrialRecord
from autotune.trial.pace_files import PaceWindow
from autotune.trial.trainings import ConfirmedSpeed


class Turn(StrEnum):
    """Kind of change of pace."""

    SLOW_START = "slow start"  # slower than the confirmed speed
    SLOWER = "slower"  # than its own earlier pace
    RECOVERED = "recovered"


@dataclass(frozen=True, kw_only=True)
class PaceChange:
    """Detected change of pace.

    Attributes:
        t_s: Time of detection.
        since_s: Estimated start.
        speed_ratio: Speed since then over the confirmed or the training's own earlier speed.
        samples_per_s: Of a slow start.
    """

    turn: Turn
    t_s: float
    since_s: float
    speed_ratio: float
    samples_per_s: float | None = None
    cause: Cause | None = None


class TrainingWatch:
    """Slowdown detector for one training, fed in order of time.

    Uses one process at a time. If another takes over, the training was restarted.
    """

    def __init__(self, confirmed: ConfirmedSpeed | None) -> None:
        self._start = StartCheck(confirmed)
        self._slowdown = Slowdown()
        self._history = MachineHistory()
        self._process: str | None = None
        self._unit: str | None = None
        self._last_s = self._length_s = 0.0

    @property
    def is_slow(self) -> bool:
        return self._slowdown.is_slow

    def note(self, t_s: float, machine_state: MachineState) -> None:
        self._history.add(t_s, machine_state)

    def add(self, window: PaceWindow) -> list[PaceChange]:
        """Add a window; return the changes that it completes."""
        ln_pace = window.ln_pace
        if ln_pace is None or not self._is_chosen(window):
            return []
        if window.wait_fraction is not None:
            self._history.add_wait(window.t1_s, window.wait_fraction)
        slow, change = self._start.add(window), self._slowdown.add(window.t1_s, window.train_s, ln_pace)
        return [replace(one, cause=self._cause(one)) for one in (slow, change) if one is not None]

    def _cause(self, change: PaceChange) -> Cause | None:
        if change.turn is Turn.RECOVERED:
            return None
        # The machine's state during the trials is unknown, so a cause must be visible in the current state alone.
        is_start = change.turn is Turn.SLOW_START
        before = MachineState() if is_start else self._history.before(change.since_s)
        return likely_cause(before, self._history.after(change.since_s))

    def _is_chosen(self, window: PaceWindow) -> bool:
        if window.process != self._process:
            if self._process is not None:
                # silence of the chosen process after which another one replaces it
                if window.t1_s - self._last_s < max(60.0, 4.0 * self._length_s):
                    return False
                self._slowdown.resume()
                self._start.restart()
            self._process = window.process
        if window.unit != self._unit:
            if self._unit is not None:  # paces in different units aren't comparable
                self._slowdown = Slowdown()
            self._unit = window.unit
        self._last_s, self._length_s = window.t1_s, window.t1_s - window.t0_s
        return True


START_WARM_UP_S = 30.0
"""Training time skipped at the start."""

CHECK_S = 150.0
"""Training time of one measurement. A slow start is reported only if two measurements in a row are slow."""


class StartCheck:
    """Comparison of a training's first minutes with its confirmed speed.

    Takes the median of up to two measurements of `CHECK_S`. One that isn't below the prediction interval ends the
    check; two below it are a slow start. At most 2.5 % of trainings are wrongly reported, if they vary like trials.
    """

    def __init__(self, confirmed: ConfirmedSpeed | None) -> None:
        self._confirmed = confirmed
        self._is_due = confirmed is None or not confirmed.after_first_pass
        self._measurements = 0
        self.restart()

    def restart(self) -> None:
        self._trained_s = 0.0
        self._since_s: float | None = None
        self._speeds: list[float] = []

    def add(self, window: PaceWindow) -> PaceChange | None:
        confirmed = self._confirmed
        if confirmed is None:
            return None
        if not self._is_due:
            self._is_due = window.epochs > 0
            return None
        self._trained_s += window.train_s
        speed = window.samples_per_s(confirmed.samples_per_step)
        if self._trained_s < START_WARM_UP_S or speed is None:
            return None
        self._since_s = window.t0_s if self._since_s is None else self._since_s
        self._speeds.append(speed)
        if self._trained_s < START_WARM_UP_S + CHECK_S or len(self._speeds) < 5:
            return None
        speed = median(self._speeds)
        ratio = speed / confirmed.samples_per_s
        self._measurements += 1
        self._speeds.clear()
        self._trained_s = START_WARM_UP_S
        if ratio < confirmed.low and self._measurements < 2:
            return None
        self._confirmed = None
        if ratio >= confirmed.low:
            return None
        return PaceChange(
            turn=Turn.SLOW_START, t_s=window.t1_s, since_s=self._since_s, speed_ratio=ratio, samples_per_s=speed
        )


class CauseKind(StrEnum):
    """Kind of `Cause`."""

    CLOCKS_HELD_DOWN = "clocks held down"
    GPU_NEIGHBOUR = "neighbour on the GPU"
    CPU_NEIGHBOUR = "neighbour on the CPU"
    DATA_WAIT = "data wait grew"
    GPU_MEMORY_FULL = "GPU memory nearly full"
    DISK_SLOWER = "disk slower"
    CONFIG_EDITED = "config edited"
    CODE_EDITED = "code edited"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Likely cause of a slowdown.

    Attributes:
        text: Evidence as a clause.
        strength: Change over its detection limit.
    """

    kind: CauseKind
    text: str
    strength: float


def likely_cause(before: MachineState, after: MachineState) -> Cause | None:
    """Return the likely cause of a slowdown, if a reading changed enough.

    Data wait is a symptom: if disk or CPU load explains it, that is the cause.
    """
    found = [cause for cause in _changes(before, after) if cause.strength >= 1.0]
    if any(cause.kind in (CauseKind.DISK_SLOWER, CauseKind.CPU_NEIGHBOUR) for cause in found):
        found = [cause for cause in found if cause.kind is not CauseKind.DATA_WAIT]
    return max(found, key=lambda cause: cause.strength, default=None)


_GROWTHS: Mapping[str, tuple[CauseKind, float, str]] = {
    "throttled": (CauseKind.CLOCKS_HELD_DOWN, 0.25, "the GPU's clocks are throttled {} of the time"),
    "gpu_neighbour": (CauseKind.GPU_NEIGHBOUR, 0.25, "another process uses the GPU {} of the time"),
    "foreign_cores": (CauseKind.CPU_NEIGHBOUR, 0.5, "other processes keep {} cores busy"),
    "disk_pressure": (CauseKind.DISK_SLOWER, 0.12, "processes wait for the disk {} of the time"),
    "data_wait_fraction": (CauseKind.DATA_WAIT, 0.08, "the loop waits for data {} of the time"),
}
"""By reading: the cause, the growth that exceeds its usual fluctuation, and the evidence."""


def _changes(before: MachineState, after: MachineState) -> Iterator[Cause]:
    """Yield the changes, also weak ones; readings unknown before count from zero."""
    for name, (kind, least, words) in _GROWTHS.items():
        was, now = getattr(before, name), getattr(after, name)
        if now is None or (was is None and kind is CauseKind.DATA_WAIT):  # many trainings always wait a lot
            continue
        if kind is CauseKind.CPU_NEIGHBOUR and after.cores:
            # on small machines, other processes only get the cores that the training leaves
            least = max(min(least, 0.125 * after.cores), 0.04 * after.cores)
        if kind is CauseKind.DISK_SLOWER and before.data_wait_fraction is not None:
            waits = after.data_wait_fraction
            if waits is not None and waits - before.data_wait_fraction < 0.04:  # doesn't affect the training
                continue
        show = "{:.1f}".format if kind is CauseKind.CPU_NEIGHBOUR else _percent
        of_cores = f" of {after.cores}" if kind is CauseKind.CPU_NEIGHBOUR and after.cores else ""
        text = words.format(show(now) + of_cores) + ("" if was is None else f", before {show(was)}")
        yield Cause(kind=kind, text=text, strength=min((now - (was or 0.0)) / least, 6.0))
    filled, full = before.gpu_memory_fraction, after.gpu_memory_fraction
    if full is not None and full >= 0.95 and (filled is None or filled < 0.95):
        yield Cause(kind=CauseKind.GPU_MEMORY_FULL, text=f"the GPU's memory is {_percent(full)} full", strength=1.5)
    if after.config_changed and not before.config_changed:
        yield Cause(kind=CauseKind.CONFIG_EDITED, text="the config was edited", strength=2.0)
    if after.code_changed and not before.code_changed:
        yield Cause(kind=CauseKind.CODE_EDITED, text="the code was changed", strength=2.0)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


WARM_UP_S = 60.0
"""Training time skipped after each start."""

LEAST_WINDOWS = 30
"""Windows (five minutes) from which the usual pace is learned before testing."""

_PER_MINUTE = 6
_LINEAR = 0.10  # excess of ln pace up to which a window's score is linear, at least
_FLAT = 0.25  # excess up to which the score then stays constant
_MOST = 1.0  # maximum score
_RECOVERY_WINDOWS = 18  # three minutes
_KEPT_WINDOWS = 4096


class _Variance:
    """Running mean and variance (Welford 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    @property
    def variance(self) -> float:
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


class UsualPace:
    """Usual pace of one training, and the limits of the CUSUM test.

    Attributes:
        level: Usual ln pace; None while too few windows are known.
        slack: Undetected slowdown (ln pace).
        threshold: CUSUM of an alarm, in minutes times ln pace.
        linear: Excess of ln pace up to which a window's score is linear.
    """

    def __init__(self) -> None:
        self.level: float | None = None
        self.slack = self.threshold = 0.0
        self.linear = _LINEAR
        self._first: list[float] = []
        self._learned = 0
        self.forget_partial()
        self._minutes, self._batches = _Variance(), _Variance()

    def forget_partial(self) -> None:
        self._minute: list[float] = []
        self._batch: list[float] = []

    def begin(self, ln_pace: float) -> None:
        self._first.append(ln_pace)
        if len(self._first) == LEAST_WINDOWS:
            self.level = median(self._first)
            self._learned = 1
            for value in self._first:
                self.learn(value)
            self._first.clear()

    def learn(self, ln_pace: float) -> None:
        assert self.level is not None
        # Clipped symmetrically, which limits the influence of pauses and of the slow start of an epoch.
        deviation = min(max(ln_pace - self.level, -_FLAT), _FLAT)
        if self._learned < 2160:  # six hours; then the level is fixed, so that a slow drift is detected
            self._learned += 1
            self.level += deviation / self._learned
        self._minute.append(self.level + deviation)
        if len(self._minute) < _PER_MINUTE:
            return
        self._batch.append(fmean(self._minute))
        self._minute.clear()
        self._minutes.add(self._batch[-1])
        if len(self._batch) == 10:
            self._batches.add(fmean(self._batch))
            self._batch.clear()
        self.set_limits()

    def settle_at(self, paces: Sequence[float]) -> None:
        """Restart learning with these windows."""
        self.level, self._learned = median(paces), len(paces)
        self._minutes, self._batches = _Variance(), _Variance()  # without the change of level
        self.forget_partial()
        self.set_limits()

    def set_limits(self) -> None:
        degrees = max(self._batches.count - 1, 0)
        between = 10 * self._batches.variance
        # Long-run variance of a minute: that between batches, shrunk towards 0.006 with the weight of three batches;
        # at least 2.5 times that between minutes, which are correlated.
        variance = (3.0 * 0.006 + degrees * between) / (3.0 + degrees)
        variance = max(variance, 2.5 * self._minutes.variance)
        error = sqrt(variance * _PER_MINUTE / max(self._learned, 1))
        self.slack = 0.018 + 5.0 * error  # standard errors of the level
        self.threshold = max(1.35, 24.0 * variance / (2.0 * self.slack))
        self.linear = max(_LINEAR + 2.0 * sqrt(self._minutes.variance), 1.5 * self.slack)


class _Sum:
    """CUSUM with the paces since it was last 0."""

    def __init__(self) -> None:
        self.value = 0.0
        self.paces: list[float] = []

    def add(self, excess: float, pace: float) -> None:
        self.value += excess
        if self.value <= 0.0:
            self.clear()
        elif len(self.paces) < _KEPT_WINDOWS:
            self.paces.append(pace)

    def clear(self) -> None:
        self.value = 0.0
        self.paces.clear()


class Slowdown:
    """CUSUM test for a slower training, fed in order of time."""

    def __init__(self) -> None:
        self.is_slow = False
        self.usual = UsualPace()
        self._backoff = 1.0
        self._size = 0.0
        self._last_s = 0.0
        self.resume()

    def resume(self) -> None:
        """Skip the warm-up after a restart."""
        self._warm_up_s = WARM_UP_S
        self.usual.forget_partial()
        self._held: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RECOVERY_WINDOWS)
        self._slower, self._faster = _Sum(), _Sum()
        self._slower_since_s = self._last_s  # changes since then may be the cause of a later slowdown

    def add(self, t_s: float, train_s: float, ln_pace: float) -> PaceChange | None:
        self._last_s = t_s
        if self._warm_up_s > 0.0:
            self._warm_up_s -= train_s
            return None
        usual, level = self.usual, self.usual.level
        if level is None:
            self._slower_since_s = t_s
            usual.begin(ln_pace)
            return None
        if self.is_slow:
            return self._check_recovery(t_s, ln_pace, level)
        excess, weight = ln_pace - level, min(train_s, 20.0) / 60.0  # minutes
        self._faster.add((min(-excess, usual.linear) - usual.slack) * weight, ln_pace)
        if self._faster.value >= self._threshold:  # lastingly faster, e.g. after the first epoch filled a cache
            usual.settle_at(self._faster.paces)
            self._reset(t_s)
        change = self._sum_up_slower(t_s, ln_pace, excess, weight, level)
        if len(self._held) < _KEPT_WINDOWS:
            self._held.append(ln_pace)
        few = 0.05 * self._threshold
        if not self.is_slow and self._slower.value <= few and self._faster.value <= few:
            for value in self._held:  # they weren't part of a change
                usual.learn(value)
            self._held.clear()
        return change

    @property
    def _threshold(self) -> float:
        return self.usual.threshold * self._backoff  # in minutes times ln pace

    def _sum_up_slower(
        self, t_s: float, ln_pace: float, excess: float, weight: float, level: float
    ) -> PaceChange | None:
        self._slower.add((self._bounded(excess) - self.usual.slack) * weight, ln_pace)
        if self._slower.value <= 0.0:
            self._slower_since_s = t_s
        if self._slower.value < self._threshold:
            return None
        self._size = median(self._slower.paces) - level
        if self._size < 0.5 * self.usual.slack:  # a few very slow windows, not a slowdown
            self._slower.clear()
            self._slower_since_s = t_s
            return None
        self.is_slow = True
        self._recent.clear()
        self._held.clear()
        self._backoff = min(self._backoff * 1.5, 4.0)  # raises the threshold for further alarms
        return PaceChange(turn=Turn.SLOWER, t_s=t_s, since_s=self._slower_since_s, speed_ratio=exp(-self._size))

    def _bounded(self, excess: float) -> float:
        """Return the score of a window: linear, constant, then linear again up to a limit."""
        linear = self.usual.linear
        if excess <= linear:
            return max(excess, -_MOST)
        return min(linear + max(0.0, excess - max(_FLAT, linear)), _MOST)

    def _check_recovery(self, t_s: float, ln_pace: float, level: float) -> PaceChange | None:
        self._recent.append(ln_pace)
        if len(self._recent) < _RECOVERY_WINDOWS:
            return None
        excess = median(self._recent) - level
        if excess > max(min(self.usual.slack, 0.5 * self._size), 0.35 * self._size):
            return None
        self.is_slow = False
        self.usual.set_limits()
        self._reset(t_s)
        return PaceChange(turn=Turn.RECOVERED, t_s=t_s, since_s=t_s, speed_ratio=exp(-excess))

    def _reset(self, t_s: float) -> None:
        self._slower.clear()
        self._faster.clear()
        self._slower_since_s = t_s
        self._held.clear()


_KEPT = 2160  # six hours
_LATEST = 30  # readings (five minutes), because a cause must still be present


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """State of the machine around a training. Shares are 0..1; None means unknown.

    Attributes:
        foreign_cores: Cores used by other processes.
        gpu_neighbour: Share of the time with another process on its GPUs.
        throttled: Share of the time with throttled clocks.
        gpu_memory_fraction: Of its fullest GPU.
        data_wait_fraction: Of the step time.
        disk_pressure: ``some avg10`` of ``/proc/pressure/io``.
    """

    foreign_cores: float | None = None
    cores: int | None = None
    gpu_neighbour: float | None = None
    throttled: float | None = None
    gpu_memory_fraction: float | None = None
    data_wait_fraction: float | None = None
    disk_pressure: float | None = None
    config_changed: bool = False
    code_changed: bool = False


class MachineHistory:
    """Machine readings of the last six hours."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, MachineState]] = deque(maxlen=_KEPT)
        self._waits: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def add(self, t_s: float, reading: MachineState) -> None:
        if not self._readings or t_s - self._readings[-1][0] >= 10.0 - 1.0:
            self._readings.append((t_s, reading))

    def add_wait(self, t_s: float, data_wait_fraction: float) -> None:
        self._waits.append((t_s, data_wait_fraction))

    def before(self, t_s: float) -> MachineState:
        """Return the average of the half hour before a time, or of earlier readings."""
        recent = [reading for at_s, reading in self._readings if t_s - 1800.0 <= at_s < t_s]
        earlier = [reading for at_s, reading in self._readings if at_s < t_s]
        waits = [wait for at_s, wait in self._waits if t_s - 1800.0 <= at_s < t_s]
        return _mean(recent if len(recent) >= 3 else earlier[-_LATEST:], waits)

    def after(self, t_s: float) -> MachineState:
        """Return the average of up to five minutes since a time."""
        latest = [reading for _, reading in takewhile(lambda one: one[0] >= t_s, reversed(self._readings))]
        waits = [wait for _, wait in takewhile(lambda one: one[0] > t_s, reversed(self._waits))]
        return _mean(latest[:_LATEST], waits[:_LATEST])


def _mean(readings: Sequence[MachineState], waits: Sequence[float]) -> MachineState:
    if not readings:
        return MachineState(data_wait_fraction=median(waits) if waits else None)

    def known(name: str, middle: Callable[[list[float]], float]) -> float | None:
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        return middle(values) if values else None

    return MachineState(
        foreign_cores=known("foreign_cores", median),
        cores=readings[0].cores,
        gpu_neighbour=known("gpu_neighbour", fmean),
        throttled=known("throttled", fmean),
        gpu_memory_fraction=known("gpu_memory_fraction", median),
        data_wait_fraction=median(waits) if waits else known("data_wait_fraction", median),
        disk_pressure=known("disk_pressure", median),
        config_changed=any(reading.config_changed for reading in readings),
        code_changed=any(reading.code_changed for reading in readings),
    )


# Confirmed speed of a training's values.


def confirmed_speed(
    records: Sequence[TrialRecord], point: str, *, samples_per_step: float | None = None
) -> ConfirmedSpeed | None:
    """Return a point's speed with the 95 % prediction interval of a further training; None below two trials."""
    groups: dict[str, list[float]] = {}
    is_filled = False
    for trial in records:
        measurement = trial.comparable
        if measurement is None or trial.purpose in NOT_COMPARED:
            continue
        groups.setdefault(trial.point, []).append(math.log(measurement.speed))
        is_filled |= trial.point == point and measurement.filled_samples_per_s is not None
    own = groups.get(point, [])
    interval = prediction_interval(own, list(groups.values()))
    if interval is None:
        return None
    mean, half, trials = interval
    return ConfirmedSpeed(
        samples_per_s=math.exp(mean),
        low=math.exp(-half),
        high=math.exp(half),
        trials=trials,
        samples_per_step=samples_per_step,
        after_first_pass=is_filled,
    )


def prediction_interval(own: Sequence[float], groups: Sequence[Sequence[float]]) -> tuple[float, float, int] | None:
    """Return center, half-width and number of trials of the ln speed's interval; None below two trials.

    The interval is ``mean ± t · s · √(1 + 1/n)``.

    Args:
        own: ln speeds of the point.
        groups: ln speeds of all points.
    """
    from autotune.measure.statistics import SLOW_OUTLIER_FLOOR

    usual = [value for value in own if value >= median(own) - SLOW_OUTLIER_FLOOR]
    if len(usual) < 2:
        return None
    return math.fsum(usual) / len(usual), half_width(groups) * sqrt(1.0 + 1.0 / len(usual)), len(usual)


def half_width(groups: Sequence[Sequence[float]]) -> float:
    """Return the half-width ``t · s`` of the 95 % interval of one trial's ln speed.

    The variance is pooled over the points and moderated by a prior of 6 degrees of freedom (Smyth 2004, see
    `statistics.moderated_interval`).
    """
    from autotune.measure.statistics import TYPICAL_CV, robust_pooled_variance, student_t_quantile

    pooled, pooled_df = robust_pooled_variance(groups)
    df = 6.0 + pooled_df
    return student_t_quantile(0.975, df) * sqrt((6.0 * TYPICAL_CV**2 + pooled_df * pooled) / df)
