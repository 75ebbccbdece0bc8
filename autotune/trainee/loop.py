"""Observed training loop, to which all observers report.

Events are recorded in about 1 µs each and digested in bulk by `steps.StepMaker`. `AggregatedSteps` makes steps from
sums over fetches inside compiled functions.
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Any, Callable, Optional

from autotune.trainee.completion import APART_S, Completions
from autotune.trainee.samples import Pass, fingerprints_of_trial
from autotune.trainee.steps import BatchSource, LoopState, StepMaker
from autotune.trainee.stream import TRIAL_DIR_VARIABLE, Report, is_only_watched

DIGEST_EVERY_S = 0.2
"""Interval between digests; one costs as much as observing many steps."""

SYNC_EVERY_S = 1.0
"""Interval between waits for an accelerator that can't be polled (TensorFlow's), except in watched training.

In between, a step ends when its work is enqueued: single times mean little, but their sum is right.
"""


_LONGEST_AT_END_S = 10.0


class Loop:
    """Recorder of fetches and work, which become steps, for all frameworks.

    Attributes:
        counters: Return the sums over fetches inside compiled functions since their last call.
        recorded: Events not yet digested: functions of `StepMaker` with arguments.
        is_suspended: True while e.g. Keras's ``fit`` defines the steps; fetches only add up in `aggregated`.
        is_counted_whole: True while that loop counts a fetch itself, nested ones included.
        sync: Waits for the accelerator, after which `unread_loss` can be read.
        wants_samples: True if `worked` needs the samples, because no fetch has them.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.counters: list[Callable[[], Sums]] = []
        self.recorded: list[tuple[Any, ...]] = []
        self.is_suspended = False
        self.is_counted_whole = False
        self.sync: Optional[Callable[[], object]] = None
        self.unread_loss: Any = None
        self.wants_samples = True
        self.digest_due_s = 0.0
        self._synced_s = 0.0
        self._sync_every_s = math.inf if is_only_watched() else SYNC_EVERY_S
        self._sees_completion = not is_only_watched()
        self._pauses = 0  # nested
        self.aggregated = AggregatedSteps(report, self.counters)
        self.steps = StepMaker(report)
        self.fingerprints = fingerprints_of_trial(os.environ.get(TRIAL_DIR_VARIABLE))
        self._own: dict[Any, Pass] = {}

    def forget(self) -> None:
        self.report.forget()
        if self.fingerprints is not None:
            self.fingerprints.forget()
        self._own.clear()
        self.recorded.clear()
        self.wants_samples, self._pauses = True, 0
        self.steps.drop_all()
        self.aggregated, self.steps = AggregatedSteps(self.report, self.counters), StepMaker(self.report)

    def fetch_begins(self) -> float:
        """Record a request for a batch; return the time, for `fetched`."""
        now_s = time.monotonic()
        if self.report.completions is not None:
            self.report.completions.poll(now_s)
        if now_s >= self.digest_due_s:
            self.digest()
            if self.steps.state is LoopState.TRAINING and self._is_sync_due(now_s):
                self.steps.ends(self._wait_for_accelerator())
            return time.monotonic()
        return now_s

    def fetched(self, source: BatchSource, begin_s: float, samples: Optional[float]) -> None:
        end_s = time.monotonic()
        if not self.is_suspended:
            self.recorded.append((StepMaker.fetched, source, begin_s, end_s, samples, threading.get_ident()))
        elif not self.is_counted_whole:
            self.aggregated.add(end_s - begin_s, samples)

    def take_fingerprint(self, source: BatchSource, batch: Any) -> None:
        assert self.fingerprints is not None, "only then it is called"
        if source.data is None:
            dataset = source.dataset
            if dataset.set is None:
                dataset.set = self.fingerprints.dataset()
            is_fit = self.is_suspended and not self._pauses  # ``fit`` doesn't report single fetches
            source.data = self.fingerprints.begin(
                dataset.set, lambda: is_fit or source.is_trained or dataset.always_trains
            )
        assert source.size is not None, "it has been asked for"
        self.fingerprints.take(source.data, batch, source.size(batch))

    def take_own_fingerprint(self, key: Any, batch: Any, samples: Optional[float]) -> None:
        """Take the fingerprint of a step's arguments if no known loader fetched its batches."""
        if self.fingerprints is not None:
            if key not in self._own:
                self._own[key] = self.fingerprints.begin(self.fingerprints.dataset(), lambda: True)
                self._own[key].number = None  # ends of passes aren't seen
            self.fingerprints.take(self._own[key], batch, samples)

    def exhausted(self, source: BatchSource, begin_s: float) -> None:
        source.data = None
        if not self.is_suspended:
            self.recorded.append((StepMaker.exhausted, source, begin_s, threading.get_ident()))

    def worked(
        self,
        key: Any,
        begin_s: float,
        samples: Optional[float] = None,
        is_whole: bool = False,
        thread: Optional[int] = None,
    ) -> None:
        """Record the end of a call that only training makes.

        Args:
            key: Identifies the calling place in the trainer's code.
            samples: Samples in its arguments, if visible.
            is_whole: True if it is the whole step except for the fetch.
        """
        if self.is_suspended:
            return
        end_s = time.monotonic()
        if self.report.completions is not None:
            self.report.completions.poll(end_s)
        is_synced = self.wants_samples and self._is_sync_due(end_s)
        if is_synced:
            end_s = self._wait_for_accelerator()
        self.recorded.append((StepMaker.worked, key, begin_s, end_s, samples, is_whole, thread))
        if is_synced or end_s >= self.digest_due_s:
            self.digest()

    def is_marker_due(self, now_s: float) -> bool:
        """Return whether to track the work given now; never in watched training."""
        return self._sees_completion and self.completions.is_due(now_s)

    @property
    def completions(self) -> Completions:
        if self.report.completions is None:
            self.report.completions = Completions()
        return self.report.completions

    def called(self, begin_s: float, end_s: float, thread: int) -> None:
        """Record a call of a compiled function that doesn't train."""
        self.recorded.append((StepMaker.called, begin_s, end_s, thread))
        if end_s >= self.digest_due_s:
            self.digest()

    def ran_out_of_memory(self, error: str) -> None:
        """Record an out-of-memory error; a trainer that continues skips the step, with an infinite loss."""
        now_s = time.monotonic()
        self.report.note(f"memory ran out: {' '.join(error.split())}")
        self.report.loss(now_s, math.inf)
        self.recorded.append((StepMaker.worked, "out of memory", now_s, now_s, None, False, None))
        if now_s >= self.digest_due_s:
            self.digest()

    def always_trains(self, *, calls_are_seen: bool = False) -> None:
        """Record that the step is now compiled and invisible: the current dataset is trained on.

        Args:
            calls_are_seen: Whether its calls make steps if nothing is fetched.
        """
        if not self.is_suspended:
            self.recorded.append((StepMaker.always_trains, time.monotonic(), calls_are_seen))
            self.digest()  # rare; without fetches, no later event may digest

    def saw_loss(self, now_s: float, loss: Any, is_on_cpu: bool) -> None:
        """Record a step's loss; on an accelerator it is read after the next sync."""
        if is_on_cpu:
            self.report.loss(now_s, loss)
        else:
            self.unread_loss = loss

    def pause_begins(self) -> float:
        self._pauses += 1
        if self._pauses == 1:
            self.flush()
            self.report.pauses()
        return time.monotonic()

    def pause_ends(self, kind: str, begin_s: float, loss: Any = None) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            now_s = time.monotonic()  # before `digest` polls completions: the device's backlog is part of the pause
            self.digest()
            self.aggregated.skip(now_s)
            self.report.mark(kind, now_s, now_s - begin_s, loss=loss)

    def flush(self) -> None:
        self.aggregated.flush()
        self.digest()

    def ends(self) -> None:
        self.flush()
        self.steps.ends()
        give_up_s = time.monotonic() + _LONGEST_AT_END_S
        while self.report.completions is not None and self.report.completions.is_pending:
            time.sleep(APART_S)  # no training is delayed any longer
            self.report.completions.poll(time.monotonic())
            if time.monotonic() > give_up_s:
                break
        if self.fingerprints is not None:
            self.fingerprints.flush()
        self.report.flush()

    def digest(self) -> None:
        self.digest_due_s = time.monotonic() + DIGEST_EVERY_S
        recorded = self.recorded[:]
        del self.recorded[: len(recorded)]  # not what another thread has recorded since
        if not self.report.is_ours:
            self.sync = None  # a trainer that reports its own steps decides itself whether to sync
            return
        self.steps.take(recorded)
        if self.fingerprints is not None:
            self.fingerprints.flush()
        self.wants_samples = not self.steps.is_fetching
        self.report.flush()

    def _is_sync_due(self, now_s: float) -> bool:
        is_asked = self.report.completions is not None
        return self.sync is not None and not is_asked and now_s - self._synced_s >= self._sync_every_s

    def _wait_for_accelerator(self) -> float:
        assert self.sync is not None
        self.sync()
        self._synced_s = now_s = time.monotonic()
        if self.unread_loss is not None:
            self.report.loss(now_s, self.unread_loss)
            self.unread_loss = None
        self.recorded.append((StepMaker.synced, now_s))
        return now_s


