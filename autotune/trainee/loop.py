"""Observed training loop: the fetches and the work of any framework; step_maker.py makes steps of them.

Calls are recorded as they happen, in a microsecond each, and digested a bundle at a time. Fetches inside a compiled
function are not observed one by one; aggregated_steps.py makes steps of their sums.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable
from typing import Any, Callable, Optional

from autotune.trainee.aggregated_steps import AggregatedSteps
from autotune.trainee.instrumentation import Begin, End
from autotune.trainee.report import Report
from autotune.trainee.step_maker import StepMaker
from autotune.trainee.stream import is_only_watched

DIGEST_EVERY_S = 0.2
"""Interval of digesting and writing, which costs as much as observing many steps; readers look every 0.25 s."""

SYNC_EVERY_S = 1.0
"""Interval between two waits for the accelerator.

In between, a step "ends" when its work is enqueued: the time of a single one means little, but their sum is right.
A training that is only watched is never made to wait: over 10 s, what is still enqueued at both ends does not count.
"""


_OUT_OF_MEMORY = object()  # key of work that was not done


class Loop:
    """Maker of steps from fetches and work, for all frameworks.

    Args:
        report: Where the steps go.

    Attributes:
        report: Where the steps go.
        aggregated: The steps whose fetches are only known as sums.
        steps: The steps whose fetches are observed one by one.
        recorded: Recorded calls that are not digested yet: methods of `steps` with their arguments.
        digest_due_s: Monotonic time of the next digest.
        is_suspended: True while another loop defines the steps, such as Keras's ``fit``: fetches are then only added
            up, in `aggregated`.
        is_counted_whole: True while that loop fetches a batch that it counts itself: fetches within are parts of it.
        sync: Waits for the accelerator; None where there is none.
        wants_samples: True if `worked` has to be given the samples, since no fetch has them.
        unread_loss: A loss that can be read without waiting after the next `sync`.
        phased: `phased_loop.PhasedLoop` that takes the loop through phases; None where there are none.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.aggregated = AggregatedSteps(report)
        self.steps = StepMaker(report)
        self.recorded: list[tuple[Any, ...]] = []
        self.is_suspended = False
        self.is_counted_whole = False
        self.sync: Optional[Callable[[], object]] = None
        self.unread_loss: Any = None
        self.phased: Any = None  # of a type that needs this one
        self.forget()

    def forget(self) -> None:
        """Drop all state in a forked child, where it is the parent's."""
        self.report.forget()
        self.aggregated.forget()
        self.steps.forget()
        self.recorded.clear()
        self.wants_samples = True
        self.digest_due_s = 0.0
        self._synced_s = 0.0
        self._sync_every_s = math.inf if is_only_watched() else SYNC_EVERY_S
        self._pauses = 0  # within one another
        if self.phased is not None:
            self.phased.forget()

    def fetch_begins(self) -> float:
        """Record that the loop, or another caller, asks for a batch.

        Returns:
            The time, for `fetched`.
        """
        now_s = time.monotonic()
        if now_s >= self.digest_due_s:
            self.digest()
            if self.steps.is_trained_on and self._is_sync_due(now_s):
                self.steps.ends(self._wait_for_accelerator())
            return time.monotonic()
        return now_s

    def fetched(self, source: Hashable, begin_s: float, samples: Optional[float]) -> None:
        """Record a fetched batch.

        Args:
            source: Identifies the dataset.
            begin_s: Start of the fetch.
            samples: Samples in the batch; None if unknown.
        """
        end_s = time.monotonic()
        if self.is_suspended:
            if not self.is_counted_whole:
                self.aggregated.add(end_s - begin_s, samples)
        else:
            self.recorded.append((self.steps.fetched, source, begin_s, end_s, samples, threading.get_ident()))

    def exhausted(self, source: Hashable, begin_s: float) -> None:
        """Record the end of a pass over the dataset."""
        if not self.is_suspended:
            self.recorded.append((self.steps.exhausted, source, begin_s, threading.get_ident()))

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
            begin_s: Start of the call.
            samples: Number of samples in its arguments, where visible.
            is_whole: True if it is the whole step but for the fetch.
            thread: Thread of the loop, where known.
        """
        if self.is_suspended:
            return
        end_s = time.monotonic()
        is_synced = self.sync is not None and self.wants_samples and self._is_sync_due(end_s)
        if is_synced:
            end_s = self._wait_for_accelerator()
        self.recorded.append((self.steps.worked, key, begin_s, end_s, samples, is_whole, thread))
        if is_synced or end_s >= self.digest_due_s:
            self.digest()

    def idled(self, key: Any, begin_s: float) -> None:
        """Record the end of a call of a compiled function that does not train."""
        if not self.is_suspended:
            self.recorded.append((self.steps.idled, key, begin_s, time.monotonic()))

    def ran_out_of_memory(self, error: str) -> None:
        """Record an out-of-memory error: a trainer that continues skips this step, and its loss is infinite.

        Args:
            error: Message of the error.
        """
        now_s = time.monotonic()
        self.report.note(f"memory ran out: {' '.join(error.split())}")
        self.report.loss(now_s, math.inf)
        self.recorded.append((self.steps.worked, _OUT_OF_MEMORY, now_s, now_s, None, False, None))
        if now_s >= self.digest_due_s:
            self.digest()

    def always_trains(self) -> None:
        """Record that the step is compiled and invisible from now on: the present dataset is trained on."""
        if not self.is_suspended:
            self.recorded.append((self.steps.always_trains, time.monotonic()))
            self.digest()  # rare; and where nothing was fetched, nothing else may come that does

    def pause_begins(self) -> float:
        """Record the start of a pause without training: a checkpoint, or a marked validation."""
        self._pauses += 1
        if self._pauses == 1:
            self.flush()
        return time.monotonic()

    def pause_ends(self, kind: str, begin_s: float, loss: Any = None) -> None:
        """Record the end of the pause; of an evaluation with the loss that it found, where that is known."""
        self._pauses -= 1
        if self._pauses == 0:
            self.digest()
            now_s = time.monotonic()
            self.aggregated.skip(now_s)
            self.report.mark(kind, now_s, now_s - begin_s, loss)

    def around_pause(self, kind: str) -> tuple[Begin, End]:
        """Return the callbacks around a function whose time is such a pause."""

        def begin(args: Any, kwargs: Any) -> float:
            return self.pause_begins()

        def end(begin_s: float, result: Any, error: Optional[BaseException]) -> None:
            self.pause_ends(kind, begin_s)

        return begin, end

    def flush(self) -> None:
        """Write all steps that are known by now."""
        self.aggregated.flush()
        self.digest()

    def ends(self) -> None:
        """Record the end of the process: its last step has no next fetch."""
        self.flush()
        self.steps.ends()
        self.report.flush()

    def digest(self) -> None:
        """Make steps of the recorded calls, and write them."""
        self.digest_due_s = time.monotonic() + DIGEST_EVERY_S
        recorded = self.recorded[:]
        del self.recorded[: len(recorded)]  # and not what another thread has noted since
        if not self.report.is_ours:
            self.sync = None  # who reports its steps itself says when all work is done, or does not
            return
        self.steps.take(recorded)
        self.wants_samples = not self.steps.is_fetching
        self.report.flush()

    def _is_sync_due(self, now_s: float) -> bool:
        return self.sync is not None and now_s - self._synced_s >= self._sync_every_s

    def _wait_for_accelerator(self) -> float:
        assert self.sync is not None
        self.sync()
        self._synced_s = now_s = time.monotonic()
        if self.unread_loss is not None:
            self.report.loss(now_s, self.unread_loss)
            self.unread_loss = None
        self.recorded.append((self.report.mark, "sync", now_s))
        return now_s
