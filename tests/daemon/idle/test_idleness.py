"""Promises about when a machine is idle, in readings that are made up."""

from dataclasses import replace

import pytest

from autotune.daemon.idleness import GpuReading, Idleness, IdlePolicy
from autotune.measure.host import BusyProcess
from tests.daemon.idle.readings import OTHER, STRANGER, UUID, Readings

POLICY = IdlePolicy()
OWN = {"utilization": 0.9, "has_own": True}


def look_until(readings, idleness, until_s, **changes):
    """Look as often as it is asked for; return the last state."""
    state = idleness.update(readings.after(0.0, **changes))
    while readings.t_s < until_s and not state.is_idle:
        state = idleness.update(readings.after(state.next_reading_s, **changes))
    return state


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ({"foreign": (STRANGER,)}, "GPU 0 is in use by python (process 4711)"),
        ({"foreign": (STRANGER, STRANGER)}, "GPU 0 is in use by python (process 4711) and 1 more"),
        ({"unlisted_bytes": 1 << 30}, "1.0 GiB of GPU 0 are held by processes that the driver does not list"),
        ({"utilization": 0.37}, "GPU 0 is busy with other processes: kernels run 37 % of the time"),
        ({"why_unknown": "GPU lost"}, "no reading of GPU 0: GPU lost"),
    ],
    ids=["process", "processes", "memory", "kernels", "lost"],
)
def test_a_gpu_in_use_begins_the_ten_minutes_again(gpu, reason):
    """Whatever the sign of it is; the reason names it."""
    readings, idleness = Readings(), Idleness()
    look_until(readings, idleness, 1_300.0)
    state = idleness.update(readings.after(1.0, gpu=gpu))
    assert (state.is_idle, state.idle_since_s, state.reason) == (False, None, reason)
    gone_s = readings.t_s + 10.0
    readings.after(10.0)
    state = look_until(readings, idleness, 3_000.0)
    assert readings.t_s == pytest.approx(gone_s + 600.0, abs=0.3)


def test_only_the_gpus_of_the_search_count():
    """The others may be in use; one that is not there is unknown."""
    readings = Readings()
    busy = GpuReading(t_s=0.0, index=1, uuid=OTHER, foreign=(STRANGER,))
    reading = readings.after(0.0)
    reading = readings.after(1.0, gpus=(*reading.gpus, busy))
    assert Idleness(uuids=(UUID,)).update(reading).idle_since_s is not None
    assert Idleness(uuids=()).update(reading).idle_since_s is not None
    assert Idleness(uuids=(OTHER,)).update(reading).reason == "GPU 1 is in use by python (process 4711)"
    assert Idleness().update(reading).idle_since_s is None
    assert "not present" in Idleness(uuids=("GPU-5",)).update(reading).reason


def test_a_driver_that_does_not_answer_is_not_idle():
    """Nor is a host whose load is not known; a search without GPUs does not need the driver."""
    reading = Readings(gpus=(), why_no_gpus="the NVIDIA driver has not answered for 3.0 s").after(1.0)
    assert Idleness().update(reading).reason == "the NVIDIA driver has not answered for 3.0 s"
    assert Idleness(uuids=()).update(reading).idle_since_s is not None
    reading = Readings(foreign_cores=None, why_no_load="the kernel does not tell").after(1.0)
    assert Idleness(uuids=()).update(reading).reason == "the kernel does not tell"
    reading = Readings(foreign_cores=None).after(0.0)
    assert not Idleness().update(reading).is_idle


def test_without_a_gpu_the_host_alone_counts():
    """A machine without a driver has no GPU to be in use."""
    assert look_until(Readings(gpus=()), Idleness(), 2_000.0).is_idle
    state = look_until(Readings(gpus=()), Idleness(), 2_000.0, foreign_cores=1.0)
    assert state.reason == "other processes use 1.0 of 10 cores"


