"""``python -m tests.soak daemon --times 50``: SIGKILL for the daemon and its search at random, and what is left of it.

A queue of configs of the toy trainer is worked on by a real daemon, with a training of one of them beside it. Again and
again the daemon, its search, the guard of that or all of them are killed at a random moment, and the daemon is started
again. In the end each entry has to be there once, nothing may be left running, and the training must not have noticed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from autotune.clock import SystemClock
from autotune.daemon.home import open_home
from autotune.daemon.queue import Entry, EntryState, Queue
from tests.commands.conftest import CONFIG, TRAINER
from tests.commands.test_search import left_running

ENTRIES = 3
_VICTIMS = ("daemon", "search", "guard", "all")
_LIMIT_S = 30.0


def main(arguments: Sequence[str]) -> int:
    """Kill that often, and print what came of it; 0 if nothing was lost, doubled, left or hurt."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak daemon", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="kills of each victim (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="autotune soak "))
    environ = {**os.environ, "AUTOTUNE_DAEMON_DIR": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "settings")}
    rng = random.Random(chosen.seed)
    projects = [_project(folder / f"project {number}") for number in range(ENTRIES)]
    for project in projects:
        add = ("queue", "add", "--config", "config.yaml", "--when", "now", "--budget", "8h", "--no-check", "--json")
        subprocess.run(
            [sys.executable, "-m", "autotune", *add], cwd=project, env=environ, check=True, stdout=subprocess.DEVNULL
        )
    queue = Queue(open_home(environ).queue, SystemClock())
    before = {entry.id for entry in queue.entries()}
    training = _training(projects[-1])
    steps, restarts, slowest_s, kills = _steps(projects[-1]), 0, 0.0, Counter[str]()
    daemon = _daemon(environ, folder)
    try:
        for victim in [one for _ in range(chosen.times) for one in _VICTIMS]:
            _wait(lambda: _running(queue) is not None, "no search was started")
            threading.Event().wait(rng.uniform(0.0, 5.0))  # a random moment is what is wanted
            kills[victim] += _kill(victim, daemon, queue)
            if victim in ("daemon", "all"):
                daemon.wait()
                began_s = time.monotonic()
                daemon = _daemon(environ, folder)
                restarts += 1
                _wait(lambda: _answers(environ), "the daemon did not come back")
                slowest_s = max(slowest_s, time.monotonic() - began_s)
            _forgive(queue)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(_LIMIT_S)
        _wait(lambda: not any(map(_of_searches, projects)), "processes stay")
        after = [entry.id for entry in queue.entries()]
        left = [pid for project in projects for pid in _of_searches(project)]
        hurt = training.poll() is not None
        went_on = _steps(projects[-1]) - steps
        print(
            f"{sum(kills.values())} SIGKILLs ({', '.join(f'{victim} {number}' for victim, number in kills.items())}), "
            f"{restarts} restarts, {slowest_s:.1f} s at most until the daemon answered\n"
            f"entries: {len(after)} of {len(before)}, lost {len(before - set(after))}, doubled "
            f"{len(after) - len(set(after))}; processes left {len(left)}; trainings hurt {int(hurt)} "
            f"({went_on} steps meanwhile)"
        )
        return int(set(after) != before or len(after) != len(before) or bool(left) or hurt or went_on == 0)
    finally:
        for process in (daemon, training):
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _project(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG % TRAINER)
    return folder


def _training(project: Path) -> "subprocess.Popen[bytes]":
    """Start a training of a project's own config, which is no search's."""
    steps = project / "steps"
    steps.mkdir()
    environ = {**os.environ, "AUTOTUNE_TRIAL_DIR": str(steps)}  # where the toy reports its steps
    command = [sys.executable, str(TRAINER), "config.yaml"]
    training = subprocess.Popen(command, cwd=project, env=environ, stdin=subprocess.DEVNULL)
    _wait(lambda: _steps(project) > 0, "the training made no step")
    return training


def _steps(project: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in (project / "steps").glob("steps.*"))


def _daemon(environ: dict[str, str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "daemon.log").open("ab") as log:
        command = [sys.executable, "-m", "autotune", "daemon", "run"]
        return subprocess.Popen(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _answers(environ: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "autotune", "daemon", "status", "--json"]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0 and bool(json.loads(done.stdout)["pid"])


def _running(queue: Queue) -> Entry | None:
    """Return the entry whose search runs at this moment."""
    for entry in queue.entries():
        pid = (entry.owner or {}).get("pid")
        if isinstance(pid, int) and psutil.pid_exists(pid):
            return entry
    return None


def _kill(victim: str, daemon: "subprocess.Popen[bytes]", queue: Queue) -> int:
    """Kill the daemon, the running search, what guards its trials, or all of them; return the number of signals."""
    entry = _running(queue)
    search = (entry.owner or {}).get("pid") if entry else None
    pids: list[int] = [daemon.pid] if victim in ("daemon", "all") else []
    if isinstance(search, int):
        pids += [search] if victim in ("search", "all") else []
        try:
            guards = [child.pid for child in psutil.Process(search).children()]
        except psutil.Error:
            guards = []
        pids += guards if victim in ("guard", "all") else []
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(pids)


def _forgive(queue: Queue) -> None:
    """Let entries go on whose searches were killed so often that they count as broken."""
    for entry in queue.entries():
        if entry.kills or not entry.state.is_open:
            queue.change(entry.id, _forgiven)


def _forgiven(entry: Entry) -> Entry:
    return replace(entry, kills=0, state=entry.state if entry.state.is_open else EntryState.WAITING)


def _of_searches(project: Path) -> list[int]:
    """Return the processes of a project's trials, and its searches."""
    steps = str(project / "steps")
    trials = [pid for pid in left_running(project) if _environ(pid).get("AUTOTUNE_TRIAL_DIR") != steps]
    config = str(project / "config.yaml")
    searches = [
        process.pid for process in psutil.process_iter(["cmdline"]) if config in (process.info["cmdline"] or ())
    ]
    return trials + searches


def _environ(pid: int) -> dict[str, str]:
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}


def _wait(true: Callable[[], bool], what: str) -> None:
    over_s = time.monotonic() + _LIMIT_S
    while not true():
        if time.monotonic() > over_s:
            raise RuntimeError(what)
        threading.Event().wait(0.05)
