"""Real training that is watched while a CPU hog comes and goes, and what being watched costs.

``python -m tests.soak drift`` trains the reference trainer with ``--watch``, starts busy processes beside it and takes
them away again, and prints each event as it comes. ``--pairs 4`` trains with and without ``--watch`` in turns instead,
and prints the ratio of their speeds. Both need ``python -m autotune.workloads.tts.corpus --out data/quickstart``.
"""

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import yaml

from autotune.clock import SystemClock
from autotune.daemon.drift import Surroundings
from autotune.daemon.home import open_home
from autotune.daemon.trainings import Recovered, Slower, TrainingEvent, Trainings, WatchedTraining
from autotune.measure.statistics import student_t_quantile

_HOG = "while True: pass"
_CONFIG = Path("configs/config.yaml")


class _Machine:
    """Readings of the cores that other processes keep busy."""

    def __init__(self) -> None:
        self._last: tuple[float, float, float] | None = None
        self._foreign: float | None = None
        self._say_due_s = 0.0

    def say(self, began_s: float, alive: Sequence[WatchedTraining]) -> None:
        """Print speed and foreign load, once a minute."""
        if time.monotonic() >= self._say_due_s and self._foreign is not None:
            self._say_due_s = time.monotonic() + 60.0
            speed = ", ".join(f"{one.samples_per_s:.1f} samples/s" for one in alive if one.samples_per_s)
            print(
                f"[{(time.monotonic() - began_s) / 60:5.1f} min] {speed}; foreign cores {self._foreign:.2f}", flush=True
            )

    def __call__(self, training: WatchedTraining) -> Surroundings:
        times = psutil.cpu_times()
        busy_s, own_s, now_s = sum(times) - times.idle - times.iowait - times.guest, 0.0, time.monotonic()
        try:
            process = psutil.Process(training.pid)
            for one in (process, *process.children(recursive=True)):
                used = one.cpu_times()
                own_s += used.user + used.system
        except psutil.Error:
            pass
        if self._last is not None and now_s > self._last[0]:
            busy, own = busy_s - self._last[1], own_s - self._last[2]
            self._foreign = max((busy - own) / (now_s - self._last[0]), 0.0)
        self._last = (now_s, busy_s, own_s)
        return Surroundings(foreign_cores=self._foreign, cores=psutil.cpu_count(), disk_pressure=_io_pressure())


def _io_pressure() -> float | None:
    try:
        some = Path("/proc/pressure/io").read_text().split()
    except OSError:
        return None
    return float(some[1].partition("=")[2]) / 100


def _config(folder: Path) -> Path:
    """Write the shipped config with outputs of its own."""
    document = yaml.safe_load(_CONFIG.read_text())
    document["training"]["checkpoint_dir"] = str(folder / "checkpoints")
    document["training"]["epochs"] = 1_000_000  # it trains until it is ended
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def _train(config: Path, state: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "autotune", "run", "--config", str(config), *options]
    environ = {**os.environ, "AUTOTUNE_DAEMON_DIR": str(state)}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _said(event: TrainingEvent, began_s: float) -> None:
    print(f"[{(time.monotonic() - began_s) / 60:5.1f} min] {event.sentence()}", flush=True)


