"""Steps of a training loop, made from its observed fetches and work.

A step is a fetched batch that was trained on. *Work* is what only training does: a gradient, or a compiled step with
one. A step ends where the next fetch begins, so all time belongs to a step. `StepMaker` has three states:

    LOOKING   No step is open. Fetched batches wait in their `BatchSource`; a round may include validation.
              worked → TRAINING, on the first waiting batch that is trained on; the others' time is a pause
              worked, nothing waits → OWN, unless steps have been made of fetches
    TRAINING  A fetched batch is being trained on.
              fetched, exhausted → LOOKING; the step ends, with its samples and data wait
              worked → TRAINING; if batches wait (gradient accumulation), a step ends and the next begins
              called → TRAINING; many calls without training, unlike in the step before, are a pause
    OWN       A step without a fetch is open, made of work alone.
              worked → OWN; the step ends, unless this is further work of it
              fetched → LOOKING; there are fetches from now on

Nearly all loops are *steady*, with one batch after the other from a single source: `take` inlines their events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Optional

from autotune.trainee.stream import Report

if TYPE_CHECKING:
    from autotune.trainee.batch import Sizer
    from autotune.trainee.samples import Pass

_UNEXPECTED_LIMIT = 8  # unexpected observations before they count as the rule
_MANY_CALLS = 5  # calls that don't train, in one step: an evaluation, if the step before had less than half as many


class LoopState(Enum):
    """State of a training loop, as listed above."""

    LOOKING = "looking"
    TRAINING = "training"
    OWN = "own"


_LOOKING, _TRAINING, _OWN = LoopState.LOOKING, LoopState.TRAINING, LoopState.OWN


class BatchSource:
    """Dataset of a loop, or one pass over it: its waiting batches, and their use.

    Args:
        of: A pass's dataset; None for a dataset.

    Attributes:
        is_fed: True if Keras's ``fit`` counts its batches itself.
        expected: Samples in a full batch, if known.
        size: Returns a batch's samples.
        ready: (dataset) Batches that may be buffered before the first step.
        is_trained: True once known to be trained on.
        always_trains: (dataset) True if invisible work trains on all batches.
        like: (dataset) Latest pass that was trained on; the next one's rounds are similar.
        waiting: Samples of each fetched batch not yet trained on, oldest first.
        fresh: Batches fetched since the last work, from `begin_s` on and in `wait_s`.
        ended_s: End of the pass, if not then known to be trained on.
        passed: Samples of the current or last pass, if all are known.
        is_over: True between two passes.
        data: Pass in the fingerprints, of their dataset `set`.
        ahead: Prefetched batches that remain after a round; None before the first.
        is_joint: True if more than these remained after the last round.
    """

    def __init__(self, of: Optional[BatchSource] = None) -> None:
        self.dataset: BatchSource = of or self
        self.size: Optional[Sizer] = of.size if of else None
        self.expected: Optional[int] = None
        self.ready: Optional[int] = None
        self.is_fed = self.is_trained = self.always_trains = self.is_joint = False
        self.like: Optional[BatchSource] = None
        self.waiting: deque[Optional[float]] = deque()
        self.fresh, self.begin_s, self.wait_s = 0, 0.0, 0.0
        self.ended_s: Optional[float] = None
        self.passed: Optional[float] = 0.0
        self.is_over = False
        self.data: Optional[Pass] = None
        self.set: Optional[int] = None
        self.ahead: Optional[int] = None

    def take(self, samples: Optional[float]) -> None:
        self.waiting.append(samples)
        if self.is_over:
            self.passed, self.is_over = 0.0, False
        self.passed = None if self.passed is None or samples is None else self.passed + samples

    def drop(self) -> None:
        self.waiting.clear()
        self.fresh, self.ended_s = 0, None

    def with_surplus(self, samples: Optional[float]) -> Optional[float]:
        """Return the samples of a round's last step, with those of leftover batches, if every round has some."""
        surplus = len(self.waiting) - (self.ahead or 0)
        if self.ahead is None:
            # prefetched batches; further ones that aren't trained on are skipped
            self.ahead = surplus if surplus <= 4 else 0
            surplus -= self.ahead
        was_joint, self.is_joint = self.is_joint, surplus > 0
        if was_joint and surplus > 0:  # so those left after the first round weren't prefetched
            surplus, self.ahead = len(self.waiting), 0
        for _ in range(surplus):
            more = self.waiting.popleft()
            if was_joint and samples is not None:
                samples = None if more is None else samples + more
        return samples


