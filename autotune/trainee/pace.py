"""Pace of a watched training: sums over the steps of this process, written as one line every 10 s.

Files in the folder that ``AUTOTUNE_WATCH_DIR`` names, ``pace.<pid>.<n>.<part>.jsonl``; ``n`` counts up where a process
of the same pid wrote before. Each part begins with a header, all other lines are sums:

    {"v": 1, "pid": 4711, "clock": "monotonic", "start_s": 81.2, "source": "observer"}
    {"k": "pace", "t0_s": 90.1, "t1_s": 100.2, "steps": 42, "updates": 42, "train_s": 10.1, "samples": 336, ...}

``steps`` are those between ``t0_s`` and ``t1_s`` whose time is training, ``train_s`` their time, ``samples`` and
``work`` what they held (left out unless known of all of them), ``wait_s`` how long ``waits`` of them waited for data,
``ln_sum`` and ``ln_squares`` sums over the logarithms of their times in seconds, ``longest_s`` the longest of them. A
step that holds an evaluation, a checkpoint or the end of an epoch is none of them: its time is in ``pause_s``, and it
is counted in ``evals``, ``checkpoints`` or ``epochs``. Only the ends of epochs of less than 20 steps, too many to be
left out, are counted and stay. ``cpu_s`` is the CPU time of this process meanwhile.

All files of a training together stay below 10 MB, however long it lasts, at one line every 10 s: of each process the
first part (the first four hours) and the last two are kept, and of the processes eight; a further one takes the place
of one that has ended. Whatever goes wrong in here ends the report and never the training: a full disk, a folder that
has vanished. The file is open only while a line is written, so that a trainer may close any descriptor.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import threading
import time
from typing import Optional

FORMAT_VERSION = 1
EVERY_S = 10.0
"""Least time between two lines."""

PART_BYTES = 384 << 10
"""Size at which a part is full: about four hours."""

MOST_PROCESSES = 8

_FEW_STEPS = 20
_KEPT_PARTS = 2  # besides the first
_NAME = re.compile(r"pace\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.jsonl")
_SHORTEST_S = 1e-6  # of a step, for its logarithm
_PAUSES = {"epoch_end": "epochs", "eval": "evals", "checkpoint": "checkpoints"}


class Pace:
    """Sums over the steps of this process, and the files that they are written to.

    Raises:
        OSError: No file can be made there.
    """

    _t0_s: Optional[float]
    _samples: float
    _work: float
    _longest_s: float
    _counts: dict[str, int]

    def __init__(self, folder: str, source: str) -> None:
        self._folder = os.path.abspath(folder)
        self._pid = os.getpid()
        self._number = _free_number(self._folder, self._pid)
        self._part = 0
        self._path = ""
        self._size = 0
        self._is_open = True
        self._lock = threading.Lock()
        self._last_s: Optional[float] = None
        self._pauses: list[str] = []
        self._epoch_steps = 0
        self._cpu_s = time.process_time()
        self._source = source
        self._clear(None)
        self._begin_part()
        atexit.register(self.flush)

    def restart(self, source: str) -> None:
        """Go on with another reporter of the steps; what was summed up since the last line is dropped."""
        self._source = source
        self._last_s = None
        self._clear(None)

    def step(
        self,
        t_s: float,
        wait_s: Optional[float] = None,
        samples: Optional[float] = None,
        work: Optional[float] = None,
        update: bool = True,
    ) -> None:
        """Add a step that ended at that time; no error leaves this function.

        Args:
            wait_s: How long the loop waited for its batch; None if unknown.
            samples: Samples in its batch; None if unknown.
            work: Frames or tokens in its batch; None if unknown.
            update: False if its gradients are only accumulated.
        """
        # Never waiting: a step that another thread reports at this very moment is not worth it.
        if not self._is_open or not self._lock.acquire(blocking=False):
            return
        try:
            self._add(float(t_s), wait_s, samples, work, update)
            if self._t0_s is not None and t_s - self._t0_s >= EVERY_S:
                self._write_line()
        except Exception:
            self._is_open = False
        finally:
            self._lock.release()

    def mark(self, kind: str) -> None:
        """Note that something other than training took time since the last step: ``eval``, ``checkpoint`` and such."""
        if kind in _PAUSES:
            self._pauses.append(_PAUSES[kind])

    def flush(self) -> None:
        """Write what was summed up since the last line."""
        if self._is_open and os.getpid() == self._pid and self._lock.acquire(blocking=False):
            try:
                self._write_line()
            except Exception:
                self._is_open = False
            finally:
                self._lock.release()

    def _add(
        self,
        t_s: float,
        wait_s: Optional[float],
        samples: Optional[float],
        work: Optional[float],
        update: bool,
    ) -> None:
        last_s, self._last_s = self._last_s, t_s
        if last_s is None or t_s < last_s:  # the first holds the start of the process, tracing and compiling
            self._pauses.clear()
            if self._t0_s is None:
                self._t0_s = t_s
            return
        if self._t0_s is None:
            self._t0_s = last_s
        took_s = t_s - last_s
        self._epoch_steps += 1
        if self._pauses and self._is_left_out():
            self._pause_s += took_s
            return
        ln = math.log(max(took_s, _SHORTEST_S))
        self._steps += 1
        self._updates += 1 if update else 0
        self._train_s += took_s
        self._ln_sum += ln
        self._ln_squares += ln * ln
        self._longest_s = max(self._longest_s, took_s)
        if wait_s is not None:
            self._waits += 1
            self._wait_s += float(wait_s)
        if samples is None:
            self._samples = math.nan
        else:
            self._samples += float(samples)
        if work is None:
            self._work = math.nan
        else:
            self._work += float(work)

    def _is_left_out(self) -> bool:
        """Count the pauses that the last step holds; return whether its time is theirs."""
        is_left_out = self._epoch_steps >= _FEW_STEPS or self._pauses != ["epochs"]
        for name in self._pauses:
            self._counts[name] = self._counts.get(name, 0) + 1
        if "epochs" in self._pauses:
            self._epoch_steps = 0
        self._pauses.clear()
        return is_left_out

    def _clear(self, t0_s: Optional[float]) -> None:
        self._t0_s = t0_s
        self._steps, self._updates, self._waits = 0, 0, 0
        self._train_s, self._wait_s, self._pause_s = 0.0, 0.0, 0.0
        self._ln_sum, self._ln_squares, self._longest_s = 0.0, 0.0, 0.0
        self._samples, self._work = 0.0, 0.0
        self._counts = {}

    def _write_line(self) -> None:
        if self._last_s is None or not (self._steps or self._counts):
            return
        cpu_s = time.process_time()
        fields: dict[str, object] = {"k": "pace", "t0_s": self._t0_s, "t1_s": self._last_s, "steps": self._steps}
        fields.update(updates=self._updates, train_s=self._train_s)
        if self._samples > 0.0:  # not where it is NaN: unknown of some
            fields["samples"] = self._samples
        if self._work > 0.0:
            fields["work"] = self._work
        if self._waits:
            fields.update(wait_s=self._wait_s, waits=self._waits)
        fields.update(ln_sum=self._ln_sum, ln_squares=self._ln_squares, longest_s=self._longest_s)
        if self._counts:
            fields.update(self._counts, pause_s=self._pause_s)
        fields["cpu_s"] = cpu_s - self._cpu_s
        rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in fields.items()}
        data = (json.dumps(rounded) + "\n").encode()
        if self._size + len(data) > PART_BYTES:
            self._part += 1
            self._begin_part()
        self._append(data)
        self._cpu_s = cpu_s
        self._clear(self._last_s)

    def _begin_part(self) -> None:
        self._path = self._path_of(self._part)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(self._path, flags, 0o600))
        self._size = 0
        if self._part > _KEPT_PARTS:
            os.unlink(self._path_of(self._part - _KEPT_PARTS))
        header = {"v": FORMAT_VERSION, "pid": self._pid, "clock": "monotonic"}
        header.update(start_s=round(time.monotonic(), 5), source=self._source)
        self._append((json.dumps(header) + "\n").encode())

    def _path_of(self, part: int) -> str:
        return os.path.join(self._folder, f"pace.{self._pid}.{self._number}.{part}.jsonl")

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # A short write means a full disk: going on would bury the torn line in the middle of the file.
            if os.write(descriptor, data) != len(data):
                self._is_open = False
        finally:
            os.close(descriptor)
        self._size += len(data)


def _free_number(folder: str, pid: int) -> int:
    """Return the next number of a process, after room was made for it.

    Raises:
        OSError: There is no such folder, or as many processes report as may.
    """
    files: dict[tuple[int, int], list[str]] = {}
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match:
            files.setdefault((int(match[1]), int(match[2])), []).append(os.path.join(folder, name))
    if len(files) >= MOST_PROCESSES:
        ended = [key for key in files if key[0] == pid or not os.path.exists(f"/proc/{key[0]}")]
        if not ended:
            raise OSError("enough processes report their pace")
        oldest = min(ended, key=lambda key: max(os.lstat(path).st_mtime for path in files[key]))
        for path in files[oldest]:
            os.unlink(path)
    return max((key[1] + 1 for key in files if key[0] == pid), default=0)
