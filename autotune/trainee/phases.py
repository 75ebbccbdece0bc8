"""Phases of a trial: plain training, training on a few kept batches, and drawing batches without training.

With the variable ``AUTOTUNE_PHASE_S``, the seconds of one phase, the observer takes a trial through these in turn, for
ever: `REPLAY` shows the speed of the steps if data cost nothing, `LOAD` that of the loader alone, `TRAIN` that of both
together. `TRAIN` comes after `LOAD` and not after `REPLAY`, which leaves all buffers of the loader full: training would
look too fast.

Only fetches from what is trained on are replaced: data whose batches were fetched before each of the last works, in a
pass that has been worked on since it began. So the first batch of each pass is the trainer's own, and validation,
even over the same data, is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

from autotune.trainee.batch import BatchSizes, in_new_containers
from autotune.trainee.loop import Loop
from autotune.trainee.steps import StepMaker
from autotune.trainee.stream import WeakRecords

REPLAY, LOAD, TRAIN = ORDER = "replay", "load", "train"

LEAST = 3
"""Steps in a phase, or batches in `LOAD`; also the steps of the warm-up that are not counted to learn what trains."""

MOST_KEPT = 4
"""Batches that `REPLAY` goes over: they may differ in length, and so in time."""


class Schedule:
    """Schedule of the phases: which one it is, and the time to change.

    A phase takes about its length, at least `LEAST` steps or batches, and at most four times its length. `LOAD` has its
    length in time of drawing alone, as far as that limit lets it.

    Attributes:
        phase: The phase; None during the warm-up.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._left_out: set[str] = set()
        self.phase: Optional[str] = None
        self._begin_s = 0.0
        self._steps = 0
        self._shortest_s = math.inf
        self._drawn = 0
        self._drawn_s = 0.0

    def step(self, now_s: float) -> bool:
        """Process the border between two steps; return True if the next phase is due, which `begin` begins."""
        self._steps += 1
        passed_s = now_s - self._begin_s
        if self.phase is None:
            return self._is_warm(now_s)
        if self.phase == LOAD:
            return self.has_drawn_enough or passed_s >= 4.0 * self._length_s
        if self.following == self.phase:
            return False
        return passed_s >= self._length_s * (1.0 if self._steps >= LEAST else 4.0)

    def _is_warm(self, now_s: float) -> bool:
        last_s, self._begin_s = now_s - self._begin_s, now_s
        if self._steps == 1:  # the first call has no step before it
            return False
        self._shortest_s = min(self._shortest_s, last_s)
        steps = self._steps - 1
        # times the shortest step of the warm-up: one that takes longer has traced or compiled something
        return steps >= 10 or (steps >= LEAST and last_s <= 2.0 * self._shortest_s)

    def begin(self, now_s: float) -> str:
        """Begin the next phase, and return it."""
        self.phase = self.following
        self._begin_s, self._steps, self._drawn, self._drawn_s = now_s, 0, 0, 0.0
        return self.phase

    @property
    def following(self) -> str:
        """Phase after the present one."""
        at = -1 if self.phase is None else ORDER.index(self.phase)
        return next(phase for phase in (ORDER * 2)[at + 1 :] if phase not in self._left_out)

    def drew(self, duration_s: float) -> None:
        """Add the time of one batch that was drawn in `LOAD`."""
        self._drawn += 1
        self._drawn_s += duration_s

    @property
    def has_drawn_enough(self) -> bool:
        """True if `LOAD` needs no further batches."""
        return self._drawn_s >= self._length_s * (1.0 if self._drawn >= LEAST else 4.0)

    def leave_out(self, phase: str) -> bool:
        """Leave out `REPLAY` or `LOAD` from now on; return True if it was not left out before."""
        is_news = phase not in self._left_out
        self._left_out.add(phase)
        return is_news


class Data:
    """Data that batches are fetched from.

    Attributes:
        kept: Its latest batches, to be handed out again. The arrays themselves are kept, where and as they are, in
            containers of their own, from which a trainer may take things. A step that changes an array in place will
            be given the changed one: its time is the same, whatever becomes of its loss.
        sizes: Counts the samples in its batches.
        stand_in: Iterator over kept batches for a compiled step; None while there is none.
    """

    def __init__(self) -> None:
        self.kept: deque[Any] = deque(maxlen=MOST_KEPT)
        self.sizes = BatchSizes()
        self.stand_in: Any = None

    def drop(self) -> None:
        """Drop what was kept."""
        self.kept.clear()
        self.stand_in = None


class _Pass:
    is_trained_on = False


class Request(NamedTuple):
    """Request for a batch that is trained on.

    Attributes:
        phase: The phase that it belongs to; None during the warm-up.
    """

    data: Data
    phase: Optional[str]


