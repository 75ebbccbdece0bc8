"""Stream of steps: the file that a training process writes into its trial's folder.

One file per process and exec, ``steps.<pid>.<n>.jsonl``, in ``AUTOTUNE_TRIAL_DIR``; ``n`` counts earlier ones with this
pid. Every line is a JSON object:

    {"v": 1, "pid": 4711, "clock": "monotonic", "start_s": 81.2, "source": "step", "devices": []}
    {"k": "step", "t_s": 83.1, "wait_s": 0.01, "samples": 8, "work": 4520, "loss": 0.7}
    {"k": "epoch_end", "t_s": 90.0, "samples": 800}
    {"k": "checkpoint", "t_s": 90.4, "duration_s": 0.4, "text": "step 400"}

Trials with phases (phases.py):

    {"k": "phase", "t_s": 91.0, "phase": "replay"}
    {"k": "load", "t_s": 93.3, "duration_s": 0.26, "batches": 12, "samples": 96}
    {"k": "unphased", "t_s": 91.2, "text": "load: a step takes batches from several datasets"}

A phase's ``t_s`` is its start: the next step to end lies wholly in it. A line of ``load`` covers a quarter of a second
of drawing; the steps between mean nothing.

Recurring costs (costs.py), sums of one kind and place so far:

    {"k": "cost", "t_s": 84.1, "cost": "trace", "place": "/home/me/train.py:41 step", "times": 3, "duration_s": 0.9,
     "text": "x float32[8, 83] -> float32[8, 91]"}

Launched operations: all that TensorFlow was given in ``duration_s``, with the smallest one's microseconds and the
seconds between operations as ``text``; or those of one PyTorch update, with the time to launch them.

Time in lines (whereabouts.py): ``stay``, one stay; ``before``, time before the first step; ``loop``, a line's time so
far outside of frameworks, with its CPU seconds and the seconds within them as ``text``; ``main``, the main thread's CPU
time since the first step; ``thread``, CPU time of lines in other threads, with the mean seconds by which the sampling
thread wakes up late as ``text``.

In a distributed training, before the first step (ranks.py):

    {"k": "rank", "t_s": 83.0, "rank": {"number": 1, "world": 4, "node": "gpu-7", "is_joined": true}}

and twice a second, if backward passes exchange gradients, the time outside of them so far, for which other ranks may
have waited:

    {"k": "own", "t_s": 84.2, "duration_s": 0.71, "times": 42}

Before the first step, the files of the trainer's loaded modules:

    {"k": "files", "t_s": 83.0, "paths": ["/home/me/project/train.py"]}

Start of the first step, including its fetch, and batches that may have been buffered by then:

    {"k": "begin", "t_s": 82.4, "batches": 16}

A trainer that reports its own steps after the observer (observe.py) has opened the file adds a header with its
``source``; all further steps are its own.

``t_s`` is the END of an event, in seconds of CLOCK_MONOTONIC. On a node with another clock than the reader's, the
header's ``clock`` is ``node``; the reader writes its time once into ``steps.<pid>.<n>.jsonl.clock``, and the answer
holds both times:

    {"k": "clock", "t_s": 5083.0, "host_s": 83.2}

Unknown fields are omitted (``update`` unless false). NaN and infinities are the strings "nan", "inf" and "-inf", for
``float()``. Readers ignore unknown kinds and fields.

A line is one ``write`` with O_APPEND: readers see whole lines and at most one torn last one. Errors end the stream,
never the training. Watched trainings write sums (pace.py). This file can be copied next to trainers without autotune:
Python 3.9, standard library only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Generic, Literal, Optional, TypeVar

from autotune.trainee.completion import Completions
from autotune.trainee.node_gpus import collect_gpus
from autotune.trainee.ranks import answer_in_background, has_own_clock, own_rank

if TYPE_CHECKING:
    from autotune.trainee.pace import Pace

TRIAL_DIR_VARIABLE = "AUTOTUNE_TRIAL_DIR"
WATCH_DIR_VARIABLE = "AUTOTUNE_WATCH_DIR"
FORMAT_VERSION = 1
OBSERVER = "observer"
"""``source`` of observed steps."""


def is_only_watched() -> bool:
    """Return whether this is a watched training, not a trial."""
    return bool(os.environ.get(WATCH_DIR_VARIABLE)) and not os.environ.get(TRIAL_DIR_VARIABLE)


class Stream:
    """Stream file of this process: unopened, open, or closed for good.

    Attributes:
        source: Reporter of the steps, if any.
        pace: Sums of a watched training, which writes no single steps.
        has_steps: Whether steps were written, after the trainer's files.
        batches: Batches reported with the trainer's steps.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._path: Optional[str] = None  # of the open file
        self._fd: Optional[int] = None
        self._is_announced = self.has_steps = self.is_ranked = False
        self.pace: Optional[Pace] = None
        self.source: Optional[str] = None
        self.batches: Any = None

    def forget(self) -> None:
        """Drop the parent's file in a forked child, which opens its own for its steps."""
        self._close_descriptor()
        self._begin()  # with a new lock: a thread that doesn't exist here may hold the parent's

    def announce(self, source: str, devices: Optional[Iterable[str]] = None) -> None:
        """Open the file and write its header; again if a trainer takes over from the observer."""
        with self._lock:
            is_first, takes_over = not self._is_announced, self.source == OBSERVER != source
            if not (is_first or takes_over):
                return
            try:
                if is_first:
                    self._open(source)
                if self._path is not None or self.pace is not None:
                    self.source = source
                self._append(_header(source, devices))
                if is_first and self._path is not None and has_own_clock():
                    answer_in_background(f"{self._path}.clock", lambda host_s: self.write("clock", host_s=host_s))
                if source == OBSERVER:  # until the first step: a trainer may look at its descriptors, or close all
                    self._close_descriptor()
                if self.pace is not None and takes_over:
                    self.pace.restart(source)
            except Exception:
                self._path = None
            self._is_announced = True  # only now: other threads wait for the file instead of losing their steps

    def _open(self, source: str) -> None:
        folder, watched = os.environ.get(TRIAL_DIR_VARIABLE), os.environ.get(WATCH_DIR_VARIABLE)
        if watched and not folder:
            from autotune.trainee.pace import Pace

            self.pace = Pace(watched, source)
        for n in range(100 if folder else 0):  # exec keeps the pid; more files than this mean another error
            path = os.path.join(os.path.abspath(folder or ""), f"steps.{os.getpid()}.{n}.jsonl")
            with contextlib.suppress(FileExistsError):
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._path = path
                return

    @property
    def is_open(self) -> bool:
        """True if reports are written; opens the file."""
        if not self._is_announced:
            self.announce("step")
        return self._path is not None or self.pace is not None

    @property
    def is_observed(self) -> bool:
        """True if steps are the observer's; opens the file if there is no reporter."""
        if not self._is_announced:
            self.announce(OBSERVER)
        return self.is_open and self.source == OBSERVER

    def write(self, kind: str, t_s: Optional[float] = None, **fields: object) -> None:
        self._append(line_of(kind, time.monotonic() if t_s is None else t_s, **fields))

    def write_steps(self, lines: str) -> None:
        """Append lines of steps; before the first, the rank and the trainer's loaded files."""
        if self._path is not None and not self.has_steps:
            self.has_steps = True
            if (rank := own_rank()) is not None:
                self.is_ranked = True
                self.write("rank", rank=rank)
                if has_own_clock():
                    collect_gpus(os.path.dirname(self._path))
            for paths in _own_files():
                self.write("files", paths=paths)
        self._append(lines)

    def _append(self, lines: str) -> None:
        """Append whole lines; the first failure closes the stream."""
        if self._path is None:
            return
        try:
            data = (lines + "\n").encode()
            if self._fd is None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            # A short write means a full disk; continuing would bury the torn line in the file.
            if os.write(self._fd, data) != len(data):
                raise OSError("the disk is full")
        except Exception:
            self._path = None
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def _header(source: str, devices: Optional[Iterable[str]]) -> str:
    if devices is None:
        # Indices of CUDA_VISIBLE_DEVICES mean nothing outside the process (CUDA's order need not be NVML's), UUIDs do.
        visible = (part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
        devices = (name for name in visible if name.startswith(("GPU-", "MIG-")))
    clock = "node" if has_own_clock() else "monotonic"
    header = {"v": FORMAT_VERSION, "pid": os.getpid(), "clock": clock, "start_s": round(time.monotonic(), 6)}
    return json.dumps({**header, "source": source, "devices": list(devices)})


def _own_files() -> Iterator[list[str]]:
    """Yield the files of loaded modules that aren't installed, nor generated by an installed package."""
    waiting: list[str] = []
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path and not _is_installed(path):
            package = _file_of(sys.modules.get(name.partition(".")[0]))
            if not (package and _is_installed(package)):
                waiting.append(path)
        if sum(map(len, waiting)) > 4096:  # per line; readers take 16 KiB
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _file_of(module: object) -> Optional[str]:
    with contextlib.suppress(Exception):
        # Not by getattr, which would load a lazy module now.
        path = object.__getattribute__(module, "__dict__").get("__file__")
        return os.path.abspath(path) if isinstance(path, str) and not path.startswith("<") else None
    return None


def _is_installed(path: str) -> bool:
    if path.startswith(os.path.dirname(os.path.abspath(os.__file__)) + os.sep):
        return True
    return not {"site-packages", "dist-packages", "_autotune_trainee"}.isdisjoint(path.split(os.sep))


# All other fields are numbers.
_TEXTS = frozenset(("cost", "paths", "place", "phase", "rank", "settings", "stages", "text", "update"))


def line_of(kind: str, t_s: float, **fields: Any) -> str:
    """Return an event's line, without fields that are None."""
    # By hand: json.dumps would cost as much as the rest of a step's report.
    line = f'{{"k": "{kind}", "t_s": {t_s:.6f}'
    for name, value in fields.items():
        if value is not None:
            line += f', "{name}": {json.dumps(value) if name in _TEXTS else json_number(value)}'
    return line + "}"


def json_number(value: Any) -> str:
    """Format a number for JSON, NaN and infinities as strings, others as ``null``."""
    if type(value) is int:
        return str(value)
    try:
        number = float(value)  # also NumPy scalars and one-element tensors
    except Exception:
        return "null"
    return repr(number) if math.isfinite(number) else f'"{number}"'


class Step:
    """Step on its way to the stream; in a ``with`` statement, its attributes (`step`'s arguments) may still be set."""

    __slots__ = ("_ended_s", "_entered", "loss", "samples", "update", "wait_s", "work")

    def __init__(self, samples: Any, wait_s: Any, loss: Any, work: Any, update: bool) -> None:
        self._ended_s = time.monotonic()
        self._entered = False
        self.samples = samples
        self.wait_s = wait_s
        self.loss = loss
        self.work = work
        self.update = update

    def __enter__(self) -> Step:
        self._entered = True
        return self

    def __exit__(self, kind: Optional[type[BaseException]], *_error: object) -> None:
        if kind is None:  # a step that raised doesn't count
            self._ended_s = time.monotonic()
            self._report()

    def __del__(self) -> None:
        # Only this distinguishes `step(...)` from `with step(...):`: an object that wasn't entered is a plain call's,
        # and dies at the end of that statement.
        if not self._entered:
            self._report()

    def _report(self) -> None:
        with contextlib.suppress(Exception):
            held = {"wait_s": self.wait_s, "samples": self.samples, "work": self.work}
            if process_stream.pace is not None:
                process_stream.pace.step(self._ended_s, update=self.update, **held)
            else:
                update = None if self.update else False
                process_stream.write_steps(line_of("step", self._ended_s, **held, update=update, loss=self.loss))


process_stream = Stream()
# Outside of trials and watched trainings, a step accepts everything and writes nothing.
_no_step: Any = contextlib.nullcontext(SimpleNamespace())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process_stream.forget)


