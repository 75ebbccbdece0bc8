"""Promises of the GPU collector, on a fake GPU behind the real bindings: what it says is what the GPU does."""

import pytest

from tests.fake_nvml.scenario import Fault, Gpu, MigInstance, Process, Scenario, Square, Timeline
from tests.gpu.stage import STAGE

OWN, STRANGER = 4242, 77
WAVE = Square(10, 90, period_s=2.0)
TWO = (Process(pid=OWN, share=0.75, memory_bytes=3 << 30), Process(pid=STRANGER, share=0.25, memory_bytes=1 << 30))
NO_SAMPLES = Fault(function="nvmlDeviceGetSamples", code=3)

ONE = f"""
from dataclasses import asdict
use_ = use(20, 42, 22, 40, own_pids={{{OWN}}})
one = use_.devices[0]
tell({{**asdict(one), **asdict(one.figures), "windows": len(one.windows), "invalid": use_.lost or one.lost}})
"""


@pytest.fixture
def seen(fake_gpu):
    """Usage of 18 s of a GPU, its collector running 2 s before and after: as a dictionary."""

    def of(*, faults=(), **options):
        scenario = {name: options.pop(name) for name in list(options) if name in Scenario.__dataclass_fields__}
        gpu = Gpu(**{"busy_percent": WAVE, "processes": TWO, **options})
        return fake_gpu(Scenario(gpus=(gpu,), faults=faults, **scenario), at_s=0).run(STAGE + ONE)

    return of


def test_all_of_a_healthy_gpu_is_seen(seen):
    """Utilization, memory, energy, heat, clocks, whose kernels, and the activity of the units."""
    one = seen(event_reasons=Timeline(((0.0, 4), (31.0, 4 | 0x40))))
    assert one["utilization"] == pytest.approx(0.5, abs=0.002)
    assert (one["covered_fraction"], one["windows"]) == (pytest.approx(1.0), 108)
    assert one["peak_memory_bytes"] == 4 << 30
    assert one["energy_j"] == pytest.approx(18 * 370.0)
    assert (one["temperature_start_c"], one["temperature_end_c"], one["sm_clock_mhz"]) == (40, 40, 1_980)
    assert one["clock_reasons"]["power limit"] == pytest.approx(1.0)
    assert one["throttled_fraction"] == pytest.approx(10 / 19)
    assert one["own_fraction"] == pytest.approx(0.375, abs=0.01)
    assert one["foreign_fraction"] == pytest.approx(0.125, abs=0.01)
    assert one["foreign_pids"] == [STRANGER]
    activity = (one["sm_activity"], one["tensor_activity"], one["dram_activity"])
    assert activity == pytest.approx((0.4, 0.125, 0.25), abs=0.01)
    assert (one["absent"], one["invalid"]) == ({}, None)


@pytest.mark.parametrize(
    "options",
    [{"stamps_since_boot": True}, {"window_s": 1.0}, {"window_s": 0.5, "publish_delay_s": 0.3}],
    ids=["stamps since boot", "windows of 1 s", "published late"],
)
def test_drivers_that_keep_time_in_their_own_way_say_the_same(seen, options):
    """The origin of the stamps, the length of the windows and the delay do not move the mean."""
    one = seen(busy_percent=Square(10, 90, period_s=6.0), **options)
    assert one["utilization"] == pytest.approx(0.5, abs=0.002)
    assert one["covered_fraction"] > 0.98


def test_a_driver_that_samples_processes_rarely_tells_no_less(seen):
    """Its next answer has what this one lacks: no time of nobody's is made up."""
    silent = tuple(
        Fault(function="nvmlDeviceGetProcessUtilization", code=6, from_s=second + 0.1, until_s=second + 0.9)
        for second in range(20, 42)
    )
    one = seen(busy_percent=60, faults=silent)
    assert (one["own_fraction"], one["foreign_fraction"]) == (pytest.approx(0.45), pytest.approx(0.15))