_BLIND = (
    "its batches are fetched where they cannot be replaced: neither in Python from tf.data or a DataLoader, nor by a "
    "compiled step from an iterator among its arguments"
)
_MOST_UNKNOWN = 60  # works without a fetch, or rounds of fetches that have nothing in common, before a loop is given up


class PhasedLoop:
    """Training loop that is taken through phases, at its fetches.

    Args:
        loop: The loop, before any framework is observed.
        length_s: Seconds of one phase.

    Attributes:
        is_on: True until phases are given up for good.
    """

    def __init__(self, loop: Loop, length_s: float) -> None:
        self._loop = loop
        self.is_on = True
        self._inside: set[int] = set()  # threads inside a fetch that is seen already, which may fetch from another
        self._schedule = Schedule(length_s)
        self._data = WeakRecords(Data)
        self._passes = WeakRecords(_Pass)
        self._round: dict[_Pass, tuple[Data, int]] = {}  # fetched since the last work: data and thread
        self._before: frozenset[_Pass] = frozenset()  # of the round before
        self._since_work = 0  # fetches
        self._sync: Optional[Callable[[], object]] = None
        self._rounds: deque[frozenset[Data]] = deque(maxlen=LEAST)
        self._trained: frozenset[Data] = frozenset()
        self._always: Optional[Data] = None
        self._unknown = 0
        self._is_new_round = self._is_recorded = False
        # Of drawing that one line reports; 0 for a line a batch. A reader cuts off the beginning, when buffers were
        # still full.
        self._chunk_s = float(os.environ.get("AUTOTUNE_PHASE_CHUNK_S", 0.25))
        self._chunk = 0.0, 0, 0.0  # seconds, batches, samples
        self._unwritten: list[tuple[str, float, dict[str, Any]]] = []
        loop.recorded = _Recorded(self)

    def forget(self) -> None:
        """End the phases in a forked child of a loop that has trained: the schedule is the parent's."""
        self._inside.clear()
        self.is_on = self.is_on and not self._rounds

    # Work.

    def recorded(self, event: tuple[Any, ...]) -> None:
        """Process an event of the loop that was just recorded."""
        happened = event[0]
        if happened is StepMaker.worked:
            self.worked(event[6])
        elif happened is StepMaker.always_trains:
            # A compiled step that cannot be seen: what was fetched last is trained on.
            self._always = next(reversed(self._round.values()))[0] if self._round else None
        elif self._unwritten and happened in (StepMaker.fetched, StepMaker.exhausted):
            self._loop.recorded.append((lambda _steps: self._write(),))

    def worked(self, thread: Optional[int] = None) -> None:
        """Process work of a thread on what was fetched; further work on the same batches changes nothing."""
        if self.is_on:
            self.attempt(self._worked, thread)

    def _worked(self, thread: Optional[int]) -> None:
        self._unknown += not self._trained
        if not self._round:
            if self._unknown > _MOST_UNKNOWN:
                self._leave_out_both(_BLIND)
            return
        # The loop gives up its own where the trainer reports the steps, who need not know of the phases.
        self._sync = self._loop.sync or self._sync
        fetched, self._round, self._since_work = self._round, {}, 0
        if thread is not None:  # what a thread in the background fetches may be part of what this one does
            fetched = {one: it for one, it in fetched.items() if it[1] == thread} or fetched
        self._confirm({one: data for one, (data, _) in fetched.items()})
        if thread is not None and any(data in self._trained and by != thread for data, by in fetched.values()):
            why = "between the loader and the step, batches pass through a thread of the trainer's own"
            self.leave_out(REPLAY, why)
        self._rounds.append(frozenset(data for data, _ in fetched.values()))
        common = frozenset.intersection(*self._rounds)
        # Validation may come in each of these rounds, where passes are short.
        if len(self._rounds) == LEAST and common and not (self._trained and self._trained <= common):
            self._learn(common)
        self._is_new_round = True
        if not self._trained and self._unknown > _MOST_UNKNOWN:
            self._leave_out_both("steps take their batches from one dataset or another")

    def _confirm(self, fetched: dict[_Pass, Data]) -> None:
        """Learn which passes are trained on: not one over the same data that comes between two steps."""
        for one, data in fetched.items():
            is_alone = list(fetched.values()).count(data) == 1
            one.is_trained_on |= is_alone or one in self._before
        self._before = frozenset(fetched)
        if sum(one.is_trained_on and data in self._trained for one, data in fetched.items()) > 1:
            self.leave_out(LOAD, "a step takes batches from several datasets")

    def _learn(self, trained: frozenset[Data]) -> None:
        # Processes that train together would wait for each other in each phase.
        if not self._trained and (os.environ.get("WORLD_SIZE", "1") not in ("", "1") or os.environ.get("TF_CONFIG")):
            self._leave_out_both("several processes train together")
        if len(trained) > 1:
            self.leave_out(LOAD, "a step takes batches from several datasets")
        for data in self._trained - trained:
            data.drop()
        self._trained = trained

    # Fetches.

    def around_fetch(
        self,
        original: Callable[..., Any],
        data_of: Callable[[Any], Any],
        *,
        ends: tuple[type[BaseException], ...] = (StopIteration,),
        is_plain: Callable[[], object] = functools.partial(bool, True),
        renewed: Callable[[Any], Any] = in_new_containers,
        arrays_of: Callable[[Any], Any] = lambda batch: batch,
    ) -> Callable[..., Any]:
        """Return the method of an iterator that returns a batch, which follows the phases.

        Args:
            data_of: Returns what an iterator goes over, of which other iterators may follow.
            ends: Exceptions that mean the end of the data.
            is_plain: True if batches are fetched now, not by a graph under construction.
            renewed: Returns a batch as it is handed out again.
            arrays_of: Returns the arrays in what is fetched.
        """

        @functools.wraps(original)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            request = None
            try:
                is_ours = is_plain() and self.is_open
                if is_ours:
                    request = self.asks(args[0], data_of(args[0]), lambda data: bool(data.kept), is_recorded=True)
                    if request is not None and request.phase == REPLAY and request.data.kept:
                        request.data.kept.rotate(-1)
                        return renewed(request.data.kept[-1])
            except Exception as error:
                self.failed(error)
                is_ours = False
            if not is_ours:
                return original(*args, **kwargs)
            with self.inside():
                if request is not None and request.phase == LOAD:
                    return self.draw(request.data, functools.partial(original, *args, **kwargs), ends, arrays_of)
                batch = original(*args, **kwargs)
            if request is not None:
                self.attempt(lambda: request.data.kept.append(renewed(batch)))
            return batch

        return fetch

    @property
    def is_open(self) -> bool:
        """True unless phases are given up, or this thread is inside a fetch that is seen already."""
        return self.is_on and threading.get_ident() not in self._inside

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Mark this thread as inside a fetch, so that fetches within it are left alone."""
        thread = threading.get_ident()
        self._inside.add(thread)
        try:
            yield
        finally:
            self._inside.discard(thread)

    def asks(
        self, iterator: Any, data: Any, prepare: Callable[[Data], object], is_recorded: bool = False
    ) -> Optional[Request]:
        """Process the request for a batch.

        Args:
            prepare: Called when `REPLAY` is due; returns whether there is anything to be handed out again.
            is_recorded: True if the loop records the fetch, and knows only then that the step before it has ended.

        Returns:
            The request, if it is one that phases may replace.
        """
        self._is_recorded = is_recorded and not self._loop.is_suspended and self._loop.report.is_ours
        of, one = self._data.of(data), self._passes.of(iterator)
        if of is self._always and self._round:
            self.worked()
        self._round[one] = of, threading.get_ident()
        self._since_work += 1
        # fetches without work; a validation that is taken for training must come to its end
        if of not in self._trained or not one.is_trained_on or self._since_work > 256 or not self.is_on:
            return None
        if self._is_new_round:
            self._is_new_round = False
            if self._schedule.step(time.monotonic()):
                if self._sync is not None:  # the work of the phase is done, and the sum of its steps' times right
                    self._sync()
                    self._say("sync")
                if self._schedule.following != REPLAY or prepare(of):
                    self._begin_phase()
        phase = self._schedule.phase
        return None if phase == LOAD and self._schedule.has_drawn_enough else Request(of, phase)

    def _begin_phase(self) -> None:
        if self._schedule.following == TRAIN:
            for data in self._trained:
                data.drop()
        if self._schedule.phase is None:
            self._say("in_force", settings=framework_settings())
        self._say("phase", phase=self._schedule.begin(time.monotonic()))
        if not self._is_recorded:
            self._loop.aggregated.skip(time.monotonic())

    def draw(
        self,
        data: Data,
        fetch: Callable[[], Any],
        ends: tuple[type[BaseException], ...],
        arrays_of: Callable[[Any], Any] = lambda batch: batch,
    ) -> Any:
        """Draw batches until there are enough, or the data ends: the trainer then meets the end at its next fetch.

        Returns:
            The last batch.

        Raises:
            Exception: The fetch raised it; the end of the data only at the first.
        """
        drawn: list[Any] = []
        wants_more = True
        try:
            while wants_more:
                begin_s = time.monotonic()
                drawn[:] = [fetch()]
                wants_more = self.attempt(self._drew, time.monotonic() - begin_s, data, arrays_of, drawn[0])
        except ends:
            if not drawn:
                raise
        finally:
            self.attempt(self._stop_drawing)
        return drawn[0]

    def _drew(self, duration_s: float, data: Data, arrays_of: Callable[[Any], Any], fetched: Any) -> bool:
        self._schedule.drew(duration_s)
        drawn_s, batches, samples = self._chunk
        count = data.sizes.of(arrays_of(fetched))
        self._chunk = drawn_s + duration_s, batches + 1, samples + (math.nan if count is None else count)
        if self._chunk[0] >= self._chunk_s:
            self._stop_drawing()
        return not self._schedule.has_drawn_enough

    def _stop_drawing(self) -> None:
        duration_s, batches, samples = self._chunk
        self._chunk = 0.0, 0, 0.0
        if batches:
            known = None if math.isnan(samples) else samples
            self._say("load", duration_s=round(duration_s, 6), batches=batches, samples=known)

    # Reports.

    def _say(self, kind: str, **fields: Any) -> None:
        """Write a line of the stream, behind the step that ends with the present fetch."""
        self._unwritten.append((kind, time.monotonic(), fields))
        if not self._is_recorded:
            self._loop.flush()
            self._write()

    def _write(self) -> None:
        lines, self._unwritten = self._unwritten, []
        for kind, t_s, fields in lines:
            self._loop.report.line(kind, t_s, **fields)

    def leave_out(self, phase: str, why: str) -> None:
        """Leave out a phase from now on, and report the reason."""
        if self._schedule.leave_out(phase):
            self._loop.report.line("unphased", time.monotonic(), text=f"{phase}: {why}")
            if self._schedule.phase == phase:
                self._begin_phase()

    def _leave_out_both(self, why: str) -> None:
        self.leave_out(REPLAY, why)
        self.leave_out(LOAD, why)

    def attempt(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call a function of ours and return its result; None after an error, which ends the phases."""
        try:
            return action(*args)
        except Exception as error:
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        """Give up for good: the trainer goes on as if there were no phases."""
        self.is_on = False
        with contextlib.suppress(Exception):
            self._trained = frozenset()
            self._data = WeakRecords(Data)
            self._write()
            if self._schedule.phase is not None:
                self._loop.report.line("phase", time.monotonic(), phase=TRAIN)
            why = f"the observer has given up phases: {type(error).__name__}: {error}"
            self._loop.report.line("unphased", time.monotonic(), text=why)


