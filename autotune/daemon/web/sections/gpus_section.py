"""Section of the GPUs: what each does now and did in the last hour, and who is on it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from autotune.daemon.web.daemon_view import DaemonView, GpuSample, GpuUser
from autotune.daemon.web.page_text import line
from autotune.daemon.web.recent_hour import STRETCH_S, RecentHour, ends_utc

MOST_GPUS = 32
_MOST_USERS = 12
_MEMORY_STEP = 16 << 20  # finer changes say nothing, and would have everything sent again


class UserPart(TypedDict):
    """Process on a GPU; `whose` is ``search``, ``training`` or ``other``."""

    pid: int
    name: str | None
    memory_bytes: int | None
    whose: str


class HistoryPart(TypedDict):
    """Means over the last hour, the oldest first; the last stretch ends at `ends_utc`."""

    stretch_s: float
    ends_utc: str
    series: dict[str, list[float | None]]


class GpuPart(TypedDict):
    """One GPU; null is "not known"."""

    index: int
    uuid: str
    name: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    throttled_by: list[str] | None
    users: list[UserPart]
    users_left_out: int
    why_unknown: str | None
    history: HistoryPart


class GpusPart(TypedDict):
    """Section of the GPUs."""

    why_none: str | None
    left_out: int
    devices: list[GpuPart]


class GpuHistories:
    """Readings of all GPUs of the last hour."""

    def __init__(self) -> None:
        self._hours: dict[str, RecentHour] = {}

    def note(self, samples: Sequence[GpuSample]) -> None:
        """Add readings; one that was added before counts once."""
        for sample in samples[:MOST_GPUS]:
            hour = self._hours.setdefault(sample.uuid, RecentHour("utilization", "memory", "power_w"))
            hour.add(
                sample.t_s,
                utilization=sample.utilization,
                memory=memory_fraction(sample),
                power_w=sample.power_w,
            )

    def of(self, uuid: str, now_s: float, now: datetime) -> HistoryPart:
        """Return the last hour of one GPU."""
        hour = self._hours.get(uuid)
        series = hour.series(now_s) if hour else {}
        return HistoryPart(stretch_s=STRETCH_S, ends_utc=ends_utc(now_s, now), series=series)


def gpus_section(view: DaemonView, histories: GpuHistories, now_s: float, now: datetime) -> GpusPart:
    """Return the section of the GPUs."""
    trainings = {training.pid: training.name for training in view.trainings}
    return GpusPart(
        why_none=None if view.gpus else line(view.why_no_gpus) or "nothing is known of a GPU here",
        left_out=max(0, len(view.gpus) - MOST_GPUS),
        devices=[_gpu(sample, trainings, histories.of(sample.uuid, now_s, now)) for sample in view.gpus[:MOST_GPUS]],
    )


def memory_fraction(sample: GpuSample) -> float | None:
    """Return the share of a GPU's memory in use; None where it is not known."""
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    return None if used is None or not total else used / total


def _gpu(sample: GpuSample, trainings: Mapping[int, str], history: HistoryPart) -> GpuPart:
    used = sample.memory_used_bytes
    return GpuPart(
        index=sample.index,
        uuid=line(sample.uuid, 80) or "",
        name=line(sample.name, 80) or "",
        utilization=None if sample.utilization is None else round(sample.utilization, 2),
        memory_used_bytes=None if used is None else used // _MEMORY_STEP * _MEMORY_STEP,
        memory_total_bytes=sample.memory_total_bytes,
        power_w=None if sample.power_w is None else round(sample.power_w),
        power_limit_w=None if sample.power_limit_w is None else round(sample.power_limit_w),
        sm_clock_mhz=sample.sm_clock_mhz,
        temperature_c=sample.temperature_c,
        throttled_by=None if sample.throttled_by is None else [line(one, 60) or "" for one in sample.throttled_by],
        users=[_user(user, trainings) for user in sample.users[:_MOST_USERS]],
        users_left_out=max(0, len(sample.users) - _MOST_USERS),
        why_unknown=line(sample.why_unknown),
        history=history,
    )


def _user(user: GpuUser, trainings: Mapping[int, str]) -> UserPart:
    training = trainings.get(user.pid)
    return UserPart(
        pid=user.pid,
        name=line(training or user.name, 100),
        memory_bytes=user.memory_bytes,
        whose="search" if user.is_own else "training" if training else "other",
    )