def test_garbage_of_the_driver_enters_no_number(seen):
    """Impossible percentages and process ids are gone, and only their own time with them."""
    one = seen(busy_percent=60, garbage=True)
    assert one["utilization"] == pytest.approx(0.6)
    assert one["covered_fraction"] == pytest.approx(6 / 7, abs=0.02)
    assert one["own_fraction"] == pytest.approx(0.45, abs=0.01)
    assert one["foreign_pids"] == [STRANGER]


def test_idle_time_of_a_driver_that_says_nothing_of_it_is_idle_time(seen):
    """A starved GPU is not taken for a busy one because its idle windows are left out."""
    one = seen(busy_percent=Square(0, 90, period_s=4.0), dry_when_idle=True)
    assert one["utilization"] == pytest.approx(0.4, abs=0.02)
    assert one["covered_fraction"] > 0.9


def test_a_device_without_samples_is_polled(seen):
    """The mean is right but for the ends."""
    one = seen(busy_percent=Square(10, 90, period_s=6.0), faults=(NO_SAMPLES,))
    assert one["utilization"] == pytest.approx(0.5, abs=0.06)
    assert one["covered_fraction"] > 0.9
    assert list(one["absent"]) == ["utilization samples"]
    assert one["own_fraction"] == pytest.approx(0.375, abs=0.03)


def test_a_device_without_a_counter_has_its_power_integrated(seen):
    """Energy is there."""
    one = seen(busy_percent=50, faults=(Fault(function="nvmlDeviceGetTotalEnergyConsumption", code=3),))
    assert one["energy_j"] == pytest.approx(18 * 370.0, rel=0.01)


def test_a_gpu_that_fails_when_first_asked_is_asked_again(seen):
    """For two seconds: a driver that has just been loaded may need them."""
    one = seen(faults=(Fault(function="nvmlDeviceGetHandleByUUID", code=10, until_s=21.0),))
    assert one["lost"] is None
    assert one["utilization"] == pytest.approx(0.5, abs=0.002)
    one = seen(faults=(Fault(function="nvmlInitWithFlags", code=999, calls=2),))
    assert one["utilization"] == pytest.approx(0.5, abs=0.002)


def test_a_gpu_that_disappears_and_comes_back_is_read_again(seen):
    """The stretch in which it was lost is invalid under that name."""
    one = seen(faults=(Fault(code=15, gpu=0, from_s=25, until_s=28),))
    assert one["invalid"] == "GPU lost"
    assert one["covered_fraction"] > 0.98  # its ring still had them


def test_one_lost_gpu_does_not_stop_the_other(fake_gpu):
    """Each device ends for itself."""
    gpus = (Gpu(busy_percent=20), Gpu(busy_percent=80))
    told = fake_gpu(Scenario(gpus=gpus, faults=(Fault(code=16, gpu=0, from_s=30),)), at_s=0).run(
        STAGE
        + """
both = use(20, 42, 22, 40, uuids=[uuid(1), uuid(0)])
tell([(one.figures.uuid, one.lost, one.figures.utilization) for one in both.devices])
"""
    )
    assert told[0][1:] == [None, pytest.approx(0.8)]
    assert told[1][1] == "GPU needs a reset"


def test_a_mig_instance_has_activity_and_no_utilization(fake_gpu):
    """And the sentence says so; it is never 0 %."""
    instance = MigInstance(uuid="MIG-a", busy_percent=50, processes=TWO)
    told = fake_gpu(Scenario(gpus=(Gpu(mig=True, mig_instances=(instance,)),)), at_s=0).run(
        STAGE
        + """
(one,) = use(20, 42, 22, 40, uuids=["MIG-a"]).devices
seen = one.figures
tell([seen.utilization, one.why_no_utilization, seen.sm_activity, seen.peak_memory_bytes, one.lost])
"""
    )
    assert told[0] is None
    assert "does not report utilization (Not Supported); its unit activity is known" in told[1]
    assert told[2:] == [pytest.approx(0.4), 4 << 30, None]
