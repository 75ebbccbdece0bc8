"""Siblings of a study: the profiles of like trainings, by how near their training and their hardware are."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from autotune.study.profiles import Hardware, Profile

_MOST_SIBLINGS = 3
_LEAST_SHARED = 0.5  # of all knobs of both: with less, another trainer is meant
_LEAST_ALIKE = 0.7  # the same, where the command is another one, too
_OTHER_DEVICE = 8.0  # distance of a machine with GPUs from one without
_OTHER_GPU = 1.0
_OTHER_CPU = 0.25


class Likeness(IntEnum):
    """Likeness of another study's training to this one's, nearest first."""

    EARLIER_CODE = 0  # the study itself, before the trainer was edited
    SAME_TRAINING = 1
    SAME_COMMAND = 2  # with another config: another model, or other data
    SAME_KNOBS = 3


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """Study of a like training.

    Attributes:
        profile: Its profile.
        likeness: Likeness of its training.
        distance: Distance of its hardware, 0 for the same class.
    """

    profile: Profile
    likeness: Likeness
    distance: float

    @property
    def text(self) -> str:
        """Description for people: what study it is, and where it was made."""
        what = {
            Likeness.EARLIER_CODE: "this training with its code of before",
            Likeness.SAME_TRAINING: "this training",
            Likeness.SAME_COMMAND: "another config of the same command",
            Likeness.SAME_KNOBS: "a training with the same knobs",
        }[self.likeness]
        return f"a study of {what} on {self.profile.hardware.text}"


def siblings(own: Profile, others: Iterable[Profile]) -> list[Sibling]:
    """Return the nearest siblings of a study, those of the most alike training only, nearest hardware first.

    Args:
        own: The study's own profile, points left out.
        others: All profiles that there are.
    """
    found = [
        Sibling(profile=other, likeness=likeness, distance=distance(own.hardware, other.hardware))
        for other in others
        if other.study != own.study
        and other.objective == own.objective
        and (likeness := _likeness(own, other)) is not None
    ]
    nearest = min((sibling.likeness for sibling in found), default=None)
    found = [sibling for sibling in found if sibling.likeness == nearest]
    found.sort(key=lambda sibling: sibling.profile.ended_utc, reverse=True)  # of equals the latest
    found.sort(key=lambda sibling: sibling.distance)
    return found[:_MOST_SIBLINGS]


def distance(one: Hardware, other: Hardware) -> float:
    """Return the distance of two classes of hardware: differences of kind, and doublings of what can be counted."""
    if one.is_class_of(other):
        return 0.0
    cpu = 0.5 * _doublings(one.cpu_cores, other.cpu_cores) + 0.25 * _doublings(one.memory_bytes, other.memory_bytes)
    cpu += _OTHER_CPU if one.cpu_model != other.cpu_model else 0.0
    if bool(one.gpus) != bool(other.gpus):
        return _OTHER_DEVICE + cpu
    if not one.gpus:
        return cpu
    gpu = _OTHER_GPU if {name for name, _ in one.gpus} != {name for name, _ in other.gpus} else 0.0
    gpu += _doublings(len(one.gpus), len(other.gpus))
    memories = one.gpu_memory_bytes, other.gpu_memory_bytes
    if memories[0] is not None and memories[1] is not None:
        gpu += _doublings(memories[0], memories[1])
    return gpu + cpu


def _doublings(one: float, other: float) -> float:
    return abs(math.log2(one / other))


def _likeness(own: Profile, other: Profile) -> Likeness | None:
    """Return the likeness of another training; None if it tells nothing."""
    if other.training == own.training:
        return Likeness.SAME_TRAINING
    mine, theirs = set(own.kinds.items()), set(other.kinds.items())
    shared = len(mine & theirs) / max(1, len(mine | theirs))
    if other.command == own.command and shared >= _LEAST_SHARED:
        return Likeness.SAME_COMMAND
    return Likeness.SAME_KNOBS if shared >= _LEAST_ALIKE else None