READ_EVERY_S = 0.2
"""Least interval between two readings of the sums, of about 0.1 ms each; shorter steps share their mean."""

Sums = tuple[float, float, float]
"""Seconds of waiting for data, number of samples, number of batches."""


class AggregatedSteps:
    """Steps made from step ends and sums over the fetches between."""

    def __init__(self, report: Report, counters: list[Callable[[], Sums]]) -> None:
        self._report = report
        self._counters = counters
        self._ends_s: list[float] = []
        self._ending_s: Optional[float] = None  # end of a step whose callbacks are running
        self._is_taken = False  # whether that end was reported meanwhile
        self._last_s: Optional[float] = None  # end of the last reported step, or of a later pause
        self._read_s = 0.0
        self._sums: Sums = (0.0, 0.0, 0.0)
        self._is_first = True

    def add(self, wait_s: float, samples: Optional[float], batches: float = 1.0) -> None:
        self._sums = (self._sums[0] + wait_s, self._sums[1] + (samples or 0.0), self._sums[2] + batches)

    def ending(self, t_s: float) -> None:
        """Record a step's end before its callbacks run: a pause in them comes after it."""
        self._ending_s, self._is_taken = t_s, False

    def ended(self, t_s: float) -> None:
        """Add the end of a step, or of several executed as one, unless a pause in its callbacks did."""
        was_taken, self._ending_s, self._is_taken = self._is_taken, None, False
        if was_taken:
            return
        self._ends_s.append(t_s)
        # The first is held back until the second: the trainer may report its own steps.
        if t_s - self._read_s >= READ_EVERY_S and not (self._is_first and len(self._ends_s) == 1):
            self.flush()

    def flush(self) -> None:
        if self._ending_s is not None and not self._is_first:
            self._ends_s.append(self._ending_s)
            self._ending_s, self._is_taken = None, True
        ends_s, self._ends_s = self._ends_s, []
        if not ends_s:
            return
        self._is_first = False
        self._read_s = ends_s[-1]
        wait_s, samples, batches = self._take()
        count = max(round(batches), len(ends_s))
        if count > len(ends_s):
            self._report.note("several steps are executed as one: their times, waits and samples are means")
        are_seen = batches >= len(ends_s)  # all of their fetches
        wait = wait_s / batches if are_seen else None
        share = samples / batches if are_seen and samples else None
        for number, end_s in enumerate(ends_s):
            begin_s = end_s if self._last_s is None else self._last_s
            in_one = (number + 1) * count // len(ends_s) - number * count // len(ends_s)
            for part in range(1, in_one + 1):
                self._report.held.append((begin_s + (end_s - begin_s) * part / in_one, wait, share))
            self._last_s = end_s
        self._report.flush()

    def skip(self, now_s: float) -> None:
        """Discard the fetches and time since the last step as a pause."""
        self._take()
        if self._last_s is not None:
            self._last_s = now_s

    def _take(self) -> Sums:
        for counter in self._counters:
            self.add(*counter())
        sums, self._sums = self._sums, (0.0, 0.0, 0.0)
        return sums
