"""Profile of a study: its best points and those out of memory, for studies of similar trainings.

Holds hashes, knob values and figures, all validated; no paths, commands or host names.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from autotune.errors import StudyError
from autotune.files import read_beginning, replace_durably
from autotune.records import Ending, Machine, Values
from autotune.study.calls import StorageThread
from autotune.study.storage.journal import JournalFolder
from autotune.study.storage.lock import FileLock
from autotune.study.storage.storage import Storage

FORMAT = 1
"""Version of the format."""

PROFILE = "profile"
"""Attribute of the Optuna study with its profile."""

MOST_POINTS = 6
"""Maximum number of points."""

MOST_EXHAUSTED = 12
"""Maximum number of points that ran out of memory."""

_LONGEST_TEXT = 200
_GIB = 1024**3

Text = Annotated[str, msgspec.Meta(max_length=_LONGEST_TEXT)]
Memory = Annotated[int, msgspec.Meta(ge=1, le=1 << 60)]
Used = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware class of a study, with name and memory of each visible GPU."""

    cpu_model: Text
    cpu_cores: Annotated[int, msgspec.Meta(ge=1)]
    memory_bytes: Memory
    gpus: Annotated[tuple[tuple[Text, Memory | None], ...], msgspec.Meta(max_length=64)] = ()

    @classmethod
    def of(cls, machine: Machine) -> "Hardware":
        return cls(
            cpu_model=machine.cpu_model[:_LONGEST_TEXT],
            cpu_cores=machine.cpu_cores,
            memory_bytes=machine.memory_bytes,
            gpus=tuple((gpu.name[:_LONGEST_TEXT], gpu.memory_bytes) for gpu in machine.gpus[:64]),
        )

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Memory of the smallest GPU; None unless known for all."""
        known = [memory for _, memory in self.gpus if memory is not None]
        return min(known) if known and len(known) == len(self.gpus) else None

    @property
    def text(self) -> str:
        counts = Counter(name for name, _ in self.gpus)
        gpus = [f"{count}x {name}" if count > 1 else name for name, count in counts.items()]
        return ", ".join([*gpus, f"{self.cpu_cores} cores", *([] if gpus else ["no GPU"])])

    def is_class_of(self, other: "Hardware") -> bool:
        """Return whether studies count two machines as one class."""
        return self._rounded() == other._rounded()

    def _rounded(self) -> tuple[object, ...]:
        gpus = tuple((name, memory and round(memory / _GIB)) for name, memory in self.gpus)
        return (self.cpu_model, self.cpu_cores, round(self.memory_bytes / _GIB), gpus)


@dataclass(frozen=True, kw_only=True)
class ProfilePoint:
    """Point better than the baseline.

    Attributes:
        gain: Posterior mean ln score over the baseline.
        sd: Standard deviation of the mean of its trials, in ln score.
    """

    values: Values
    gain: Annotated[float, msgspec.Meta(gt=0.0, le=20.0)]
    sd: Annotated[float, msgspec.Meta(ge=0.0, le=20.0)]
    gpu_memory_bytes: Used | None = None
    host_memory_bytes: Used | None = None


@dataclass(frozen=True, kw_only=True)
class ExhaustedPoint:
    """Point that ran out of memory."""

    values: Values
    ending: Ending


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Profile of one study.

    Attributes:
        training: Hash of the training without the machine.
        kinds: Kind of each knob by path; None for a custom knob.
        points: Distinct points better than the baseline, best first.
    """

    study: Text
    training: Text
    command: Text
    objective: Text
    kinds: Annotated[Mapping[Text, str | None], msgspec.Meta(max_length=200)]
    hardware: Hardware
    points: Annotated[tuple[ProfilePoint, ...], msgspec.Meta(max_length=MOST_POINTS)]
    exhausted: Annotated[tuple[ExhaustedPoint, ...], msgspec.Meta(max_length=MOST_EXHAUSTED)]
    ended_utc: Text

    def __post_init__(self) -> None:
        texts = [self.study, self.training, self.command, self.objective, self.ended_utc, self.hardware.cpu_model]
        texts += [name for name, _ in self.hardware.gpus]
        if any(len(text) > _LONGEST_TEXT for text in (*texts, *self.kinds)):
            raise ValueError("a text is too long")
        if not all(text.isprintable() for text in texts):
            raise ValueError("a text is not printable")
        if any(point.ending not in (Ending.OUT_OF_GPU_MEMORY, Ending.OUT_OF_HOST_MEMORY) for point in self.exhausted):
            raise ValueError("a point did not run out of memory")
        for values in (*(one.values for one in self.points), *(one.values for one in self.exhausted)):
            if not values.keys() <= self.kinds.keys() or not all(map(_is_plain, values.values())):
                raise ValueError("values of unknown knobs, or invalid ones")


def attribute_of(profile: Profile) -> dict[str, Any]:
    """Return a profile as JSON."""
    return {"format": FORMAT, **msgspec.to_builtins(profile)}


def profile_of_attribute(attribute: Any) -> Profile | None:
    """Read a profile, if valid."""
    if not isinstance(attribute, Mapping) or attribute.get("format") != FORMAT:
        return None
    try:
        # lists may be tuples, but "5" and true aren't numbers
        json.dumps({**attribute}, ensure_ascii=False).encode()  # rejects lone surrogates
        return msgspec.convert({**attribute}, Profile)
    except (ValueError, RecursionError):
        return None


