"""Promises about who makes a search leave, in readings that are made up."""

import pytest

from autotune.daemon.idleness import Arrivals
from autotune.measure.gpu.driver import Occupant
from tests.daemon.idle.readings import STRANGER, Readings

OWN = {"has_own": True, "utilization": 0.9}
ALONE, KERNELS, HIDDEN = {"gpu": OWN}, {"gpu": {"utilization": 0.5}}, {"gpu": {**OWN, "unlisted_bytes": 2 << 30}}
DESKTOP = Occupant(computes=True, pid=1, name="Xorg", memory_bytes=1 << 30)
SMALL = Occupant(computes=True, pid=2, name="xterm", memory_bytes=10 << 20)
GAME = Occupant(computes=True, pid=3, name="game", memory_bytes=1 << 30)


def cores(count):
    """Change of a reading: others use so many cores beside the search."""
    return {**ALONE, "foreign_cores": count}


def drawing(*occupants):
    """Change of a reading: these draw on the GPU."""
    return {"gpu": {**OWN, "drawing": occupants}}


def looks(arrivals, readings, seconds, **changes):
    """Look four times a second; return the reason to leave, and after how long it was there."""
    began_s = readings.t_s
    while readings.t_s - began_s < seconds:
        if why := arrivals.update(readings.after(0.25, **changes)):
            return why, readings.t_s - began_s
    return None, seconds


def test_a_neighbour_on_the_gpu_is_seen_at_once():
    """A context is enough; on another GPU than those of the search it is left alone."""
    neighbour, why = {"gpu": {**OWN, "foreign": (STRANGER,)}}, "GPU 0 is in use by python (process 4711)"
    arrivals, readings = Arrivals(), Readings()
    looks(arrivals, readings, 5.0, **ALONE)
    assert looks(arrivals, readings, 5.0, **neighbour) == (why, 0.25)
    assert looks(Arrivals(uuids=()), readings, 5.0, **neighbour)[0] is None


def test_load_of_others_is_somebody_within_a_second():
    """Of a tenth of the cores and more; on a small machine a quarter of a core cannot be told from rounding."""
    arrivals, readings, small = Arrivals(), Readings(), Readings(cores=2.0)
    looks(arrivals, readings, 5.0, **ALONE)
    assert looks(arrivals, readings, 5.0, **cores(2.0)) == ("other processes use 2.0 of 10 cores", 1.0)
    arrivals = Arrivals()
    assert looks(arrivals, small, 5.0, **cores(0.24))[0] is None
    assert looks(arrivals, small, 5.0, **cores(0.26))[0] == "other processes use 0.3 of 2 cores"


@pytest.mark.parametrize(
    "phases",
    [
        [(60.0, cores(0.3))],
        [(0.75, cores(10.0)), (1.0, ALONE), *[(0.5, cores(10.0)), (0.5, ALONE)] * 50],
        [(0.25, HIDDEN), (5.0, ALONE), (0.25, HIDDEN)],
        [(5.0, {"gpu": {**OWN, "unlisted_bytes": 300 << 20}})],
        [(5.0, {"gpu": {**OWN, "unlisted_bytes": None}})],
        [(1.0, ALONE), (1.5, KERNELS)] * 5,
        [(5.0, drawing(DESKTOP)), (5.0, drawing(DESKTOP, SMALL))],
    ],
    ids=[
        "a little load",
        "jobs of cron",
        "a look's memory",
        "some memory",
        "memory unknown",
        "own kernels",
        "a desktop",
    ],
)
def test_a_search_stays_where_nobody_came(phases):
    """What is short or small is nobody, and what was there before goes on."""
    arrivals, readings = Arrivals(), Readings()
    assert [looks(arrivals, readings, seconds, **changes)[0] for seconds, changes in phases] == [None] * len(phases)


@pytest.mark.parametrize(
    ("phases", "came", "why", "after_s"),
    [
        ([(0.75, cores(2.0)), (0.25, ALONE)], cores(2.0), "other processes use 1.7 of 10 cores", (0.5, 0.5)),
        ([(5.0, ALONE)], HIDDEN, "2.0 GiB of GPU 0", (0.5, 0.75)),
        ([(5.0, ALONE)], KERNELS, "GPU 0 is busy with other processes: kernels run 50 % of the time", (2.0, 3.0)),
        ([(5.0, drawing(DESKTOP))], drawing(DESKTOP, GAME), "game (process 3) started to draw on GPU 0", (0.25, 0.25)),
        ([(5.0, ALONE)], {**ALONE, "asleep_s": 60.0}, "the machine was suspended", (0.25, 0.25)),
    ],
    ids=["in turns with the search", "hidden memory", "kernels between trials", "a game", "a lid that is opened"],
)
def test_a_search_leaves_when_somebody_comes(phases, came, why, after_s):
    """Once two looks agree, where memory and list are not read at the same moment; kernels once ours are gone."""
    arrivals, readings = Arrivals(), Readings()
    assert not any(looks(arrivals, readings, seconds, **changes)[0] for seconds, changes in phases)
    said, found_s = looks(arrivals, readings, 10.0, **came)
    assert why in said
    assert after_s[0] <= found_s <= after_s[1]


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
    assert looks(arrivals, readings, 1.0, **ALONE)[0] is None
    why, after_s = looks(arrivals, readings, 60.0, **changes)
    assert "GPU lost" in why
    assert after_s == pytest.approx(10.25)
