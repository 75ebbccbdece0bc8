"""Members and machines of a study: the processes that run its trials.

Each member renews one study attribute every few seconds, which is never executed or used as a path.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import fmean
from typing import Annotated, Any

import msgspec

from autotune.measure.statistics import TYPICAL_CV
from autotune.records import TrialRecord

ATTRIBUTE = "member."
"""Prefix of member attributes, followed by the UUID."""

RECENT = timedelta(seconds=90)
"""Maximum age of an active member's heartbeat."""

Text = Annotated[str, msgspec.Meta(max_length=200)]
Fact = Annotated[str, msgspec.Meta(max_length=1000)]
Facts = Annotated[Mapping[Fact, bool | int | float | Fact | None], msgspec.Meta(max_length=50)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Role(StrEnum):
    """Role of a member."""

    SEARCH = "search"  # gives an answer
    WORKER = "worker"  # only runs trials


class MemberPhase(StrEnum):
    """Phase of a member."""

    EXPLORING = "exploring"
    CONFIRMING = "confirming"
    LEFT = "left"


@dataclass(frozen=True, kw_only=True)
class Member:
    """Member of a study; times are by its wall clock.

    Attributes:
        search: Name of the joint search.
        about: Facts about its process.
        point: Name of the point that it confirms.
        left_because: Why it left; empty if the study is done.
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
        return str(self.about.get("host") or "?")

    @property
    def has_left(self) -> bool:
        return self.phase is MemberPhase.LEFT

    def seems_active(self, utc: datetime) -> bool:
        """Return whether it has a recent heartbeat, by wall clocks, and hasn't left."""
        return not self.has_left and abs(utc - self.renewed_utc) <= RECENT

    def attribute(self) -> Any:
        return msgspec.to_builtins(self)


def members_among(attributes: Mapping[str, Any]) -> list[Member]:
    """Return the members in a study's attributes, in order of joining, skipping invalid ones."""
    found = []
    for name, written in attributes.items():
        if name.startswith(ATTRIBUTE):
            with suppress(ValueError, RecursionError):
                member = msgspec.convert(written, Member)
                found += [member] if name == ATTRIBUTE + member.uuid else []
    return sorted(found, key=lambda one: (one.since_utc, one.uuid))


def joint_search(new: Member, others: Iterable[Member], utc: datetime) -> str:
    """Return the search that a new member joins: its own unless an earlier member is active with the same baseline.

    With clocks an hour apart, two searches may run in parallel, sharing trials.

    Args:
        others: Members not known to be gone, in order of joining.
    """
    earlier = (one for one in others if (one.since_utc, one.uuid) < (new.since_utc, new.uuid))
    same = (one for one in earlier if one.baseline == new.baseline and one.seems_active(utc))
    return next((one.search for one in same), new.search)


# Relative speed of machines


def hosts_of(records: Iterable[TrialRecord]) -> dict[str, str]:
    """Return distinct host names of machines."""
    return distinct_hosts((trial.machine, trial.conditions.host or "?") for trial in records)


def distinct_hosts(machines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the host name of each machine; if hosts share a name, with the machine's."""
    hosts = dict(machines)
    machines_of = Counter(hosts.values())
    return {
        machine: f"{host} ({machine})" if machines_of[host] > 1 and machine else host for machine, host in hosts.items()
    }


def on_one_scale(records: Sequence[TrialRecord], reference: str | None = None) -> Sequence[TrialRecord]:
    """Return trials with their speeds converted to one machine, by default that of the first comparable trial."""
    offsets = machine_offsets(records)
    if len(offsets) < 2:
        return records
    unit = offsets.get(reference or "", next(iter(offsets.values())))
    return [_scaled(trial, math.exp(unit - offsets.get(_scale(trial), unit))) for trial in records]


def _scale(trial: TrialRecord) -> str:
    """Return the name of a scale of speed: the machine, and whether the trial ran alone on it."""
    return f"{trial.machine} alone" if trial.conditions.alone else trial.machine


def machine_offsets(records: Sequence[TrialRecord]) -> dict[str, float]:
    """Return the ln speed of each machine relative to their mean."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for trial in records:
        if measured := trial.comparable:
            speeds.setdefault((_scale(trial), trial.point), []).append(math.log(measured.speed))
    offsets = dict.fromkeys((machine for machine, _ in speeds), 0.0)
    if len(offsets) < 2:
        return offsets
    cells = [(machine, point, fmean(some), len(some)) for (machine, point), some in speeds.items()]
    pull = (TYPICAL_CV / 0.2) ** 2  # 0.2: standard deviation of ln speed between machines of a class
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
