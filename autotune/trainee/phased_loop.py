"""Phased loop: takes the training loop of this process through the phases of `phases.py`, at its fetches.

Only fetches from what is trained on are replaced: data whose batches were fetched before each of the last works, in a
pass that has been worked on since it began. So the first batch of each pass is the trainer's own, and validation,
even over the same data, is left alone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Callable, NamedTuple, Optional

from autotune.trainee.batch import BatchSizes, KeptBatches
from autotune.trainee.loop import Loop
from autotune.trainee.phases import LEAST, LOAD, REPLAY, TRAIN, Schedule, chunk_length_s
from autotune.trainee.report import Memory

_MOST_UNKNOWN = 60  # works without a fetch, or rounds of fetches that have nothing in common, before a loop is given up
_BLIND = (
    "its batches are fetched where they cannot be replaced: neither in Python from tf.data or a DataLoader, nor by a "
    "compiled step from an iterator among its arguments"
)
_IN_TURN = "steps take their batches from one dataset or another"
_SEVERAL = "a step takes batches from several datasets"
_THREAD = "between the loader and the step, batches pass through a thread of the trainer's own"
_PROCESSES = "several processes train together"


class Data:
    """Data that batches are fetched from.

    Attributes:
        kept: Its batches to be handed out again.
        sizes: Counts the samples in its batches.
        stand_in: Iterator over kept batches for a compiled step; None while there is none.
    """

    def __init__(self) -> None:
        self.kept: Optional[KeptBatches] = None
        self.sizes = BatchSizes()
        self.stand_in: Any = None

    def forget(self) -> None:
        """Drop its batches."""
        self.kept = self.stand_in = None


class _Pass:
    """Pass over some data."""

    def __init__(self) -> None:
        self.is_trained_on = False


class Turn(NamedTuple):
    """Fetch of a loop that is trained on.

    Attributes:
        phase: The phase that it belongs to; None during the warm-up.
    """

    data: Data
    phase: Optional[str]


class PhasedLoop:
    """Training loop that is taken through phases.

    Attributes:
        is_on: True until phases are given up for good.
        inside: Threads inside a fetch that is seen already, which may fetch from another iterator within.
    """

    def __init__(self, loop: Loop, schedule: Callable[[], Schedule]) -> None:
        self._loop = loop
        self._make_schedule = schedule
        self.forget()

    def forget(self) -> None:
        """Reset all state in a forked child, where it is the parent's."""
        self.is_on = True
        self.inside: set[int] = set()
        self._schedule = self._make_schedule()
        self._data = Memory(Data)
        self._passes = Memory(_Pass)
        self._round: dict[_Pass, tuple[Data, int]] = {}  # fetched since the last work: data and thread
        self._before: frozenset[_Pass] = frozenset()  # of the round before
        self._since_work = 0  # fetches
        self._sync: Optional[Callable[[], object]] = None
        self._rounds: list[frozenset[Data]] = []
        self._trained: frozenset[Data] = frozenset()
        self._always: Optional[Data] = None
        self._blind_works = 0  # since the last fetch
        self._unlike_rounds = 0
        self._is_new_round = False
        self._is_recorded = False
        self._chunk_s = chunk_length_s()
        self._chunk = [0.0, 0.0, 0.0]  # seconds, batches, samples
        self._unwritten: list[dict[str, Any]] = []

    # Work.

    def worked(self, thread: Optional[int] = None) -> None:
        """Process work on what was fetched; further work on the same batches changes nothing.

        Args:
            thread: Thread that worked; None if unknown.
        """
        if not self.is_on:
            return
        try:
            self._worked(thread)
        except Exception as error:
            self.failed(error)

    def _worked(self, thread: Optional[int]) -> None:
        if not self._round:
            self._blind_works += not self._trained
            if self._blind_works > _MOST_UNKNOWN:
                self._leave_out_both(_BLIND)
            return
        self._blind_works = 0
        # The loop gives up its own where the trainer reports the steps, who need not know of the phases.
        self._sync = self._loop.sync or self._sync
        fetched, self._round, self._since_work = self._round, {}, 0
        if thread is not None:  # what a thread in the background fetches may be part of what this one does
            fetched = {one: it for one, it in fetched.items() if it[1] == thread} or fetched
        self._confirm({one: data for one, (data, _) in fetched.items()})
        if thread is not None and any(data in self._trained and by != thread for data, by in fetched.values()):
            self.leave_out(REPLAY, _THREAD)
        self._rounds = [*self._rounds[1 - LEAST :], frozenset(data for data, _ in fetched.values())]
        common = frozenset.intersection(*self._rounds)
        # Validation may come in each of these rounds, where passes are short.
        if len(self._rounds) == LEAST and common and not (self._trained and self._trained <= common):
            self._learn(common)
        self._is_new_round = True
        if not self._trained:
            self._unlike_rounds += 1
            if self._unlike_rounds > _MOST_UNKNOWN:
                self._leave_out_both(_IN_TURN)

    def _confirm(self, fetched: dict[_Pass, Data]) -> None:
        """Learn which passes are trained on: not one over the same data that comes between two steps."""
        for one, data in fetched.items():
            is_alone = not any(other is data and another is not one for another, other in fetched.items())
            one.is_trained_on |= is_alone or one in self._before
        self._before = frozenset(fetched)
        if sum(one.is_trained_on and data in self._trained for one, data in fetched.items()) > 1:
            self.leave_out(LOAD, _SEVERAL)

    def _learn(self, trained: frozenset[Data]) -> None:
        if not self._trained and _is_one_of_several():
            self._leave_out_both(_PROCESSES)
        if len(trained) > 1:
            self.leave_out(LOAD, _SEVERAL)
        for data in self._trained - trained:
            data.forget()
        self._trained = trained

    def always_trains(self) -> None:
        """Process the beginning of a compiled step that cannot be seen: what was fetched last is trained on."""
        self._always = next(reversed(self._round.values()))[0] if self._round else None

    # Fetches.

    def asks(
        self, iterator: Any, data: Any, prepare: Callable[[Data], object], is_recorded: bool = False
    ) -> Optional[Turn]:
        """Process the request for a batch.

        Args:
            prepare: Called when `REPLAY` is due; returns whether there is anything to be handed out again.
            is_recorded: True if the loop records the fetch, and knows only then that the step before it has ended.

        Returns:
            The turn, if the request is one that phases may replace.
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
                self._wait_for_accelerator()
                if self._schedule.following != REPLAY or prepare(of):
                    self.begins()
        phase = self._schedule.phase
        if phase == LOAD and self._schedule.has_drawn_enough:
            return None
        return Turn(of, phase)

    def _wait_for_accelerator(self) -> None:
        """Have all work of the phase done at its end, so that the sum of its steps' times is right."""
        if self._sync is not None:
            self._sync()
            self.say(k="sync")

    def begins(self) -> None:
        if self._schedule.following == TRAIN:
            for data in self._trained:
                data.forget()
        if self._schedule.phase is None:
            self.say(k="in_force", settings=settings_in_force())
        phase = self._schedule.begin(time.monotonic())
        self.say(k="phase", phase=phase)
        if not self._is_recorded:
            self._loop.aggregated.skip(time.monotonic())

    def drew(self, data: Data, begin_s: float, end_s: float, batch: Any) -> bool:
        """Process a batch that was drawn in `LOAD`; return True if another is wanted."""
        self._schedule.drew(end_s - begin_s)
        samples = data.sizes.of(batch)
        self._chunk = [
            self._chunk[0] + end_s - begin_s,
            self._chunk[1] + 1,
            self._chunk[2] + (float("nan") if samples is None else samples),
        ]
        if self._chunk[0] >= self._chunk_s:
            self.stops_drawing()
        return not self._schedule.has_drawn_enough

    def stops_drawing(self) -> None:
        """Report what was drawn since the last report."""
        duration_s, batches, samples = self._chunk
        self._chunk = [0.0, 0.0, 0.0]
        if batches:
            known = {"samples": samples} if samples == samples else {}
            self.say(k="load", duration_s=round(duration_s, 6), batches=int(batches), **known)

    # Reports.

    def say(self, **fields: Any) -> None:
        """Write a line of the stream, behind the step that ends with the present fetch."""
        self._unwritten.append({"k": fields.pop("k"), "t_s": _now(), **fields})
        if not self._is_recorded:
            self._loop.flush()
            self.write()

    def write(self) -> None:
        """Write the lines that wait."""
        lines, self._unwritten = self._unwritten, []
        for line in lines:
            self._loop.report.line(line)

    @property
    def has_unwritten(self) -> bool:
        """True if lines wait."""
        return bool(self._unwritten)

    def leave_out(self, phase: str, why: str) -> None:
        """Leave out a phase from now on, and report the reason."""
        if self._schedule.leave_out(phase):
            self._loop.report.line({"k": "unphased", "t_s": _now(), "text": f"{phase}: {why}"})
            if self._schedule.phase == phase:
                self.begins()

    def _leave_out_both(self, why: str) -> None:
        self.leave_out(REPLAY, why)
        self.leave_out(LOAD, why)

    def failed(self, error: Exception) -> None:
        """Give up for good: the trainer goes on as if there were no phases."""
        self.is_on = False
        try:
            self._trained = frozenset()
            self._data = Memory(Data)
            self.write()
            if self._schedule.phase is not None:
                self._loop.report.line({"k": "phase", "t_s": _now(), "phase": TRAIN})
            text = f"the observer has given up phases: {type(error).__name__}: {error}"
            self._loop.report.line({"k": "unphased", "t_s": _now(), "text": text})
        except Exception:
            pass


