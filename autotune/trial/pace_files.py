"""What a real training reports of its pace, as `autotune.trainee.pace` writes it."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from autotune.trial.step_files import LineTail


@dataclass(frozen=True, kw_only=True)
class PaceWindow:
    """Sums over the steps of one process between two times.

    Attributes:
        t0_s: Start, on the monotonic clock of the machine's boot.
        steps: Steps whose time is training; steps that hold a pause are none of them.
        samples: Samples in them; None if not known of all.
        work: Frames or tokens in them; None if not known of all.
        wait_fraction: Share of their time for which the loop waited for data; None if not known.
        epochs: Passes over the data that ended.
        evaluations: Evaluations of the model.
        checkpoints: Checkpoints that were written.
        pauses: Steps that were left out because they hold an evaluation, a checkpoint or the end of an epoch.
        pause_s: Time of these.
        ends: Steps that are not left out though an epoch ends in them: epochs are short.
        ends_s: Time of these.
        ln_sum: Sum of the logarithms of the steps' times in seconds.
        ln_squares: Sum of the squares of these.
    """

    process: str
    t0_s: float
    t1_s: float
    steps: int
    train_s: float
    samples: float | None = None
    work: float | None = None
    wait_fraction: float | None = None
    epochs: int = 0
    evaluations: int = 0
    checkpoints: int = 0
    pauses: int = 0
    pause_s: float = 0.0
    ends: int = 0
    ends_s: float = 0.0
    ln_sum: float = 0.0
    ln_squares: float = 0.0

    @property
    def ln_pace(self) -> float | None:
        """Logarithm of the seconds per unit of work: frames or tokens, else samples, else steps; None without steps."""
        if not self.steps or self.train_s <= 0.0:
            return None
        return math.log(self.train_s / (self.work or self.samples or self.steps))

    @property
    def unit(self) -> str:
        """Unit of work that `ln_pace` counts; paces of different units cannot be compared."""
        return "work" if self.work else "samples" if self.samples else "steps"

    def samples_per_s(self, samples_per_step: float | None) -> float | None:
        """Return the throughput; None without steps.

        Args:
            samples_per_step: Samples in a step where the steps do not say; None counts steps.
        """
        if not self.steps or self.train_s <= 0.0:
            return None
        return (self.samples or self.steps * (samples_per_step or 1.0)) / self.train_s


_NAME = re.compile(r"pace\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.jsonl")
_LINE_BYTES = 4 << 10
_Amount = Annotated[float, msgspec.Meta(ge=0.0, lt=1e15)]


class _Line(msgspec.Struct, kw_only=True):
    """Line of a file: its head has a version, all others a kind."""

    v: int = 1
    clock: str = "monotonic"
    k: str = ""
    t0_s: _Amount = 0.0
    t1_s: _Amount = 0.0
    steps: _Amount = 0.0
    train_s: _Amount = 0.0
    samples: _Amount | None = None
    work: _Amount | None = None
    wait_s: _Amount | None = None
    waits: _Amount = 0.0
    epochs: _Amount = 0.0
    evals: _Amount = 0.0
    checkpoints: _Amount = 0.0
    pauses: _Amount = 0.0
    pause_s: _Amount = 0.0
    ends: _Amount = 0.0
    ends_s: _Amount = 0.0
    ln_sum: Annotated[float, msgspec.Meta(gt=-1e15, lt=1e15)] = 0.0
    ln_squares: _Amount = 0.0


class PaceReader:
    """Incremental reader of all ``pace.<pid>.<n>.<part>.jsonl`` of a training's folder, of 32 processes at most."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, LineTail] = {}
        self._processes: set[str] = set()
        self._foreign: set[str] = set()  # files of another version or clock

    def poll(self) -> list[PaceWindow]:
        """Return the windows written since the last poll, in the order of their time."""
        try:
            matches = [match for name in os.listdir(self._folder) if (match := _NAME.fullmatch(name))]
        except OSError:  # the folder is gone
            return []
        names = {match[0] for match in matches}
        self._files = {name: tail for name, tail in self._files.items() if name in names}  # old parts are dropped
        windows = []
        for match in sorted(matches, key=lambda match: [int(part) for part in match.groups()]):
            name, process = match[0], f"{match[1]}.{match[2]}"
            if name not in self._files:
                if len(self._files) >= 128 or len(self._processes | {process}) > 32:
                    continue
                self._processes.add(process)
                self._files[name] = LineTail(self._folder / name, longest_bytes=_LINE_BYTES)
            # of each file; four hours of a process are less than half of it
            lines = [self._understood(line, name) for line in self._files[name].read(1 << 20)]
            windows += [_window(line, process) for line in lines if line is not None]
        return sorted(windows, key=lambda window: window.t1_s)

    def _understood(self, text: bytes, name: str) -> _Line | None:
        """Parse a line; None if it is no window, or the file is of another version or clock."""
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (ValueError, RecursionError):
            return None
        if (line.v, line.clock) != (1, "monotonic"):
            self._foreign.add(name)  # what follows would be misread
        # The monotonic clock starts with the machine: thirty years.
        is_window = line.k == "pace" and name not in self._foreign and line.t0_s < line.t1_s < 1e9
        return line if is_window else None


def _window(line: _Line, process: str) -> PaceWindow:
    wait = None
    if line.wait_s is not None and line.waits and line.steps and line.train_s:
        wait = min((line.wait_s / line.waits) / (line.train_s / line.steps), 1.0)
    return PaceWindow(
        process=process,
        t0_s=line.t0_s,
        t1_s=line.t1_s,
        steps=int(line.steps),
        train_s=line.train_s,
        samples=line.samples or None,
        work=line.work or None,
        wait_fraction=wait,
        epochs=int(line.epochs),
        evaluations=int(line.evals),
        checkpoints=int(line.checkpoints),
        pauses=int(line.pauses),
        pause_s=line.pause_s,
        ends=int(line.ends),
        ends_s=line.ends_s,
        ln_sum=line.ln_sum,
        ln_squares=line.ln_squares,
    )