def distinct(points: Sequence[ProfilePoint], most: int) -> tuple[ProfilePoint, ...]:
    """Return the first points with two or more differences from each other."""
    chosen: list[ProfilePoint] = []
    for point in points:
        if len(chosen) < most and all(_differences(point, other) >= 2 for other in chosen):
            chosen.append(point)
    return tuple(chosen)


def _differences(one: ProfilePoint, other: ProfilePoint) -> int:
    return sum(one.values.get(path) != value for path, value in other.values.items())


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or len(value) <= _LONGEST_TEXT


class Likeness(IntEnum):
    """Similarity of another study's training, most similar first."""

    EARLIER_CODE = 0  # this study, before the trainer was edited
    SAME_TRAINING = 1
    SAME_COMMAND = 2  # another config: another model or dataset
    SAME_KNOBS = 3


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """Study of a similar training, and the distance of its hardware."""

    profile: Profile
    likeness: Likeness
    distance: float

    @property
    def text(self) -> str:
        what = {
            Likeness.EARLIER_CODE: "this training with earlier code",
            Likeness.SAME_TRAINING: "this training",
            Likeness.SAME_COMMAND: "another config of the same command",
            Likeness.SAME_KNOBS: "a training with the same knobs",
        }[self.likeness]
        return f"a study of {what} on {self.profile.hardware.text}"


def siblings(own: Profile, others: Iterable[Profile]) -> list[Sibling]:
    """Return the nearest 3 of the most similar studies, nearest hardware first."""
    found = [
        Sibling(profile=other, likeness=likeness, distance=distance(own.hardware, other.hardware))
        for other in others
        if other.study != own.study
        and other.objective == own.objective
        and (likeness := _likeness(own, other)) is not None
    ]
    nearest = min((sibling.likeness for sibling in found), default=None)
    found = [sibling for sibling in found if sibling.likeness == nearest]
    found.sort(key=lambda sibling: sibling.profile.ended_utc, reverse=True)  # latest first among equals
    found.sort(key=lambda sibling: sibling.distance)
    return found[:3]


def distance(one: Hardware, other: Hardware) -> float:
    """Return the distance of two hardware classes, in doublings of quantities."""
    if one.is_class_of(other):
        return 0.0
    cpu = 0.5 * _doublings(one.cpu_cores, other.cpu_cores) + 0.25 * _doublings(one.memory_bytes, other.memory_bytes)
    cpu += 0.25 if one.cpu_model != other.cpu_model else 0.0
    if bool(one.gpus) != bool(other.gpus):
        return 8.0 + cpu  # only one has GPUs
    if not one.gpus:
        return cpu
    gpu = 1.0 if {name for name, _ in one.gpus} != {name for name, _ in other.gpus} else 0.0
    gpu += _doublings(len(one.gpus), len(other.gpus))
    if one.gpu_memory_bytes and other.gpu_memory_bytes:
        gpu += _doublings(one.gpu_memory_bytes, other.gpu_memory_bytes)
    return gpu + cpu


def _doublings(one: float, other: float) -> float:
    return abs(math.log2(one / other))


def _likeness(own: Profile, other: Profile) -> Likeness | None:
    if other.training == own.training:
        return Likeness.SAME_TRAINING
    mine, theirs = set(own.kinds.items()), set(other.kinds.items())
    shared = len(mine & theirs) / max(1, len(mine | theirs))
    if other.command == own.command and shared >= 0.5:  # fraction of the knobs of both; below, it is another trainer
        return Likeness.SAME_COMMAND
    return Likeness.SAME_KNOBS if shared >= 0.7 else None


INDEX = "profiles.jsonl"
"""Name of the file next to journals."""

_MOST_PROFILES = 300
_PATIENCE_S = 5.0  # a warm start isn't worth a longer wait for a server


class ProfileIndex:
    """Profiles visible to a study: those of its storage and of this machine's journals."""

    def __init__(self, storage: Storage, journals: Path) -> None:
        self._storage = storage
        self._journals = journals

    def profiles(self) -> list[Profile]:
        found = {profile.study: profile for profile in _read(self._journals / INDEX)}
        own = self._own_index()
        if own is None:
            found.update({profile.study: profile for profile in self._in_database()})
        elif own.parent != self._journals:
            found.update({profile.study: profile for profile in _read(own)})
        return list(found.values())

    def keep(self, profile: Profile) -> None:
        """Write a profile to the index of a folder of journals; may raise `OSError`."""
        path = self._own_index()
        if path is None:
            return
        with FileLock(path.with_name(f".{INDEX}.lock"), timeout_s=1.0):
            others = [other for other in _read(path) if other.study != profile.study]
            kept = [*others, profile][-_MOST_PROFILES:]
            lines = [json.dumps(attribute_of(one), sort_keys=True) + "\n" for one in kept]
            replace_durably(path, "".join(lines).encode())

    def _own_index(self) -> Path | None:
        storage = self._storage
        return storage.path("index").with_name(INDEX) if isinstance(storage, JournalFolder) else None

    def _in_database(self) -> Sequence[Profile]:
        thread = StorageThread("profiles", lambda: False, _PATIENCE_S)
        with suppress(TimeoutError, StudyError):
            return _of(thread.call(partial(self._storage.attributes, PROFILE), _PATIENCE_S))
        return []


def _read(path: Path) -> list[Profile]:
    attributes = []
    for line in read_beginning(path, 4 << 20).split(b"\n"):
        with suppress(ValueError, RecursionError):
            attributes.append(json.loads(line))
    return _of(attributes)


def _of(attributes: Iterable[object]) -> list[Profile]:
    read = (profile_of_attribute(attribute) for attribute in attributes)
    return [profile for profile in read if profile is not None][-_MOST_PROFILES:]
