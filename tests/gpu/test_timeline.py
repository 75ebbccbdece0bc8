"""Promises of the reader of GPU records: what it says of a stretch of time, and when it says nothing."""

import pytest

from autotune.measure.gpu.records import (
    BusyWindows,
    Capability,
    GpuFound,
    GpuLost,
    GpuState,
    ProcessShares,
    StreamStarted,
)
from autotune.measure.gpu.timeline import GpuTimeline, KernelAttribution

OWN, STRANGER = 10, 20
STATE = {"memory_bytes": 1 << 30, "power_w": 100.0, "temperature_c": 50, "sm_clock_mhz": 1000, "reasons": ()}


def windows(busy, from_s=0.0, until_s=20.0, *, uuid="A", source=Capability.SAMPLES):
    """Driver windows of half a second, all as busy as that."""
    rows = tuple((from_s + (place + 1) / 2, 0.5, busy) for place in range(int((until_s - from_s) * 2)))
    return BusyWindows(t_s=until_s, uuid=uuid, source=source, windows=rows)


def states(from_s=0, until_s=20, *, uuid="A", **values):
    """A reading of the state each second; a function of time, or a value."""
    for t_s in range(from_s, until_s + 1):
        told = {name: value(t_s) if callable(value) else value for name, value in {**STATE, **values}.items()}
        yield GpuState(t_s=float(t_s), uuid=uuid, **told)


def shares(rows, from_s=0, until_s=20, *, uuid="A"):
    """The same shares of the processes each second."""
    for t_s in range(from_s, until_s):
        yield ProcessShares(t0_s=float(t_s), t_s=t_s + 1.0, uuid=uuid, shares=rows)


def readings(*records, uuids=("A",)):
    """A reader that was told these."""
    known = GpuTimeline(uuids, since_s=0.0)
    for record in records:
        known.add(record)
    return known


def device(*records, t0_s=5.0, t1_s=15.0, **options):
    """Return the usage of the one device from 5 s to 15 s."""
    return readings(*records).between(t0_s, t1_s, **options).devices[0]


def test_only_whole_driver_windows_count():
    """A window that began before the stretch, or ended after it, says something about another time."""
    rows = BusyWindows(
        t_s=3.0, uuid="A", source="", windows=((0.5, 0.5, 1.0), (1.0, 0.5, 0.2), (1.5, 0.5, 0.3), (2.0, 0.5, 1.0))
    )
    use = device(rows, t0_s=0.4, t1_s=1.9)
    assert use.figures.utilization == pytest.approx(0.25)
    assert use.figures.covered_fraction == pytest.approx(1.0 / 1.5)
    assert len(use.windows) == 2
    assert device(rows, t0_s=0.1, t1_s=0.9).figures.utilization is None


def test_a_polled_zero_is_not_believed():
    """There are devices that answer 0 % whatever they do: that is no reading, and never 0 %."""
    use = device(windows(0.0, source=Capability.RATES))
    assert use.figures.utilization is None
    assert "reports 0 % throughout" in use.why_no_utilization
    assert device(windows(0.0)).figures.utilization == 0.0


def test_energy_comes_from_the_counter_where_there_is_one():
    """A counter sees what readings of power once a second miss."""
    use = device(*states(energy_j=lambda t_s: 1_000.0 + 250.0 * t_s))
    assert (use.figures.energy_j, use.figures.power_w) == (pytest.approx(2_500.0), pytest.approx(250.0))


def test_heat_clocks_and_throttling_are_those_of_the_stretch():
    """Temperature at both ends, the mean clock, and how often which reason held the clocks down."""
    use = device(
        *states(
            temperature_c=lambda t_s: 40 + t_s,
            sm_clock_mhz=lambda t_s: 1_000 if t_s < 10 else 500,
            reasons=lambda t_s: ("power limit",) if t_s < 10 else ("power limit", "heat (driver)"),
        )
    )
    assert (use.temperature_start_c, use.temperature_end_c) == (45, 55)
    assert use.sm_clock_mhz == pytest.approx((5 * 1_000 + 6 * 500) / 11)
    assert use.figures.throttled_fraction == pytest.approx(6 / 11)
    assert use.clock_reasons == {"power limit": pytest.approx(1.0), "heat (driver)": pytest.approx(6 / 11)}


