"""Surroundings of a training: readings of what else goes on, and their mean before and after a change."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean, median

_EVERY_S = 10.0
_KEPT = 2160  # six hours
_BEFORE_S = 1800.0
_FEWEST = 3
_LATEST = 30  # readings: a cause is what goes on now, not what has gone meanwhile


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Reading of what goes on beside a training, and in it; None means not known.

    Attributes:
        foreign_cores: Cores that processes other than the training's keep busy.
        cores: Cores of the machine.
        gpu_neighbour: Share of the time with another process at work on a GPU of the training; a single reading has 0
            or 1.
        throttled: Share of the time for which the clocks of a GPU of the training are held down, see
            `gpu.throttling.THROTTLING`; a single reading has 0 or 1.
        gpu_memory_fraction: Share of the memory in use on the fullest GPU of the training.
        data_wait_fraction: Share of the step time for which the training waits for data.
        disk_pressure: Share of the time for which some process waits for a disk: ``some avg10`` of
            ``/proc/pressure/io``, as a fraction.
        config_changed: Whether the config differs from the one that the training, or its study, began with.
        code_changed: The same for the code.
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


class SurroundingsHistory:
    """Readings of the last hours, one every 10 s at most."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Surroundings]] = deque(maxlen=_KEPT)
        self._waits: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def add(self, t_s: float, reading: Surroundings) -> None:
        """Add a reading; those that come too close to the one before are left out."""
        if not self._readings or t_s - self._readings[-1][0] >= _EVERY_S - 1.0:
            self._readings.append((t_s, reading))

    def add_wait(self, t_s: float, data_wait_fraction: float) -> None:
        """Add the data wait of a window of the training."""
        self._waits.append((t_s, data_wait_fraction))

    def before(self, t_s: float) -> Surroundings:
        """Return the mean of the half hour before a time, or of what there is of it."""
        recent = [reading for at_s, reading in self._readings if t_s - _BEFORE_S <= at_s < t_s]
        earlier = [reading for at_s, reading in self._readings if at_s < t_s]
        waits = [wait for at_s, wait in self._waits if t_s - _BEFORE_S <= at_s < t_s]
        return _mean(recent if len(recent) >= _FEWEST else earlier[-_LATEST:], waits)

    def after(self, t_s: float) -> Surroundings:
        """Return the mean from a time on, of the last five minutes at most."""
        latest = [reading for _, reading in takewhile(lambda one: one[0] >= t_s, reversed(self._readings))]
        waits = [wait for _, wait in takewhile(lambda one: one[0] > t_s, reversed(self._waits))]
        return _mean(latest[:_LATEST], waits[:_LATEST])


def _mean(readings: Sequence[Surroundings], waits: Sequence[float]) -> Surroundings:
    """Return medians of amounts, means of shares of time, and the last word on config and code."""
    if not readings:
        return Surroundings(data_wait_fraction=median(waits) if waits else None)

    def known(name: str) -> list[float]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    def middle(name: str) -> float | None:
        return median(values) if (values := known(name)) else None

    def share(name: str) -> float | None:
        return fmean(values) if (values := known(name)) else None

    return Surroundings(
        foreign_cores=middle("foreign_cores"),
        cores=readings[0].cores,
        gpu_neighbour=share("gpu_neighbour"),
        throttled=share("throttled"),
        gpu_memory_fraction=middle("gpu_memory_fraction"),
        data_wait_fraction=median(waits) if waits else middle("data_wait_fraction"),
        disk_pressure=middle("disk_pressure"),
        config_changed=any(reading.config_changed for reading in readings),
        code_changed=any(reading.code_changed for reading in readings),
    )