def test_a_tenth_of_the_cores_is_too_much():
    """Exactly there; the process that makes most of it is named."""
    busiest = BusyProcess(pid=4711, name="cc1", cores=0.9)
    state = look_until(Readings(), Idleness(), 2_000.0, foreign_cores=1.0, busiest=busiest)
    assert state.reason == "other processes use 1.0 of 10 cores, busiest: cc1 (process 4711)"
    many = BusyProcess(pid=4711, name="cc1", cores=0.2)
    assert "cc1" not in look_until(Readings(), Idleness(), 1_500.0, foreign_cores=1.0, busiest=many).reason
    assert look_until(Readings(), Idleness(), 2_000.0, foreign_cores=0.99).is_idle


def test_a_process_may_call_itself_anything():
    """Nothing of it can steer a terminal."""
    stranger = {"foreign": (replace(STRANGER, pid=1, name="a\x1b[2J\nb", memory_bytes=None),)}
    assert look_until(Readings(), Idleness(), 1_000.0, gpu=stranger).reason == "GPU 0 is in use by a?[2J?b (process 1)"
    nameless = {"foreign": (replace(STRANGER, pid=1, name=None, memory_bytes=None),)}
    assert look_until(Readings(), Idleness(), 1_000.0, gpu=nameless).reason == "GPU 0 is in use by process 1"


def test_a_job_of_cron_delays_a_start_and_does_not_begin_the_ten_minutes_again():
    """Half a second of load is nobody, a second of it is somebody."""
    readings, idleness = Readings(), Idleness()
    look_until(readings, idleness, 1_598.5)
    for _ in range(3):
        state = idleness.update(readings.after(0.25, foreign_cores=5.0))
    assert state.idle_since_s == 1_000.0
    state = look_until(readings, idleness, 2_000.0)
    assert state.is_idle
    assert readings.t_s > 1_601.0
    for _ in range(4):
        state = idleness.update(readings.after(0.25, foreign_cores=5.0))
    assert (state.idle_since_s, state.reason) == (None, "other processes use 5.0 of 10 cores")


def test_nothing_starts_without_a_close_look():
    """A machine that was looked at rarely, for as long as you like, has to be looked at closely first."""
    readings, idleness = Readings(), Idleness()
    for _ in range(100):
        state = idleness.update(readings.after(10.0))
        assert not state.is_idle
    assert state.reason == "idle for 16m30s; checking again before a start"
    began_s = readings.t_s
    assert look_until(readings, idleness, 5_000.0).is_idle
    assert POLICY.close_s <= readings.t_s - began_s <= POLICY.close_s + 3 * POLICY.close_interval_s


def test_a_gap_between_readings_is_not_idle_time():
    """Nobody knows who was there while this process, or the whole machine, stood still."""
    readings, idleness = Readings(), Idleness()
    look_until(readings, idleness, 1_500.0)
    assert idleness.update(readings.after(35.0)).idle_since_s == 1_000.0
    assert idleness.update(readings.after(35.1)).idle_since_s == readings.t_s


def test_a_suspended_machine_was_not_idle():
    """The monotonic clock stands still meanwhile, so that there is no gap."""
    readings, idleness = Readings(), Idleness()
    look_until(readings, idleness, 1_500.0)
    assert idleness.update(readings.after(1.0, asleep_s=0.5)).idle_since_s == 1_000.0
    assert idleness.update(readings.after(1.0, asleep_s=30.0)).idle_since_s == readings.t_s
    assert idleness.update(readings.after(1.0, asleep_s=30.0)).idle_since_s == readings.t_s - 1.0


@pytest.mark.parametrize("left", [{"utilization": 0.5}, {"unlisted_bytes": 1 << 30}], ids=["kernels", "memory"])
def test_what_our_own_search_has_left_is_nobodys(left):
    """For two seconds the driver shows its kernels, and holds its memory; nobody has come meanwhile."""
    readings, idleness = Readings(), Idleness(idle_since_s=500.0)
    states = [idleness.update(readings.after(seconds, gpu=left)) for seconds in (0.0, 1.75, 0.2, 0.1)]
    assert [state.idle_since_s for state in states] == [500.0, 500.0, 500.0, None]
