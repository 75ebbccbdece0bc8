"""Stream of steps: the file that a training process writes into its trial's folder.

One file per process and image, ``steps.<pid>.<n>.jsonl``, in the folder that ``AUTOTUNE_TRIAL_DIR``
names; ``n`` counts up where a process of the same pid wrote before. Every line is one JSON object:

    {"v": 1, "pid": 4711, "clock": "monotonic", "start_s": 81.2, "source": "step", "devices": []}
    {"k": "step", "t_s": 83.1, "wait_s": 0.01, "samples": 8, "work": 4520, "loss": 0.7}
    {"k": "epoch_end", "t_s": 90.0, "samples": 800}
    {"k": "checkpoint", "t_s": 90.4, "duration_s": 0.4, "text": "step 400"}

In a trial that is taken through phases (phases.py):

    {"k": "phase", "t_s": 91.0, "phase": "replay"}
    {"k": "load", "t_s": 93.3, "duration_s": 0.26, "batches": 12, "samples": 96}
    {"k": "unphased", "t_s": 91.2, "text": "load: a step takes batches from several datasets"}

Here ``t_s`` of a phase is its begin: the step that ends next lies wholly in it. In ``load`` batches are drawn, which a
line reports every quarter of a second of that; the steps between mean nothing.

What costs time again and again besides steps (costs.py), all of its kind and place so far:

    {"k": "cost", "t_s": 84.1, "cost": "trace", "place": "/home/me/train.py:41 step", "times": 3, "duration_s": 0.9,
     "text": "x float32[8, 83] -> float32[8, 91]"}

Of operations that Python launches (also costs.py): all that TensorFlow was seen to be given in ``duration_s``, with the
microseconds of the smallest one as ``text``; those of one update of PyTorch, and what launching these takes.

Of the loop's stay in one line (whereabouts.py): a ``stay``, with its own seconds; a ``before``, likewise, of what came
before the first step; a ``loop`` for all that a line took so far outside of frameworks, with the seconds of CPU time,
and those within a framework, as ``text``; a ``main`` for the CPU time of the main thread since the first step; a
``thread`` for that of lines in other threads, with the mean seconds that waking up takes there as ``text``.

Of a process that trains together with others, before its first step (ranks.py):

    {"k": "rank", "t_s": 83.0, "rank": {"number": 1, "world": 4, "local": 1, "node": "gpu-7", "is_joined": true}}

and twice a second, where gradients are exchanged in the backward pass, the seconds that it spent outside of these so
far: the time for which the others may have waited for it.

    {"k": "own", "t_s": 84.2, "duration_s": 0.71, "times": 42}

Before the first step, the files of the trainer's own modules that are loaded by then:

    {"k": "files", "t_s": 83.0, "paths": ["/home/me/project/train.py"]}

and when the first step began, its batch included:

    {"k": "begin", "t_s": 82.4, "batches": 16}

``batches`` are those that may have been ready by then, in the loader's buffers and with its workers.

The header may come again: where the injected observer (observe.py) has opened the file, a trainer that reports
its own steps adds a header with its own ``source``, and from there on all steps are the trainer's.

``t_s`` is the END of what the line tells, in seconds of CLOCK_MONOTONIC. Where that is another than the reader's, on
another node, the header's ``clock`` is ``node``, and the reader asks once for the time there, in the file
``steps.<pid>.<n>.jsonl.clock``; the answer is the time that it read there, with its own:

    {"k": "clock", "t_s": 5083.0, "host_s": 83.2}
 What is not known is left out
(``update`` only where it is false). JSON has no NaN and no infinity: such numbers are the strings
"nan", "inf" and "-inf", which ``float()`` reads. Readers ignore kinds and fields that they do not know.

A line is one ``write`` to a descriptor opened with O_APPEND, so a reader sees whole lines and at most
one torn last one, also when the process is killed. Whatever goes wrong in here ends the stream and
never the training: nothing is raised, printed, locked for long, or synced to disk.

In real training that is only watched, the steps are summed up instead, see pace.py.

This file depends on nothing but the standard library and runs on Python 3.9, so that it can be copied
next to trainers that do not have autotune installed.
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
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Callable, Generic, Literal, Optional, TypeVar

from autotune.trainee.completion import Completions
from autotune.trainee.ranks import answer_in_background, has_own_clock, own_rank

if TYPE_CHECKING:
    from autotune.trainee.pace import Pace

TRIAL_DIR_VARIABLE = "AUTOTUNE_TRIAL_DIR"
WATCH_DIR_VARIABLE = "AUTOTUNE_WATCH_DIR"
FORMAT_VERSION = 1
OBSERVER = "observer"
"""``source`` of steps that were observed, not reported by the trainer."""


def is_only_watched() -> bool:
    """Return True in real training that is watched: no trial, and a folder for its pace."""
    return bool(os.environ.get(WATCH_DIR_VARIABLE)) and not os.environ.get(TRIAL_DIR_VARIABLE)


class Stream:
    """Stream file of this process: unopened, open, or closed for good.

    Attributes:
        source: Reporter of the steps; None until there is one.
        pace: Sums of the steps in a training that is only watched; then no step is written by itself.
        has_steps: Whether steps have been written, the trainer's files before them.
        is_ranked: Whether this process has written that it trains together with others.
        batches: Batches that the trainer reports with its steps; None before the first.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._path: Optional[str] = None  # of the open file
        self._fd: Optional[int] = None
        self._looked = self.has_steps = self.is_ranked = False
        self.pace: Optional[Pace] = None
        self.source: Optional[str] = None
        self.batches: Any = None

    def forget(self) -> None:
        """Drop the parent's file in a forked child, which opens its own if it makes a step."""
        self._let_go()
        self._begin()  # with another lock: the parent's may be held by a thread that does not exist here

    def announce(self, source: str, devices: Optional[Iterable[str]] = None) -> None:
        """Open the file and write its header, once; once more where a trainer takes over from the observer."""
        with self._lock:
            is_first, takes_over = not self._looked, self.source == OBSERVER != source
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
                if source == OBSERVER:  # until there is a step: a trainer may look at its descriptors, or close all
                    self._let_go()
                if self.pace is not None and takes_over:
                    self.pace.restart(source)
            except Exception:
                self._path = None
            self._looked = True  # only now: other threads wait for the file instead of losing their steps

    def _open(self, source: str) -> None:
        folder, watched = os.environ.get(TRIAL_DIR_VARIABLE), os.environ.get(WATCH_DIR_VARIABLE)
        if watched and not folder:
            from autotune.trainee.pace import Pace

            self.pace = Pace(watched, source)
        for n in range(100 if folder else 0):  # a pid comes back after exec; more is something else going wrong
            path = os.path.join(os.path.abspath(folder or ""), f"steps.{os.getpid()}.{n}.jsonl")
            with contextlib.suppress(FileExistsError):
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._path = path
                return

    @property
    def is_open(self) -> bool:
        """True if reports will be written; looks for the trial at the first call."""
        if not self._looked:
            self.announce("step")
        return self._path is not None or self.pace is not None

    @property
    def is_observed(self) -> bool:
        """True if the steps in it are the observer's; opens the file for it if there is no reporter yet."""
        if not self._looked:
            self.announce(OBSERVER)
        return self.is_open and self.source == OBSERVER

    def write(self, kind: str, t_s: Optional[float] = None, **fields: object) -> None:
        """Append the line of an event, see `line_of`."""
        self._append(line_of(kind, time.monotonic() if t_s is None else t_s, **fields))

    def write_steps(self, lines: str) -> None:
        """Append the lines of steps; before the first ones its rank, and the trainer's files that are loaded by now."""
        if self._path is not None and not self.has_steps:
            self.has_steps = True
            if (rank := own_rank()) is not None:
                self.is_ranked = True
                self.write("rank", rank=rank)
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
            # A short write means a full disk: going on would bury the torn line in the middle of the file.
            if os.write(self._fd, data) != len(data):
                raise OSError("the disk is full")
        except Exception:
            self._path = None
            self._let_go()

    def _let_go(self) -> None:
        """Close the descriptor until there is more to be written."""
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
    """Yield the files of the loaded modules that are not installed: those of the trainer's project.

    Code that a framework generated is not the project's, wherever its cache is: its module's name begins with that of
    an installed package (``torch._inductor.runtime.compile_tasks...``).
    """
    waiting: list[str] = []
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path and not _is_installed(path):
            package = _file_of(sys.modules.get(name.partition(".")[0]))
            if not (package and _is_installed(package)):
                waiting.append(path)
        if sum(map(len, waiting)) > 4096:  # of one line: readers take 16 KiB
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _file_of(module: object) -> Optional[str]:
    with contextlib.suppress(Exception):
        # Not by getattr: a module that is loaded late would be loaded now.
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
    """Return the line of an event; fields that are None are left out."""
    # By hand: json.dumps would cost as much as all the rest of a step's report.
    line = f'{{"k": "{kind}", "t_s": {t_s:.6f}'
    for name, value in fields.items():
        if value is not None:
            line += f', "{name}": {json.dumps(value) if name in _TEXTS else json_number(value)}'
    return line + "}"


