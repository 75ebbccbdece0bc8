"""Shares of a machine's cores for its GPUs."""

import pytest

from autotune.commands.gpu_shares import share_cores

SHARES = {
    "a node each": ([range(4), range(4, 8)], [range(4), range(4, 8)]),
    "two on each node": ([range(4), range(4), range(4, 8), range(4, 8)], [{0, 1}, {2, 3}, {4, 5}, {6, 7}]),
    "crossed": ([range(4, 8), range(4)], [range(4, 8), range(4)]),
    "interleaved": ([range(0, 8, 2), range(1, 8, 2)], [range(0, 8, 2), range(1, 8, 2)]),
    "all on one node": ([range(4), range(4), range(4)], [{0, 1}, {2, 3}, {4, 5}]),
    "not known": ([range(0), range(0)], [range(4), range(4, 8)]),
    "known of one": ([range(0), range(4)], [range(4), range(4, 8)]),
    "of a machine with more cores": ([range(4, 64), range(64, 128)], [range(4), range(4, 8)]),
}


@pytest.mark.parametrize("case", SHARES)
def test_all_get_as_many_cores_as_near_as_can_be(case: str) -> None:
    """No core twice; where too few are near to some, by their numbers."""
    near, expected = SHARES[case]
    assert share_cores(range(8), [frozenset(one) for one in near]) == [frozenset(one) for one in expected]