def _now() -> float:
    return round(time.monotonic(), 6)


def _is_one_of_several() -> bool:
    """Return True if this process trains together with others, which would wait for it in each phase."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1") or bool(os.environ.get("TF_CONFIG"))


# Settings that are in force in this process: what the frameworks say of threads, precision, graphs and devices.


def settings_in_force() -> dict[str, Any]:
    """Return the settings by name, ``<framework>.<setting>``; numbers, texts and booleans."""
    found: dict[str, Any] = {}
    for name, readers in _READERS.items():
        framework = sys.modules.get(name)
        if framework is None:
            continue
        for setting, read in readers.items():
            try:
                value = read(framework)
            except Exception:  # noqa: S112 - another version, or another backend
                continue
            if isinstance(value, (bool, int, float, str)) and value != "":
                found[f"{name}.{setting}"] = value
    return found


def _memory_growth(tensorflow: Any) -> Any:
    gpus = tensorflow.config.list_physical_devices("GPU")
    return all(tensorflow.config.experimental.get_memory_growth(gpu) for gpu in gpus) if gpus else None


def _cuda_devices(torch: Any) -> int:
    return int(torch.cuda.device_count()) if torch.cuda.is_initialized() else 0


_READERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "tensorflow": {
        "intra_op_threads": lambda it: it.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": lambda it: it.config.threading.get_inter_op_parallelism_threads(),
        "runs_eagerly": lambda it: it.config.functions_run_eagerly(),
        "jit": lambda it: it.config.optimizer.get_jit(),
        "gpus": lambda it: len(it.config.list_logical_devices("GPU")),
        "memory_growth": _memory_growth,
        "tf32": lambda it: it.config.experimental.tensor_float_32_execution_enabled(),
    },
    "keras": {
        "precision": lambda it: it.config.dtype_policy().name,
        "backend": lambda it: it.config.backend(),
    },
    "torch": {
        "threads": lambda it: it.get_num_threads(),
        "interop_threads": lambda it: it.get_num_interop_threads(),
        "gpus": _cuda_devices,
        "float32_matmul_precision": lambda it: it.get_float32_matmul_precision(),
        "cudnn_benchmark": lambda it: it.backends.cudnn.benchmark,
    },
}
"""Framework, by the name it is imported by → its settings and how each is read."""
