"""Programs that the matrix starts: autotune as a user types it, and plain trainings that are stopped after a time."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.real_trainers.own_log import OwnLog
from tests.real_trainers.watching import LOOK_S, GrowingLog

PATIENCE_S = 10.0
"""Time for a process to end by itself after it was told to."""

START_S = 120.0
"""Longest time to the first step of a plain training."""

WARM_UP = 0.3
"""Share of a plain training, from its first step on, that is left out of its rate."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """Program that has ended.

    Attributes:
        code: Exit status; None if it had to be ended.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int | None
    out: str
    err: str


@contextmanager
def started(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], logs: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program in a session of its own; however the block is left, it and its descendants are gone then."""
    with logs.with_suffix(".out").open("wb") as out, logs.with_suffix(".err").open("wb") as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        process = subprocess.Popen(argv, cwd=cwd, env=dict(env), start_new_session=True, **streams)
    try:
        yield process
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        below = []
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, alive = psutil.wait_procs(below, timeout=1.0)
    for each in alive:
        each.kill()  # psutil compares the time of creation: never another process with that number
    psutil.wait_procs(alive, timeout=PATIENCE_S)


def run(argv: Sequence[str], *, limit_s: float, logs: Path, **how: object) -> Done:
    """Run a program to its end, at most for a time; see `started`."""
    with started(argv, logs=logs, **how) as process:
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
    out, err = (logs.with_suffix(ending).read_text(errors="replace") for ending in (".out", ".err"))
    return Done(code=code, out=out, err=err)


def trained(argv: Sequence[str], log: OwnLog, *, seconds: float, logs: Path, **how: object) -> float | None:
    """Train for some seconds from the first step on, and compute the rate that the trainer's own log shows.

    Args:
        argv: Command.
        log: Form of its progress lines.
        seconds: Time from its first step on.
        logs: Path without an ending for what it prints.
        how: See `started`.

    Returns:
        Progress per second, see `OwnLog.samples`; None if there were too few steps.
    """
    begun_s = time.monotonic()
    with started(argv, logs=logs, **how) as process:
        grow = [GrowingLog(logs.with_suffix(ending), log) for ending in (".out", ".err")]
        points, limit_s = grow[0].points, begun_s + START_S
        while process.poll() is None and time.monotonic() < limit_s:
            time.sleep(LOOK_S)
            for each in grow:
                each.look()
            points = max((each.points for each in grow), key=len)
            limit_s = points[0].t_s + seconds if points else limit_s
    if len(points) < 3:
        return None
    begin_s = points[0].t_s + WARM_UP * (points[-1].t_s - points[0].t_s)
    first = next(point for point in points if point.t_s >= begin_s)
    took_s, done = points[-1].t_s - first.t_s, points[-1].done - first.done
    return done / took_s if took_s > 0 and done > 0 else None


def environment(python: Path, home: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a user whose Python is `python`; output is not buffered, so that logs are complete."""
    return {
        "PATH": f"{python.parent}{os.pathsep}{os.defpath}{os.pathsep}/usr/local/bin",
        "HOME": str(home),
        **{"LANG": "C.UTF-8", "TERM": "dumb", "USER": "user", "PYTHONUNBUFFERED": "1"},
        "OMP_NUM_THREADS": "1",  # on a machine with other work, threads of a step wait for each other
        **own,
    }
