"""Profiles for tests."""

from collections.abc import Mapping, Sequence

from autotune.records import Ending, Values
from autotune.study.profiles import ExhaustedPoint, Hardware, Profile, ProfilePoint

GIB = 1 << 30

A100 = Hardware(cpu_model="x", cpu_cores=16, memory_bytes=128 * GIB, gpus=(("NVIDIA A100", 40 * GIB),))
L40S = Hardware(cpu_model="x", cpu_cores=16, memory_bytes=128 * GIB, gpus=(("NVIDIA L40S", 48 * GIB),))
CPU = Hardware(cpu_model="x", cpu_cores=16, memory_bytes=128 * GIB)
KINDS: Mapping[str, str | None] = {
    "data.batch_size": "batch_size",
    "data.num_workers": "workers",
    "data.cache": "cache",
}


def profile(
    study: str = "s-1",
    *points: tuple[Values, float],
    training: str = "t",
    command: str = "c",
    hardware: Hardware = A100,
    kinds: Mapping[str, str | None] = KINDS,
    exhausted: Sequence[Values] = (),
    ended_utc: str = "2026-01-01T00:00:00+00:00",
) -> Profile:
    """Return a profile with these points."""
    return Profile(
        study=study,
        training=training,
        command=command,
        objective="effective_utilization",
        kinds=kinds,
        hardware=hardware,
        points=tuple(ProfilePoint(values=values, gain=gain, sd=0.05) for values, gain in points),
        exhausted=tuple(ExhaustedPoint(values=values, ending=Ending.OUT_OF_GPU_MEMORY) for values in exhausted),
        ended_utc=ended_utc,
    )
