"""Pace of a watched training: sums over this process's steps, one line every 10 s.

Files are ``pace.<pid>.<n>.<part>.jsonl`` in ``AUTOTUNE_WATCH_DIR``; ``n`` counts earlier processes with this pid. A
part has a header, then sums:

    {"v": 1, "pid": 4711, "clock": "monotonic", "start_s": 81.2, "source": "observer"}
    {"k": "pace", "t0_s": 90.1, "t1_s": 100.2, "steps": 42, "updates": 42, "train_s": 10.1, "samples": 336, ...}

``steps`` counts training steps between ``t0_s`` and ``t1_s``, ``train_s`` is their time, ``samples`` and ``work`` are
omitted unless known of all, ``wait_s`` is the data wait of ``waits`` of them, ``ln_sum`` and ``ln_squares`` sum over
ln(seconds). A step with an evaluation, checkpoint or epoch end is one of ``pauses`` instead, with its time in
``pause_s`` and a count in ``evals``, ``checkpoints`` or ``epochs``. Only ends of epochs below 20 steps, too many to
omit, stay: ``ends`` of the steps, with ``ends_s`` of their time. ``cpu_s`` is this process's CPU time.

A training's files stay below 10 MB: each of up to eight processes keeps its first part (four hours) and its last two,
and a further process replaces one that has ended. Errors end the report, never the training.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Optional

FORMAT_VERSION = 1
EVERY_S = 10.0
"""Least time between two lines."""

PART_BYTES = 384 << 10
"""Size of a full part: about four hours."""

MOST_PROCESSES = 8


@dataclass
class _StepSums:
    """Sums over the steps since the last line, which has the same fields."""

    t0_s: Optional[float]
    steps: int = 0
    updates: int = 0
    train_s: float = 0.0
    samples: float = 0.0  # NaN if unknown of a step; likewise `work`
    work: float = 0.0
    wait_s: float = 0.0
    waits: int = 0
    ln_sum: float = 0.0
    ln_squares: float = 0.0
    longest_s: float = 0.0
    pauses: int = 0
    pause_s: float = 0.0
    ends: int = 0
    ends_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)  # of pauses, by kind

    def add(
        self, took_s: float, wait_s: Optional[float], samples: Optional[float], work: Optional[float], update: bool
    ) -> None:
        ln = math.log(max(took_s, 1e-6))
        self.steps += 1
        self.updates += 1 if update else 0
        self.train_s += took_s
        self.ln_sum += ln
        self.ln_squares += ln * ln
        self.longest_s = max(self.longest_s, took_s)
        if wait_s is not None:
            self.waits += 1
            self.wait_s += float(wait_s)
        self.samples += math.nan if samples is None else float(samples)
        self.work += math.nan if work is None else float(work)


class Pace:
    """Sums over this process's steps, and their files.

    Raises:
        OSError: No file can be created.
    """

    def __init__(self, folder: str, source: str) -> None:
        self._folder = os.path.abspath(folder)
        self._pid = os.getpid()
        self._number = _free_number(self._folder, self._pid)
        self._part = 0
        self._size = 0
        self._is_open = True
        self._lock = threading.Lock()
        self._last_s: Optional[float] = None
        self._pauses: list[str] = []
        self._epoch_steps = 0
        self._cpu_s = time.process_time()
        self._source = source
        self._sums = _StepSums(None)
        self._begin_part()
        atexit.register(self.flush)

    def restart(self, source: str) -> None:
        """Continue with another reporter of steps; drops the sums since the last line."""
        self._source, self._last_s, self._sums = source, None, _StepSums(None)

    def step(
        self,
        t_s: float,
        wait_s: Optional[float] = None,
        samples: Optional[float] = None,
        work: Optional[float] = None,
        update: bool = True,
    ) -> None:
        """Add a step that ended at `t_s`, with `stream.step`'s arguments; raises nothing."""
        # Never waits: a step that another thread reports at the same moment is dropped.
        if not self._is_open or not self._lock.acquire(blocking=False):
            return
        try:
            took_s = self._time_of(float(t_s))
            if took_s is not None:
                self._sums.add(took_s, wait_s, samples, work, update)
            if self._sums.t0_s is not None and t_s - self._sums.t0_s >= EVERY_S:
                self._write_line()
        except Exception:
            self._is_open = False
        finally:
            self._lock.release()

    def mark(self, kind: str) -> None:
        pause = {"epoch_end": "epochs", "eval": "evals", "checkpoint": "checkpoints"}.get(kind)
        if pause is not None:
            self._pauses.append(pause)

    def flush(self) -> None:
        if self._is_open and os.getpid() == self._pid and self._lock.acquire(blocking=False):
            try:
                self._write_line()
            except Exception:
                self._is_open = False
            finally:
                self._lock.release()

    def _time_of(self, t_s: float) -> Optional[float]:
        """Return a training step's time; None for the first step, and one with a pause."""
        last_s, self._last_s = self._last_s, t_s
        pauses, self._pauses = self._pauses, []
        if last_s is None or t_s < last_s:  # the first includes startup, tracing and compiling
            self._sums.t0_s = t_s if self._sums.t0_s is None else self._sums.t0_s
            return None
        if self._sums.t0_s is None:
            self._sums.t0_s = last_s
        self._epoch_steps += 1
        is_left_out = bool(pauses) and (self._epoch_steps >= 20 or pauses != ["epochs"])
        for name in pauses:
            self._sums.counts[name] = self._sums.counts.get(name, 0) + 1
        if "epochs" in pauses:
            self._epoch_steps = 0
        if is_left_out:
            self._sums.pauses += 1
            self._sums.pause_s += t_s - last_s
        elif pauses:
            self._sums.ends += 1
            self._sums.ends_s += t_s - last_s
        return None if is_left_out else t_s - last_s

    def _write_line(self) -> None:
        sums, cpu_s = self._sums, time.process_time()
        if self._last_s is None or not (sums.steps or sums.counts):
            return
        fields: dict[str, object] = {"k": "pace", "t0_s": sums.t0_s, "t1_s": self._last_s, **vars(sums), **sums.counts}
        del fields["counts"]
        fields["cpu_s"] = cpu_s - self._cpu_s
        left_out = [name for name in ("samples", "work") if not getattr(sums, name) > 0.0]  # or NaN
        left_out += () if sums.waits else ("waits", "wait_s")
        left_out += () if sums.ends else ("ends", "ends_s")
        left_out += () if sums.counts else ("pauses", "pause_s")
        known = {name: value for name, value in fields.items() if name not in left_out}
        rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in known.items()}
        data = (json.dumps(rounded) + "\n").encode()
        if self._size + len(data) > PART_BYTES:
            self._part += 1
            self._begin_part()
        self._append(data)
        self._cpu_s, self._sums = cpu_s, _StepSums(self._last_s)

    def _begin_part(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(self._path_of(self._part), flags, 0o600))
        self._size = 0
        if self._part > 2:  # kept in addition to the first
            os.unlink(self._path_of(self._part - 2))
        header = {"v": FORMAT_VERSION, "pid": self._pid, "clock": "monotonic", "start_s": round(time.monotonic(), 5)}
        self._append((json.dumps({**header, "source": self._source}) + "\n").encode())

    def _path_of(self, part: int) -> str:
        return os.path.join(self._folder, f"pace.{self._pid}.{self._number}.{part}.jsonl")

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path_of(self._part), flags)
        try:
            # A short write means a full disk; continuing would bury the torn line in the file.
            if os.write(descriptor, data) != len(data):
                self._is_open = False
        finally:
            os.close(descriptor)
        self._size += len(data)


def _free_number(folder: str, pid: int) -> int:
    """Return a process's next file number; may remove an ended one's files, or raise OSError if too many report."""
    files: dict[tuple[int, int], list[str]] = {}
    for name in os.listdir(folder):
        match = re.fullmatch(r"pace\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.jsonl", name)
        if match:
            files.setdefault((int(match[1]), int(match[2])), []).append(os.path.join(folder, name))
    if len(files) >= MOST_PROCESSES:
        ended = [key for key in files if key[0] == pid or not os.path.exists(f"/proc/{key[0]}")]
        if not ended:
            raise OSError(f"{MOST_PROCESSES} processes already report their pace")
        oldest = min(ended, key=lambda key: max(os.lstat(path).st_mtime for path in files[key]))
        for path in files[oldest]:
            os.unlink(path)
    return max((key[1] + 1 for key in files if key[0] == pid), default=0)
