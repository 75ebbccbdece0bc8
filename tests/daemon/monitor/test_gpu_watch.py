"""Promises of the watch on GPUs: the last minute is known at once, and no driver can freeze who looks."""

import pytest

from autotune.measure.gpu.samples import BusyWindows, GpuState
from autotune.measure.gpu.timeline import GpuTimeline
from tests.fake_nvml.scenario import Fault, Gpu, Process, Scenario, Square

WAVE = Gpu(busy_percent=Square(2, 40, period_s=2.0), processes=(Process(pid=4711, share=0.75, memory_bytes=3 << 30),))

WATCH = """
from autotune.clock import SystemClock
from autotune.daemon.monitor import GpuWatch
from autotune.measure.utilization import describe

clock = SystemClock()
FIRST, SECOND = (f"GPU-{index:08x}-0000-4000-8000-000000000000" for index in (0, 1))

def until(condition):
    give_up_s = clock.now_s() + 60.0
    while not condition():
        assert clock.now_s() < give_up_s
        clock.wait(0.05)
"""


def test_the_verdict_is_there_at_once(fake_gpu):
    """The driver remembers the last 16 s: they are enough."""
    told = fake_gpu(Scenario(gpus=(WAVE,)), began_s_ago=30.0).run(
        WATCH
        + """
watch = GpuWatch([FIRST], clock)
watch.start()
now = watch.look(own_pids={4711})[FIRST]
tell([describe(now.utilization), now.busy, now.state.memory_bytes, now.trouble, watch.driver])
watch.close()
"""
    )
    assert told == ["2-40 % cyclic, period 2.0 s", pytest.approx(0.21, abs=0.2), 3 << 30, None, "565.57.01"]


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


def test_a_call_that_hangs_is_told_of_and_freezes_nobody(fake_gpu):
    """The look, the end of the watch and the end of the process do not wait for it."""
    hanging = Fault(function="nvmlDeviceGetTemperature", after_calls=2, delay_s=3600.0)
    told = fake_gpu(Scenario(gpus=(WAVE,), faults=(hanging,)), began_s_ago=30.0).run(
        WATCH
        + """
watch = GpuWatch([FIRST], clock)
watch.start()
until(lambda: watch.look()[FIRST].trouble)
now = watch.look()[FIRST]
until(lambda: watch.look()[FIRST].state is None)
watch.close()
tell([now.trouble, len(now.usage.windows) > 60])
"""
    )
    assert told[1]
    assert told[0].startswith("nothing was heard of the GPUs for ")


@pytest.mark.services
def test_a_gpu_and_a_driver_that_come_back_are_read_again(fake_gpu):
    """The trouble is that of the one GPU, or of all, for as long as it lasts."""
    faults = (Fault(code=15, gpu=1, until_s=33.0), Fault(code=9, from_s=40.0, until_s=43.0))
    told = fake_gpu(Scenario(gpus=(WAVE, WAVE), faults=faults), began_s_ago=30.0).run(
        WATCH
        + """
watch = GpuWatch([FIRST, SECOND], clock)
watch.start()
until(lambda: watch.look()[SECOND].trouble)
first, second = (watch.look()[uuid].trouble for uuid in (FIRST, SECOND))
until(lambda: not watch.look()[SECOND].trouble)
until(lambda: watch.look()[FIRST].trouble)
both = {watch.look()[uuid].trouble for uuid in (FIRST, SECOND)}
until(lambda: not watch.look()[FIRST].trouble)
until(lambda: watch.look()[FIRST].state)
tell([first, second, *both])
watch.close()
"""
    )
    assert told[0] is None
    assert "GPU lost" in told[1]
    assert told[2:] == ["driver not loaded: the NVIDIA driver says: Driver Not Loaded"]


def test_what_is_old_is_forgotten():
    """Days of watching need the memory of a minute; the kept readings say the same as before."""
    known = GpuTimeline(["GPU-0"], since_s=0.0)
    for second in range(1, 200):
        window = (float(second), 1.0, second % 2 / 2)
        known.add(BusyWindows(t_s=second, uuid="GPU-0", source="utilization samples", windows=(window,)))
        known.add(GpuState(t_s=float(second), uuid="GPU-0", power_w=float(second)))
    before = known.between(140.0, 190.0)
    known.forget(120.0)
    assert known.between(140.0, 190.0) == before
    assert known.between(50.0, 119.0).devices[0].windows == ()
