"""Kept batches: a few of those that a loop was given, evenly spread, to be handed out again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Callable

MOST_KEPT = 4


class KeptBatches:
    """Two to four of the batches that were added, at even distances: batches may differ in length, and so in time.

    The arrays themselves are kept, where and as they are, in containers of their own, from which a trainer may take
    things. A step that changes an array in place, as some PyTorch trainers do, will be given the changed one: its time
    is the same, whatever becomes of its loss.

    Args:
        renewed: Returns a batch as it is handed out again.
    """

    def __init__(self, renewed: Callable[[Any], Any]) -> None:
        self._renewed = renewed
        self.clear()

    def __len__(self) -> int:
        return len(self._batches)

    def clear(self) -> None:
        """Drop all batches."""
        self._batches: list[Any] = []
        self._added = 0
        self._distance = 1
        self._handed_out = 0

    def add(self, batch: Any) -> None:
        """Add a batch to choose from."""
        if self._added % self._distance == 0:
            if len(self._batches) == MOST_KEPT:
                del self._batches[1::2]
                self._distance *= 2
            if self._added % self._distance == 0:
                self._batches.append(self._renewed(batch))
        self._added += 1

    def next(self) -> Any:
        """Return the next of the kept batches, for ever in turn."""
        self._handed_out += 1
        return self._renewed(self._batches[(self._handed_out - 1) % len(self._batches)])


def in_new_containers(batch: Any) -> Any:
    """Return the same arrays in copies of the tuples, lists and mappings around them."""
    if type(batch) is dict:
        return {key: in_new_containers(part) for key, part in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(in_new_containers(part) for part in batch)
    return copy.copy(batch) if isinstance(batch, Mapping) else batch
