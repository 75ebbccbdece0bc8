"""Phases of a trial: plain training, training on a few kept batches, drawing batches without training.

With ``AUTOTUNE_PHASE_S``, a phase's seconds, the observer cycles a trial through `REPLAY` (steps if data cost nothing),
`LOAD` (the loader alone) and `TRAIN` (both). `TRAIN` follows `LOAD`, because `REPLAY` leaves the loader's buffers full.

Fetches are replaced only if their data is trained on: fetched before each of the last works, in a pass already worked
on. So validation, even over the same data, is the trainer's own.
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
"""Least steps of a phase, of the warm-up, or batches in `LOAD`."""

MOST_KEPT = 4
"""Batches that `REPLAY` cycles through."""


class Schedule:
    """Schedule of the phases.

    A phase lasts for `length_s` and at least `LEAST` steps or batches, but at most four times `length_s`. In `LOAD`,
    `length_s` counts the drawing alone.

    Attributes:
        phase: None during the warm-up.
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
        """Process the end of a step; return True when it is time to `begin` the next phase."""
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
        # relative to the shortest step of the warm-up: a longer one has traced or compiled something
        return steps >= 10 or (steps >= LEAST and last_s <= 2.0 * self._shortest_s)

    def begin(self, now_s: float) -> str:
        self.phase = self.following
        self._begin_s, self._steps, self._drawn, self._drawn_s = now_s, 0, 0, 0.0
        return self.phase

    @property
    def following(self) -> str:
        at = -1 if self.phase is None else ORDER.index(self.phase)
        return next(phase for phase in (ORDER * 2)[at + 1 :] if phase not in self._left_out)

    def drew(self, duration_s: float) -> None:
        self._drawn += 1
        self._drawn_s += duration_s

    @property
    def has_drawn_enough(self) -> bool:
        return self._drawn_s >= self._length_s * (1.0 if self._drawn >= LEAST else 4.0)

    def leave_out(self, phase: str) -> bool:
        """Skip `REPLAY` or `LOAD` from now on; return True unless already skipped."""
        is_new = phase not in self._left_out
        self._left_out.add(phase)
        return is_new


class Data:
    """Data that batches are fetched from.

    Attributes:
        kept: Latest batches, to be handed out again: in new containers, but with the same arrays. A step that changes
            one in place changes later losses, not times.
        stand_in: Iterator over kept batches for a compiled step.
    """

    def __init__(self) -> None:
        self.kept: deque[Any] = deque(maxlen=MOST_KEPT)
        self.sizes = BatchSizes()
        self.stand_in: Any = None

    def drop(self) -> None:
        self.kept.clear()
        self.stand_in = None


class _Pass:
    is_trained_on = False


class Request(NamedTuple):
    """Request for a batch that is trained on; `phase` is None during the warm-up."""

    data: Data
    phase: Optional[str]


_NOT_REPLACEABLE = (
    "its batches are fetched where they cannot be replaced: neither in Python from tf.data or a DataLoader, nor by a "
    "compiled step from an iterator among its arguments"
)
_MOST_UNKNOWN = 60  # works without a fetch, or rounds without common data, before phases are given up


