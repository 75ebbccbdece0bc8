"""Promises about who makes a search leave, in readings that are made up."""

import pytest

from autotune.daemon.idleness import Arrivals
from autotune.measure.gpu.occupancy import Occupant
from tests.daemon.idle.readings import STRANGER, Readings

OWN = {"has_own": True, "utilization": 0.9}


def looks(arrivals, readings, seconds, **changes):
    """Look four times a second; return the reason to leave, and after how long it was there."""
    began_s = readings.t_s
    while readings.t_s - began_s < seconds:
        if why := arrivals.update(readings.after(0.25, **changes)):
            return why, readings.t_s - began_s
    return None, seconds


def test_a_search_alone_stays():
    """With kernels and memory of its own, and the load of nobody."""
    arrivals, readings = Arrivals(), Readings()
    assert looks(arrivals, readings, 60.0, gpu=OWN, foreign_cores=0.3) == (None, 60.0)


def test_a_neighbour_on_the_gpu_is_seen_at_once():
    """A context is enough."""
    arrivals, readings = Arrivals(), Readings()
    looks(arrivals, readings, 5.0, gpu=OWN)
    assert looks(arrivals, readings, 5.0, gpu={**OWN, "neighbours": (STRANGER,)}) == (
        "GPU 0 is in use by python (process 4711)",
        0.25,
    )


def test_a_neighbour_on_another_gpu_is_left_alone():
    """The search uses none, or others."""
    arrivals, readings = Arrivals(uuids=()), Readings()
    assert looks(arrivals, readings, 5.0, gpu={"neighbours": (STRANGER,)})[0] is None


def test_load_of_others_is_somebody_within_a_second():
    """Of a tenth of the cores and more."""
    arrivals, readings = Arrivals(), Readings()
    looks(arrivals, readings, 5.0, gpu=OWN)
    assert looks(arrivals, readings, 5.0, gpu=OWN, foreign_cores=2.0) == ("others use 2.0 of 10 cores", 1.0)


def test_a_job_of_cron_is_nobody():
    """Three quarters of a second of all cores, or half of every second."""
    arrivals, readings = Arrivals(), Readings()
    assert looks(arrivals, readings, 0.75, gpu=OWN, foreign_cores=10.0)[0] is None
    assert looks(arrivals, readings, 1.0, gpu=OWN)[0] is None
    for _ in range(50):
        assert looks(arrivals, readings, 0.5, gpu=OWN, foreign_cores=10.0)[0] is None
        assert looks(arrivals, readings, 0.5, gpu=OWN)[0] is None


def test_who_gets_the_cpu_in_turns_with_the_search_is_somebody():
    """A little later: a quiet quarter of a second takes back what a loud one showed."""
    arrivals, readings = Arrivals(), Readings()
    assert looks(arrivals, readings, 0.75, gpu=OWN, foreign_cores=2.0)[0] is None
    assert looks(arrivals, readings, 0.25, gpu=OWN)[0] is None
    why, after_s = looks(arrivals, readings, 5.0, gpu=OWN, foreign_cores=2.0)
    assert (why, after_s) == ("others use 1.7 of 10 cores", 0.5)


def test_on_a_small_machine_a_quarter_of_a_core_is_nobody():
    """A tenth of two cores cannot be told from rounding within a second."""
    arrivals, readings = Arrivals(), Readings(cores=2.0)
    assert looks(arrivals, readings, 5.0, gpu=OWN, foreign_cores=0.24)[0] is None
    assert looks(arrivals, readings, 5.0, gpu=OWN, foreign_cores=0.26)[0] == "others use 0.3 of 2 cores"


def test_memory_that_nobody_is_listed_for_is_somebody():
    """If two readings agree: memory and list are not read at the same moment."""
    arrivals, readings = Arrivals(), Readings()
    hidden = {**OWN, "unlisted_bytes": 2 << 30}
    assert looks(arrivals, readings, 0.25, gpu=hidden)[0] is None
    assert looks(arrivals, readings, 5.0, gpu=OWN)[0] is None
    why, after_s = looks(arrivals, readings, 5.0, gpu=hidden)
    assert "2.0 GiB of GPU 0" in why
    assert after_s <= 0.75
    assert looks(Arrivals(), readings, 5.0, gpu={**OWN, "unlisted_bytes": 300 << 20})[0] is None
    assert looks(Arrivals(), readings, 5.0, gpu={**OWN, "unlisted_bytes": None})[0] is None


def test_kernels_between_two_trials_are_somebodys():
    """Once the last process of ours has been gone for two seconds."""
    arrivals, readings = Arrivals(), Readings()
    looks(arrivals, readings, 5.0, gpu=OWN)
    why, after_s = looks(arrivals, readings, 10.0, gpu={"utilization": 0.5})
    assert why == "GPU 0 is at work for others: kernels run 50% of the time"
    assert 2.0 <= after_s <= 3.0
    for _ in range(5):
        assert looks(arrivals, readings, 1.0, gpu=OWN)[0] is None
        assert looks(arrivals, readings, 1.5, gpu={"utilization": 0.5})[0] is None


def test_a_game_is_somebody_and_the_desktop_is_not():
    """A process that drew when the search began goes on drawing; one that comes with a lot of memory is somebody."""
    arrivals, readings = Arrivals(), Readings()
    desktop = Occupant(computes=True, pid=1, name="Xorg", memory_bytes=1 << 30)
    small = Occupant(computes=True, pid=2, name="xterm", memory_bytes=10 << 20)
    game = Occupant(computes=True, pid=3, name="game", memory_bytes=1 << 30)
    assert looks(arrivals, readings, 5.0, gpu={**OWN, "drawing": (desktop,)})[0] is None
    assert looks(arrivals, readings, 5.0, gpu={**OWN, "drawing": (desktop, small)})[0] is None
    assert looks(arrivals, readings, 5.0, gpu={**OWN, "drawing": (desktop, small, game)})[0] == (
        "game (process 3) came to draw on GPU 0"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": {"why_unknown": "GPU lost"}},
        {"gpus": (), "why_no_gpus": "GPU lost"},
        {"foreign_cores": None, "why_no_load": "GPU lost"},
    ],
    ids=["gpu", "driver", "load"],
)
def test_a_search_does_not_stay_where_nobody_knows_who_is_there(changes):
    """For ten seconds it does: a driver may be slow."""
    arrivals, readings = Arrivals(), Readings()
    assert looks(arrivals, readings, 9.0, **changes)[0] is None
    assert looks(arrivals, readings, 1.0, gpu=OWN)[0] is None
    why, after_s = looks(arrivals, readings, 60.0, **changes)
    assert "GPU lost" in why
    assert after_s == pytest.approx(10.25)


def test_a_suspended_machine_has_somebody():
    """Somebody who opens the lid comes to work; and the trial's times are worth nothing."""
    arrivals, readings = Arrivals(), Readings()
    looks(arrivals, readings, 5.0, gpu=OWN)
    assert looks(arrivals, readings, 5.0, gpu=OWN, asleep_s=60.0)[0] == "the machine was suspended"
