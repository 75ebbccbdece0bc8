"""Promises of the watch of who is on the GPUs, on the fake driver."""

import os

import pytest

from tests.fake_nvml.scenario import Fault, Gpu, MigInstance, Process, ProcessKind, Scenario, Square, Timeline
from tests.gpu.stage import STAGE

LOOK = (
    STAGE
    + """
import dataclasses
from autotune.measure.gpu.occupancy import OccupancyWatch

clock = FrozenClock(20.0)
watch = OccupancyWatch(clock, wait_s=WAIT_S)

def look(after_s=0.0):
    clock.wait(after_s)
    return dataclasses.asdict(watch.look(newest_s=clock.now_s()))
"""
)
LATER = "tell([look(), *(look(SECONDS) for SECONDS in (TIMES))])"


@pytest.fixture
def looks(fake_gpu):
    """Looks at a machine: at 20 s, and after each of some further times."""

    def of(*gpus, times=(), wait_s=30.0, **options):
        code = LOOK.replace("WAIT_S", str(wait_s)) + LATER.replace("TIMES", f"{list(times)}")
        return fake_gpu(Scenario(gpus=gpus, **options), at_s=0).run(code)

    return of


def test_an_old_driver_counts_what_it_keeps_as_used(looks):
    """Then up to a GiB, or some more on a large GPU, is taken as the driver's own."""
    old = Fault(function="nvmlDeviceGetMemoryInfo_v2", code=13)
    seen = looks(Gpu(memory_reserved_bytes=700 << 20), Gpu(memory_used_bytes=5 << 30), faults=(old,))[0]
    assert [gpu["memory_held_bytes"] > 1 << 30 for gpu in seen["gpus"]] == [False, True]
    assert seen["gpus"][0]["memory_held_bytes"] == 0


def test_who_comes_and_goes_is_seen(looks):
    """Processes that compute, and such that draw, with name and memory."""
    came = Process(pid=os.getpid(), memory_bytes=1 << 30, from_s=21.0, until_s=23.0)
    desktop = Process(pid=4_000_000, memory_bytes=2 << 30, kind=ProcessKind.GRAPHICS)
    seen = looks(Gpu(processes=(came, desktop)), times=(2.0, 2.0))
    listed = [{one["pid"]: one for one in look["gpus"][0]["occupants"]} for look in seen]
    assert [sorted(pids) for pids in listed] == [[4_000_000], sorted((os.getpid(), 4_000_000)), [4_000_000]]
    assert "python" in listed[1][os.getpid()]["name"]
    assert listed[1][os.getpid()]["computes"]
    assert not listed[1][4_000_000]["computes"]
    assert seen[1]["gpus"][0]["memory_held_bytes"] == 3 << 30


def test_kernels_between_two_looks_are_seen(looks):
    """Utilization is that of all the time since the last look, and of the last second at least."""
    seen = looks(Gpu(busy_percent=Timeline(((0.0, 0), (22.0, 100), (23.0, 0)))), times=(10.0, 10.0, 0.2))
    busy = [look["gpus"][0]["utilization"] for look in seen]
    assert busy == [0.0, pytest.approx(0.1, abs=0.01), 0.0, 0.0]
    (steady,) = looks(Gpu(busy_percent=Square(0, 100, period_s=0.5)))
    assert steady["gpus"][0]["utilization"] == pytest.approx(0.5, abs=0.1)


def test_a_lost_gpu_is_named_beside_the_others_and_comes_back(looks):
    """Nothing is known of it meanwhile."""
    seen = looks(Gpu(), Gpu(), faults=(Fault(code=15, gpu=1, from_s=25.0, until_s=35.0),), times=(8.0, 8.0))
    assert [[gpu["why_unknown"] is None for gpu in look["gpus"]] for look in seen] == [
        [True, True],
        [True, False],
        [True, True],
    ]
    assert seen[1]["gpus"][1]["why_unknown"].startswith("GPU lost")


def test_a_lost_driver_comes_back(looks):
    """It is opened again after some seconds, not at each look; a driver that had GPUs is never no driver."""
    lost = (
        Fault(code=9, from_s=25.0, until_s=35.0),
        Fault(function="nvmlInit*", code=12, from_s=30.0, until_s=35.0),
    )
    seen = looks(Gpu(), faults=lost, times=(6.0, 1.0, 5.0, 6.0))
    assert [look["why_unknown"] is None for look in seen] == [True, False, False, False, True]
    assert len(seen[-1]["gpus"]) == 1


def test_a_gpu_that_tells_nothing_is_unknown(looks):
    """No processes and no memory: it may be in use."""
    silent = (
        Fault(function="nvmlDeviceGet*RunningProcesses*", code=3),
        Fault(function="nvmlDeviceGetMemoryInfo*", code=3),
    )
    assert "neither processes nor memory" in looks(Gpu(), faults=silent)[0]["gpus"][0]["why_unknown"]


def test_an_instance_of_a_gpu_is_watched_for_itself(looks):
    """In MIG mode the GPU is its instances, each with processes and memory of its own, and without utilization."""
    used = MigInstance(processes=(Process(pid=4_000_000, memory_bytes=1 << 30),), memory_used_bytes=0)
    seen = looks(Gpu(mig=True, mig_instances=(MigInstance(), used)))[0]
    assert [gpu["uuid"][:4] for gpu in seen["gpus"]] == ["MIG-", "MIG-"]
    assert [len(gpu["occupants"]) for gpu in seen["gpus"]] == [0, 1]
    assert [gpu["utilization"] for gpu in seen["gpus"]] == [None, None]


def test_looks_do_not_wait_for_a_driver_that_hangs(fake_gpu):
    """The first look waits for a moment, the next ones for nothing, and all say for how long there is no answer."""
    hangs = Fault(function="nvmlDeviceGetMemoryInfo*", delay_s=3600.0)
    machine = fake_gpu(Scenario(gpus=(Gpu(),), faults=(hangs,)), at_s=0)
    code = """
first, rest = look(), [look(1.0) for _ in range(20)]
tell([first["why_unknown"], rest[-1]["why_unknown"]])
"""
    first, last = machine.run(LOOK.replace("WAIT_S", "0.1") + code)
    assert first == "the NVIDIA driver has not answered for 0.0 s"
    assert last == "the NVIDIA driver has not answered for 20.0 s"