class PhasedLoop:
    """Training loop that is taken through phases at its fetches; made before any framework is observed."""

    def __init__(self, loop: Loop, length_s: float) -> None:
        self._loop = loop
        self.is_on = True
        self._inside: set[int] = set()  # threads inside an observed fetch, which may fetch from another iterator
        self._schedule = Schedule(length_s)
        self._data = WeakRecords(Data)
        self._passes = WeakRecords(_Pass)
        self._round: dict[_Pass, tuple[Data, int]] = {}  # fetched since the last work: data and thread
        self._before: frozenset[_Pass] = frozenset()  # of the previous round
        self._since_work = 0  # fetches
        self._sync: Optional[Callable[[], object]] = None
        self._rounds: deque[frozenset[Data]] = deque(maxlen=LEAST)
        self._trained: frozenset[Data] = frozenset()
        self._always: Optional[Data] = None
        self._unknown = 0
        self._is_new_round = self._is_recorded = False
        # Seconds of drawing per reported line; 0 for a line per batch. Readers skip the start, when buffers were full.
        self._chunk_s = float(os.environ.get("AUTOTUNE_PHASE_CHUNK_S", 0.25))
        self._chunk = 0.0, 0, 0.0  # seconds, batches, samples
        self._unwritten: list[tuple[str, float, dict[str, Any]]] = []
        loop.recorded = _Recorded(self)

    def forget(self) -> None:
        """End the phases in a forked child of a training loop."""
        self._inside.clear()
        self.is_on = self.is_on and not self._rounds

    # Work.

    def recorded(self, event: tuple[Any, ...]) -> None:
        happened = event[0]
        if happened is StepMaker.worked:
            self.worked(event[6])
        elif happened is StepMaker.always_trains:
            # A compiled step that can't be seen: the data fetched last is trained on.
            self._always = next(reversed(self._round.values()))[0] if self._round else None
        elif self._unwritten and happened in (StepMaker.fetched, StepMaker.exhausted):
            self._loop.recorded.append((lambda _steps: self._write(),))

    def worked(self, thread: Optional[int] = None) -> None:
        if self.is_on:
            self.attempt(self._worked, thread)

    def _worked(self, thread: Optional[int]) -> None:
        self._unknown += not self._trained
        if not self._round:
            if self._unknown > _MOST_UNKNOWN:
                self._leave_out_both(_NOT_REPLACEABLE)
            return
        # The loop drops its own if the trainer reports the steps, which need not know of the phases.
        self._sync = self._loop.sync or self._sync
        fetched, self._round, self._since_work = self._round, {}, 0
        if thread is not None:  # fetches of a background thread may be part of this thread's
            fetched = {one: it for one, it in fetched.items() if it[1] == thread} or fetched
        self._confirm({one: data for one, (data, _) in fetched.items()})
        if thread is not None and any(data in self._trained and by != thread for data, by in fetched.values()):
            why = "batches pass through one of the trainer's threads between the loader and the step"
            self.leave_out(REPLAY, why)
        self._rounds.append(frozenset(data for data, _ in fetched.values()))
        common = frozenset.intersection(*self._rounds)
        # With short passes, validation may come in each of these rounds.
        if len(self._rounds) == LEAST and common and not (self._trained and self._trained <= common):
            self._learn(common)
        self._is_new_round = True
        if not self._trained and self._unknown > _MOST_UNKNOWN:
            self._leave_out_both("steps take their batches from changing datasets")

    def _confirm(self, fetched: dict[_Pass, Data]) -> None:
        """Find the passes that are trained on, without one over the same data between two steps."""
        for one, data in fetched.items():
            is_alone = list(fetched.values()).count(data) == 1
            one.is_trained_on |= is_alone or one in self._before
        self._before = frozenset(fetched)
        if sum(one.is_trained_on and data in self._trained for one, data in fetched.items()) > 1:
            self.leave_out(LOAD, "a step takes batches from several datasets")

    def _learn(self, trained: frozenset[Data]) -> None:
        # Ranks would wait for each other in each phase.
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
        """Return an iterator's batch-returning method, wrapped to follow the phases.

        Args:
            data_of: Returns an iterator's data, which further iterators may share.
            ends, is_plain: As in `observe.around_fetch`.
            renewed: Returns a batch to be handed out again.
            arrays_of: Returns the arrays in a fetched object.
        """

        @functools.wraps(original)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            request = None
            try:
                is_ours = is_plain() and self.is_open
                if is_ours:
                    request = self.request(args[0], data_of(args[0]), lambda data: bool(data.kept), is_recorded=True)
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
        """True unless phases are given up, or this thread is inside an observed fetch."""
        return self.is_on and threading.get_ident() not in self._inside

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Mark this thread as inside a fetch: nested fetches aren't replaced."""
        thread = threading.get_ident()
        self._inside.add(thread)
        try:
            yield
        finally:
            self._inside.discard(thread)

    def request(
        self, iterator: Any, data: Any, prepare: Callable[[Data], object], is_recorded: bool = False
    ) -> Optional[Request]:
        """Process a request for a batch; return it if phases may replace it.

        Args:
            prepare: Called when `REPLAY` is due; returns whether any batch can be handed out again.
            is_recorded: True if the loop records the fetch, which then ends the step before.
        """
        self._is_recorded = is_recorded and not self._loop.is_suspended and self._loop.report.is_ours
        of, one = self._data.of(data), self._passes.of(iterator)
        if of is self._always and self._round:
            self.worked()
        self._round[one] = of, threading.get_ident()
        self._since_work += 1
        # fetches without work: a validation mistaken for training must come to its end
        if of not in self._trained or not one.is_trained_on or self._since_work > 256 or not self.is_on:
            return None
        if self._is_new_round:
            self._is_new_round = False
            if self._schedule.step(time.monotonic()):
                if self._sync is not None:  # completes the phase's work, so that the sum of its step times is right
                    self._sync()
                    self._queue_line("sync")
                if self._schedule.following != REPLAY or prepare(of):
                    self._begin_phase()
        phase = self._schedule.phase
        return None if phase == LOAD and self._schedule.has_drawn_enough else Request(of, phase)

    def _begin_phase(self) -> None:
        if self._schedule.following == TRAIN:
            for data in self._trained:
                data.drop()
        if self._schedule.phase is None:
            self._queue_line("in_force", settings=framework_settings())
        self._queue_line("phase", phase=self._schedule.begin(time.monotonic()))
        if not self._is_recorded:
            self._loop.aggregated.skip(time.monotonic())

    def draw(
        self,
        data: Data,
        fetch: Callable[[], Any],
        ends: tuple[type[BaseException], ...],
        arrays_of: Callable[[Any], Any] = lambda batch: batch,
    ) -> Any:
        """Draw until there are enough batches, or the data ends; return the last batch.

        Raises:
            Exception: From the fetch; the end of the data only at the first.
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
            self._queue_line("load", duration_s=round(duration_s, 6), batches=batches, samples=known)

    # Reports.

    def _queue_line(self, kind: str, **fields: Any) -> None:
        """Write a line, after the step that ends with the current fetch."""
        self._unwritten.append((kind, time.monotonic(), fields))
        if not self._is_recorded:
            self._loop.flush()
            self._write()

    def _write(self) -> None:
        lines, self._unwritten = self._unwritten, []
        for kind, t_s, fields in lines:
            self._loop.report.line(kind, t_s, **fields)

    def leave_out(self, phase: str, why: str) -> None:
        if self._schedule.leave_out(phase):
            self._loop.report.line("unphased", time.monotonic(), text=f"{phase}: {why}")
            if self._schedule.phase == phase:
                self._begin_phase()

    def _leave_out_both(self, why: str) -> None:
        self.leave_out(REPLAY, why)
        self.leave_out(LOAD, why)

    def attempt(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call `action` and return its result; None after an error, which ends the phases."""
        try:
            return action(*args)
        except Exception as error:
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        """End the phases for good; the trainer continues without."""
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
    """Recorded events of a loop, also passed to the phased loop."""

    def __init__(self, phased: PhasedLoop) -> None:
        super().__init__()
        self._phased = phased

    def append(self, event: tuple[Any, ...]) -> None:
        super().append(event)
        self._phased.attempt(self._phased.recorded, event)


def framework_settings() -> dict[str, Any]:
    """Return the loaded frameworks' settings as ``<framework>.<setting>``."""
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
"""Framework's import name → its settings and how each is read."""
