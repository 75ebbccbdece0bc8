"""The order of a confirmation."""

import random
from itertools import pairwise

import pytest

from autotune.search.confirm import pair_order


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pairs", [2, 4, 6, 12])
def test_each_pair_has_both_and_neighbours_run_in_opposite_order(pairs: int, seed: int) -> None:
    """ABBA: so a machine that gets slower at a steady pace favours neither side."""
    order = list(pair_order(pairs, random.Random(seed)))
    assert [pair for pair, _ in order] == [pair for pair in range(pairs) for _ in range(2)]
    firsts = [is_today for _, is_today in order[::2]]
    assert [is_today for _, is_today in order[1::2]] == [not first for first in firsts]
    assert all(one != other for one, other in pairwise(firsts))
    today, candidate = (
        [turn for turn, (_, is_today) in enumerate(order) if is_today is side] for side in (True, False)
    )
    assert sum(today) == sum(candidate)


def test_who_starts_is_a_matter_of_chance_and_of_the_seed() -> None:
    """Over many searches each side starts about as often; one seed always gives one order."""
    starts = [next(pair_order(4, random.Random(seed)))[1] for seed in range(400)]
    assert 150 < sum(starts) < 250
    assert list(pair_order(4, random.Random(7))) == list(pair_order(4, random.Random(7)))
