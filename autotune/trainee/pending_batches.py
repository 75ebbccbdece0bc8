"""Pending batches: those that a training loop has fetched and not trained on yet, one line for each iterator.

Which batches a loop trains on shows only when it works, and then not for sure: validation may have fetched some before,
a step may take one from each of several loaders, and a loop may have fetched its batches ahead. What tells them apart
is the iterator (a validation has its own), whether it was trained on before, and how many it gave in this round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple, Optional

_MOST_AHEAD = 4  # batches that a loop fetches ahead; what it fetches beyond them and does not train on is left out

_MOST_ITERATORS = 1000  # remembered; each epoch has a new one


class Pending:
    """Line of the batches of one iterator that were fetched and not trained on yet.

    Args:
        key: The iterator.
        like: Line of the iterator before over the same data, whose rounds will have been alike; None for the first.

    Attributes:
        key: The iterator.
        samples: Samples of each batch, the oldest first; None for unknown.
        fresh: Number of batches fetched in this round.
        begin_s: Start of the first of these fetches.
        wait_s: Time of these fetches.
        exhausted_s: End of the pass over its data; None before that.
    """

    __slots__ = ("_ahead", "_is_joint", "begin_s", "exhausted_s", "fresh", "key", "samples", "wait_s")

    def __init__(self, key: Hashable, like: Optional[Pending]) -> None:
        self.key = key
        self.samples: deque[Optional[float]] = deque()
        self.fresh = 0
        self.begin_s = 0.0
        self.wait_s = 0.0
        self.exhausted_s: Optional[float] = None
        # Batches that are left after a round, None before the first; and True if the one before left some over, too.
        self._ahead: Optional[int] = like._ahead if like else None
        self._is_joint: bool = like._is_joint if like else False

    @property
    def is_even(self) -> bool:
        """True if no batch is left after the rounds, and none was after the last."""
        return not (self.samples or self._ahead or self._is_joint)

    def with_surplus(self, samples: Optional[float]) -> Optional[float]:
        """Return the samples of a round's last step together with those of the batches it leaves over.

        A loop that takes several batches for one work does so in every round; one that leaves out a batch now and then
        has not trained on it.
        """
        surplus = len(self.samples) - (self._ahead or 0)
        if self._ahead is None:
            self._ahead = surplus if surplus <= _MOST_AHEAD else 0
            surplus -= self._ahead
        is_joint, self._is_joint = self._is_joint, surplus > 0
        if is_joint and surplus > 0:  # and what was left after the first round was not fetched ahead
            surplus, self._ahead = len(self.samples), 0
        for _ in range(surplus):
            more = self.samples.popleft()
            if is_joint and samples is not None:
                samples = None if more is None else samples + more
        return samples


class Chosen(NamedTuple):
    """Batches that a round of a loop trains on.

    Attributes:
        source: Line of the first of them, whose samples count.
        wait_s: Time of all their fetches.
        are_several: True if each step takes from several lines.
        passed_over_s: Start of the first fetch of those that are not trained on; None if all are.
        epochs_ended_s: Ends of passes over the data that were not known to be trained on at that time.
    """

    source: Pending
    wait_s: float
    are_several: bool
    passed_over_s: Optional[float]
    epochs_ended_s: list[float]


class PendingBatches:
    """Pending batches of a loop, and its knowledge of what it trains on.

    Attributes:
        lines: The lines, in order of their first fetch in this round.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset all state."""
        self.lines: dict[Hashable, Pending] = {}
        self._latest: Optional[Pending] = None
        self._exhausted: list[Pending] = []
        self._trained: set[Hashable] = set()  # iterators
        self._last_trained: dict[Hashable, Pending] = {}  # the last of these of each dataset
        self._always_trained: set[Hashable] = set()  # datasets
        self._together: set[Hashable] = set()  # the lines of the last round, where these were several

    @property
    def are_there(self) -> bool:
        """True if any batch is pending."""
        return any(line.samples for line in self.lines.values())

    def clear(self) -> None:
        """Drop all batches."""
        self.lines.clear()
        self._exhausted.clear()

    def add(self, key: Hashable, begin_s: float, end_s: float, samples: Optional[float]) -> None:
        """Add a fetched batch."""
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Pending(key, self._last_trained.get(_dataset(key)))
        if not line.fresh:
            self.lines[key] = self.lines.pop(key)
            line.begin_s, line.wait_s = begin_s, 0.0
        line.fresh += 1
        line.wait_s += end_s - begin_s
        line.samples.append(samples)
        self._latest = line

    def exhaust(self, key: Hashable, begin_s: float) -> bool:
        """Process the end of an iterator, and return whether it is known to be trained on.

        Its batches stay: a loop that fetches ahead trains on them yet.
        """
        is_trained = key in self._trained or _dataset(key) in self._always_trained
        line = self.lines.get(key)
        if line is not None and line.samples:
            if not line.fresh:
                line.begin_s, line.wait_s = begin_s, 0.0
            if not is_trained:
                line.exhausted_s = begin_s
            self._exhausted.append(line)
        else:
            self.lines.pop(key, None)
        return is_trained

    def drop_exhausted(self) -> Optional[float]:
        """Drop the batches of ended iterators, at the next fetch.

        Returns:
            Start of the first of this round's fetches that were in vain; None if there are none.
        """
        if not self._exhausted:
            return None
        for line in self._exhausted:
            self.lines.pop(line.key, None)
        begins_s = [line.begin_s for line in self._exhausted if line.fresh]
        self._exhausted.clear()
        return min(begins_s, default=None)

    def always_trains(self, key: Hashable) -> bool:
        """Return True if each batch of this iterator is trained on, without visible work."""
        return bool(self._always_trained) and _dataset(key) in self._always_trained

    def always_train(self) -> bool:
        """Take all batches of the dataset that was fetched from last for trained on; False if nothing is pending."""
        if self._latest is None or not self.are_there:
            return False
        self._always_trained.add(_dataset(self._latest.key))
        return True

    def is_usual(self, line: Pending) -> bool:
        """Return True if the loop takes one batch after the other from this line alone."""
        self._latest = line
        return len(self.lines) == 1 and line.key in self._trained and line.is_even and not self._always_trained

    def choose(self) -> Chosen:
        """Decide which of the pending batches are trained on, drop the others, and begin a new round."""
        if len(self.lines) == 1 and not self._exhausted:
            (line,) = self.lines.values()
            if line.key in self._trained:  # nearly always
                wait_s = line.wait_s if line.fresh else 0.0
                line.fresh = 0
                self._together = set()
                return Chosen(line, wait_s, False, None, [])
        fresh = [line for line in self.lines.values() if line.fresh]
        chosen = self._trained_in(fresh) if fresh else [line for line in self.lines.values() if line.samples][-1:]
        passed_over_s = min((line.begin_s for line in fresh if line not in chosen), default=None)
        self._learn(chosen)
        self.lines = {line.key: line for line in chosen}
        wait_s = sum(line.wait_s for line in chosen if line.fresh)
        for line in chosen:
            line.fresh = 0
        for line in chosen[1:]:
            line.samples.clear()
        ended_s = [line.exhausted_s for line in chosen if line.exhausted_s is not None]
        self._exhausted = [line for line in self._exhausted if line in chosen]
        for line in chosen:
            line.exhausted_s = None
        several = sum(line.key in self._trained for line in chosen) > 1
        return Chosen(chosen[0], wait_s, several, passed_over_s, ended_s)

    def _trained_in(self, fresh: list[Pending]) -> list[Pending]:
        """Return the lines among those fetched from in this round that are trained on, in their order."""
        known = [line for line in fresh if line.key in self._trained]
        if known:
            # Validation comes before the batch, or is more than one; else it is another part of the step's data.
            first = fresh.index(known[0])
            most = known[0].fresh
            return [
                line
                for index, line in enumerate(fresh)
                if line in known or (index > first and line.fresh <= most and line not in self._exhausted)
            ]
        likely = [line for line in fresh if _dataset(line.key) in self._last_trained] or fresh
        last = self._latest if self._latest in likely else likely[-1]
        assert last is not None
        return [line for line in likely if line is last or self._are_alike(line, last)]

    def _are_alike(self, line: Pending, last: Pending) -> bool:
        return line.fresh == last.fresh and line not in self._exhausted

    def _learn(self, chosen: list[Pending]) -> None:
        keys = {line.key for line in chosen}
        # One batch of a validation before the first step looks like a part of that; it will not come again.
        certain = keys if len(keys) == 1 else keys & self._together
        if not certain <= self._trained:
            self._trained = certain | (self._trained if len(self._trained) < _MOST_ITERATORS else set())
            self._last_trained.update({_dataset(line.key): line for line in chosen if line.key in certain})
        self._together = keys


def _dataset(key: Hashable) -> Hashable:
    return getattr(key, "dataset", key)
