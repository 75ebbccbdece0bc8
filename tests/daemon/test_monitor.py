"""Promises of the monitor: a process is watched from outside, and a driver with long windows is judged, too."""

import pytest

from autotune.daemon.monitor import WatchedProcess
from autotune.errors import AutotuneError
from tests.fake_nvml.scenario import Gpu, Scenario, Square
from tests.until import until

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.communicate(b"")
"""
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


def test_a_process_is_watched_until_it_ends(start):
    """With all below it, and the GPUs that it was given; also while nobody has asked how it ended."""
    process = start(PARENT, CUDA_VISIBLE_DEVICES="1")
    child = int(process.stdout.readline())
    watched = WatchedProcess(process.pid)
    assert (watched.has_ended, watched.pids()) == (False, {process.pid, child})
    assert watched.environ()["CUDA_VISIBLE_DEVICES"] == "1"
    process.stdin.close()
    process.stdin = None
    until(lambda: watched.has_ended)
    with pytest.raises(AutotuneError, match=f"process {process.pid} has ended"):
        WatchedProcess(process.pid)
    process.wait()
    assert (watched.has_ended, watched.environ()) == (True, None)