class _Recorded(list):  # type: ignore[type-arg]
    """Recorded events of a loop, which also tell the phased loop of work."""

    def __init__(self, phased: PhasedLoop) -> None:
        super().__init__()
        self._phased = phased

    def append(self, event: tuple[Any, ...]) -> None:
        """Append an event: a function of the step maker with its arguments."""
        super().append(event)
        self._phased.attempt(self._phased.recorded, event)


def framework_settings() -> dict[str, Any]:
    """Return the settings of the loaded frameworks as ``<framework>.<setting>``: numbers, texts and booleans."""
    found: dict[str, Any] = {}
    for name, readers in _SETTINGS.items():
        for setting, read in readers.items() if name in sys.modules else ():
            with contextlib.suppress(Exception):  # another version, or another backend
                value = read(sys.modules[name])
                if isinstance(value, (bool, int, float, str)) and value != "":
                    found[f"{name}.{setting}"] = value
    return found


def _memory_growth(tensorflow: Any) -> Any:
    gpus = tensorflow.config.list_physical_devices("GPU")
    return all(tensorflow.config.experimental.get_memory_growth(gpu) for gpu in gpus) if gpus else None


_SETTINGS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "tensorflow": {
        "intra_op_threads": lambda it: it.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": lambda it: it.config.threading.get_inter_op_parallelism_threads(),
        "runs_eagerly": lambda it: it.config.functions_run_eagerly(),
        "jit": lambda it: it.config.optimizer.get_jit(),
        "gpus": lambda it: len(it.config.list_logical_devices("GPU")),
        "memory_growth": _memory_growth,
        "tf32": lambda it: it.config.experimental.tensor_float_32_execution_enabled(),
    },
    "keras": {"precision": lambda it: it.config.dtype_policy().name, "backend": lambda it: it.config.backend()},
    "torch": {
        "threads": lambda it: it.get_num_threads(),
        "interop_threads": lambda it: it.get_num_interop_threads(),
        "gpus": lambda it: it.cuda.device_count() if it.cuda.is_initialized() else 0,
        "float32_matmul_precision": lambda it: it.get_float32_matmul_precision(),
        "cudnn_benchmark": lambda it: it.backends.cudnn.benchmark,
    },
}
"""Framework, by the name it is imported by → its settings and how each is read."""
