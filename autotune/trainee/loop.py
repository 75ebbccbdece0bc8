"""Observed training loop: what the observers of all frameworks report to.

Events are recorded as they happen, in a microsecond each, and digested a bundle at a time by `steps.StepMaker`. Fetches
inside a compiled function are not observed one by one; `AggregatedSteps` makes steps of their sums.
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
"""Interval of digesting and writing, which costs as much as observing many steps; readers look every 0.25 s."""

SYNC_EVERY_S = 1.0
"""Interval between two waits for an accelerator of which nobody can ask whether it has completed a step (TensorFlow's).

In between, a step "ends" when its work is enqueued: the time of a single one means little, but their sum is right.
A training that is only watched is never made to wait: over 10 s, what is still enqueued at both ends does not count.
"""


_LONGEST_AT_END_S = 10.0


class Loop:
    """Maker of steps from fetches and work, for all frameworks.

    Attributes:
        counters: Each returns the sums over fetches inside compiled functions since its last call.
        aggregated: The steps whose fetches are only known as sums.
        steps: The steps whose fetches are observed one by one.
        recorded: Recorded events that are not digested yet: functions of `StepMaker` with their arguments.
        digest_due_s: Monotonic time of the next digest.
        is_suspended: True while another loop defines the steps, such as Keras's ``fit``: fetches are then only added
            up, in `aggregated`.
        is_counted_whole: True while that loop fetches a batch that it counts itself: fetches within are parts of it.
        sync: Waits for the accelerator; None where there is none.
        wants_samples: True if `worked` has to be given the samples, since no fetch has them.
        unread_loss: A loss that can be read without waiting after the next `sync`.
        fingerprints: Of the samples that are fetched; None where none are asked for.
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
        self._pauses = 0  # within one another
        self.aggregated = AggregatedSteps(report, self.counters)
        self.steps = StepMaker(report)
        self.fingerprints = fingerprints_of_trial(os.environ.get(TRIAL_DIR_VARIABLE))
        self._own: dict[Any, Pass] = {}

    def forget(self) -> None:
        """Begin anew in a forked child: what is recorded here is the parent's."""
        self.report.forget()
        if self.fingerprints is not None:
            self.fingerprints.forget()
        self._own.clear()
        self.recorded.clear()
        self.wants_samples, self._pauses = True, 0
        self.steps.drop_all()
        self.aggregated, self.steps = AggregatedSteps(self.report, self.counters), StepMaker(self.report)

    def fetch_begins(self) -> float:
        """Record that the loop, or another caller, asks for a batch.

        Returns:
            The time, for `fetched`.
        """
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
        """Record a fetched batch.

        Args:
            samples: Samples in the batch; None if unknown.
        """
        end_s = time.monotonic()
        if not self.is_suspended:
            self.recorded.append((StepMaker.fetched, source, begin_s, end_s, samples, threading.get_ident()))
        elif not self.is_counted_whole:
            self.aggregated.add(end_s - begin_s, samples)

    def look(self, source: BatchSource, batch: Any) -> None:
        """Look at the samples of a batch that was fetched."""
        assert self.fingerprints is not None, "only then it is called"
        if source.data is None:
            dataset = source.dataset
            if dataset.set is None:
                dataset.set = self.fingerprints.dataset()
            is_fit = self.is_suspended and not self._pauses  # which says nothing of single fetches
            source.data = self.fingerprints.begin(
                dataset.set, lambda: is_fit or source.is_trained or dataset.always_trains
            )
        assert source.size is not None, "it has been asked for"
        self.fingerprints.look(source.data, batch, source.size(batch))

    def look_at_own(self, key: Any, batch: Any, samples: Optional[float]) -> None:
        """Look at the samples in the arguments of a step whose batches nothing that is known has fetched.

        Args:
            key: Identifies the step.
        """
        if self.fingerprints is not None:
            if key not in self._own:
                self._own[key] = self.fingerprints.begin(self.fingerprints.dataset(), lambda: True)
                self._own[key].number = None  # the ends of passes are not seen
            self.fingerprints.look(self._own[key], batch, samples)

    def exhausted(self, source: BatchSource, begin_s: float) -> None:
        """Record the end of a pass over the dataset."""
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
            key: Identifies the place in the trainer's code that made the call.
            samples: Number of samples in its arguments, where visible.
            is_whole: True if it is the whole step but for the fetch.
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
        """Return whether what the device was given now is to be watched for its completion.

        Never in real training, which is counted for minutes: there it would only cost.
        """
        return self._sees_completion and self.completions.is_due(now_s)

    @property
    def completions(self) -> Completions:
        """Work that a device completes behind the program."""
        if self.report.completions is None:
            self.report.completions = Completions()
        return self.report.completions

    def called(self, begin_s: float, end_s: float, thread: int) -> None:
        """Record a call of a compiled function that trains on nothing: many of them may be an evaluation."""
        self.recorded.append((StepMaker.called, begin_s, end_s, thread))
        if end_s >= self.digest_due_s:
            self.digest()

    def ran_out_of_memory(self, error: str) -> None:
        """Record an out-of-memory error: a trainer that continues skips this step, and its loss is infinite."""
        now_s = time.monotonic()
        self.report.note(f"memory ran out: {' '.join(error.split())}")
        self.report.loss(now_s, math.inf)
        self.recorded.append((StepMaker.worked, "out of memory", now_s, now_s, None, False, None))
        if now_s >= self.digest_due_s:
            self.digest()

    def always_trains(self, *, calls_are_seen: bool = False) -> None:
        """Record that the step is compiled and invisible from now on: the present dataset is trained on.

        Args:
            calls_are_seen: Whether the compiled step's calls are, so that they make steps where nothing is fetched.
        """
        if not self.is_suspended:
            self.recorded.append((StepMaker.always_trains, time.monotonic(), calls_are_seen))
            self.digest()  # rare; and where nothing was fetched, nothing else may come that does

    def saw_loss(self, now_s: float, loss: Any, is_on_cpu: bool) -> None:
        """Record the loss of a step, which is read where that waits for no accelerator, or else after the next sync."""
        if is_on_cpu:
            self.report.loss(now_s, loss)
        else:
            self.unread_loss = loss

    def pause_begins(self) -> float:
        """Record the start of a pause without training: a checkpoint, or a marked validation."""
        self._pauses += 1
        if self._pauses == 1:
            self.flush()
            self.report.pauses()
        return time.monotonic()

    def pause_ends(self, kind: str, begin_s: float, loss: Any = None) -> None:
        """Record the end of the pause; of an evaluation with the loss that it found, where that is known."""
        self._pauses -= 1
        if self._pauses == 0:
            now_s = time.monotonic()  # before what the device was behind with is seen to be completed: it is in there
            self.digest()
            self.aggregated.skip(now_s)
            self.report.mark(kind, now_s, now_s - begin_s, loss)

    def flush(self) -> None:
        """Write all steps that are known by now."""
        self.aggregated.flush()
        self.digest()

    def ends(self) -> None:
        """Record the end of the process: its last step has no next fetch."""
        self.flush()
        self.steps.ends()
        give_up_s = time.monotonic() + _LONGEST_AT_END_S
        while self.report.completions is not None and self.report.completions.is_pending:
            time.sleep(APART_S)  # nobody is kept from training any more
            self.report.completions.poll(time.monotonic())
            if time.monotonic() > give_up_s:
                break
        if self.fingerprints is not None:
            self.fingerprints.flush()
        self.report.flush()

    def digest(self) -> None:
        """Make steps of the recorded events, and write them."""
        self.digest_due_s = time.monotonic() + DIGEST_EVERY_S
        recorded = self.recorded[:]
        del self.recorded[: len(recorded)]  # and not what another thread has noted since
        if not self.report.is_ours:
            self.sync = None  # who reports its steps itself says when all work is done, or does not
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
"""Least interval between two readings of the sums; one takes about 0.1 ms.

A longer step gets its own data wait and samples; shorter ones share the mean of the steps between two readings.
"""

Sums = tuple[float, float, float]
"""Seconds of waiting for data, number of samples, number of batches."""


class AggregatedSteps:
    """Reported steps, made from step ends and from sums over the fetches between them.

    Args:
        counters: Each returns the sums since its last call.
    """

    def __init__(self, report: Report, counters: list[Callable[[], Sums]]) -> None:
        self._report = report
        self._counters = counters
        self._ends_s: list[float] = []
        self._ending_s: Optional[float] = None  # end of a step whose callbacks are called now
        self._is_taken = False  # whether that was reported meanwhile
        self._last_s: Optional[float] = None  # end of the last step that was reported, or of a pause since
        self._read_s = 0.0
        self._sums: Sums = (0.0, 0.0, 0.0)
        self._is_first = True

    def add(self, wait_s: float, samples: Optional[float], batches: float = 1.0) -> None:
        """Add a fetch that was observed in Python."""
        self._sums = (self._sums[0] + wait_s, self._sums[1] + (samples or 0.0), self._sums[2] + batches)

    def ending(self, t_s: float) -> None:
        """Note the end of a step whose callbacks are about to be called: a pause in them comes after it."""
        self._ending_s, self._is_taken = t_s, False

    def ended(self, t_s: float) -> None:
        """Add the end of a step, or of one execution of several steps, unless a pause in its callbacks did."""
        was_taken, self._ending_s, self._is_taken = self._is_taken, None, False
        if was_taken:
            return
        self._ends_s.append(t_s)
        # The first is held back until the second: the trainer may report its steps itself.
        if t_s - self._read_s >= READ_EVERY_S and not (self._is_first and len(self._ends_s) == 1):
            self.flush()

    def flush(self) -> None:
        """Report the steps that have ended."""
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
        """Discard the fetches and the time since the last step, as those of a pause without training."""
        self._take()
        if self._last_s is not None:
            self._last_s = now_s

    def _take(self) -> Sums:
        for counter in self._counters:
            self.add(*counter())
        sums, self._sums = self._sums, (0.0, 0.0, 0.0)
        return sums
