"""Steps of a training loop, made of the fetches and the work that were observed in it.

A step is a fetched batch that was trained on. *Work* is what only training does: the computation of a gradient, or a
compiled step that contains one. A step ends where the next fetch begins, so that all time of the loop belongs to one
step or the next. `StepMaker` is in one of three states:

    LOOKING   No step is open. Fetched batches wait with their `BatchSource`; a round of them may hold validation data.
              worked → TRAINING, on the first waiting batch that is trained on; the time of the others is a pause
              worked, and nothing waits → OWN, unless the steps of the loop have been made of fetches so far
    TRAINING  A fetched batch is being trained on.
              fetched, exhausted → LOOKING; the step ends there, with its samples and the time that it waited
              worked → TRAINING; if more batches wait, gradients are accumulated: a step ends, and the next begins
              called → TRAINING; many calls that train on nothing, in a step unlike the one before, are a pause
    OWN       A step of a loop that makes its own batches is open; it is made of the work alone.
              worked → OWN; the step ends with its work, unless this is further work of the same step
              fetched → LOOKING; from here on there are fetches

A loop in which one batch follows the other from a single source is *steady*, as nearly all are: `take` then does in a
few lines what the methods of these events would do.
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
_MANY_CALLS = 5  # that train on nothing, in one step: an evaluation, where the step before had less than half of them


class LoopState(Enum):
    """State of a training loop, see the module's docstring."""

    LOOKING = "looking"
    TRAINING = "training"
    OWN = "own"


_LOOKING, _TRAINING, _OWN = LoopState.LOOKING, LoopState.TRAINING, LoopState.OWN


