"""Noise that a confirmation's pairs are pooled with: this search's own first, no disturbed period for ever."""

import math

import pytest

from autotune.measure.score import EFFECTIVE_UTILIZATION
from autotune.records import TrialRecord
from autotune.study.noise import LEAST_DF, pair_noise
from tests.runs import MakeTrial

TYPICAL = 2 * 0.08**2


@pytest.fixture
def searched(make_trial: MakeTrial):
    """Trials of one point in one search, with that ln noise."""

    def of(search: str, *noise: float) -> list[TrialRecord]:
        return [make_trial({"n": 1}, 50.0 * math.exp(ln), search=search) for ln in noise]

    return of


def noise(records: list[TrialRecord], pairs: int = 4) -> tuple[float, float]:
    """Noise of a pair of the search ``now``."""
    return pair_noise(records, "now", EFFECTIVE_UTILIZATION, pairs=pairs)


def test_a_search_without_repeats_knows_nothing(searched) -> None:
    """Four pairs tell their own spread; fewer are judged with the typical one."""
    assert noise(searched("now", 0.0)) == (0.0, 0.0)
    assert noise(searched("now", 0.0), pairs=2) == (pytest.approx(TYPICAL), LEAST_DF)


def test_its_own_repeats_come_first(searched) -> None:
    """With enough of them, earlier searches do not count."""
    own = searched("now", 0.0, 0.06, -0.06)
    assert noise(own) == (pytest.approx(2 * 0.0036), 2.0)
    assert noise(searched("before", 0.3, -0.2, 0.1) + own) == (pytest.approx(2 * 0.0036), 2.0)


def test_earlier_searches_fill_up_with_less_weight(searched) -> None:
    """One degree of freedom at most, whatever their number of trials."""
    before = searched("before", 0.02, -0.02, 0.02, -0.02, 0.0)
    assert noise(before) == (pytest.approx(2 * 0.0004), 1.0)
    variance, df = noise(before + searched("now", 0.05, -0.05))
    assert df == 2.0
    assert variance == pytest.approx(0.005 + 0.0004)


def test_one_disturbed_search_does_not_set_the_noise_of_later_ones(searched) -> None:
    """Half of the recent ones do; what is long past does not count at all."""
    wild, calm = (0.9, -0.8, 0.2, -1.1), (0.02, -0.02, 0.02, -0.02)
    assert noise(searched("a", *wild))[0] == pytest.approx(TYPICAL)
    assert noise(searched("a", *wild) + searched("b", *calm))[0] == pytest.approx(TYPICAL)
    twice = searched("a", *wild) + searched("b", *wild)
    assert noise(twice)[0] == pytest.approx(2 * 0.3**2)
    later = [trial for name in "cdefg" for trial in searched(name, *calm)]
    assert noise(twice + later)[0] == pytest.approx(2 * (4 * 0.0004) / 3)
    often = [trial for name in "hijklm" for trial in searched(name, *wild)]
    assert noise(often + later)[0] == pytest.approx(2 * (4 * 0.0004) / 3)


def test_one_slow_trial_is_no_noise(searched) -> None:
    """What would be left out of a confirmation is left out here; of two alone nobody knows which is the usual one."""
    assert noise(searched("now", 0.0, 0.06, -0.06, math.log(0.5)))[0] == pytest.approx(2 * 0.0036)
    assert noise(searched("now", 0.0, math.log(0.5))) == (pytest.approx(2 * 0.3**2), 1.0)
