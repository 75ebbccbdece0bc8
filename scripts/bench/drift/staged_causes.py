"""Staged slowdowns with a known cause, among readings that also hold what is not the cause."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autotune.daemon.drift import Cause, CauseKind, Change, PaceWindow, Surroundings, TrainingWatch, Turn
from scripts.bench.drift.pace_noise import WINDOW_S, PaceNoise

_AFTER_WINDOWS = 3 * 360  # three hours: a slowdown that is not found by then is not named either
_STEPS = 50
_RESTART_WINDOWS = 9


@dataclass(frozen=True, kw_only=True)
class StagedCase:
    """A training with a slowdown.

    Attributes:
        cause: What causes it; None for something that no reading shows.
        at: Window in which it begins.
        paces: ln pace of each window.
        readings: What goes on beside the training at the end of each window, data wait included.
    """

    cause: CauseKind | None
    at: int
    paces: list[float]
    readings: list[Surroundings]


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
            if isinstance(finding.found, Change) and finding.found.turn is Turn.SLOWER and window.t1_s > case.at * 10:
                return True, finding.cause
    return False, None


def _windows(case: StagedCase, *, restarted: bool) -> Iterator[tuple[PaceWindow, Surroundings]]:
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
            wait_fraction=reading.data_wait_fraction,
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

    def at(self, *, is_after: bool) -> Surroundings:
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
        return Surroundings(
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
