"""Reader of the pace files that `autotune.trainee.pace` writes in real trainings."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated

import msgspec

from autotune.trial.step_files import LineTail

_Amount = Annotated[float, msgspec.Meta(ge=0.0, lt=1e15)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
_Logarithms = Annotated[float, msgspec.Meta(gt=-1e15, lt=1e15)]


class PaceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps of one process between two times, as described in `autotune.trainee.pace`.

    Attributes:
        process: Taken from the file's name.
    """

    process: str = ""
    t0_s: _Amount
    t1_s: _Amount
    steps: _Count = 0
    train_s: _Amount = 0.0
    samples: _Amount | None = None
    work: _Amount | None = None
    wait_s: _Amount | None = None
    waits: _Count = 0
    epochs: _Count = 0
    evaluations: _Count = msgspec.field(default=0, name="evals")
    checkpoints: _Count = 0
    pauses: _Count = 0
    pause_s: _Amount = 0.0
    ends: _Count = 0
    ends_s: _Amount = 0.0
    ln_sum: _Logarithms = 0.0
    ln_squares: _Amount = 0.0

    @property
    def wait_fraction(self) -> float | None:
        if self.wait_s is None or not (self.waits and self.steps and self.train_s):
            return None
        return min((self.wait_s / self.waits) / (self.train_s / self.steps), 1.0)

    @property
    def ln_pace(self) -> float | None:
        """Logarithm of the seconds per `unit` of work; None without steps."""
        if not self.steps or self.train_s <= 0.0:
            return None
        return math.log(self.train_s / (self.work or self.samples or self.steps))

    @property
    def unit(self) -> str:
        """Unit of `ln_pace`: frames or tokens, else samples, else steps. Paces in different units don't compare."""
        return "work" if self.work else "samples" if self.samples else "steps"

    def samples_per_s(self, samples_per_step: float | None) -> float | None:
        """Return the throughput; None without steps. Steps without samples have `samples_per_step`, or count as one."""
        if not self.steps or self.train_s <= 0.0:
            return None
        return (self.samples or self.steps * (samples_per_step or 1.0)) / self.train_s


_NAME = re.compile(r"pace\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.jsonl")
_LINE_BYTES = 4 << 10


class _Head(msgspec.Struct):
    """Fields of the first line of a file, and the kind of the other lines."""

    v: int = 1
    clock: str = "monotonic"
    k: str = ""


class PaceReader:
    """Incremental reader of a training's pace files, of at most 32 processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, LineTail] = {}
        self._processes: set[str] = set()
        self._foreign: set[str] = set()  # files of another version or clock

    def poll(self) -> list[PaceWindow]:
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
            # 1 MiB per file: more than twice what a process writes in four hours
            found = [self._parse(line, name, process) for line in self._files[name].read(1 << 20)]
            windows += [window for window in found if window is not None]
        return sorted(windows, key=lambda window: window.t1_s)

    def _parse(self, text: bytes, name: str, process: str) -> PaceWindow | None:
        """Parse a line; None if it isn't a window, or the file has another version or clock."""
        try:
            head = msgspec.json.decode(text, type=_Head)
            if (head.v, head.clock) != (1, "monotonic"):
                self._foreign.add(name)  # its other lines would be misread
            if head.k != "pace" or name in self._foreign:
                return None
            window = msgspec.structs.replace(msgspec.json.decode(text, type=PaceWindow), process=process)
        except (ValueError, RecursionError):
            return None
        # The monotonic clock starts at boot; 1e9 s are 30 years.
        return window if window.t0_s < window.t1_s < 1e9 else None
