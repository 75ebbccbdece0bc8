"""Turns of those that train on one machine, and what their trainings beside each other show."""

import threading
from pathlib import Path

import pytest

from autotune.clock import SystemClock, VirtualClock
from autotune.measure.score import THROUGHPUT
from autotune.records import ALONE, Purpose, TrialRecord
from autotune.search.neighbours import AS_FAST, Neighbours, speed_beside
from tests.runs import MakeTrial
from tests.until import until

TODAY = {"workers": 1}


def test_who_has_no_neighbours_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is noted of its trials."""
    monkeypatch.delenv("AUTOTUNE_NEIGHBOURS", raising=False)
    nobody = Neighbours.of_environment()
    with nobody.turn(VirtualClock(), alone=True, until_s=0.0):
        assert not nobody
    assert (nobody.waited, nobody.is_first()) == (None, False)


def test_trials_run_beside_each_other_and_one_alone_when_they_have_ended(tmp_path: Path) -> None:
    """Who wants to be alone waits for those that train, and those that come later wait for it."""
    clock, order = SystemClock(), list[str]()
    one, two, three = (Neighbours(tmp_path) for _ in range(3))

    def alone() -> None:
        with two.turn(clock, alone=True, until_s=clock.now_s() + 60.0):
            order.append("alone")

    def later() -> None:
        with three.turn(clock, alone=False, until_s=clock.now_s() + 60.0):
            order.append("later")

    with one.turn(clock, alone=False, until_s=clock.now_s() + 60.0):
        with three.turn(clock, alone=False, until_s=clock.now_s() + 60.0):
            order.append("beside")
        assert three.waited is False
        threads = [threading.Thread(target=alone), threading.Thread(target=later)]
        threads[0].start()
        until(lambda: not _next_is_free(tmp_path))
        threads[1].start()
        order.append("ends")
    for thread in threads:
        thread.join(60.0)
    assert order == ["beside", "ends", "alone", "later"]
    assert (one.waited, two.waited, three.waited) == (None, True, None)  # three came after two, and was alone


def test_at_the_end_of_the_budget_nobody_is_waited_for(tmp_path: Path) -> None:
    """Its trial ends at once then; that it was alone is not said."""
    clock = VirtualClock()
    one, two = Neighbours(tmp_path), Neighbours(tmp_path)
    with one.turn(clock, alone=True, until_s=5.0), two.turn(clock, alone=True, until_s=clock.now_s() + 5.0):
        pass
    assert (one.waited, two.waited) == (True, None)


def test_one_of_them_checks(tmp_path: Path) -> None:
    """Once, and another after its end."""
    one, two = Neighbours(tmp_path), Neighbours(tmp_path)
    assert (one.is_first(), two.is_first(), one.is_first()) == (True, False, False)
    one.close()
    two.close()
    three = Neighbours(tmp_path)
    assert three.is_first()
    three.close()


@pytest.mark.parametrize(("beside", "is_as_fast"), [(100.0, True), (80.0, False)])
def test_today_beside_over_today_alone(make_trial: MakeTrial, beside: float, is_as_fast: bool) -> None:
    """Where a study's repeats differ by little, two pairs show it; what others measured of it does not count."""

    def today(speed: float, alone: bool | None, machine: str = "a") -> TrialRecord:
        conditions = {"host": "h", "machine": machine} | ({} if alone is None else {ALONE: alone})
        return make_trial(TODAY, speed, purpose=Purpose.BASELINE, conditions=conditions)

    calm = [make_trial({"workers": 2}, speed, purpose=Purpose.REPEAT) for speed in (200.0, 201.0, 200.0, 199.0, 200.0)]
    checked = [today(beside, False), today(100.0, True), today(100.5, True), today(beside, False)]
    others = [today(50.0, False, "b"), today(50.0, None)]
    search = checked[0].search
    speed = speed_beside([*calm, *others, *checked], search, "h", THROUGHPUT)
    assert speed.ratio == pytest.approx(beside / 100.25, rel=1e-3)
    assert (speed.low >= AS_FAST) == is_as_fast
    assert speed_beside([*calm, *checked[:3]], search, "h", THROUGHPUT) is None
    assert speed_beside([*calm, *checked], search, "elsewhere", THROUGHPUT) is None


def _next_is_free(folder: Path) -> bool:
    import fcntl

    with (folder / "next.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
