"""Lines of the trainer's code in which its loop stays, sampled in a diagnosis's trial.

A thread samples the trainer's line that the main thread is in, or has called a library from. Each longer stay is a
``cost`` of kind ``stay``, also for the lines that called it; ``times`` is its depth. Lines with the most time outside
of frameworks are reported as ``loop``, the main thread's CPU time as ``main``, the CPU time of the trainer's lines in
other threads as ``thread``, at the line with most of it, and time before the first step, per function or line of a
module, as ``before``; its ``text`` is "framework" within one.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import Any

from autotune.trainee.costs import NOWHERE, is_own
from autotune.trainee.stream import process_stream

# a call of a function compiled by JAX has no frame but its observer's
_FRAMEWORKS = re.compile(
    r"(?:site|dist)-packages[/\\](?:jax|jaxlib|flax|haiku|optax|equinox|torch|tensorflow|(?:tf_)?keras)[/\\]|observe_jax\.py$"
)
_COMPREHENSIONS = frozenset(("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))  # frames of the function around
_EVERY_S = 0.01  # 0.1 % of one core
_SWITCH_S = 0.0005  # with Python's 5 ms, a sample of short Python code is late, and sees the next C code
_LEAST_S = 0.03  # shorter stays, of fewer samples, aren't reported
_MOST_PLACES, _MOST_DEEP = 8, 6
_MOST_S = 1.0  # longer stays are reported in parts: the trial may end meanwhile


class Whereabouts(threading.Thread):
    """Thread that samples the main thread's line."""

    def __init__(self) -> None:
        super().__init__(name="autotune-whereabouts", daemon=True)
        self._main = threading.main_thread().ident or 0
        self._stays: list[tuple[str, float]] = []  # line of each calling function, and since when
        self._lines: dict[str, list[float]] = {}  # line → time and CPU time outside of frameworks, time within them
        self._reported_s = self._first_cpu_s = 0.0
        self._threads: dict[int, float] = {}  # CPU time so far of each other thread
        self._in_threads: dict[str, float] = {}  # line → CPU time in other threads
        self._late_s, self._samples = 0.0, 0  # a thread that wakes up needs the interpreter lock
        self._switch_s, self._is_hasty = 0.0, False

    def run(self) -> None:
        last_s = self._reported_s = self._before_steps()
        cpu_s = self._first_cpu_s = _cpu_s(self._main)
        while True:
            asleep_s = time.monotonic()
            time.sleep(_EVERY_S)
            now_s, now_cpu_s = time.monotonic(), _cpu_s(self._main)
            self._late_s, self._samples = self._late_s + now_s - asleep_s - _EVERY_S, self._samples + 1
            frames_of = sys._current_frames()
            frames, is_in_framework = _own_frames(frames_of.pop(self._main, None))
            self._sample_threads(frames_of)
            places = [_line_of(frame) for frame in frames[-_MOST_DEEP:]]
            if places:
                times = self._lines.setdefault(places[-1], [0.0, 0.0, 0.0])
                if is_in_framework:
                    times[2] += now_s - last_s
                else:
                    times[0] += now_s - last_s
                    times[1] += now_cpu_s - cpu_s
            if now_s - self._reported_s >= _MOST_S:
                self._report_lines(now_s)
            last_s, cpu_s = now_s, now_cpu_s
            self._report_stays(places, now_s)

    def _report_stays(self, places: list[str], now_s: float) -> None:
        """Report nested stays that are over or long, innermost first."""
        same = 0
        while same < min(len(places), len(self._stays)) and places[same] == self._stays[same][0]:
            same += 1
        for depth in range(len(self._stays) - 1, -1, -1):
            place, since_s = self._stays[depth]
            is_over = depth >= same
            if is_over or now_s - since_s >= _MOST_S:
                if now_s - since_s >= _LEAST_S:
                    took_s = now_s - since_s
                    process_stream.write("cost", now_s, cost="stay", place=place, duration_s=took_s, times=depth + 1)
                self._stays[depth] = place, now_s
        self._stays[same:] = [(place, now_s) for place in places[same:]]

    def _sample_threads(self, frames_of: dict[int, Any]) -> None:
        is_alone = True
        for thread, frame in frames_of.items():
            used_s = _cpu_s(thread)  # it exists: to end, it would need the lock that this thread holds
            frames, is_in_framework = _own_frames(frame)
            since_s = used_s - self._threads.get(thread, used_s)
            if frames and not is_in_framework:
                line = _line_of(frames[-1])
                self._in_threads[line] = self._in_threads.get(line, 0.0) + since_s
            is_alone = is_alone and since_s < 0.1 * _EVERY_S
            self._threads[thread] = used_s
        self._hasten_switches(is_alone)

    def _hasten_switches(self, is_alone: bool) -> None:
        """Let this thread interrupt the main thread soon, while no other one is busy, for which switches cost time."""
        if is_alone == self._is_hasty:
            return
        if is_alone:
            self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S if is_alone else self._switch_s)
        self._is_hasty = is_alone

    def _report_lines(self, now_s: float) -> None:
        self._reported_s = now_s
        used_s = _cpu_s(self._main) - self._first_cpu_s
        process_stream.write("cost", now_s, cost="main", place=NOWHERE, duration_s=used_s, times=1)
        if self._in_threads:
            place, text = max(self._in_threads, key=self._in_threads.__getitem__), f"{self._late_s / self._samples:.6f}"
            about = {"cost": "thread", "place": place, "times": 1, "text": text}
            process_stream.write("cost", now_s, duration_s=sum(self._in_threads.values()), **about)
        for line, (took_s, used_s, within_s) in sorted(self._lines.items(), key=lambda one: -one[1][0])[:_MOST_PLACES]:
            text = f"{used_s:.3f} {within_s:.3f}"
            process_stream.write("cost", now_s, cost="loop", place=line, duration_s=took_s, times=1, text=text)

    def _before_steps(self) -> float:
        """Sum up the main thread's places before the first step, report them, and return the time."""
        took_s: dict[tuple[str, str], float] = {}
        last_s = time.monotonic()
        while not process_stream.has_steps:
            time.sleep(_EVERY_S)
            now_s = time.monotonic()
            frames, is_in_framework = _own_frames(sys._current_frames().get(self._main))
            if frames:
                code = frames[-1].f_code
                line = frames[-1].f_lineno if code.co_name == "<module>" else code.co_firstlineno
                key = f"{code.co_filename}:{line} {code.co_name}", "framework" if is_in_framework else ""
                took_s[key] = took_s.get(key, 0.0) + now_s - last_s
            last_s = now_s
        for (place, text), duration_s in sorted(took_s.items(), key=lambda one: -one[1])[:_MOST_PLACES]:
            about = {"cost": "before", "place": place, "times": 1, "text": text}
            process_stream.write("cost", last_s, duration_s=duration_s, **about)
        return last_s


def _own_frames(frame: Any) -> tuple[list[Any], bool]:
    """Return the trainer's frames, innermost last, and whether that one has called a framework."""
    found: list[Any] = []
    is_in_framework = False
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            found.append(frame)
        elif not found:
            is_in_framework = is_in_framework or _FRAMEWORKS.search(frame.f_code.co_filename) is not None
        frame = frame.f_back
    while len(found) > 1 and found[0].f_code.co_name in _COMPREHENSIONS:
        del found[0]
    return found[::-1], is_in_framework


def _cpu_s(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _line_of(frame: Any) -> str:
    code = frame.f_code  # some instructions have no line
    return f"{code.co_filename}:{frame.f_lineno or code.co_firstlineno} {code.co_name}"
