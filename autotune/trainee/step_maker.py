"""Step maker: groups the observed fetches and work of a training loop into steps.

A step is a fetched batch that was trained on. Batches that are not trained on, such as validation data, are no steps;
their time is a pause. *Work* is what only training does: the computation of a gradient, or a compiled step that
contains one. A step ends where the next batch is fetched, so that all time of the loop belongs to one step or the next.
A loop that makes its own batches has no visible fetches; its steps are made of the work alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Optional

from autotune.trainee.report import Report

_UNEXPECTED_LIMIT = 8  # unexpected observations before they count as the rule
_FEW_CALLS = 3  # of a function that does not train, between two steps, are no validation
_NO_SOURCE = -1  # of a batch that was not seen to be fetched


class _Batch:
    """Batches that a step is being made of."""

    __slots__ = ("begin_s", "samples", "sources", "thread", "wait_s")

    def __init__(
        self, source: Hashable, begin_s: float, wait_s: Optional[float], samples: Optional[float], thread: Optional[int]
    ) -> None:
        self.sources: set[Hashable] = {source}
        self.begin_s = begin_s
        self.wait_s = wait_s
        self.samples = samples
        self.thread = thread


class StepMaker:
    """Maker of steps from the observations of a training loop, in their order, on the monotonic clock.

    Args:
        report: Receives the steps.

    Attributes:
        is_fetching: True if the loop's steps are made of fetches, as far as is known.
        is_trained_on: True if the batch that was fetched last has been trained on.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.forget()

    def forget(self) -> None:
        """Reset all state."""
        # How the loop works, as far as it is known.
        self.is_fetching = False
        self._is_usual = False  # the last step was one like all others: nothing has to be learned from the next
        self._has_trained = False
        self._is_ahead = False  # it fetches a batch before it trains on the one before
        self._thread: Optional[int] = None
        self._training_sources: set[Hashable] = set()
        self._always_trained: set[Hashable] = set()
        self._key: Any = None  # which work makes the steps of a loop without fetches
        self._surprises = 0
        # The step that is under way.
        self._open: Optional[_Batch] = None
        self.is_trained_on = False
        self._trained_s = 0.0
        self._last_samples: Optional[float] = None
        self._passed_over: Hashable = None  # the source of a batch that was not trained on when the next came
        self._pause_begin_s: Optional[float] = None
        self._idle_key: Any = None
        self._idle_begin_s = 0.0
        self._idle_calls = 0
        self._usual_idle_calls = _FEW_CALLS

    def take(self, recorded: Sequence[tuple[Any, ...]]) -> None:
        """Process the recorded calls: methods of this class with their arguments."""
        fetched, worked, held = self.fetched, self.worked, self._report.held
        for event in recorded:
            happened, batch = event[0], self._open
            if not self._is_usual or batch is None:
                happened(*event[1:])
            # Nearly always a step is like the one before. This does what those methods would, and faster.
            elif happened == worked:
                self.is_trained_on, self._trained_s = True, event[3]
            elif happened == fetched and self.is_trained_on and event[1] in batch.sources and event[5] == batch.thread:
                held.append((event[2], batch.wait_s, batch.samples))
                batch.begin_s, batch.wait_s, batch.samples = event[2], event[3] - event[2], event[4]
                self.is_trained_on = False
            else:
                happened(*event[1:])

    def fetched(self, source: Hashable, begin_s: float, end_s: float, samples: Optional[float], thread: int) -> None:
        """Process a fetched batch, see `Loop.fetched`."""
        if self._thread is not None and self._thread != thread:
            return  # a loader of the user's own, in the background
        self._next_begins(source, begin_s)
        batch = self._open
        if batch is None:
            self._open = _Batch(source, begin_s, end_s - begin_s, samples, thread)
            if source in self._always_trained:
                self.is_trained_on, self._trained_s = True, end_s
        else:
            self._is_usual = False
            batch.sources.add(source)
            batch.wait_s = end_s - begin_s + (batch.wait_s or 0.0)
            self._report.note("a step takes a batch from each of several datasets: its samples are those of the first")

    def _next_begins(self, source: Hashable, begin_s: float) -> None:
        batch = self._open
        if batch is None:
            return
        if _NO_SOURCE in batch.sources:  # from now on, there are fetches
            self._open, self._has_trained = None, True
            self._step(batch, self._trained_s)
        elif self.is_trained_on:
            self._close(batch, begin_s)
        elif source in batch.sources or (
            source in self._training_sources and not batch.sources & self._training_sources
        ):
            self._pass_over(batch)
        # else: the step takes a batch from each of several datasets

    def exhausted(self, source: Hashable, begin_s: float, thread: int) -> None:
        """Process the end of a pass over a dataset, see `Loop.exhausted`."""
        if self._thread is not None and self._thread != thread:
            return
        self._next_begins(source, begin_s)
        batch = self._open
        if batch is not None:
            self._pass_over(batch)
        self._passed_over = None
        if source in self._training_sources:
            self._report.mark("epoch_end", begin_s)
            if self._is_ahead and batch is None:
                self._open = _Batch(source, begin_s, 0.0, self._last_samples, thread)

    def _pass_over(self, batch: _Batch) -> None:
        self._open = None
        self._is_usual = False
        self._passed_over = next(iter(batch.sources))
        if self._has_trained and self._pause_begin_s is None:
            self._pause_begin_s = batch.begin_s

    def _close(self, batch: _Batch, t_s: float) -> None:
        self._open, self.is_trained_on = None, False
        self.is_fetching = self._has_trained = True
        self._surprises = 0
        self._training_sources |= batch.sources
        self._last_samples = batch.samples
        self._step(batch, t_s)
        self._is_usual = not self._is_ahead and not self._always_trained

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
            if self._open is not None and self._open.thread != thread:
                self._open = None
        batch = self._open
        if batch is not None and batch.sources != {_NO_SOURCE}:
            self._train_on(batch, key)
        elif not self.is_fetching:
            self._make_step(batch, key, begin_s, samples, is_whole)
        else:  # some more work on the last batch, or the loop has done with fetching
            self._is_usual = False
            self._surprises += 1
            self.is_fetching = self._surprises < _UNEXPECTED_LIMIT
            self._key = None
        self._trained_s = end_s

    def _train_on(self, batch: _Batch, key: Any) -> None:
        if not self._has_trained and not self.is_trained_on and self._passed_over in batch.sources:
            self._is_ahead = True
        self.is_trained_on = True
        if not self.is_fetching:
            # Whoever peeks at one batch and then makes its own would wait for ever for the next fetch.
            self._key = key if self._key is None else self._key
            self._surprises += key == self._key
            if self._surprises >= _UNEXPECTED_LIMIT:
                self._open, self.is_trained_on, self._surprises = None, False, 0

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
        self._open = _Batch(_NO_SOURCE, begin_s, wait_s, samples, None)

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
        if self._open is not None and not self.is_trained_on:
            self._always_trained |= self._open.sources
            self.is_trained_on, self._trained_s = True, now_s

    def _step(self, batch: _Batch, t_s: float) -> None:
        if self._pause_begin_s is not None:
            self._report.mark("eval", batch.begin_s, batch.begin_s - self._pause_begin_s)
            self._pause_begin_s = None
        self._report.step(t_s, batch.wait_s, batch.samples)

    def ends(self, now_s: Optional[float] = None) -> None:
        """End the open step without a next one: now, or at its last observed work."""
        batch = self._open
        if batch is None:
            return
        if batch.sources == {_NO_SOURCE}:
            self._open = None
            self._step(batch, self._trained_s)
        elif self.is_trained_on:
            self._close(batch, self._trained_s if now_s is None else now_s)
