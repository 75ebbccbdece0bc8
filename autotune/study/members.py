"""Members and machines of a study: the processes that make its trials, as they describe themselves there.

Each member keeps one attribute of the study, and renews it every few seconds as long as it is at work. Nothing that a
member says is executed or used as a path.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import fmean
from typing import Annotated, Any

import msgspec

from autotune.measure.statistics import TYPICAL_CV
from autotune.records import TrialRecord

ATTRIBUTE = "member."
"""Prefix of the attributes that hold members; the UUID follows."""

RECENT = timedelta(seconds=90)
"""Time in which a member that is at work has renewed its entry, by its own wall clock."""

Text = Annotated[str, msgspec.Meta(max_length=200)]
Fact = Annotated[str, msgspec.Meta(max_length=1000)]
Facts = Annotated[Mapping[Fact, bool | int | float | Fact | None], msgspec.Meta(max_length=50)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Role(StrEnum):
    """Reason for which a member is there."""

    SEARCH = "search"  # it gives an answer in the end
    WORKER = "worker"  # it lends its machine


class MemberPhase(StrEnum):
    """Phase that a member is in."""

    EXPLORING = "exploring"
    CONFIRMING = "confirming"
    LEFT = "left"


@dataclass(frozen=True, kw_only=True)
class Member:
    """Member of a study.

    Attributes:
        search: Name of the joint search that its trials belong to.
        about: Its process, see `process.owner.this_process`; ``host`` is for people.
        since_utc: Time at which it joined, by its own wall clock.
        point: Name of the point that it confirms; None before that.
        left_because: Reason for which it left; empty where the study needs no more.
    """

    uuid: Text
    role: Role
    search: Text
    machine: Text
    baseline: Text
    about: Facts
    since_utc: Instant
    renewed_utc: Instant
    code: Facts = field(default_factory=dict)
    phase: MemberPhase = MemberPhase.EXPLORING
    point: str | None = None
    left_because: Text = ""
    left_s: float = 0.0
    n: int = 0

    @property
    def host(self) -> str:
        """Name of its host, for people."""
        return str(self.about.get("host") or "?")

    @property
    def has_left(self) -> bool:
        """True once it has ended in order."""
        return self.phase is MemberPhase.LEFT

    def seems_at_work(self, utc: datetime) -> bool:
        """Return whether it has not left, and has given a sign of life lately, as far as wall clocks agree."""
        return not self.has_left and abs(utc - self.renewed_utc) <= RECENT

    def renewed(self, utc: datetime, left_s: float) -> "Member":
        """Return it with one more sign of life."""
        return replace(self, renewed_utc=utc, left_s=left_s, n=self.n + 1)

    def attribute(self) -> dict[str, Any]:
        written: dict[str, Any] = msgspec.to_builtins(self)
        return written


def members_among(attributes: Mapping[str, Any]) -> list[Member]:
    """Return the members among the attributes of a study, who joined first in front; what is none is left out."""
    found = (_read(name, value) for name, value in attributes.items() if name.startswith(ATTRIBUTE))
    return sorted((one for one in found if one is not None), key=lambda one: (one.since_utc, one.uuid))


def joint_search(new: Member, others: Iterable[Member], utc: datetime) -> str:
    """Return the search that a new member takes part in: its own where nobody else is at work on the same values.

    Only the name of the search hangs on it. Where a clock is an hour off, two searches go on side by side and know of
    each other's trials all the same.

    Args:
        others: Members that are not known to be gone, who joined first in front.
    """
    earlier = (one for one in others if (one.since_utc, one.uuid) < (new.since_utc, new.uuid))
    alike = (one for one in earlier if one.baseline == new.baseline and one.seems_at_work(utc))
    return next((one.search for one in alike), new.search)


def _read(name: str, written: object) -> Member | None:
    try:
        member = msgspec.convert(written, Member)
    except (ValueError, RecursionError):
        return None
    return member if name == ATTRIBUTE + member.uuid else None


# Machines of a study: how much faster one is than another, and the trials of all on one scale.


def hosts_of(records: Iterable[TrialRecord]) -> dict[str, str]:
    """Return the host of each machine, for people; of machines whose hosts have one name, the machine's name too."""
    return hosts_told_apart((trial.machine, trial.conditions.host or "?") for trial in records)


def hosts_told_apart(machines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the host of each machine, for people, so that no two machines have the same.

    Args:
        machines: Pairs of a machine's name and its host's; a pair may come more than once.
    """
    hosts = dict(machines)
    machines_of = Counter(hosts.values())
    return {
        machine: f"{host} ({machine})" if machines_of[host] > 1 and machine else host for machine, host in hosts.items()
    }


def on_one_scale(records: Sequence[TrialRecord], reference: str | None = None) -> Sequence[TrialRecord]:
    """Return trials with the speeds that they would have had on one machine.

    Args:
        reference: The machine; None for that of the first trial with numbers.

    Returns:
        The same trials where all were made on one machine.
    """
    offsets = machine_offsets(records)
    if len(offsets) < 2:
        return records
    unit = offsets.get(reference or "", next(iter(offsets.values())))
    return [_scaled(trial, math.exp(unit - offsets.get(_scale(trial), unit))) for trial in records]


def _scale(trial: TrialRecord) -> str:
    """Return the name of what a trial's speed depends on: a machine, another one while the others on it wait."""
    return f"{trial.machine} alone" if trial.conditions.alone else trial.machine


def machine_offsets(records: Sequence[TrialRecord]) -> dict[str, float]:
    """Return the ln speed of each machine, relative to their mean; those without comparable trials are left out."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for trial in records:
        if measured := trial.comparable:
            speeds.setdefault((_scale(trial), trial.point), []).append(math.log(measured.speed))
    offsets = dict.fromkeys((machine for machine, _ in speeds), 0.0)
    if len(offsets) < 2:
        return offsets
    cells = [(machine, point, fmean(some), len(some)) for (machine, point), some in speeds.items()]
    pull = (TYPICAL_CV / 0.2) ** 2  # standard deviation of ln speed between machines of a class
    for _ in range(100):
        levels = _weighted([(point, mean - offsets[machine], count) for machine, point, mean, count in cells])
        rest = [(machine, mean - levels[point], count) for machine, point, mean, count in cells]
        new = _weighted([*rest, *((machine, 0.0, pull) for machine in offsets)])
        change = max(abs(new[machine] - offsets[machine]) for machine in offsets)
        offsets = {machine: new[machine] for machine in offsets}
        if change < 1e-6:
            break
    return offsets


def _weighted(values: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    sums: dict[str, tuple[float, float]] = {}
    for name, value, weight in values:
        total, weights = sums.get(name, (0.0, 0.0))
        sums[name] = total + weight * value, weights + weight
    return {name: total / weights for name, (total, weights) in sums.items()}


def _scaled(trial: TrialRecord, factor: float) -> TrialRecord:
    """Return a trial as it would have been on a machine that is faster by a factor."""
    measured = trial.measurement
    if measured is None or factor == 1.0:
        return trial
    filled = measured.filled_samples_per_s
    return replace(
        trial,
        measurement=replace(
            measured,
            samples_per_s=measured.samples_per_s * factor,
            filled_samples_per_s=None if filled is None else filled * factor,
            step_p50_s=measured.step_p50_s / factor,
            step_p95_s=measured.step_p95_s / factor,
        ),
    )
