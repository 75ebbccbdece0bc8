"""Reader of the files in which a training reports its pace, while it writes them; `trainee.pace` has the format.

Nothing in these files is trusted: they are written by the user's process.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.daemon.drift.pace_window import PaceWindow
from autotune.folders.line_tail import LineTail

VERSION = 1

_NAME = re.compile(r"pace\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.jsonl")
_PROCESSES = 32  # read at most
_FILES = 4 * _PROCESSES
_POLL_BYTES = 1 << 20  # of each file; four hours of a process are less than half of it
_LINE_BYTES = 4 << 10
_LATEST_S = 1e9  # of the monotonic clock, which starts with the machine: thirty years
_MOST = 1e15


class PaceReader:
    """Incremental reader of all ``pace.<pid>.<n>.<part>.jsonl`` of a training's folder.

    Args:
        folder: The training's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, tuple[str, LineTail]] = {}
        self._foreign: set[str] = set()
        self._processes: set[str] = set()

    def poll(self) -> list[PaceWindow]:
        """Return the windows written since the last poll, in the order of their time."""
        names = self._names()
        for name in self._files.keys() - names:  # an old part that was dropped
            del self._files[name]
        windows = []
        for name in sorted(names, key=_order):
            if name not in self._files and not self._begin(name):
                continue
            process, tail = self._files[name]
            for line in tail.read(_POLL_BYTES):
                if (window := self._understand(line, name, process)) is not None:
                    windows.append(window)
        windows.sort(key=lambda window: window.t1_s)
        return windows

    def _begin(self, name: str) -> bool:
        match = _NAME.fullmatch(name)
        process = f"{match[1]}.{match[2]}" if match else ""
        is_known = process in self._processes
        if len(self._files) >= _FILES or not (is_known or len(self._processes) < _PROCESSES):
            return False
        self._processes.add(process)
        self._files[name] = process, LineTail(self._folder / name, longest_bytes=_LINE_BYTES)
        return True

    def _names(self) -> set[str]:
        try:
            return {name for name in os.listdir(self._folder) if _NAME.fullmatch(name)}
        except OSError:  # the folder is gone
            return set()

    def _understand(self, line: bytes, name: str, process: str) -> PaceWindow | None:
        """Parse a line; None if it is no window, or the file is of another version or clock."""
        if not line or len(line) > _LINE_BYTES or name in self._foreign:
            return None
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict):
            return None
        if "v" in fields and "k" not in fields:
            if fields["v"] != VERSION or fields.get("clock") != "monotonic":
                self._foreign.add(name)  # what follows would be misread
            return None
        return _window(fields, process) if fields.get("k") == "pace" else None


def _window(fields: Mapping[str, Any], process: str) -> PaceWindow | None:
    t0_s, t1_s = _amount(fields.get("t0_s")), _amount(fields.get("t1_s"))
    steps, train_s = _amount(fields.get("steps")), _amount(fields.get("train_s"))
    if t0_s is None or t1_s is None or steps is None or train_s is None or not t0_s < t1_s < _LATEST_S:
        return None
    wait_s, waits = _amount(fields.get("wait_s")), _amount(fields.get("waits"))
    wait = None
    if wait_s is not None and waits and steps and train_s:
        wait = min((wait_s / waits) / (train_s / steps), 1.0)
    evals, checkpoints = _amount(fields.get("evals")) or 0.0, _amount(fields.get("checkpoints")) or 0.0
    return PaceWindow(
        process=process,
        t0_s=t0_s,
        t1_s=t1_s,
        steps=int(steps),
        train_s=train_s,
        samples=_amount(fields.get("samples")) or None,
        work=_amount(fields.get("work")) or None,
        wait_fraction=wait,
        epochs=int(_amount(fields.get("epochs")) or 0.0),
        pauses=int(evals + checkpoints),
        pause_s=_amount(fields.get("pause_s")) or 0.0,
        cpu_s=_amount(fields.get("cpu_s")),
    )


def _amount(value: Any) -> float | None:
    """Return a number from 0 on; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < _MOST else None


def _order(name: str) -> tuple[int, ...]:
    match = _NAME.fullmatch(name)
    return tuple(int(part) for part in match.groups()) if match else ()
