"""Promises of the look at the GPUs before a search: who is on them, and whether they work."""

import pytest

from tests.fake_nvml.scenario import Fault, Gpu, Process, ProcessKind, Scenario, Timeline
from tests.gpu.stage import STAGE

LOOK = (
    STAGE
    + """
from dataclasses import asdict
from autotune.measure.gpu.occupancy import busy_gpus
tell([asdict(gpu) for gpu in busy_gpus([uuid(0)], FrozenClock(20.0))])
"""
)


SCREEN = Process(pid=1, kind=ProcessKind.GRAPHICS, share=1.0)
NO_SAMPLES = (Fault(function="nvmlDeviceGetSamples", code=3),)


@pytest.mark.parametrize(
    ("gpu", "faults", "utilization"),
    [
        (Gpu(busy_percent=Timeline(((0.0, 0), (19.0, 80)))), (), [pytest.approx(0.8)]),
        (Gpu(busy_percent=Timeline(((0.0, 80), (18.5, 0)))), (), []),
        (Gpu(busy_percent=2, processes=(SCREEN,)), (), []),
        (Gpu(busy_percent=70), NO_SAMPLES, [pytest.approx(0.7)]),
    ],
    ids=["kernels of nobody", "of before", "a desktop that draws", "by its rates"],
)
def test_a_gpu_that_works_is_busy(fake_gpu, gpu, faults, utilization):
    """Kernels of the last second count, or the newest driver window where a device has no samples."""
    found = fake_gpu(Scenario(gpus=(gpu,), faults=faults), at_s=0).run(LOOK)
    assert [one["utilization"] for one in found] == utilization
