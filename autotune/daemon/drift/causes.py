"""Likely cause of a slowdown: what changed most in the surroundings at the same time."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from autotune.daemon.drift.surroundings import Surroundings

_CORES = 0.5  # growth of each that is told from its usual ups and downs
_CORES_OF_FEW = 0.125  # of a machine with few, where a neighbour can only take what the training leaves to it
_CORES_OF_MANY = 0.04
_SHARE_OF_TIME = 0.25
_DATA_WAIT = 0.08
_DISK = 0.12
_FULL = 0.95
_STRONGEST = 6.0
_EDITED = 2.0


class CauseKind(StrEnum):
    """Kind of cause."""

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
        kind: What it is.
        text: The evidence, as a clause for people.
        strength: How far it is above what is told from noise, 1 or more; to compare causes by.
    """

    kind: CauseKind
    text: str
    strength: float


def likely_cause(before: Surroundings, after: Surroundings) -> Cause | None:
    """Return the likely cause of a slowdown; None if nothing changed that could be it.

    Data wait is a symptom: where the disk or a neighbour on the CPU explains it, that is the cause. A disk under
    pressure is none where the training is known not to wait for data any more than before.

    Args:
        before: Surroundings while the training was as fast as it should be.
        after: Surroundings since it is slower.
    """
    found = [cause for cause in _changes(before, after) if cause.strength >= 1.0]
    if any(cause.kind in (CauseKind.DISK_SLOWER, CauseKind.CPU_NEIGHBOUR) for cause in found):
        found = [cause for cause in found if cause.kind is not CauseKind.DATA_WAIT]
    return max(found, key=lambda cause: cause.strength, default=None)


def _changes(before: Surroundings, after: Surroundings) -> Iterator[Cause]:
    """Yield what changed, weak changes included."""
    known = before.data_wait_fraction is not None  # many trainings wait a lot, always
    waits_more = _growth(before.data_wait_fraction, after.data_wait_fraction) if known else None
    if (grown := _growth(before.throttled, after.throttled)) is not None:
        text = f"the GPU's clocks are held down {after.throttled:.0%} of the time{_was(before.throttled, '.0%')}"
        yield _cause(CauseKind.CLOCKS_HELD_DOWN, text, grown / _SHARE_OF_TIME)
    if (grown := _growth(before.gpu_neighbour, after.gpu_neighbour)) is not None:
        text = f"another process works on the GPU {after.gpu_neighbour:.0%} of the time"
        yield _cause(CauseKind.GPU_NEIGHBOUR, text + _was(before.gpu_neighbour, ".0%"), grown / _SHARE_OF_TIME)
    if (grown := _growth(before.foreign_cores, after.foreign_cores)) is not None:
        of = f" of {after.cores}" if after.cores else ""
        text = f"other processes keep {after.foreign_cores:.1f}{of} cores busy{_was(before.foreign_cores, '.1f')}"
        yield _cause(CauseKind.CPU_NEIGHBOUR, text, grown / _least_cores(after.cores))
    if (grown := _growth(before.disk_pressure, after.disk_pressure)) is not None:
        is_felt = waits_more is None or waits_more >= _DATA_WAIT / 2
        text = f"processes wait for the disk {after.disk_pressure:.0%} of the time{_was(before.disk_pressure, '.0%')}"
        yield _cause(CauseKind.DISK_SLOWER, text, grown / _DISK if is_felt else 0.0)
    if waits_more is not None:
        text = f"the loop waits for data {after.data_wait_fraction:.0%} of the time"
        text += _was(before.data_wait_fraction, ".0%")
        yield _cause(CauseKind.DATA_WAIT, text, waits_more / _DATA_WAIT)
    filled, full = before.gpu_memory_fraction, after.gpu_memory_fraction
    if full is not None and full >= _FULL and (filled is None or filled < _FULL):
        yield _cause(CauseKind.GPU_MEMORY_FULL, f"the GPU's memory is {full:.0%} full", 1.5)
    if after.config_changed and not before.config_changed:
        yield _cause(CauseKind.CONFIG_EDITED, "the config was edited", _EDITED)
    if after.code_changed and not before.code_changed:
        yield _cause(CauseKind.CODE_EDITED, "the code was changed", _EDITED)


def _was(before: float | None, form: str) -> str:
    return "" if before is None else f", before {format(before, form)}"


def _least_cores(cores: int | None) -> float:
    """Return the growth of the foreign load that is told from its ups and downs, on a machine of that size."""
    return _CORES if cores is None else max(min(_CORES, _CORES_OF_FEW * cores), _CORES_OF_MANY * cores)


def _growth(before: float | None, after: float | None) -> float | None:
    """Return by how much a reading grew, None if it is not known after; one not known before counts from zero."""
    return None if after is None else after - (before or 0.0)


def _cause(kind: CauseKind, text: str, strength: float) -> Cause:
    return Cause(kind=kind, text=text, strength=min(strength, _STRONGEST))
