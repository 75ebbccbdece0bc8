"""Promises of the GPU probe: numbers where there is a GPU, a reason where there is none."""

import pytest

from autotune.measure.gpu_probe import NvmlProbe
from tests.fake_nvml.scenario import Fault, Gpu, Scenario, Square

pytest_plugins = ["tests.fake_nvml.plugin"]

NOWHERE = "GPU-00000000-0000-0000-0000-000000000000"

WATCH = """
import time
from autotune.measure.gpu_probe import NvmlProbe
probe = NvmlProbe()
probe.open("GPU-00000000-0000-4000-8000-000000000000")
now_s = time.monotonic()
use = probe.between(now_s - 10.0, now_s - 1.0)
tell([use and use.utilization, use and use.covered_fraction, probe.why_none])
probe.close()
"""


def test_a_gpu_that_is_not_there_is_not_measured_and_says_why():
    """No number, a reason, and nothing raised: also where the machine has no driver at all."""
    probe = NvmlProbe()
    assert probe.between(0.0, 1.0) is None
    assert probe.why_none == "the GPU probe was not opened"
    probe.open(NOWHERE)
    assert probe.between(0.0, 1.0) is None
    assert "NVIDIA" in probe.why_none
    probe.close()
    probe.close()


def test_what_the_driver_kept_is_there_at_once(fake_gpu):
    """The driver remembers the last 16 s: the probe knows them from its first reading on."""
    machine = fake_gpu(Scenario(gpus=(Gpu(busy_percent=Square(10, 90, period_s=1.0)),)), began_s_ago=30.0)
    assert machine.run(WATCH) == [pytest.approx(0.5, abs=0.02), pytest.approx(1.0, abs=0.05), None]


def test_a_lost_gpu_is_not_measured(fake_gpu):
    """No number any more, and the reason."""
    machine = fake_gpu(Scenario(faults=(Fault(code=15, gpu=0),)), began_s_ago=30.0)
    told = machine.run(WATCH)
    assert told[:2] == [None, None]
    assert "GPU lost" in told[2]