def test_memory_counts_from_the_start_of_the_trial():
    """The peak of the warm-up is a peak too, where the start is known."""
    told = list(states(memory_bytes=lambda t_s: 9 if t_s == 3 else 5))
    assert device(*told).figures.peak_memory_bytes == 5
    assert device(*told, started_s=2.0).figures.peak_memory_bytes == 9


def test_in_a_container_who_came_after_the_start_is_taken_for_the_trial():
    """Process ids of the host mean nothing inside; who was there before is a stranger."""
    told = [
        *states(0, 2, holders=((STRANGER, 5, True),)),
        *states(3, 20, holders=((STRANGER, 5, True), (OWN, 5, True))),
        *shares(((OWN, 0.6), (STRANGER, 0.2))),
        windows(0.8),
    ]
    use = device(*told, own_pids={77}, started_s=2.5)
    assert use.attribution is KernelAttribution.BY_ARRIVAL
    assert (use.figures.own_fraction, use.figures.foreign_fraction) == (pytest.approx(0.6), pytest.approx(0.2))
    assert device(*told, own_pids={77}).attribution is KernelAttribution.UNKNOWN


def lost(t_s, uuid="A"):
    """A loss at a time."""
    return GpuLost(t_s=t_s, uuid=uuid, name="GPU lost", why="GPU A: GPU lost: gone")


def found(t_s):
    """It is there, or there again."""
    return GpuFound(t_s=t_s, uuid="A", name="H100", memory_bytes=80)


def test_a_lost_gpu_spoils_the_time_in_which_it_was_lost_and_no_other():
    """Before the loss, and after its return, numbers are good."""
    told = [found(0.0), windows(0.5, 0.0, 30.0), lost(16.0), found(22.0)]
    assert device(*told).lost is None
    assert device(*told, t1_s=17.0).why_no_utilization == "H100: GPU lost"
    assert device(*told, t0_s=18.0, t1_s=21.0).lost == "GPU lost"
    assert device(*told, t0_s=23.0, t1_s=28.0).why_no_utilization is None


def test_who_held_the_device_before_a_trial_is_not_forgotten():
    """The newest state stays, all others from before go; so a stranger is still told from the trial's own process."""
    told = [*states(0, 4, holders=((STRANGER, None, True),))]
    known = readings(found(0.0), *told)
    known.forget(5.0)
    for record in (windows(0.5, 5.0), *shares(((STRANGER, 0.2), (OWN, 0.3)), 5), *states(6, 20)):
        known.add(record)
    use = known.between(5.0, 15.0, own_pids={4711}, started_s=5.0).devices[0]
    assert use.attribution == KernelAttribution.BY_ARRIVAL
    assert use.foreign_pids == (STRANGER,)


def test_several_gpus_are_there_one_by_one_and_in_sum():
    """Mean utilization and summed power; all else by device."""
    told = [
        StreamStarted(t_s=0.0, v=1, pid=1, driver="565.57"),
        windows(0.9),
        windows(0.3, uuid="B"),
        *states(holders=((OWN, 5, True),)),
        *states(uuid="B", power_w=50.0, reasons=("power brake",), holders=((OWN, 5, True),)),
        *shares(((OWN, 0.9),)),
        *shares(((OWN, 0.2), (STRANGER, 0.1)), uuid="B"),
    ]
    use = readings(*told, uuids=("B", "A")).between(5.0, 15.0, own_pids={OWN})
    assert [one.figures.uuid for one in use.devices] == ["B", "A"]
    assert [one.figures.utilization for one in use.devices] == pytest.approx([0.3, 0.9])
    assert [one.figures.foreign_fraction for one in use.devices] == [pytest.approx(0.1), 0.0]
    assert [one.figures.throttled_fraction for one in use.devices] == [1.0, 0.0]
    assert use.driver == "565.57"
    assert use.readings["gpu0.clock_reasons"] == "power brake"
    assert use.readings["gpu1.clock_reasons"] is None
