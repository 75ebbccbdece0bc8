"""Promises of the availability of GPUs: a loss is told from a silence, in time, and each from its end."""

import pytest

from autotune.measure.gpu.records import GpuFound, GpuLost, GpuState, StreamStarted
from autotune.measure.gpu.timeline import GpuTimeline

LIMITS = {"start_s": 30.0, "record_s": 10.0}
JUST_S = 1e-6


def known(*records, uuids=("A", "B"), since_s=0.0):
    """The availability after these records."""
    availability = GpuTimeline(uuids, since_s=since_s)
    for record in records:
        availability.add(record)
    return availability


def started(t_s):
    """The collector has a driver."""
    return StreamStarted(t_s=t_s, v=1, pid=1, driver="565")


def found(t_s, uuid="A"):
    """The device is there, or there again."""
    return GpuFound(t_s=t_s, uuid=uuid, name="H100", memory_bytes=80)


def lost(t_s, uuid="A"):
    """The device, or the driver, is lost."""
    return GpuLost(t_s=t_s, uuid=uuid, name="GPU lost" if uuid else "driver not loaded", why=f"{uuid}: gone")


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([], "the GPU collector has not started after 30 s"),
        ([started(120.0)], "no readings from the GPU collector for 10 s"),
        ([found(110.0), GpuState(t_s=120.0, uuid="A")], "no readings from the GPU collector for 10 s"),
    ],
)
def test_silence_begins_right_after_its_limit(records, why):
    """At the limit there is none, a moment later there is."""
    availability = known(*records, since_s=100.0)
    assert availability.silence(130.0, **LIMITS) is None
    assert availability.silence(130.0 + JUST_S, **LIMITS) == why


@pytest.mark.parametrize("gone", [[lost(5.0, uuid=None)], [lost(5.0), lost(5.0, uuid="B")]])
def test_of_what_is_lost_nothing_is_to_be_expected(gone):
    """Neither of a lost driver nor of devices that are lost one and all; of one that is left there is."""
    assert known(started(1.0), *gone).silence(1000.0, **LIMITS) is None
    assert known(started(1.0), lost(5.0)).silence(15.0 + JUST_S, **LIMITS) is not None


def test_a_loss_lasts_until_the_device_or_the_driver_is_found_again():
    """The driver's concerns every device and comes first; that of a device which nobody asked for concerns nobody."""
    availability = known(started(1.0), found(2.0, uuid="B"), lost(4.0), lost(4.0, uuid="C"), lost(5.0, uuid=None))
    assert availability.losses(["A", "B", "C"]) == (lost(5.0, uuid=None), lost(4.0))
    availability.add(started(9.0))
    assert availability.losses(["A", "B"]) == (lost(4.0),)
    availability.add(found(10.0))
    assert availability.losses(["A", "B"]) == ()


def test_a_stretch_of_time_knows_the_loss_that_it_meets():
    """From the very moment of the loss to that of the return; losses that were over before are forgotten."""
    availability = known(found(0.0), lost(16.0), found(22.0), lost(40.0))
    stretches = [(5.0, 16.0 - JUST_S), (5.0, 16.0), (22.0, 30.0), (22.0 + JUST_S, 30.0), (5.0, 1000.0), (500.0, 1000.0)]
    met = [availability.between(*stretch).devices[0].lost for stretch in stretches]
    assert met == [None, "GPU lost", "GPU lost", None, "GPU lost", "GPU lost"]
    assert availability.between(5.0, 1000.0).devices[1].lost is None
    availability.forget(22.0 + JUST_S)
    assert [availability.between(0.0, t1_s).devices[0].lost for t1_s in (39.0, 40.0)] == [None, "GPU lost"]


def test_a_new_collector_begins_with_a_clean_slate():
    """The word of the old one lasts no longer, and stays true of the time before; the new one has its time to start."""
    availability = known(started(1.0), lost(5.0), lost(9.0, uuid=None))
    availability.restart(20.0)
    assert availability.losses(["A"]) == ()
    assert availability.between(10.0, 30.0).devices[0].lost == "GPU lost"
    assert availability.silence(50.0, **LIMITS) is None
    assert availability.silence(50.0 + JUST_S, **LIMITS) == "the GPU collector has not started after 30 s"