def json_number(value: Any) -> str:
    """Format a number for JSON, NaN and infinities as strings; ``null`` for anything that is no number."""
    if type(value) is int:
        return str(value)
    try:
        number = float(value)  # also NumPy scalars and one-element tensors
    except Exception:
        return "null"
    return repr(number) if math.isfinite(number) else f'"{number}"'


class Step:
    """One step on its way to the stream; made by `step`.

    Inside ``with step(...) as this_step:`` the attributes may still be set; they mean what they mean to
    `step`.
    """

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

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:  # a step that raised did not happen
            self._ended_s = time.monotonic()
            self._report()

    def __del__(self) -> None:
        # `step(...)` alone and `with step(...):` look alike to the callee until this: nobody entered,
        # so it was a plain call, and the object dies at the end of that very statement.
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
# Outside a trial and a watched training a step accepts everything, and writes nothing.
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
        wait_s: How long the training loop waited for this batch, in seconds.
        loss: The loss, where it is to be had for free; NaN and infinities are welcome. Reading it from
            a GPU waits for the GPU, so every so many steps is enough.
        work: Valid frames or tokens in the batch, padding not counted: what the time of a step should
            be judged by where batches differ in length.
        update: Whether the optimizer's update is part of this step; False while gradients are accumulated.
        batch: The batch that was trained on, as arrays or a nested structure of them: shows whether trials train on
            the same data, where the loop fetches it in a way that is not observed. Arrays on a GPU are not looked at.
            Where `samples` is left out, it is the batch's length.

    Returns:
        A context manager. As a plain call, leave it alone: it writes its line when the statement ends.
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
    """Look at a reported batch, and return the samples in it."""
    if process_stream.batches is None:
        from autotune.trainee.samples import ReportedBatches

        process_stream.batches = ReportedBatches(os.environ.get(TRIAL_DIR_VARIABLE))
    held = process_stream.batches.look(batch)
    return held if samples is None else samples