def watch_with_hog(before_s: float, most_s: float, hogs: int) -> bool:
    """Train, disturb, and leave alone again; True if all three things were said."""
    folder = Path(tempfile.mkdtemp(prefix="autotune drift "))
    training = _train(_config(folder), folder / "state", "--watch")
    threading.Thread(target=lambda: training.stdout and training.stdout.read(), daemon=True).start()
    trainings = Trainings(open_home({"AUTOTUNE_DAEMON_DIR": str(folder / "state")}).trainings, SystemClock())
    machine, began_s = _Machine(), time.monotonic()

    def until(is_over: Callable[[TrainingEvent], bool], most_s: float) -> TrainingEvent | None:
        over_s = time.monotonic() + most_s
        while time.monotonic() < over_s and training.poll() is None:
            for event in trainings.poll(machine):
                _said(event, began_s)
                if is_over(event):
                    return event
            machine.say(began_s, trainings.alive)
            threading.Event().wait(1.0)
        return None

    slower = recovered = None
    beside: list[subprocess.Popen[bytes]] = []
    try:
        until(lambda _event: False, before_s)
        beside = [subprocess.Popen([sys.executable, "-c", _HOG]) for _ in range(hogs)]
        print(f"[{(time.monotonic() - began_s) / 60:5.1f} min] {hogs} busy processes come", flush=True)
        slower = until(lambda event: isinstance(event, Slower), most_s)
        for hog in beside:
            hog.kill()
        print(f"[{(time.monotonic() - began_s) / 60:5.1f} min] they are gone", flush=True)
        recovered = until(lambda event: isinstance(event, Recovered), most_s)
    finally:
        for process in (*beside, training):
            process.kill()
            process.wait()
    for event in trainings.poll(machine):
        _said(event, began_s)
    named = isinstance(slower, Slower) and slower.cause is not None and slower.cause.kind.value
    print(f"alarm: {slower is not None}, cause: {named or 'not named'}, recovery: {recovered is not None}; {folder}")
    return slower is not None and recovered is not None


def cost(pairs: int, length: int) -> bool:
    """Train with and without being watched in turns; compare the speeds, and the CPU time of a step."""
    speeds, works = [], []
    for pair in range(pairs):
        made = {watched: _steps(watched, length) for watched in ((True, False) if pair % 2 else (False, True))}
        speeds.append(math.log(made[False][0] / made[True][0]))
        works.append(math.log(made[True][1] / made[False][1]))
        print(
            f"pair {pair}: {1 / made[False][0]:.2f} steps/s alone, {1 / made[True][0]:.2f} watched; "
            f"{made[False][1]:.3f} s of CPU a step alone, {made[True][1]:.3f} watched",
            flush=True,
        )
    speed, work = ratio_interval(speeds), ratio_interval(works)
    for name, (middle, low, high) in (("speed", speed), ("CPU time of a step", work)):
        print(f"{name}, watched over alone: {middle:.3f} (95 %: {low:.3f}-{high:.3f})")
    return speed[2] >= 1.0


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of ln ratios with its 95 % interval (t), as ratios."""
    mean, half = statistics.fmean(ratios), math.inf
    if len(ratios) > 1:
        quantile = student_t_quantile(0.975, len(ratios) - 1)
        half = quantile * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _steps(watched: bool, steps: int) -> tuple[float, float]:
    """Return seconds, and seconds of CPU, of a step of one training, from its 20th on, by the lines that it prints."""
    folder = Path(tempfile.mkdtemp(prefix="autotune drift "))
    typed = ["--", "{python}", "-m", "autotune.workloads.tts", "--config", "{config}", "--steps", str(steps)]
    times: dict[int, tuple[float, float]] = {}
    with _train(_config(folder), folder / "state", *(["--watch"] if watched else []), *typed) as training:
        assert training.stdout is not None
        process = psutil.Process(training.pid)
        for line in training.stdout:
            if match := re.match(rb"step (\d+) ", line):
                used = process.cpu_times()
                times[int(match[1])] = time.monotonic(), used.user + used.system
    (began_s, began_cpu_s), (ended_s, ended_cpu_s) = times[20], times[max(times)]
    return (ended_s - began_s) / (max(times) - 20), (ended_cpu_s - began_cpu_s) / (max(times) - 20)


def main(arguments: Sequence[str]) -> int:
    """Watch a real training."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak drift", description=__doc__)
    parser.add_argument("--before", type=float, default=420, help="seconds alone (default: 420)")
    parser.add_argument("--most", type=float, default=900, help="longest wait for an event (default: 900)")
    parser.add_argument("--hogs", type=int, default=2, help="busy processes (default: 2)")
    parser.add_argument("--pairs", type=int, default=0, help="compare the cost instead, over so many pairs")
    parser.add_argument("--steps", type=int, default=120, help="steps of each training of a pair (default: 120)")
    given = parser.parse_args(arguments)
    good = cost(given.pairs, given.steps) if given.pairs else watch_with_hog(given.before, given.most, given.hogs)
    return 0 if good else 1
