"""The confirmation: one finalist against today's config, in interleaved pairs."""

import random
from collections.abc import Iterator

MOST_PAIRS = 12
"""A gain that needs more pairs to be seen is not worth their time."""


def pair_order(pairs: int, rng: random.Random) -> Iterator[tuple[int, bool]]:
    """The order of a confirmation: ABBA, with a randomised start.

    Neighbouring pairs run in opposite order, so that a steady drift of the machine cancels over each two of them.

    Args:
        pairs: Even number of pairs.
        rng: Decides who starts.

    Yields:
        (pair, whether today's config runs now), two for each pair.
    """
    today_first = rng.random() < 0.5
    for pair in range(pairs):
        first = today_first if pair % 2 == 0 else not today_first
        yield pair, first
        yield pair, not first