def step(
    *,
    samples: Any = None,
    wait_s: Any = None,
    loss: Any = None,
    work: Any = None,
    update: bool = True,
    batch: Any = None,
) -> Step:
    """Report a step: the one that has just ended or, in a ``with`` statement, the one inside.

    Args:
        samples: Valid samples in the batch.
        wait_s: Seconds that the loop waited for this batch.
        loss: The loss, if available at no cost; may be NaN or infinite. Reading it from a GPU waits: every few steps is
            enough.
        work: Valid frames or tokens in the batch, without padding: measures the speed if batches differ in length.
        update: False while gradients are only accumulated.
        batch: The batch, as nested arrays: shows whether trials train on the same data if fetches aren't observed.
            Arrays on a GPU are ignored. Its length is the default of `samples`.

    Returns:
        A context manager. Don't keep that of a plain call: it writes its line when the statement ends.
    """
    if not process_stream.is_open:
        return _no_step  # type: ignore[no-any-return]
    if process_stream.source == OBSERVER:
        process_stream.announce("step")
    if batch is not None:
        with contextlib.suppress(Exception):
            samples = _samples_of(batch, samples)
    return Step(samples, wait_s, loss, work, update)


def _samples_of(batch: Any, samples: Any) -> Any:
    if process_stream.batches is None:
        from autotune.trainee.samples import ReportedBatches

        process_stream.batches = ReportedBatches(os.environ.get(TRIAL_DIR_VARIABLE))
    held = process_stream.batches.take(batch)
    return held if samples is None else samples


