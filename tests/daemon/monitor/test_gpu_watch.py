"""Promises of the watch on GPUs: the last minute is known at once, and no driver can freeze who looks."""

import pytest

from tests.fake_nvml.scenario import Gpu, Scenario, Square

WATCH = """
from autotune.clock import SystemClock
from autotune.daemon.monitor import GpuWatch
from autotune.measure.utilization import describe

clock = SystemClock()
FIRST = "GPU-00000000-0000-4000-8000-000000000000"
"""


@pytest.mark.services
def test_a_driver_with_long_windows_is_judged_too(fake_gpu):
    """Of windows of a second a minute has one too few for a verdict: what is missing comes from before."""
    slow = Scenario(gpus=(Gpu(busy_percent=Square(2, 40, period_s=10.0)),), window_s=1.0)
    told = fake_gpu(slow, began_s_ago=200.0).run(
        WATCH
        + """
watch = GpuWatch([FIRST], clock)
watch.start()
tell(describe(watch.look()[FIRST].utilization))
watch.close()
"""
    )
    assert told == "2-40 % cyclic, period 10 s"
