"""Step maker: groups the observed fetches and work of a training loop into steps.

A step is a fetched batch that was trained on. *Work* is what only training does: the computation of a gradient, or a
compiled step that contains one. A loop fetches one batch or several, and then works: the batches of one such round wait
in `PendingBatches` until its first work shows which of them are trained on. The others, such as validation data,
are no steps; their time is a pause.

A step ends where the next round begins, so that all time of the loop belongs to one step or the next; where several
batches were fetched at once, as for gradient accumulation, it ends with its work. A loop that makes its own batches has
no visible fetches; its steps are made of the work alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Optional

from autotune.trainee.report import Report

_UNEXPECTED_LIMIT = 8  # unexpected observations before they count as the rule
_UNSEEN = "its compiled steps train on batches from neither tf.data nor a DataLoader, so none of them can be seen"


class _Batch:
    """Batch that is being trained on; `source` is None where it was not seen to be fetched."""

    __slots__ = ("begin_s", "samples", "source", "wait_s")

    def __init__(
        self, source: Optional[Pending], begin_s: float, wait_s: Optional[float], samples: Optional[float]
    ) -> None:
        self.source = source
        self.begin_s = begin_s
        self.wait_s = wait_s
        self.samples = samples


class StepMaker:
    """Maker of steps from the observations of a training loop, in their order, on the monotonic clock.

    Attributes:
        is_fetching: True if the loop's steps are made of fetches, as far as is known.
        is_trained_on: True if a fetched batch has been trained on since the last fetch.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._pending = PendingBatches()
        self.forget()

    def forget(self) -> None:
        """Reset all state."""
        # How the loop works, as far as it is known.
        self._pending.forget()
        self.is_fetching = False
        self._is_usual = False  # the last step was one like all others: nothing has to be learned from the next
        self._has_trained = False
        self._thread: Optional[int] = None
        self._fetching_thread: Optional[int] = None
        self._has_optimizer = False  # whose steps are seen
        self._key: Any = None  # which work makes the steps of a loop without fetches
        self._surprises = 0
        # The step that is under way.
        self._open: Optional[_Batch] = None
        self.is_trained_on = False
        self._is_updated = False
        self._trained_s = 0.0
        self._pause_begin_s: Optional[float] = None
        self._pause_end_s: Optional[float] = None  # None: where the step begins
        self._idle_key: Any = None
        self._idle_begin_s = 0.0
        self._idle_calls = 0
        self._usual_idle_calls = 3  # of a function that does not train, between two steps, are no validation
        self._is_told_unseen = False

    def take(self, recorded: Sequence[tuple[Any, ...]]) -> None:
        """Process the recorded calls: methods of this class with their arguments."""
        fetched, worked, updated, held = self.fetched, self.worked, self.updated, self._report.held
        for event in recorded:
            happened, batch = event[0], self._open
            if not self._is_usual or batch is None or batch.source is None:
                happened(*event[1:])
                continue
            # Nearly always a step is like the one before. This does what those methods would, and faster.
            source = batch.source
            if happened == updated:
                self._has_optimizer = self._is_updated = True
            elif happened == worked and self.is_trained_on:
                self._trained_s = event[3]
            elif happened == worked and source.fresh == 1:
                source.fresh = 0
                batch.begin_s, batch.wait_s, batch.samples = source.begin_s, source.wait_s, source.samples.popleft()
                self.is_trained_on, self._trained_s = True, event[3]
            elif (
                happened == fetched
                and self.is_trained_on
                and event[1] is source.key
                and event[5] == self._fetching_thread
            ):
                step = event[2], batch.wait_s, batch.samples
                held.append(step if self._is_updated or not self._has_optimizer else (*step, False))
                self.is_trained_on = self._is_updated = False
                source.begin_s, source.wait_s, source.fresh = event[2], event[3] - event[2], 1
                source.samples.append(event[4])
            else:
                self._leave_usual()
                happened(*event[1:])

    def _leave_usual(self) -> None:
        self._is_usual = False
        if not self.is_trained_on:
            self._open = None

    def fetched(self, source: Hashable, begin_s: float, end_s: float, samples: Optional[float], thread: int) -> None:
        """Process a fetched batch, see `Loop.fetched`."""
        if self._thread is not None and self._thread != thread:
            return  # a loader of the user's own, in the background
        self._fetching_thread = thread
        self._fetch_begins(begin_s)
        self._pass_over(self._pending.drop_exhausted())
        self._pending.add(source, begin_s, end_s, samples)
        if self._pending.always_trains(source):
            self._train_on_next(end_s)
            self._trained_s = end_s

    def _fetch_begins(self, begin_s: float) -> None:
        batch = self._open
        if batch is None:
            return
        if batch.source is None:  # from now on, there are fetches
            self._open, self._has_trained = None, True
            self._step(batch, self._trained_s)
        else:
            self._close(batch, batch.source, begin_s)

    def exhausted(self, source: Hashable, begin_s: float, thread: int) -> None:
        """Process the end of a pass over a dataset, see `Loop.exhausted`."""
        if self._thread is not None and self._thread != thread:
            return
        self._fetch_begins(begin_s)
        if self._pending.exhaust(source, begin_s):
            self._report.mark("epoch_end", begin_s)

    def _pass_over(self, begins_s: Optional[float], end_s: Optional[float] = None) -> None:
        """Take the time since then for a pause, unless it is None: batches that are not trained on were fetched."""
        if begins_s is not None and self._has_trained and self._pause_begin_s is None:
            self._pause_begin_s, self._pause_end_s = begins_s, end_s

    def _close(self, batch: _Batch, source: Pending, t_s: float) -> None:
        self._open, self.is_trained_on = None, False
        self.is_fetching = self._has_trained = True
        self._surprises = 0
        batch.samples = source.with_surplus(batch.samples)
        self._step(batch, t_s)
        self._is_usual = self._pending.is_usual(source)
        if self._is_usual:
            self._open = batch

    def worked(
        self, key: Any, begin_s: float, end_s: float, samples: Optional[float], is_whole: bool, thread: Optional[int]
    ) -> None:
        """Process work, see `Loop.worked`."""
        self._idle_key = None
        if self._pause_begin_s is None:
            self._usual_idle_calls = max(self._usual_idle_calls, self._idle_calls)
        self._idle_calls = 0
        if thread is not None and self._thread is None:
            self._thread = thread
            if self._fetching_thread != thread:
                self._pending.clear()
                self._open = None
        batch = self._open
        if batch is not None and batch.source is not None:
            self._work_on(batch, batch.source, key)
        elif self._pending.are_there:
            self._train_on_next(begin_s)
            self._expect_fetches(key)
        elif not self.is_fetching:
            self._make_step(batch, key, begin_s, samples, is_whole)
        else:  # some more work on the last batch, or the loop has done with fetching
            self._surprises += 1
            self.is_fetching = self._surprises < _UNEXPECTED_LIMIT
            self._key = None
        self._trained_s = end_s

    def _train_on_next(self, now_s: float) -> None:
        """Open a step with the first pending batch that is trained on; the round's work begins now."""
        if self._open is not None and self._open.source is None:
            self._open = None
        chosen = self._pending.choose()
        for ended_s in chosen.epochs_ended_s:
            self._report.mark("epoch_end", ended_s)
        if chosen.are_several:
            self._report.note("a step takes a batch from each of several datasets: its samples are those of the first")
        source = chosen.source
        late = chosen.passed_over_s is not None and chosen.passed_over_s > source.begin_s
        self._pass_over(chosen.passed_over_s, now_s if late else None)
        self._open = _Batch(source, source.begin_s, chosen.wait_s, source.samples.popleft())
        self.is_trained_on = True

    def _work_on(self, batch: _Batch, source: Pending, key: Any) -> None:
        if source.samples:  # each work has a batch of its own: gradients are accumulated over those fetched before
            self._step(batch, self._trained_s)
            self._open = _Batch(source, self._trained_s, 0.0, source.samples.popleft())
        else:
            self._expect_fetches(key)

    def _expect_fetches(self, key: Any) -> None:
        # Whoever peeks at one batch and then makes its own would wait for ever for the next fetch.
        if self.is_fetching:
            return
        self._key = key if self._key is None else self._key
        self._surprises += key == self._key
        if self._surprises >= _UNEXPECTED_LIMIT:
            self._open, self.is_trained_on, self._surprises = None, False, 0
            self._pending.clear()

    def updated(self) -> None:
        """Process a step of an optimizer, in frameworks where all of them are seen."""
        self._has_optimizer = self._is_updated = True

    def _make_step(
        self, batch: Optional[_Batch], key: Any, begin_s: float, samples: Optional[float], is_whole: bool
    ) -> None:
        """Make a step of a loop without fetches; reported with the next one, as the trainer may report its own."""
        if self._key is None:
            self._key = key
        if key != self._key:  # a second work of the same step, or the first has had its time
            self._surprises += 1
            if self._surprises < _UNEXPECTED_LIMIT:
                return
            self._key = key
        self._surprises = 0
        if batch is not None:
            self._has_trained = True
            self._step(batch, self._trained_s)
        wait_s = begin_s - self._trained_s if is_whole and self._trained_s else None
        self._open = _Batch(None, begin_s, wait_s, samples)

    def idled(self, key: Any, begin_s: float, end_s: float) -> None:
        """Process a call that does not train; an unusual number of them between two steps is validation."""
        if self.is_fetching or self._key is None:
            return
        self._trained_s = end_s
        if key != self._idle_key:
            self._idle_key, self._idle_calls, self._idle_begin_s = key, 0, begin_s
        self._idle_calls += 1
        if self._idle_calls == 2 * self._usual_idle_calls and self._pause_begin_s is None:
            self._pause_begin_s = self._idle_begin_s

    def always_trains(self, now_s: float) -> None:
        """Process the end of visible work, see `Loop.always_trains`."""
        if self._open is None and self._pending.always_train():
            self._train_on_next(now_s)
            self._trained_s = now_s
        elif self._fetching_thread is None and not self._is_told_unseen:
            self._is_told_unseen = True
            self._report.unseen(_UNSEEN)

    def _step(self, batch: _Batch, t_s: float) -> None:
        if self._pause_begin_s is not None:
            end_s = self._pause_end_s or max(batch.begin_s, self._pause_begin_s)
            self._report.mark("eval", end_s, end_s - self._pause_begin_s)
            self._pause_begin_s = None
        self._report.step(t_s, batch.wait_s, batch.samples, is_update=self._is_updated or not self._has_optimizer)
        self._is_updated = False

    def ends(self, now_s: Optional[float] = None) -> None:
        """End the open step without a next one: now, or at its last observed work."""
        batch = self._open
        if batch is None:
            return
        if batch.source is None:
            self._open = None
            self._step(batch, self._trained_s)
        elif self.is_trained_on:
            self._close(batch, batch.source, self._trained_s if now_s is None else now_s)


class Pending:
    """Line of the batches of one iterator that were fetched and not trained on yet.

    Args:
        like: Line of the iterator before over the same data, whose rounds will have been alike; None for the first.

    Attributes:
        samples: Samples of each batch, the oldest first; None for unknown.
        fresh: Number of batches fetched in this round.
        begin_s: Start of the first of these fetches.
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
            # batches that a loop fetches ahead; what it fetches beyond them and does not train on is left out
            self._ahead = surplus if surplus <= 4 else 0
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
        return any(line.samples for line in self.lines.values())

    def clear(self) -> None:
        self.lines.clear()
        self._exhausted.clear()

    def add(self, key: Hashable, begin_s: float, end_s: float, samples: Optional[float]) -> None:
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
            # remembered; each epoch has a new one
            self._trained = certain | (self._trained if len(self._trained) < 1000 else set())
            self._last_trained.update({_dataset(line.key): line for line in chosen if line.key in certain})
        self._together = keys


def _dataset(key: Hashable) -> Hashable:
    return getattr(key, "dataset", key)
