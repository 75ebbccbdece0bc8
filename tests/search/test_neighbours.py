"""Turns of those that train on one machine."""

import fcntl
import threading
from pathlib import Path

import pytest

from autotune.clock import SystemClock, VirtualClock
from autotune.search.neighbours import Neighbours
from tests.until import until


def test_who_has_no_neighbours_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is noted of its trials."""
    monkeypatch.delenv("AUTOTUNE_NEIGHBOURS", raising=False)
    nobody = Neighbours.of_environment()
    with nobody.turn(VirtualClock(), alone=True, until_s=0.0):
        assert not nobody
    assert nobody.waited is None


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


def _next_is_free(folder: Path) -> bool:
    with (folder / "next.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
