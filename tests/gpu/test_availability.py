"""Promises of the availability of GPUs: a loss, a blocked question and a silence are told from each other, in time."""

import pytest

from autotune.measure.gpu.samples import (
    CallBlocked,
    Capability,
    GpuAvailability,
    GpuFound,
    GpuLost,
    ReadingCounts,
    Silence,
    SilenceLimits,
    StreamStarted,
)

LIMITS = SilenceLimits(start_s=30.0, record_s=10.0, answer_s=60.0)
JUST_S = 1e-6


def known(*records, uuids=("A", "B"), since_s=0.0):
    """The availability after these records."""
    availability = GpuAvailability(uuids, since_s=since_s)
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


def blocked(t_s, since_s, uuid="A"):
    """A question without an answer."""
    return CallBlocked(t_s=t_s, uuid=uuid, capability=Capability.HOLDERS, since_s=since_s)


def read(t_s, uuid="A"):
    """An ordinary record."""
    return ReadingCounts(t_s=t_s, uuid=uuid, tried=(), failed=())


@pytest.mark.parametrize(
    ("records", "limit_at_s", "silence"),
    [
        ([], 130.0, Silence(uuid=None, why="the GPU collector has not begun after 30 s")),
        ([started(120.0)], 130.0, Silence(uuid=None, why="the GPU collector has said nothing for 10 s")),
        ([found(110.0), read(120.0)], 130.0, Silence(uuid=None, why="the GPU collector has said nothing for 10 s")),
        (
            [found(110.0), blocked(114.0, since_s=112.0)],
            172.0,
            Silence(uuid="A", why="the NVIDIA driver has not answered for 60 s (process list)"),
        ),
        (
            [blocked(114.0, since_s=112.0, uuid=None)],  # the very first call hangs
            172.0,
            Silence(uuid=None, why="the NVIDIA driver has not answered for 60 s (process list)"),
        ),
    ],
)
def test_silence_begins_right_after_its_limit(records, limit_at_s, silence):
    """At the limit there is none, a moment later there is, and it says who is silent since when."""
    availability = known(*records, since_s=100.0)
    assert availability.silence(limit_at_s, LIMITS) is None
    assert availability.silence(limit_at_s + JUST_S, LIMITS) == silence


def test_each_who_asks_has_limits_of_its_own():
    """The one that wants an explanation is told sooner than the one that would replace the collector."""
    availability = known(blocked(4.0, since_s=2.0))
    sooner = SilenceLimits(start_s=30.0, record_s=3.0, answer_s=3.0)
    assert availability.silence(5.0 + JUST_S, sooner) is not None
    assert availability.silence(5.0 + JUST_S, LIMITS) is None


def test_a_blocked_question_is_open_until_anything_else_is_said():
    """Of whichever device: one thread asks them all."""
    availability = known(started(1.0), found(2.0), blocked(5.0, since_s=3.0))
    assert not availability.is_undisturbed
    assert availability.silence(64.0, LIMITS) is not None
    availability.add(read(63.5, uuid="B"))
    assert availability.is_undisturbed
    assert availability.silence(64.0, LIMITS) is None


@pytest.mark.parametrize("gone", [[lost(5.0, uuid=None)], [lost(5.0), lost(5.0, uuid="B")]])
def test_of_what_is_lost_nothing_is_to_be_expected(gone):
    """Neither of a lost driver nor of devices that are lost one and all; of one that is left there is."""
    assert known(started(1.0), *gone).silence(1000.0, LIMITS) is None
    assert known(started(1.0), lost(5.0)).silence(15.0 + JUST_S, LIMITS) is not None


def test_a_loss_lasts_until_the_device_is_found_again():
    """It concerns this device and no other; that of a device which nobody asked for concerns nobody."""
    availability = known(started(1.0), found(2.0), found(2.0, uuid="B"), lost(5.0), lost(5.0, uuid="C"))
    assert availability.losses(["A", "B"]) == (lost(5.0),)
    assert availability.losses(["B"]) == ()
    assert availability.losses(["C"]) == ()
    assert not availability.is_undisturbed
    availability.add(found(9.0))
    assert availability.losses(["A", "B"]) == ()
    assert availability.is_undisturbed


def test_a_lost_driver_concerns_every_device_and_comes_first():
    """Until a collector has a driver again; the devices are lost for as long as they are."""
    availability = known(started(1.0), lost(4.0), lost(5.0, uuid=None))
    assert availability.losses(["A"]) == (lost(5.0, uuid=None), lost(4.0))
    assert availability.losses(["B"]) == (lost(5.0, uuid=None),)
    assert availability.losses() == (lost(5.0, uuid=None),)
    availability.add(started(9.0))
    assert availability.losses(["A"]) == (lost(4.0),)


def test_a_stretch_of_time_knows_the_loss_that_it_meets():
    """From the very moment of the loss to that of the return, also long afterwards."""
    availability = known(found(0.0), lost(16.0), found(22.0), lost(40.0))
    assert availability.loss_within("A", 5.0, 16.0 - JUST_S) is None
    assert availability.loss_within("A", 5.0, 16.0) == lost(16.0)
    assert availability.loss_within("A", 18.0, 21.0) == lost(16.0)
    assert availability.loss_within("A", 22.0, 30.0) == lost(16.0)
    assert availability.loss_within("A", 22.0 + JUST_S, 30.0) is None
    assert availability.loss_within("A", 5.0, 1000.0) == lost(16.0)
    assert availability.loss_within("A", 500.0, 1000.0) == lost(40.0)
    assert availability.loss_within("B", 5.0, 1000.0) is None


def test_losses_that_were_over_before_are_forgotten():
    """Those that last stay, however old they are."""
    availability = known(lost(16.0), found(22.0), lost(1.0, uuid="B"))
    availability.forget(22.0)
    assert availability.loss_within("A", 0.0, 100.0) == lost(16.0)
    availability.forget(22.0 + JUST_S)
    assert availability.loss_within("A", 0.0, 100.0) is None
    assert availability.losses(["B"]) == (lost(1.0, uuid="B"),)


def test_a_new_collector_begins_with_a_clean_slate():
    """The word of the old one lasts no longer, and stays true of the time before; the new one has its time to start."""
    availability = known(started(1.0), lost(5.0), blocked(8.0, since_s=6.0), lost(9.0, uuid=None))
    availability.restart(20.0)
    assert availability.losses(["A"]) == ()
    assert availability.is_undisturbed
    assert availability.loss_within("A", 10.0, 30.0) == lost(5.0)
    assert availability.loss_within("A", 20.0 + JUST_S, 30.0) is None
    assert availability.silence(50.0, LIMITS) is None
    why = "the GPU collector has not begun after 30 s"
    assert availability.silence(50.0 + JUST_S, LIMITS) == Silence(uuid=None, why=why)
