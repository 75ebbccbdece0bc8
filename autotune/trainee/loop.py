"""What a training loop is seen to do, by whatever framework it uses; what is a step of it, step_maker.py decides.

What is seen is noted as it happens, which takes a microsecond, and thought about a bundle at a time. Fetches in the
midst of a compiled function are not seen one by one; aggregated_steps.py makes steps of their sums.
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

DIGEST_EVERY_S = 0.2
"""Who reads the steps looks every quarter of a second; to digest and to write costs as much as seeing many steps."""

SYNC_EVERY_S = 1.0
"""Between two waits for the accelerator. In between, a step "ends" when its work is enqueued, so that a single one of
their times means little while their sum is right."""


_OUT_OF_MEMORY = object()  # the place of work that was not done


class Loop:
    """Makes steps of fetches and work, for all frameworks.

    Args:
        report: Where the steps go.

    Attributes:
        report: Where the steps go.
        aggregated: The steps whose fetches are only known as sums.
        steps: The others.
        seen: What has happened and was not thought about yet: methods of `steps`, and what to call them with.
        digest_due_s: When to think about it.
        is_suspended: Whether somebody else says what a step is, such as Keras's ``fit``: fetches are only added up
            then, in `aggregated`.
        sync: Waits for the accelerator; None where there is none.
        wants_samples: Whether `worked` has to say what it was done on, since no fetch does.
        unread_loss: A loss that can be read without waiting after the next `sync`.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.aggregated = AggregatedSteps(report)
        self.steps = StepMaker(report)
        self.seen: list[tuple[Any, ...]] = []
        self.is_suspended = False
        self.sync: Optional[Callable[[], object]] = None
        self.unread_loss: Any = None
        self.forget()

    def forget(self) -> None:
        """In a forked child: the parent's loop is not this one's."""
        self.report.forget()
        self.aggregated.forget()
        self.steps.forget()
        self.seen.clear()
        self.wants_samples = True
        self.digest_due_s = 0.0
        self._synced_s = 0.0
        self._pauses = 0  # within one another

    def fetch_begins(self) -> float:
        """The loop, or somebody else, asks for a batch.

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
        """The batch is there.

        Args:
            source: Names the dataset.
            begin_s: When it was asked for.
            samples: In it; None if not known.
        """
        end_s = time.monotonic()
        if self.is_suspended:
            self.aggregated.add(end_s - begin_s, samples)
        else:
            self.seen.append((self.steps.fetched, source, begin_s, end_s, samples, threading.get_ident()))

    def exhausted(self, source: Hashable, begin_s: float) -> None:
        """There is no further batch in this pass over the dataset."""
        if not self.is_suspended:
            self.seen.append((self.steps.exhausted, source, begin_s, threading.get_ident()))

    def worked(
        self,
        key: Any,
        begin_s: float,
        samples: Optional[float] = None,
        is_whole: bool = False,
        thread: Optional[int] = None,
    ) -> None:
        """Something that only training does has just ended.

        Args:
            key: Names the place in the trainer's code that did it.
            begin_s: When that began.
            samples: What it was done on, if that is to be seen.
            is_whole: Whether it is all that a step does but for getting its batch.
            thread: The loop's, where it is known.
        """
        if self.is_suspended:
            return
        end_s = time.monotonic()
        is_synced = self.sync is not None and self.wants_samples and self._is_sync_due(end_s)
        if is_synced:
            end_s = self._wait_for_accelerator()
        self.seen.append((self.steps.worked, key, begin_s, end_s, samples, is_whole, thread))
        if is_synced or end_s >= self.digest_due_s:
            self.digest()

    def idled(self, key: Any, begin_s: float) -> None:
        """A compiled function that does not train has just ended."""
        if not self.is_suspended:
            self.seen.append((self.steps.idled, key, begin_s, time.monotonic()))

    def ran_out_of_memory(self, error: str) -> None:
        """The framework has raised that: a trainer that goes on leaves this step out, and its loss is infinite.

        Args:
            error: What it says.
        """
        now_s = time.monotonic()
        self.report.note(f"memory ran out: {' '.join(error.split())}")
        self.report.loss(now_s, math.inf)
        self.seen.append((self.steps.worked, _OUT_OF_MEMORY, now_s, now_s, None, False, None))
        if now_s >= self.digest_due_s:
            self.digest()

    def always_trains(self) -> None:
        """What trains has been compiled and will not be seen again: the data in use by now is what it trains on."""
        if not self.is_suspended:
            self.seen.append((self.steps.always_trains, time.monotonic()))

    def pause_begins(self) -> float:
        """Something that is no training begins: a checkpoint, or a validation that says that it is one."""
        self._pauses += 1
        if self._pauses == 1:
            self.flush()
        return time.monotonic()

    def pause_ends(self, kind: str, begin_s: float) -> None:
        """It has ended."""
        self._pauses -= 1
        if self._pauses == 0:
            self.digest()
            now_s = time.monotonic()
            self.aggregated.skip(now_s)
            self.report.mark(kind, now_s, now_s - begin_s)

    def around_pause(self, kind: str) -> tuple[Begin, End]:
        """What to put around a function whose time is such a pause."""

        def begin(args: Any, kwargs: Any) -> float:
            return self.pause_begins()

        def end(begin_s: float, result: Any, error: Optional[BaseException]) -> None:
            self.pause_ends(kind, begin_s)

        return begin, end

    def flush(self) -> None:
        """Writes all that is known by now."""
        self.aggregated.flush()
        self.digest()

    def ends(self) -> None:
        """The process ends: its last step has no next fetch."""
        self.flush()
        self.steps.ends()
        self.report.flush()

    def digest(self) -> None:
        """Makes steps of what was seen, and writes them."""
        self.digest_due_s = time.monotonic() + DIGEST_EVERY_S
        seen = self.seen[:]
        del self.seen[: len(seen)]  # and not what another thread has noted since
        if not self.report.is_ours:
            self.sync = None  # who reports its steps itself says when all work is done, or does not
            return
        self.steps.take(seen)
        self.wants_samples = not self.steps.is_fetching
        self.report.flush()

    def _is_sync_due(self, now_s: float) -> bool:
        return self.sync is not None and now_s - self._synced_s >= SYNC_EVERY_S

    def _wait_for_accelerator(self) -> float:
        assert self.sync is not None
        self.sync()
        self._synced_s = now_s = time.monotonic()
        if self.unread_loss is not None:
            self.report.loss(now_s, self.unread_loss)
            self.unread_loss = None
        self.seen.append((self.report.mark, "sync", now_s))
        return now_s
