"""Domains and ladders."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.space.knob import LADDER_LENGTH, ladder, with_baseline


def test_a_logarithmic_range_goes_by_doubling() -> None:
    """Both ends are in, and between them each value is twice the one before."""
    assert ladder(1, 64, log=True) == (1, 2, 4, 8, 16, 32, 64)
    assert ladder(3, 20, log=True) == (3, 6, 12, 20)


def test_a_step_is_kept() -> None:
    """A range with a step holds multiples of it only."""
    assert ladder(8, 32, step=8) == (8, 16, 24, 32)


@given(low=st.integers(1, 10_000), width=st.integers(0, 10_000), log=st.booleans())
def test_a_ladder_is_short_sorted_and_holds_both_ends(low: int, width: int, log: bool) -> None:
    """Whatever the range, the ladder stays short enough to search and never leaves the range."""
    values = ladder(low, low + width, log=log)
    assert len(values) <= LADDER_LENGTH
    assert values[0] == low
    assert values[-1] == low + width
    assert list(values) == sorted(set(values))


def test_the_baselines_value_is_always_a_candidate() -> None:
    """A value that the domain does not have is put in its place."""
    assert with_baseline((8, 32), 24) == ((8, 24, 32), True)
    assert with_baseline(("a", "b"), "c") == (("a", "b", "c"), False)


def test_true_is_not_one() -> None:
    """YAML tells a switch from a number, and so does a domain."""
    choices, ordered = with_baseline((1, 2), True)
    assert choices == (1, 2, True)
    assert not ordered