class BatchSource:
    """Dataset of a loop or one pass over it: its batches that wait, and what is known of the loop's use of them.

    Args:
        of: The dataset, where this is one pass over it; None for a dataset.

    Attributes:
        is_fed: True if Keras's ``fit`` counts its batches by itself where it feeds on it.
        expected: Samples in a full batch, where the loader says it.
        size: Function that returns the samples in one of its batches; None before the first.
        ready: Of a dataset, batches that may be ready in its buffers before the first step; None if unknown.
        is_trained: True once its batches are known to be trained on.
        always_trains: True of a dataset whose batches are all trained on, by work that cannot be seen.
        like: Of a dataset the latest pass that was trained on; the rounds of the next will be alike.
        waiting: Samples of each batch that was fetched and not trained on yet, the oldest first; None for unknown.
        fresh: Number of batches fetched since the last work.
        begin_s: Start of the first of these fetches.
        wait_s: Time of all these fetches.
        ended_s: End of the pass, where it was not known to be trained on then.
        passed: Samples of the pass so far, or of the last one; None where they are not all known.
        is_over: True from the end of a pass to the first batch of the next.
        data: The pass over it whose samples are looked at; None before the first batch, and where none are.
        set: Of a dataset, its number there.
        ahead: Batches that are left after a round, fetched ahead; None before the first.
        is_joint: True if the last round left over more than that.
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
        """Take a batch that was fetched."""
        self.waiting.append(samples)
        if self.is_over:
            self.passed, self.is_over = 0.0, False
        self.passed = None if self.passed is None or samples is None else self.passed + samples

    def drop(self) -> None:
        """Drop the batches that wait."""
        self.waiting.clear()
        self.fresh, self.ended_s = 0, None

    def with_surplus(self, samples: Optional[float]) -> Optional[float]:
        """Return the samples of a round's last step together with those of the batches it leaves over.

        A loop that takes several batches for one work does so in every round; one that leaves out a batch now and then
        has not trained on it.
        """
        surplus = len(self.waiting) - (self.ahead or 0)
        if self.ahead is None:
            # batches that a loop fetches ahead; what it fetches beyond them and does not train on is left out
            self.ahead = surplus if surplus <= 4 else 0
            surplus -= self.ahead
        was_joint, self.is_joint = self.is_joint, surplus > 0
        if was_joint and surplus > 0:  # and what was left after the first round was not fetched ahead
            surplus, self.ahead = len(self.waiting), 0
        for _ in range(surplus):
            more = self.waiting.popleft()
            if was_joint and samples is not None:
                samples = None if more is None else samples + more
        return samples


class StepMaker:
    """Maker of steps from the events of a training loop, in their order, on the monotonic clock.

    Attributes:
        state: State of the loop.
        is_fetching: True if the loop's steps are made of fetches, as far as is known.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        # What is known of the loop.
        self.is_fetching = False
        self._is_steady = False
        self._has_begun = self._has_trained = False
        self._has_optimizer = False  # whose steps are seen
        self._thread: Optional[int] = None
        self._fetching_thread: Optional[int] = None
        self._key: Any = None  # which work makes the steps of a loop without fetches
        self._surprises = 0
        self._doubted: Optional[BatchSource] = None  # the dataset of a batch that had more work than is usual
        self._is_told_unseen = False
        # The batches that wait.
        self._sources: list[BatchSource] = []  # in the order of their first fetch in this round
        self._over: list[BatchSource] = []  # those that have ended: a loop that fetches ahead trains on them yet
        self._latest: Optional[BatchSource] = None
        self._together: list[BatchSource] = []  # that the last round trained on
        # The step that is under way.
        self.state = _LOOKING
        self._source = BatchSource()
        self._begin_s = 0.0
        self._wait_s: Optional[float] = None
        self._samples: Optional[float] = None
        self._is_updated = False
        self._trained_s = 0.0
        self._pause_begin_s: Optional[float] = None
        self._pause_end_s: Optional[float] = None  # None: where the step begins
        self._calls, self._calls_before = 0, 0  # that train on nothing, in this step and the one before
        self._call_begin_s, self._call_end_s = 0.0, 0.0  # of the first and the last of them

    def take(self, recorded: Sequence[tuple[Any, ...]]) -> None:
        """Process recorded events: functions of this class with their arguments."""
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
        """Process a fetched batch."""
        if self._thread not in (None, thread):
            return  # a loader of the user's own, in the background
        self._fetching_thread = thread
        if source.dataset is self._doubted:  # it is fetched from after all: there is much work on each batch
            self.is_fetching, self._doubted = True, None
        self._fetch_begins(begin_s)
        in_vain_s = [one.begin_s for one in self._over if one.fresh]
        for one in self._over:
            self._drop(one)
        self._over = []
        self._pass_over(min(in_vain_s, default=None))
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
        """Process the end of a pass over a dataset."""
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
        """Process work, see `Loop.worked`."""
        if thread is not None and self._thread is None:
            self._thread = thread
            if self._fetching_thread != thread:
                self.drop_all()
                self.state = _LOOKING
        if self.state is _TRAINING and self._source.waiting:
            # Each work has a batch of its own: gradients are accumulated over those fetched before.
            self._step(self._trained_s)
            self._open(_TRAINING, self._trained_s, 0.0, self._source.waiting.popleft())
        elif self.state is _TRAINING:
            self._expect_fetches(key)
        elif any(source.waiting for source in self._sources):
            self._train_on_next(begin_s)
            self._expect_fetches(key)
        elif not self.is_fetching:
            self._make_step(key, begin_s, samples, is_whole)
        else:  # some more work on the last batch, or the loop has done with fetching
            self._surprises += 1
            self.is_fetching = self._surprises < _UNEXPECTED_LIMIT
            self._key = None
        self._trained_s = end_s

    def called(self, begin_s: float, end_s: float, thread: int) -> None:
        """Process a call of a compiled function that trains on nothing."""
        if self.state is _TRAINING and thread == self._fetching_thread:
            if not self._calls:
                self._call_begin_s = begin_s
            self._calls, self._call_end_s = self._calls + 1, end_s

    def updated(self) -> None:
        """Process a step of an optimizer, in frameworks where all of them are seen."""
        self._has_optimizer = self._is_updated = True

    def always_trains(self, now_s: float, calls_are_seen: bool) -> None:
        """Process the end of visible work, see `Loop.always_trains`."""
        if self.state is _LOOKING and self._latest is not None and any(source.waiting for source in self._sources):
            self._latest.dataset.always_trains = True
            self._train_on_next(now_s)
            self._trained_s = now_s
        elif self._fetching_thread is None and not (self._is_told_unseen or calls_are_seen):
            self._is_told_unseen = True
            self._report.unseen(
                "its compiled steps train on batches from neither tf.data nor a DataLoader, so none of them can be seen"
            )

    def synced(self, t_s: float) -> None:
        """Process the end of a wait for the accelerator."""
        self._report.mark("sync", t_s)

    def ends(self, now_s: Optional[float] = None) -> None:
        """End the open step without a next one: now, or at its last observed work."""
        if self.state is _OWN:
            self.state = _LOOKING
            self._step(self._trained_s)
        elif self.state is _TRAINING:
            self._close(self._trained_s if now_s is None else now_s)

    def drop_all(self) -> None:
        """Drop all batches that wait."""
        for source in self._sources:
            source.drop()
        self._sources, self._over = [], []

    def _drop(self, source: BatchSource) -> None:
        self._sources = [one for one in self._sources if one is not source]
        source.drop()

    def _fetch_begins(self, begin_s: float) -> None:
        if self.state is _OWN:  # from now on, there are fetches
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
        """Take the time since then for a pause, unless it is None: what is not trained on was fetched, or computed."""
        if begins_s is not None and self._has_trained and self._pause_begin_s is None:
            self._pause_begin_s, self._pause_end_s = begins_s, end_s

    def _train_on_next(self, now_s: float) -> None:
        """Open a step with the first waiting batch that is trained on; the round's work begins now."""
        fresh = [source for source in self._sources if source.fresh]
        chosen = self._trained_among(fresh) if fresh else [one for one in self._sources if one.waiting][-1:]
        # One batch of a validation before the first step looks like a part of that; it will not come again.
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
        # Whoever peeks at one batch and then makes its own would wait for ever for the next fetch.
        if self.is_fetching:
            return
        self._key = key if self._key is None else self._key
        self._surprises += key == self._key
        if self._surprises >= _UNEXPECTED_LIMIT:
            self.state, self._surprises, self._doubted = _LOOKING, 0, self._source.dataset
            self.drop_all()

    def _make_step(self, key: Any, begin_s: float, samples: Optional[float], is_whole: bool) -> None:
        """Make a step of a loop without fetches; reported with the next one, as the trainer may report its own."""
        if self._key is None:
            self._key = key
        if key != self._key:  # a second work of the same step, or the first has had its time
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
