"""Test whether a training has become slower than itself: what it says, and what it leaves alone."""

import math
import random
from collections.abc import Iterable

import pytest

from autotune.daemon.drift import PaceChange, Slowdown, Turn


def _feed(test: Slowdown, paces: Iterable[float], *, start_s: float = 0.0) -> list[PaceChange]:
    """Feed windows of 10 s."""
    found = (test.add(start_s + 10.0 * number, 10.0, pace) for number, pace in enumerate(paces))
    return [change for change in found if change is not None]


def _paces(count: int, *, slower: float = 0.0, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(slower, 0.02) for _ in range(count)]


@pytest.mark.parametrize("slower", [0.2, 0.5, 1.0])
def test_a_lasting_slowdown_is_said_once_with_its_size_and_time(slower: float) -> None:
    """The ratio is that of speeds, and the time is that of the change, not of the alarm."""
    (change,) = _feed(Slowdown(), _paces(720) + _paces(720, slower=slower))
    assert change.turn is Turn.SLOWER
    assert change.speed_ratio == pytest.approx(math.exp(-slower), rel=0.03)
    assert abs(change.since_s - 7200) <= 60
    assert change.t_s - 7200 < 25 * 60


def test_a_slowdown_within_the_first_hour_is_found_when_it_is_large() -> None:
    """Ten minutes of training are enough to see that it got half as fast."""
    (change,) = _feed(Slowdown(), _paces(60) + _paces(90, slower=0.69))
    assert change.turn is Turn.SLOWER
    assert change.t_s - 600 <= 10 * 60


def test_a_recovery_is_said_and_a_second_slowdown_too() -> None:
    """Back means near the speed before; the test goes on afterwards."""
    paces = _paces(720) + _paces(360, slower=0.3) + _paces(360, seed=1) + _paces(720, slower=0.3, seed=2)
    changes = _feed(Slowdown(), paces)
    assert [change.turn for change in changes] == [Turn.SLOWER, Turn.RECOVERED, Turn.SLOWER]
    assert changes[1].speed_ratio == pytest.approx(1.0, abs=0.06)


def test_single_slow_windows_and_a_short_phase_are_no_slowdown() -> None:
    """Pauses that nobody marked, a machine that was suspended, and five minutes of 15 % pass."""
    paces = _paces(1440)
    for place in range(60, 1440, 60):
        paces[place] += 4.0
    paces[700:730] = _paces(30, slower=0.15)
    assert _feed(Slowdown(), paces) == []


def test_a_first_epoch_that_fills_a_cache_is_forgotten() -> None:
    """A training that gets faster is held against its new speed."""
    test = Slowdown()
    assert _feed(test, _paces(360, slower=0.4) + _paces(720, seed=1)) == []
    assert test.usual.level == pytest.approx(0.0, abs=0.03)
    (change,) = _feed(test, _paces(720, slower=0.3, seed=2), start_s=10800.0)
    assert change.turn is Turn.SLOWER


def test_a_warm_up_after_a_restart_is_left_out() -> None:
    """The level stays, and the first minute of the new process says nothing."""
    test = Slowdown()
    _feed(test, _paces(720))
    level = test.usual.level
    test.resume()
    assert _feed(test, [2.0] * 6 + _paces(360, seed=1), start_s=7200.0) == []
    assert test.usual.level == pytest.approx(level, abs=0.01)


def test_a_creep_is_seen() -> None:
    """Half a percent an hour is no news at any time, and is in the end: the level stays as it was."""
    paces = [pace + 0.005 * number / 360 for number, pace in enumerate(_paces(360 * 60))]
    changes = _feed(Slowdown(), paces)
    assert [change.turn for change in changes] == [Turn.SLOWER]