def will_report() -> None:
    """Report that this process can report its own steps."""
    if process_stream.is_observed:
        process_stream.write("reporter")


def epoch_end() -> None:
    """Report the end of a pass over the data."""
    _mark("epoch_end")


def mark(
    kind: Literal["eval", "checkpoint", "sync", "note", "stages"],
    *,
    duration_s: Optional[float] = None,
    loss: Any = None,
    text: Optional[str] = None,
    stages: Optional[Mapping[str, object]] = None,
) -> None:
    """Report another event that has just ended, so that its time isn't taken for a slow step.

    Args:
        kind: ``sync`` means that the accelerator has no work left.
        loss: Of an ``eval``.
        text: A line for users.
        stages: Times of a pipeline's stages so far, as in `autotune.stage_times.PipelineTimes`.
    """
    _mark(kind, duration_s=duration_s, loss=loss, text=text, stages=stages)


def _mark(kind: str, **fields: Any) -> None:
    if process_stream.is_open:
        with contextlib.suppress(Exception):
            if process_stream.pace is not None and kind != "stages":
                process_stream.pace.mark(kind)
            process_stream.write(kind, **fields)


def announce(source: str, *, devices: Optional[Iterable[str]] = None) -> None:
    """Open the stream and name the reporter of the steps, e.g. ``"autotune.workloads.tts"``; only the first one counts.

    Args:
        devices: UUIDs of the accelerators in use, as in NVML; by default the UUIDs in ``CUDA_VISIBLE_DEVICES``.
    """
    process_stream.announce(source, devices)