class StepMaker:
    """Maker of steps from a loop's events, in order, on the monotonic clock.

    Attributes:
        is_fetching: True if steps are known to be made of fetches.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        # The loop.
        self.is_fetching = False
        self._is_steady = False
        self._has_begun = self._has_trained = False
        self._has_optimizer = False  # whose steps are seen
        self._thread: Optional[int] = None
        self._fetching_thread: Optional[int] = None
        self._key: Any = None  # the work that makes the steps of a loop without fetches
        self._surprises = 0
        self._doubted: Optional[BatchSource] = None  # dataset of a batch with unusually much work
        self._has_reported_unseen = False
        # The waiting batches.
        self._sources: list[BatchSource] = []  # by their first fetch in this round
        self._over: list[BatchSource] = []  # those that have ended: a prefetching loop still trains on them
        self._latest: Optional[BatchSource] = None
        self._together: list[BatchSource] = []  # trained on in the last round
        # The open step.
        self.state = _LOOKING
        self._source = BatchSource()
        self._begin_s = 0.0
        self._wait_s: Optional[float] = None
        self._samples: Optional[float] = None
        self._is_updated = False
        self._trained_s = 0.0
        self._pause_begin_s: Optional[float] = None
        self._pause_end_s: Optional[float] = None  # None: the start of the step
        self._calls, self._calls_before = 0, 0  # that don't train, in this step and the one before
        self._call_begin_s, self._call_end_s = 0.0, 0.0  # of the first and the last call

    def take(self, recorded: Sequence[tuple[Any, ...]]) -> None:
        """Process events: functions of this class with their arguments."""
        fetched, worked, updated, held = StepMaker.fetched, StepMaker.worked, StepMaker.updated, self._report.held
        called = StepMaker.called
        for event in recorded:
            happened, source, is_training = event[0], self._source, self.state is _TRAINING
            if not self._is_steady:
                happened(self, *event[1:])
            elif happened is updated:
                self._has_optimizer = self._is_updated = True
            elif happened is called:
                called(self, *event[1:])
            elif happened is worked and is_training:
                self._trained_s = event[3]
            elif happened is worked and source.fresh == 1:
                source.fresh = 0
                self._begin_s, self._wait_s, self._samples = source.begin_s, source.wait_s, source.waiting.popleft()
                self.state, self._trained_s = _TRAINING, event[3]
            elif (
                happened is fetched
                and is_training
                and event[1] is source
                and event[5] == self._fetching_thread
                and not self._calls
            ):
                step = event[2], self._wait_s, self._samples
                held.append(step if self._is_updated or not self._has_optimizer else (*step, False))
                self.state, self._is_updated, self._calls_before = _LOOKING, False, 0
                source.begin_s, source.wait_s, source.fresh = event[2], event[3] - event[2], 1
                source.take(event[4])
            else:
                self._is_steady = False
                happened(self, *event[1:])

    def fetched(self, source: BatchSource, begin_s: float, end_s: float, samples: Optional[float], thread: int) -> None:
        if self._thread not in (None, thread):
            return  # the user's own loader in the background
        self._fetching_thread = thread
        if source.dataset is self._doubted:  # it is fetched from after all, with much work per batch
            self.is_fetching, self._doubted = True, None
        self._fetch_begins(begin_s)
        unused_s = [one.begin_s for one in self._over if one.fresh]
        for one in self._over:
            self._drop(one)
        self._over = []
        self._pass_over(min(unused_s, default=None))
        if source not in self._sources and source.dataset.like is not None:
            source.ahead, source.is_joint = source.dataset.like.ahead, source.dataset.like.is_joint
        if not source.fresh:
            self._sources = [*(one for one in self._sources if one is not source), source]
            source.begin_s, source.wait_s = begin_s, 0.0
        source.fresh += 1
        source.wait_s += end_s - begin_s
        source.take(samples)
        self._latest = source
        if source.dataset.always_trains:
            self._train_on_next(end_s)
            self._trained_s = end_s

    def exhausted(self, source: BatchSource, begin_s: float, thread: int) -> None:
        if self._thread not in (None, thread):
            return
        self._fetch_begins(begin_s)
        source.is_over = True
        is_trained = source.is_trained or source.dataset.always_trains
        if source in self._sources and source.waiting:
            if not source.fresh:
                source.begin_s, source.wait_s = begin_s, 0.0
            if not is_trained:
                source.ended_s = begin_s
            self._over.append(source)
        else:
            self._drop(source)
        if is_trained:
            self._report.mark("epoch_end", begin_s, samples=source.passed)

    def worked(
        self, key: Any, begin_s: float, end_s: float, samples: Optional[float], is_whole: bool, thread: Optional[int]
    ) -> None:
        if thread is not None and self._thread is None:
            self._thread = thread
            if self._fetching_thread != thread:
                self.drop_all()
                self.state = _LOOKING
        if self.state is _TRAINING and self._source.waiting:
            # Each work has its own batch: gradients are accumulated over those fetched before.
            self._step(self._trained_s)
            self._open(_TRAINING, self._trained_s, 0.0, self._source.waiting.popleft())
        elif self.state is _TRAINING:
            self._expect_fetches(key)
        elif any(source.waiting for source in self._sources):
            self._train_on_next(begin_s)
            self._expect_fetches(key)
        elif not self.is_fetching:
            self._make_step(key, begin_s, samples, is_whole)
        else:  # further work on the last batch, or the loop no longer fetches
            self._surprises += 1
            self.is_fetching = self._surprises < _UNEXPECTED_LIMIT
            self._key = None
        self._trained_s = end_s

    def called(self, begin_s: float, end_s: float, thread: int) -> None:
        if self.state is _TRAINING and thread == self._fetching_thread:
            if not self._calls:
                self._call_begin_s = begin_s
            self._calls, self._call_end_s = self._calls + 1, end_s

    def updated(self) -> None:
        self._has_optimizer = self._is_updated = True

    def always_trains(self, now_s: float, calls_are_seen: bool) -> None:
        if self.state is _LOOKING and self._latest is not None and any(source.waiting for source in self._sources):
            self._latest.dataset.always_trains = True
            self._train_on_next(now_s)
            self._trained_s = now_s
        elif self._fetching_thread is None and not (self._has_reported_unseen or calls_are_seen):
            self._has_reported_unseen = True
            self._report.unseen(
                "its compiled steps train on batches from neither tf.data nor a DataLoader, so they can't be observed"
            )

    def synced(self, t_s: float) -> None:
        self._report.mark("sync", t_s)

    def ends(self, now_s: Optional[float] = None) -> None:
        """End the open step without a next one: now, or at its last observed work."""
        if self.state is _OWN:
            self.state = _LOOKING
            self._step(self._trained_s)
        elif self.state is _TRAINING:
            self._close(self._trained_s if now_s is None else now_s)

    def drop_all(self) -> None:
        for source in self._sources:
            source.drop()
        self._sources, self._over = [], []

    def _drop(self, source: BatchSource) -> None:
        self._sources = [one for one in self._sources if one is not source]
        source.drop()

    def _fetch_begins(self, begin_s: float) -> None:
        if self.state is _OWN:  # there are fetches from now on
            self.state, self._has_trained = _LOOKING, True
            self._step(self._trained_s)
        elif self.state is _TRAINING:
            self._close(begin_s)

    def _close(self, t_s: float) -> None:
        source = self._source
        self.state = _LOOKING
        self.is_fetching = self._has_trained = True
        self._surprises = 0
        self._samples = source.with_surplus(self._samples)
        if self._calls >= max(_MANY_CALLS, 2 * self._calls_before + 1):
            self._pass_over(self._call_begin_s, self._call_end_s)
        self._calls, self._calls_before = 0, self._calls
        self._step(t_s)
        self._latest = source
        is_even = not (source.waiting or source.ahead or source.is_joint)
        self._is_steady = (
            is_even and self._sources == [source] and source.is_trained and not source.dataset.always_trains
        )

    def _pass_over(self, begins_s: Optional[float], end_s: Optional[float] = None) -> None:
        """Start a pause at `begins_s`, unless that is None."""
        if begins_s is not None and self._has_trained and self._pause_begin_s is None:
            self._pause_begin_s, self._pause_end_s = begins_s, end_s

    def _train_on_next(self, now_s: float) -> None:
        """Open a step with the first waiting batch that is trained on; the round's work begins now."""
        fresh = [source for source in self._sources if source.fresh]
        chosen = self._trained_among(fresh) if fresh else [one for one in self._sources if one.waiting][-1:]
        # A single validation batch before the first step looks like part of it; it won't come again.
        for source in chosen:
            if len(chosen) == 1 or source in self._together:
                source.is_trained, source.dataset.like = True, source
        passed_over_s = min((source.begin_s for source in fresh if source not in chosen), default=None)
        wait_s = sum(source.wait_s for source in chosen if source.fresh)
        for source in self._sources:
            if source not in chosen:
                source.drop()
            elif source.ended_s is not None:
                self._report.mark("epoch_end", source.ended_s, samples=source.passed)
            source.fresh, source.ended_s = 0, None
        for source in chosen[1:]:
            source.waiting.clear()
        if sum(source.is_trained for source in chosen) > 1:
            self._report.note("a step takes a batch from each of several datasets: its samples are those of the first")
        self._sources = self._together = chosen
        self._over = [source for source in self._over if source in chosen]
        self._source = first = chosen[0]
        is_late = passed_over_s is not None and passed_over_s > first.begin_s
        self._pass_over(passed_over_s, now_s if is_late else None)
        self._open(_TRAINING, first.begin_s, wait_s, first.waiting.popleft())

    def _trained_among(self, fresh: list[BatchSource]) -> list[BatchSource]:
        known = [source for source in fresh if source.is_trained]
        if known:
            # Validation comes before the batch, or is more than one; else it is another part of the step's data.
            later = fresh[fresh.index(known[0]) + 1 :]
            parts = [one for one in later if one.fresh <= known[0].fresh and one not in self._over]
            return [source for source in fresh if source in known or source in parts]
        likely = [source for source in fresh if source.dataset.like is not None] or fresh
        last = self._latest if self._latest in likely else likely[-1]
        assert last is not None
        return [one for one in likely if one is last or (one.fresh == last.fresh and one not in self._over)]

    def _expect_fetches(self, key: Any) -> None:
        # A loop that peeks at one batch and then makes its own would never fetch again.
        if self.is_fetching:
            return
        self._key = key if self._key is None else self._key
        self._surprises += key == self._key
        if self._surprises >= _UNEXPECTED_LIMIT:
            self.state, self._surprises, self._doubted = _LOOKING, 0, self._source.dataset
            self.drop_all()

    def _make_step(self, key: Any, begin_s: float, samples: Optional[float], is_whole: bool) -> None:
        """Make a step of a loop without fetches, reported with the next."""
        self._key = key if self._key is None else self._key
        if key != self._key:  # a second work of the same step, or the first no longer occurs
            self._surprises += 1
            if self._surprises < _UNEXPECTED_LIMIT:
                return
            self._key = key
        self._surprises = 0
        if self.state is _OWN:
            self._has_trained = True
            self._step(self._trained_s)
        self._open(_OWN, begin_s, begin_s - self._trained_s if is_whole and self._trained_s else None, samples)

    def _open(self, state: LoopState, begin_s: float, wait_s: Optional[float], samples: Optional[float]) -> None:
        if not self._has_begun:
            self._has_begun = True
            ready = self._source.dataset.ready if state is _TRAINING else None
            self._report.mark("begin", begin_s, batches=ready)
        self.state, self._begin_s, self._wait_s, self._samples = state, begin_s, wait_s, samples

    def _step(self, t_s: float) -> None:
        if self._pause_begin_s is not None:
            end_s = self._pause_end_s or max(self._begin_s, self._pause_begin_s)
            self._report.mark("eval", end_s, end_s - self._pause_begin_s)
            self._report.pauses()
            self._pause_begin_s = None
        step = t_s, self._wait_s, self._samples
        self._report.held.append(step if self._is_updated or not self._has_optimizer else (*step, False))
        self._is_updated = False