def will_report() -> None:
    """Report that the trainer has what it needs to report its own steps, from this process."""
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
    """Report an event other than a step that has just ended, so that its time is not taken for a slow step.

    Args:
        kind: Kind of event; ``sync`` means that the accelerator has no work left.
        duration_s: How long it took, in seconds.
        loss: Of ``eval``: the loss that it found.
        text: A line for people.
        stages: Of ``stages``: times of a pipeline's stages so far, as in `autotune.stage_times.PipelineTimes`.
    """
    _mark(kind, duration_s=duration_s, loss=loss, text=text, stages=stages)


def _mark(kind: str, **fields: Any) -> None:
    if process_stream.is_open:
        with contextlib.suppress(Exception):
            if process_stream.pace is not None and kind != "stages":
                process_stream.pace.mark(kind)
            process_stream.write(kind, **fields)


def announce(source: str, *, devices: Optional[Iterable[str]] = None) -> None:
    """Open the stream and name the reporter; without this call, the first report does it, as ``step``.

    Args:
        source: Reporter of the steps, e.g. ``"autotune.workloads.tts"``; only the first of a process counts.
        devices: UUIDs of the accelerators in use, as NVML spells them; by default those that
            ``CUDA_VISIBLE_DEVICES`` names by UUID.
    """
    process_stream.announce(source, devices)


EACH_LOSS_VARIABLE = "AUTOTUNE_EACH_LOSS"
"""Variable of a trial in which the loss of each step is wanted, where that does not wait for an accelerator."""

# Nearly all steps are formatted in one call: it is most of the cost of a step after its observation.
_STEP = '{"k": "step", "t_s": %.6f, "wait_s": %.6f, "samples": %s}'


