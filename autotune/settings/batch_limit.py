"""Limit of the batch as it is written: ``--batch 4x``, ``same`` or ``free``."""

import math
import re
from dataclasses import dataclass

SAME, FREE = "same", "free"
_FACTOR = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)x")


@dataclass(frozen=True, kw_only=True)
class BatchLimit:
    """Limit of the effective batch that a search may try, relative to the baseline's.

    Attributes:
        factor: Largest ratio to the baseline's effective batch, 1 or more; infinity for no limit.
        is_fixed: Whether the batch is not turned at all, to smaller sizes neither.
    """

    factor: float
    is_fixed: bool = False

    @property
    def is_free(self) -> bool:
        """True if every batch of the domain may be tried."""
        return math.isinf(self.factor)


DEFAULT_BATCH_LIMIT = BatchLimit(factor=4.0)
"""Limit where nothing says another. A larger batch makes more samples a second, of which each teaches less."""


def parse_batch_limit(text: str) -> BatchLimit:
    """Parse a limit of the batch.

    Args:
        text: ``same``, ``free``, or a factor from 1 on, e.g. ``4x``.

    Raises:
        ValueError: The text is none of these; the message says what would be.
    """
    word = text.strip().lower()
    if word == SAME:
        return BatchLimit(factor=1.0, is_fixed=True)
    if word == FREE:
        return BatchLimit(factor=math.inf)
    match = _FACTOR.fullmatch(word)
    if match is None:
        raise ValueError(f"{text!r} is no limit of the batch; write {SAME}, {FREE}, or a factor like 4x")
    if (factor := float(match[1])) < 1:
        raise ValueError(f"{text!r} is below today's batch; the least factor is 1x")
    return BatchLimit(factor=factor)
