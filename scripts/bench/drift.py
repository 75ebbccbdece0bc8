"""Benchmark of the watch over trainings: false alarms, delays and named causes, on simulated trainings.

What was measured on real trainers, and is drawn anew for each training here: the times of steps are autocorrelated
(integrated time 2.6 at the median, 12 at the 90th percentile), the speed of whole trainings differs by 8 % (bimodal,
1.23x from end to end), and so do slow phases of minutes within a training. Steps after the end of an epoch are slower,
some trainings fill a cache in their first one, evaluations and checkpoints take time, some without being seen as
pauses, and the machine's temperature wanders. Staged slowdowns have a known cause, among readings that also hold what
is not the cause.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.daemon.drift import (
    Cause,
    CauseKind,
    MachineState,
    Slowdown,
    StartCheck,
    TrainingWatch,
    Turn,
    prediction_interval,
)
from autotune.trial.pace_files import PaceWindow
from autotune.trial.trainings import ConfirmedSpeed
from scripts.bench.results import Commands, markdown_table

Values = NDArray[np.float64]

WINDOW_S = 10.0

_MODES = 0.14  # ln distance of the two modes; the rest of the spread is within them
_MODE_SD = 0.04
_PAUSE_S = (5.0, 60.0)


@dataclass(frozen=True, kw_only=True)
class PaceNoise:
    """Noise of one training.

    Attributes:
        window_sd: Standard deviation of the ln pace of a window, from its steps.
        phase_depth: How much slower slow phases are, in ln pace; 0 for none.
        epoch_cost: How much slower the window after the end of an epoch is.
        first_epoch: How much slower the first epoch is.
        pause_windows: Mean time between pauses that nobody marks; 0 for none.
    """

    window_sd: float
    wander_sd: float
    wander_windows: float
    phase_depth: float
    phase_windows: float
    phase_share: float
    epoch_windows: int
    epoch_cost: float
    first_epoch: float
    pause_windows: float
    daily: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "PaceNoise":
        """Draw the noise of a training."""
        step_sd = float(np.exp(rng.normal(np.log(0.12), 0.7)))
        time = float(np.exp(rng.normal(np.log(2.6), 1.19)))  # p90 at 12
        steps = float(np.clip(np.exp(rng.normal(np.log(60.0), 1.3)), 2.0, 5000.0))
        return cls(
            window_sd=min(step_sd * np.sqrt(max(time, 1.0) / max(steps, time)), 0.3),
            wander_sd=abs(rng.normal(0.0, 0.015)),
            wander_windows=float(np.exp(rng.uniform(np.log(6), np.log(180)))),
            phase_depth=rng.uniform(0.04, 0.21) if rng.random() < 0.5 else 0.0,
            phase_windows=float(np.exp(rng.uniform(np.log(6), np.log(30)))),
            phase_share=rng.uniform(0.01, 0.4),
            epoch_windows=int(np.exp(rng.uniform(np.log(12), np.log(1800)))),
            epoch_cost=rng.uniform(0.0, 0.3),
            first_epoch=rng.uniform(0.05, 0.3) if rng.random() < 0.2 else 0.0,
            pause_windows=float(np.exp(rng.uniform(np.log(60), np.log(720)))) if rng.random() < 0.3 else 0.0,
            daily=rng.uniform(0.0, 0.01),
        )

    def windows(self, rng: np.random.Generator, count: int) -> Values:
        """Return the ln pace of so many windows, 0 being the usual one."""
        pace = rng.normal(0.0, self.window_sd, count)
        keep = np.exp(-1.0 / self.wander_windows)
        pace += _autoregressive(rng.normal(0.0, self.wander_sd * np.sqrt(1.0 - keep**2), count), keep)
        if self.phase_depth:
            pace += self.phase_depth * self._slow_phases(rng, count)
        places = np.arange(count)
        pace[places % self.epoch_windows == 0] += self.epoch_cost
        pace[: min(count, self.epoch_windows)] += self.first_epoch
        if self.pause_windows:
            pauses = rng.random(count) < 1.0 / self.pause_windows
            pace[pauses] += np.log1p(rng.uniform(*_PAUSE_S, pauses.sum()) / WINDOW_S)
        pace += self.daily * np.sin(2 * np.pi * (places * WINDOW_S / 86400.0 + rng.random()))
        return pace

    def _slow_phases(self, rng: np.random.Generator, count: int) -> Values:
        """Return 1 where a slow phase is, else 0: two states with exponential lengths."""
        between = self.phase_windows * (1.0 - self.phase_share) / self.phase_share
        pairs = int(count / (between + self.phase_windows) * 2) + 20
        lengths = np.stack([rng.exponential(between, pairs), rng.exponential(self.phase_windows, pairs)], axis=1)
        ends = np.cumsum(lengths.ravel() + 1.0).astype(int)
        return (np.searchsorted(ends, np.arange(count), side="right") % 2).astype(float)


def between_trainings(rng: np.random.Generator, count: int) -> Values:
    """Return ln speeds of repeated trainings of one config: two modes, 8 % of spread."""
    modes = rng.random(count) < 0.5
    return np.where(modes, _MODES / 2, -_MODES / 2) + rng.normal(0.0, _MODE_SD, count)


def hours(rng: np.random.Generator) -> float:
    """Return the length of a training: 10 h at the median, half an hour to five days."""
    return float(np.clip(np.exp(rng.normal(np.log(10.0), 1.2)), 0.5, 120.0))


def _autoregressive(innovations: Values, keep: float) -> Values:
    """Return an AR(1) process, by blocks in which its powers do not underflow."""
    out = np.empty_like(innovations)
    level, size = 0.0, max(8, int(20.0 / -np.log(keep)))
    powers = keep ** np.arange(1, size + 1)
    for start in range(0, len(innovations), size):
        part = innovations[start : start + size]
        scale = powers[: len(part)]
        out[start : start + size] = scale * (level + np.cumsum(part / scale))
        level = out[start + len(part) - 1]
    return out


_AFTER_WINDOWS = 3 * 360  # three hours: a slowdown that is not found by then is not named either
_STEPS = 50
_RESTART_WINDOWS = 9


@dataclass(frozen=True, kw_only=True)
class StagedCase:
    """A training with a slowdown.

    Attributes:
        cause: What causes it; None for something that no reading shows.
        paces: ln pace of each window.
        readings: What goes on beside the training at the end of each window, data wait included.
    """

    cause: CauseKind | None
    at: int
    paces: list[float]
    readings: list[MachineState]


def staged_case(seed: int) -> StagedCase:
    """Draw a case; the causes come in turns."""
    rng = np.random.default_rng([seed, 7])
    causes: list[CauseKind | None] = [*CauseKind, None]
    cause, at = causes[seed % len(causes)], int(rng.uniform(60, 360) * 6)
    noise = PaceNoise.draw(rng)
    paces = noise.windows(rng, at + _AFTER_WINDOWS)
    paces[at:] -= np.log1p(-rng.uniform(0.12, 0.5))
    cores = int(rng.choice([2, 8, 16, 64]))
    readings = _Readings(rng, cause, cores)
    return StagedCase(
        cause=cause,
        at=at,
        paces=paces.tolist(),
        readings=[readings.at(is_after=place >= at) for place in range(len(paces))],
    )


def found_cause(case: StagedCase) -> tuple[bool, Cause | None]:
    """Return whether a watch over a staged training finds the slowdown, and the cause that it names."""
    watch, restarted = TrainingWatch(None), case.cause in (CauseKind.CONFIG_EDITED, CauseKind.CODE_EDITED)
    for window, reading in _windows(case, restarted=restarted):
        watch.note(window.t1_s, replace(reading, data_wait_fraction=None))
        for finding in watch.add(window):
            if finding.turn is Turn.SLOWER and window.t1_s > case.at * 10:
                return True, finding.cause
    return False, None


def _windows(case: StagedCase, *, restarted: bool) -> Iterator[tuple[PaceWindow, MachineState]]:
    """Yield the windows; an edit shows where the trainer is started anew."""
    pause_s = 0.0
    for place, (pace, reading) in enumerate(zip(case.paces, case.readings, strict=True)):
        if restarted and place == case.at:
            pause_s = _RESTART_WINDOWS * WINDOW_S
        t1_s = (place + 1) * WINDOW_S + pause_s
        window = PaceWindow(
            process="2.0" if pause_s else "1.0",
            t0_s=t1_s - WINDOW_S,
            t1_s=t1_s,
            steps=_STEPS,
            train_s=WINDOW_S,
            work=WINDOW_S / float(np.exp(pace)),
            wait_s=None if reading.data_wait_fraction is None else WINDOW_S * reading.data_wait_fraction,
            waits=_STEPS,
        )
        yield window, reading


class _Readings:
    """Readings of one machine: what goes on anyway, and what the cause adds."""

    def __init__(self, rng: np.random.Generator, cause: CauseKind | None, cores: int) -> None:
        self._rng = rng
        self._cause = cause
        self._cores = cores
        self._has_gpu = cause in _OF_GPU or rng.random() < 0.7
        self._always_busy = rng.uniform(0.5, 0.3 * cores + 0.5) if rng.random() < 0.4 else 0.05
        self._blips = rng.uniform(0.02, 0.15) if rng.random() < 0.5 else 0.0  # share of readings with a short neighbour
        self._hot = rng.uniform(0.02, 0.3) if rng.random() < 0.3 else 0.0
        self._shared = rng.uniform(0.02, 0.3) if rng.random() < 0.2 else 0.0
        self._disk = rng.uniform(0.0, 0.15)
        self._wait = rng.uniform(0.02, 0.4)
        self._memory = rng.uniform(0.96, 0.99) if rng.random() < 0.3 and not self._is_full else rng.uniform(0.2, 0.93)
        self._size = rng.uniform(0.0, 1.0)  # of what the cause adds
        self._is_felt = rng.random() < 0.5  # in the data wait

    @property
    def _is_full(self) -> bool:
        return self._cause is CauseKind.GPU_MEMORY_FULL

    def at(self, *, is_after: bool) -> MachineState:
        """Return the next reading."""
        rng, cause = self._rng, self._cause if is_after else None
        foreign = self._always_busy * rng.uniform(0.8, 1.2) + abs(rng.normal(0.0, 0.05))
        if rng.random() < self._blips:
            foreign += rng.uniform(0.5, 2.0)
        disk = self._disk * rng.uniform(0.3, 1.7) + (rng.uniform(0.1, 0.5) if rng.random() < 0.1 else 0.0)
        wait = self._wait + rng.normal(0.0, 0.02)
        throttled, neighbour = rng.random() < self._hot, rng.random() < self._shared
        if cause is CauseKind.CPU_NEIGHBOUR:
            foreign += 0.8 + self._size * 0.5 * self._cores
            wait += 0.15 if self._is_felt else 0.0
        elif cause is CauseKind.DISK_SLOWER:
            disk += 0.2 + 0.4 * self._size
            wait += 0.1 + 0.3 * self._size
        elif cause is CauseKind.DATA_WAIT:
            wait += 0.12 + 0.3 * self._size
        elif cause is CauseKind.CLOCKS_HELD_DOWN:
            throttled = rng.random() < 0.6 + 0.4 * self._size
        elif cause is CauseKind.GPU_NEIGHBOUR:
            neighbour = rng.random() < 0.6 + 0.4 * self._size
        memory = 0.96 + 0.03 * self._size if cause is CauseKind.GPU_MEMORY_FULL else self._memory
        return MachineState(
            foreign_cores=float(foreign),
            cores=self._cores,
            gpu_neighbour=float(neighbour) if self._has_gpu else None,
            throttled=float(throttled) if self._has_gpu else None,
            gpu_memory_fraction=float(memory) if self._has_gpu else None,
            data_wait_fraction=float(np.clip(wait, 0.0, 1.0)),
            disk_pressure=float(min(disk, 1.0)),
            config_changed=cause is CauseKind.CONFIG_EDITED,
            code_changed=cause is CauseKind.CODE_EDITED,
        )


_OF_GPU = frozenset({CauseKind.CLOCKS_HELD_DOWN, CauseKind.GPU_NEIGHBOUR, CauseKind.GPU_MEMORY_FULL})


_WINDOWS_A_DAY = 86400 / WINDOW_S
_SLOWER_BY = (0.05, 0.10, 0.20)
_STARTS_SLOWER_BY = (0.0, 0.10, 0.20, 0.30)
_HORIZON_H = 24
_START_WINDOWS = 40
_TRIAL_WINDOWS = 4


def benchmark_drift(*, trainings: int, delays: int, starts: int, cases: int) -> None:
    """Print all figures.

    Args:
        delays: Trainings that become slower, for each size.
        starts: Trainings that are compared with what was confirmed, for each size.
    """
    _false_alarms(trainings)
    _delays(delays)
    _starts(starts)
    _causes(cases)


def poisson_upper_bound(count: int) -> float:
    """Return the one-sided 95 % upper bound of a Poisson mean after so many events: P(X ≤ count) = 5 % at it."""
    low, high = 0.0, 10.0 * (count + 5)
    for _ in range(100):
        middle = (low + high) / 2
        terms = np.cumsum(np.log(np.arange(1, count + 1)))
        chance = np.exp(-middle) + sum(np.exp(k * np.log(middle) - middle - terms[k - 1]) for k in range(1, count + 1))
        low, high = (middle, high) if chance > 0.05 else (low, middle)
    return high


def _alarm_windows(paces: Sequence[float]) -> list[int]:
    """Return the windows in which the test says that a training has become slower."""
    test, alarms = Slowdown(), []
    for place, pace in enumerate(paces):
        change = test.add(place * WINDOW_S, WINDOW_S, pace)
        if change is not None and change.turn is Turn.SLOWER:
            alarms.append(place)
    return alarms


def _false_alarms(trainings: int) -> None:
    windows = alarms = 0
    for seed in range(trainings):
        rng = np.random.default_rng([seed, 3])
        noise, count = PaceNoise.draw(rng), int(hours(rng) * 3600 / WINDOW_S)
        alarms += len(_alarm_windows(noise.windows(rng, count).tolist()))
        windows += count
    days = windows / _WINDOWS_A_DAY
    bound = poisson_upper_bound(alarms)
    print(
        f"{trainings} trainings that nothing happens to, {days:.0f} days: {alarms} false alarms, "
        f"{30 * alarms / days:.2f} in 30 days (95 % upper bound {30 * bound / days:.2f})\n",
        flush=True,
    )


def _delays(trainings: int) -> None:
    rows = []
    for size in _SLOWER_BY:
        delays_min, before = [], 0
        for seed in range(trainings):
            rng = np.random.default_rng([seed, 5])
            noise, at = PaceNoise.draw(rng), int(rng.uniform(0.5, 8.0) * 360)
            paces = noise.windows(rng, at + _HORIZON_H * 360)
            paces[at:] -= np.log1p(-size)
            alarms = _alarm_windows(paces.tolist())
            before += sum(alarm < at for alarm in alarms)
            after = [alarm for alarm in alarms if alarm >= at]
            delays_min.append((after[0] - at) * WINDOW_S / 60 if after else np.inf)
        known = np.asarray(delays_min)
        middle, late = (float(np.quantile(known, q, method="higher")) for q in (0.5, 0.9))
        rows.append(
            [
                f"{size:.0%}",
                _minutes(middle),
                _minutes(late),
                f"{(known <= 60).mean():.0%}",
                f"{(known < np.inf).mean():.0%}",
            ]
        )
    heads = ("slower by", "median delay", "90th percentile", "found in an hour", f"in {_HORIZON_H} hours")
    print(markdown_table(heads, rows) + "\n", flush=True)


def _minutes(delay: float) -> str:
    return f"over {_HORIZON_H} h" if delay == np.inf else f"{delay:.0f} min"


def _starts(trainings: int) -> None:
    """Print how often the first minutes are said to be slow, by how slow they are."""
    rows = []
    for size in _STARTS_SLOWER_BY:
        said = 0
        for seed in range(trainings):
            rng = np.random.default_rng([seed, 11])
            noise = replace(PaceNoise.draw(rng), first_epoch=0.0)  # where it fills a cache, the check begins after it
            check = StartCheck(_confirmed(rng, noise))
            level = float(between_trainings(rng, 1)[0]) + np.log1p(-size)
            for place, pace in enumerate(noise.windows(rng, _START_WINDOWS)):
                said += check.add(_start_window(place, float(pace) - level)) is not None
        rows.append([f"{size:.0%}", f"{said / trainings:.1%}"])
    print(markdown_table(("slower than confirmed by", "said to be slow"), rows) + "\n", flush=True)


def _confirmed(rng: np.random.Generator, noise: PaceNoise) -> ConfirmedSpeed:
    """Return what a study of ordinary size has confirmed for a point of speed 1, from trials of 20 s each."""

    def trials(count: int) -> list[float]:
        return [
            float(level - np.log(np.exp(noise.windows(rng, _TRIAL_WINDOWS)[-2:]).mean()))
            for level in between_trainings(rng, count)
        ]

    own = trials(int(rng.integers(4, 9)))
    others = [trials(int(rng.integers(1, 9))) for _ in range(12)]
    interval = prediction_interval(own, [own, *others])
    assert interval is not None
    mean, half, count = interval
    return ConfirmedSpeed(
        samples_per_s=float(np.exp(mean)), low=float(np.exp(-half)), high=float(np.exp(half)), trials=count
    )


def _start_window(place: int, pace: float) -> PaceWindow:
    return PaceWindow(
        process="1.0",
        t0_s=place * WINDOW_S,
        t1_s=(place + 1) * WINDOW_S,
        steps=50,
        train_s=WINDOW_S,
        samples=WINDOW_S / float(np.exp(pace)),
    )


def _causes(cases: int) -> None:
    right, found, wrong = 0, 0, Counter[str]()
    for seed in range(cases):
        case = staged_case(seed)
        is_found, cause = found_cause(case)
        found += is_found
        named = cause.kind if cause else None
        if is_found and named is case.cause:
            right += 1
        elif is_found:
            wrong[f"{case.cause or 'nothing to see'} taken for {named or 'unknown'}"] += 1
    print(f"{cases} staged slowdowns of 12 to 50 %: {found} found in 3 hours, the cause right in {right} of these")
    for text, count in wrong.most_common():
        print(f"  {count} x {text}")


def add_drift(commands: Commands) -> None:
    """Add the parser of ``drift``."""
    parser = commands.add_parser("drift", help="false alarms, delays and causes of the daemon's watch over trainings")
    parser.add_argument("--trainings", type=int, default=1000, help="that nothing happens to (default: 1000)")
    parser.add_argument("--delays", type=int, default=200, help="that become slower, of each size (default: 200)")
    parser.add_argument("--starts", type=int, default=2000, help="held against what was confirmed (default: 2000)")
    parser.add_argument("--cases", type=int, default=200, help="staged causes (default: 200)")
    parser.set_defaults(run=_drift)


def _drift(arguments: argparse.Namespace) -> None:
    benchmark_drift(
        trainings=arguments.trainings, delays=arguments.delays, starts=arguments.starts, cases=arguments.cases
    )