class Report:
    """Observer's part of the stream; reports no more steps once the trainer reports its own.

    Attributes:
        loss_due_s: Monotonic time from which the loss is read again; never in a training that is only watched.
        completions: Work that a device completes behind the program; None where there is none.
        held: Steps of the next `flush`: end of each, how long the loop waited for its batch, and samples in that, where
            known; then False where the optimizer's update is not part of it.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._noted: set[str] = set()
        self.loss_due_s = math.inf if is_only_watched() else 0.0
        self.completions: Optional[Completions] = None
        self.held: list[tuple[Any, ...]] = []
        self._losses: list[Any] = []

    def forget(self) -> None:
        """Drop the held steps in a forked child, where they are the parent's."""
        self.completions = None
        self.held.clear()
        self._losses.clear()

    @property
    def is_ours(self) -> bool:
        """True while the observer, not the trainer, reports the steps of this process."""
        return self._stream.source in (None, OBSERVER)

    @property
    def has_begun(self) -> bool:
        """True once this process has a stream; one that makes no steps may never have one."""
        return self._stream.source is not None

    def flush(self) -> None:
        """Write the held steps, as far as they are completed."""
        held = self.held[:]
        if self.completions is not None:
            self.completions.poll(time.monotonic())
            held = self.completions.ended(held)
        del self.held[: len(held)]  # the list stays: whoever is adding to it goes on
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
        """Add a loss that could be read without waiting for the accelerator; it is written with the next steps.

        Of several, their mean is written.
        """
        if self._stream.pace is None:
            # Looked up late: a forked child's environment is not its parent's.
            self.loss_due_s = now_s + (0.0 if EACH_LOSS_VARIABLE in os.environ else 0.5)
            if value is not None:
                self._losses.append(value)

    def mark(
        self,
        kind: str,
        t_s: float,
        duration_s: Optional[float] = None,
        loss: Any = None,
        batches: Optional[int] = None,
        samples: Optional[float] = None,
    ) -> None:
        """Report an event other than a step; pauses are useful to a trainer that reports its own steps, too.

        Args:
            duration_s: How long it took; None if unknown.
            loss: Of an evaluation, the loss that it found; None if unknown.
            batches: Of the begin of the first step, the batches that may have been ready by then; None if unknown.
            samples: Of the end of a pass, the samples in it; None if unknown.
        """
        self.flush()
        if self._stream.pace is not None:
            self._stream.pace.mark(kind)
        elif self._stream.is_observed or kind in ("eval", "checkpoint"):
            self._stream.write(kind, t_s, duration_s=duration_s, loss=loss, batches=batches, samples=samples)

    def pauses(self) -> None:
        """Note that the program does something else than training: steps that are completed meanwhile tell no pace."""
        if self.completions is not None:
            self.completions.pause()

    def note(self, text: str) -> None:
        """Write a note for people, each text once."""
        if text not in self._noted and self._stream.is_observed:
            self._noted.add(text)
            self._stream.write("note", text=text[:500])

    def unseen(self, text: str) -> None:
        """Report that the loop trains from now on, and why none of its steps can be seen."""
        if self._stream.is_observed:
            self._stream.write("unseen", text=text)

    def line(self, kind: str, t_s: float, **fields: object) -> None:
        """Write a line of its own, also where the trainer reports its steps itself; stream.py describes the fields."""
        self.flush()
        if self._stream.is_observed or self._stream.is_open:
            self._stream.write(kind, t_s, **fields)


def _mean(losses: list[Any]) -> Any:
    """Return the mean of some losses; what is no number stays so."""
    if len(losses) == 1:
        return losses[0]
    try:
        return math.fsum(map(float, losses)) / len(losses)
    except Exception:
        return None


def _line(t_s: float, wait_s: Optional[float], samples: Optional[float], is_update: bool = True) -> str:
    """Format a step of which not every field is known, or without an update."""
    wait_s = None if wait_s is None else round(wait_s, 6)
    return line_of("step", t_s, wait_s=wait_s, samples=samples, update=None if is_update else False)


Record = TypeVar("Record")


class WeakRecords(Generic[Record]):
    """Record of each object, by weak reference; an id may be reused by another object later."""

    def __init__(self, make: Callable[[], Record]) -> None:
        self._make = make
        self._known: dict[int, tuple[Callable[[], object], Record]] = {}

    def of(self, thing: object) -> Record:
        """Return the record of this object.

        Raises:
            TypeError: The object does not support weak references.
        """
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        if len(self._known) >= 1000:  # remembered; a trainer that makes a new dataset for each pass makes many
            self._known = {key: value for key, value in self._known.items() if value[0]() is not None}
        record = self._make()
        self._known[id(thing)] = (weakref.ref(thing), record)
        return record
