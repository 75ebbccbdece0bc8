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


@pytest.fixture
def busy(fake_gpu):
    """Occupancy of the one GPU at 20 s: a list that is empty if it is idle."""

    def of(gpu, **options):
        return fake_gpu(Scenario(gpus=(gpu,), **options), at_s=0).run(LOOK)

    return of


def test_kernels_of_nobody_make_it_busy(busy):
    """Kernels of the last second still show where processes are hidden."""
    (gpu,) = busy(Gpu(busy_percent=Timeline(((0.0, 0), (19.0, 80)))))
    assert gpu["utilization"] == pytest.approx(0.8)
    assert busy(Gpu(busy_percent=Timeline(((0.0, 80), (18.5, 0))))) == []


def test_a_desktop_that_draws_is_no_work(busy):
    """A workstation's own screen does not stop a search."""
    screen = Process(pid=1, kind=ProcessKind.GRAPHICS, share=1.0)
    assert busy(Gpu(busy_percent=2, processes=(screen,))) == []


def test_a_device_without_samples_is_asked_for_its_rates(busy):
    """The newest driver window then, as there is no second to look back on."""
    (gpu,) = busy(Gpu(busy_percent=70), faults=(Fault(function="nvmlDeviceGetSamples", code=3),))
    assert gpu["utilization"] == pytest.approx(0.7)
