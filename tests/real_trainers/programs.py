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

from tests.real_trainers.own_log import OwnLog, Progress

PATIENCE_S = 10.0
"""Time for a process to end by itself after it was told to."""

WARM_UP = 0.3
"""Share of a plain training, from its first step on, that is left out of its rate."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """Program that has ended.

    Attributes:
        code: Exit status; None if it had to be ended.
        took_s: Time from its start to its end.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int | None
    took_s: float
    out: str
    err: str


@contextmanager
def started(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], logs: Path, group: int | None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program in a session of its own; however the block is left, it and its descendants are gone then."""
    with logs.with_suffix(".out").open("wb") as out, logs.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            group=group,
        )
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


def run(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], logs: Path, group: int | None, limit_s: float
) -> Done:
    """Run a program to its end, at most for a time."""
    begun_s = time.monotonic()
    with started(argv, cwd=cwd, env=env, logs=logs, group=group) as process:
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
    took_s = time.monotonic() - begun_s
    return Done(code=code, took_s=took_s, out=_text(logs.with_suffix(".out")), err=_text(logs.with_suffix(".err")))


def trained(
    argv: Sequence[str],
    log: OwnLog,
    *,
    batch: float,
    accumulation: float,
    cwd: Path,
    env: Mapping[str, str],
    logs: Path,
    group: int | None,
    seconds: float,
    start_s: float = 120.0,
) -> float | None:
    """Train for some seconds from the first step on, and compute the rate that the trainer's own log shows.

    Args:
        argv: Command.
        log: Form of its progress lines.
        batch: Samples in a batch.
        accumulation: Batches in an update.
        cwd: Folder in which it is started.
        env: Its whole environment.
        logs: Path without an ending for what it prints.
        group: Group id of its processes.
        seconds: Time from its first step on.
        start_s: Longest time to the first step.

    Returns:
        Samples per second; None if there were too few steps.
    """
    progress = [Progress(log=log), Progress(log=log)]
    points: list[tuple[float, float]] = []
    begun_s = time.monotonic()
    with started(argv, cwd=cwd, env=env, logs=logs, group=group) as process:
        files = [path.open("rb") for path in (logs.with_suffix(".out"), logs.with_suffix(".err"))]
        try:
            while True:
                has_ended = process.poll() is not None
                now_s = time.monotonic()
                for file, each in zip(files, progress, strict=True):
                    if each.feed(file.read().decode(errors="replace")):
                        points.append((now_s, log.samples(each.done, batch=batch, accumulation=accumulation)))
                limit_s = points[0][0] + seconds if points else begun_s + start_s
                if has_ended or now_s >= limit_s:
                    break
                time.sleep(0.02)
        finally:
            for file in files:
                file.close()
    return _rate(points)


def _rate(points: Sequence[tuple[float, float]]) -> float | None:
    if len(points) < 3:
        return None
    begin_s = points[0][0] + WARM_UP * (points[-1][0] - points[0][0])
    first = next(point for point in points if point[0] >= begin_s)
    took_s, samples = points[-1][0] - first[0], points[-1][1] - first[1]
    return samples / took_s if took_s > 0 and samples > 0 else None


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def environment(python: Path, home: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a user whose Python is `python`; output is not buffered, so that logs are complete."""
    return {
        "PATH": f"{python.parent}{os.pathsep}{os.defpath}{os.pathsep}/usr/local/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "USER": "user",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # on a machine with other work, threads of a step wait for each other
        **own,
    }
