"""Readings of the GPUs for the page, on machines with fake GPUs."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Fault, Gpu, Process, Scenario, Timeline
from tests.gpu.stage import STAGE

LOOKS = (
    STAGE
    + """
from autotune.daemon.web.state import GpuReader as WebPoller
clock = FrozenClock(20.0)
poller = WebPoller(clock, lambda: [{own}])
looks = []
for _ in range({looks}):
    poller.poll()
    looks.append((poller.samples, poller.why_none))
    clock.wait(60.0)
tell(looks)
"""
)
GIB = 1 << 30

Look = tuple[list[dict[str, Any]], str | None]


@pytest.fixture
def looks(fake_gpu: Callable[..., FakeGpu]) -> Callable[..., list[Look]]:
    """Takes looks at a machine, a minute apart, from second 20 on."""

    def take(*gpus: Gpu, looks: int = 1, own: int = 0, **options: Any) -> list[Look]:
        machine = fake_gpu(Scenario(gpus=gpus, **options), at_s=0)
        found: list[Look] = machine.run(LOOKS.replace("{own}", str(own)).replace("{looks}", str(looks)))
        return found

    return take


def test_all_that_a_driver_says(looks: Callable[..., list[Look]]) -> None:
    """Utilization, memory, power, clocks, and who is on it."""
    processes = (Process(pid=os.getpid(), memory_bytes=5 * GIB), Process(pid=4_000_000, memory_bytes=GIB))
    gpu = Gpu(busy_percent=55, power_mw=300_000, temperature_c=61, processes=processes)
    (((sample,), why),) = looks(gpu, own=os.getpid())
    assert why is None
    assert (sample["utilization"], sample["power_w"], sample["power_limit_w"]) == (0.55, 300.0, 700.0)
    assert (sample["memory_used_bytes"], sample["memory_total_bytes"]) == (6 * GIB, 80 * GIB)
    assert (sample["sm_clock_mhz"], sample["temperature_c"], sample["throttled_by"]) == (1980, 61, [])
    ours, stranger = sorted(sample["users"], key=lambda user: user["pid"])
    if ours["pid"] != os.getpid():
        ours, stranger = stranger, ours
    assert ours["is_own"]
    assert "python" in ours["name"]
    assert (stranger["pid"], stranger["name"], stranger["is_own"]) == (4_000_000, None, False)


def test_a_gpu_that_falls_off_the_bus_leaves_the_others(looks: Callable[..., list[Look]]) -> None:
    """Its sentence says so; the readings of the other one go on."""
    fault = Fault(function="nvmlDevice*", code=15, gpu=1, from_s=70.0)
    before, after = looks(Gpu(busy_percent=10), Gpu(busy_percent=20), looks=2, faults=(fault,))
    assert [sample["utilization"] for sample in before[0]] == [0.1, 0.2]
    assert [sample.get("utilization") for sample in after[0]] == [0.1, None]
    assert "lost" in after[0][1]["why_unknown"]


def test_a_driver_that_comes_back_is_found(looks: Callable[..., list[Look]]) -> None:
    """While it was updated nothing is known, with the reason; then all is again."""
    fault = Fault(code=18, from_s=70.0, until_s=100.0)
    first, gone, again = looks(Gpu(busy_percent=Timeline(((0.0, 10), (130.0, 30)))), looks=3, faults=(fault,))
    assert first[0][0]["utilization"] == 0.1
    assert gone[0] == []
    assert gone[1]
    assert again[0][0]["utilization"] == pytest.approx(0.3)
    assert again[1] is None
