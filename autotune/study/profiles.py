"""Profile of a study: its best few points and what ran out of memory, for studies of like trainings elsewhere.

It holds hashes, knob values and figures: no path, no command, no name of a host. Whoever reads one may have got it from
a storage that others write to, so it is checked like a trial of the record, and bounded.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from autotune.records import Ending, Machine, Values

FORMAT = 1
"""Version of a written profile."""

PROFILE = "profile"
"""Attribute of an Optuna study that holds its profile."""

MOST_POINTS = 6
"""Best points that a profile keeps."""

MOST_EXHAUSTED = 12
"""Points that ran out of memory that a profile keeps."""

_DIFFERENT_KNOBS = 2  # of two points that are worth a trial each elsewhere
_MOST_KNOBS = 200
_MOST_GPUS = 64
_LONGEST_TEXT = 200
_LARGEST_GAIN = 20.0  # ln score
_MOST_BYTES = 1 << 60
_GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Class of hardware that a study was made on.

    Attributes:
        cpu_model: As the kernel names it.
        cpu_cores: Cores that trials may use.
        memory_bytes: Memory that they may use.
        gpus: Name and memory of each GPU that they see; memory is None if it is not known.
    """

    cpu_model: str
    cpu_cores: int
    memory_bytes: int
    gpus: tuple[tuple[str, int | None], ...] = ()

    @classmethod
    def of(cls, machine: Machine) -> "Hardware":
        """Return the class of a machine."""
        return cls(
            cpu_model=machine.cpu_model[:_LONGEST_TEXT],
            cpu_cores=machine.cpu_cores,
            memory_bytes=machine.memory_bytes,
            gpus=tuple((gpu.name[:_LONGEST_TEXT], gpu.memory_bytes) for gpu in machine.gpus[:_MOST_GPUS]),
        )

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Memory of the smallest GPU; None without one, or if it is not known of each."""
        known = [memory for _, memory in self.gpus if memory is not None]
        return min(known) if known and len(known) == len(self.gpus) else None

    @property
    def text(self) -> str:
        """Description for people, e.g. ``2x NVIDIA L40S, 32 cores``."""
        names = dict.fromkeys(name for name, _ in self.gpus)
        counts = {name: sum(name == other for other, _ in self.gpus) for name in names}
        gpus = [f"{count}x {name}" if count > 1 else name for name, count in counts.items()]
        return ", ".join([*gpus, f"{self.cpu_cores} cores", *([] if gpus else ["no GPU"])])

    def is_class_of(self, other: "Hardware") -> bool:
        """Return whether two machines are of one class, as studies count them: memory in whole GiB."""
        return self._rounded() == other._rounded()

    def _rounded(self) -> tuple[object, ...]:
        gpus = tuple((name, memory and round(memory / _GIB)) for name, memory in self.gpus)
        return (self.cpu_model, self.cpu_cores, round(self.memory_bytes / _GIB), gpus)


@dataclass(frozen=True, kw_only=True)
class ProfilePoint:
    """Point that was better than the baseline of its study.

    Attributes:
        values: Its knob values.
        gain: ln score over that of the baseline, as the model of the study believes it.
        sd: Standard deviation of the mean of its trials, in ln score.
        gpu_memory_bytes: Peak memory in use on its fullest GPU; None if unknown.
        host_memory_bytes: Peak host memory; None if unknown.
    """

    values: Values
    gain: float
    sd: float
    gpu_memory_bytes: int | None = None
    host_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExhaustedPoint:
    """Point that ran out of memory.

    Attributes:
        values: Its knob values.
        ending: Which memory.
    """

    values: Values
    ending: Ending


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Profile of one study.

    Attributes:
        study: Name of the study.
        training: Hash of its training without the machine, see `Problem.training`.
        command: Hash of its command.
        objective: Name of its objective.
        kinds: Kind of each knob by its path; None for a knob of the user's own.
        hardware: Class of hardware that it was made on.
        points: Its best points that are not alike, best first; empty where today's values were the best.
        exhausted: Points that ran out of memory.
        ended_utc: End of its latest search, ISO 8601.
    """

    study: str
    training: str
    command: str
    objective: str
    kinds: Mapping[str, str | None]
    hardware: Hardware
    points: tuple[ProfilePoint, ...]
    exhausted: tuple[ExhaustedPoint, ...]
    ended_utc: str

    def __post_init__(self) -> None:
        texts = (self.study, self.training, self.command, self.objective, self.ended_utc, self.hardware.cpu_model)
        if any(len(text) > _LONGEST_TEXT for text in (*texts, *self.kinds, *(name for name, _ in self.hardware.gpus))):
            raise ValueError("a text is too long")
        if not all(text.isprintable() for text in (*texts, *(name for name, _ in self.hardware.gpus))):
            raise ValueError("a text that cannot be shown")
        if len(self.kinds) > _MOST_KNOBS or len(self.hardware.gpus) > _MOST_GPUS:
            raise ValueError("too many knobs or GPUs")
        if len(self.points) > MOST_POINTS or len(self.exhausted) > MOST_EXHAUSTED:
            raise ValueError("too many points")
        memories = [self.hardware.memory_bytes, *(memory for _, memory in self.hardware.gpus if memory is not None)]
        if self.hardware.cpu_cores < 1 or not all(0 < memory <= _MOST_BYTES for memory in memories):
            raise ValueError("no such machine")
        for point in self.points:
            if not (0.0 < point.gain <= _LARGEST_GAIN and 0.0 <= point.sd <= _LARGEST_GAIN):
                raise ValueError("a gain is out of range")
            if not all(0 <= (used or 0) <= _MOST_BYTES for used in (point.gpu_memory_bytes, point.host_memory_bytes)):
                raise ValueError("a use of memory is out of range")
        if any(point.ending not in (Ending.OUT_OF_GPU_MEMORY, Ending.OUT_OF_HOST_MEMORY) for point in self.exhausted):
            raise ValueError("a point that did not run out of memory")
        tried = [*(point.values for point in self.points), *(point.values for point in self.exhausted)]
        for values in tried:
            if not values.keys() <= self.kinds.keys() or not all(map(_is_plain, values.values())):
                raise ValueError("values of no knob, or none that a config has")


def attribute_of(profile: Profile) -> dict[str, Any]:
    """Return a profile as it is written: one JSON object."""
    written: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(profile)}))
    return written


def profile_of_attribute(attribute: Any) -> Profile | None:
    """Read a profile back; None where it is none of ours, of another format, or holds what no study can."""
    if not isinstance(attribute, Mapping) or attribute.get("format") != FORMAT:
        return None
    try:
        # A list may be a tuple here, but "5" and true are no numbers.
        json.dumps({**attribute}, ensure_ascii=False).encode()  # no halves of characters
        return msgspec.convert({**attribute}, Profile)
    except (msgspec.ValidationError, ValueError, TypeError, RecursionError):
        return None


def distinct(points: Sequence[ProfilePoint], most: int) -> tuple[ProfilePoint, ...]:
    """Return the first points of which no two are alike: neighbours of the best one tell little beside it.

    Args:
        points: The points, best first.
        most: Largest number of them.
    """
    chosen: list[ProfilePoint] = []
    for point in points:
        if len(chosen) < most and all(_differences(point, other) >= _DIFFERENT_KNOBS for other in chosen):
            chosen.append(point)
    return tuple(chosen)


def _differences(one: ProfilePoint, other: ProfilePoint) -> int:
    return sum(one.values.get(path) != value for path, value in other.values.items())


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or len(value) <= _LONGEST_TEXT