EACH_LOSS_VARIABLE = "AUTOTUNE_EACH_LOSS"
"""Environment variable of a trial that wants each step's loss, unless that waits for an accelerator."""

# Formats nearly all steps in one call, which is most of a step's cost after its observation.
_STEP = '{"k": "step", "t_s": %.6f, "wait_s": %.6f, "samples": %s}'


class Report:
    """Observer's part of the stream; reports no steps once the trainer does.

    Attributes:
        loss_due_s: Monotonic time to read the loss again; never in a watched training.
        held: Steps of the next `flush`: end, data wait, samples; then False if without the optimizer's update.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._noted: set[str] = set()
        self.loss_due_s = math.inf if is_only_watched() else 0.0
        self.completions: Optional[Completions] = None
        self.held: list[tuple[Any, ...]] = []
        self._losses: list[Any] = []

    def forget(self) -> None:
        self.completions = None
        self.held.clear()
        self._losses.clear()

    @property
    def is_ours(self) -> bool:
        return self._stream.source in (None, OBSERVER)

    @property
    def has_begun(self) -> bool:
        """True once this process has a stream; without steps it may never have one."""
        return self._stream.source is not None

    def flush(self) -> None:
        held = self.held[:]
        if self.completions is not None:
            self.completions.poll(time.monotonic())
            held = self.completions.ended(held)
        del self.held[: len(held)]  # the list stays: another thread may be appending
        if not held or not self._stream.is_observed:
            return
        if self._stream.pace is not None:
            for t_s, wait_s, samples, *update in held:
                self._stream.pace.step(t_s, wait_s, samples, None, not update)
            return
        lines = [_STEP % step if len(step) == 3 and None not in step else _line(*step) for step in held]
        if self._losses:
            lines[-1] = f'{lines[-1][:-1]}, "loss": {json_number(_mean(self._losses))}}}'
            self._losses.clear()
        self._stream.write_steps("\n".join(lines))

    def loss(self, now_s: float, value: Any) -> None:
        """Add a loss read without waiting; the mean of several is written with the next steps."""
        if self._stream.pace is None:
            # Read late: a forked child's environment isn't its parent's.
            self.loss_due_s = now_s + (0.0 if EACH_LOSS_VARIABLE in os.environ else 0.5)
            if value is not None:
                self._losses.append(value)

    def mark(self, kind: str, t_s: float, duration_s: Optional[float] = None, **fields: Any) -> None:
        """Report an event other than a step; a pause even if the trainer reports its own steps."""
        self.flush()
        if self._stream.pace is not None:
            self._stream.pace.mark(kind)
        elif self._stream.is_observed or kind in ("eval", "checkpoint"):
            self._stream.write(kind, t_s, duration_s=duration_s, **fields)

    def pauses(self) -> None:
        if self.completions is not None:
            self.completions.pause()

    def note(self, text: str) -> None:
        if text not in self._noted and self._stream.is_observed:
            self._noted.add(text)
            self._stream.write("note", text=text[:500])

    def unseen(self, text: str) -> None:
        """Report that the loop trains from now on, and why its steps can't be observed."""
        if self._stream.is_observed:
            self._stream.write("unseen", text=text)

    def line(self, kind: str, t_s: float, **fields: object) -> None:
        """Write any other line, even if the trainer reports its own steps."""
        self.flush()
        if self._stream.is_observed or self._stream.is_open:
            self._stream.write(kind, t_s, **fields)


def _mean(losses: list[Any]) -> Any:
    """Return the mean of losses; None if one of them isn't a number."""
    if len(losses) == 1:
        return losses[0]
    try:
        return math.fsum(map(float, losses)) / len(losses)
    except Exception:
        return None


def _line(t_s: float, wait_s: Optional[float], samples: Optional[float], is_update: bool = True) -> str:
    wait_s = None if wait_s is None else round(wait_s, 6)
    return line_of("step", t_s, wait_s=wait_s, samples=samples, update=None if is_update else False)


Record = TypeVar("Record")


class WeakRecords(Generic[Record]):
    """Record of each object, by weak reference, because an id may be reused."""

    def __init__(self, make: Callable[[], Record]) -> None:
        self._make = make
        self._known: dict[int, tuple[Callable[[], object], Record]] = {}

    def of(self, thing: object) -> Record:
        """Return this object's record; raise TypeError if it doesn't support weak references."""
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        if len(self._known) >= 1000:  # cached; some trainers make a new dataset for each pass
            self._known = {key: value for key, value in self._known.items() if value[0]() is not None}
        record = self._make()
        self._known[id(thing)] = (weakref.ref(thing), record)
        return record
