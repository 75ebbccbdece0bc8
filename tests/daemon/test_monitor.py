"""Promise of the monitor: a driver with long windows is judged, too."""

import pytest

from tests.fake_nvml.scenario import Gpu, Scenario, Square

WATCH = """
from autotune.clock import SystemClock
from autotune.daemon.monitor import Monitor

with Monitor(None, SystemClock()) as monitor:
    tell(monitor.reading().gpus[0].verdict.text)
"""


@pytest.mark.services
def test_a_driver_with_long_windows_is_judged_too(fake_gpu):
    """Of windows of a second a minute has one too few for a verdict: what is missing comes from before."""
    slow = Scenario(gpus=(Gpu(busy_percent=Square(2, 40, period_s=10.0)),), window_s=1.0)
    assert fake_gpu(slow, began_s_ago=200.0).run(WATCH) == "2-40 % cyclic, period 10 s"
