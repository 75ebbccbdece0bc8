"""Long forms of some tests, as commands that print what they saw.

``python -m tests.soak kill --times 20`` kills the search, the guard, a trial, the warm interpreter that trials are
forked from, and a worker with SIGKILL at random moments, and starts the same command again each time. ``python -m
tests.soak hostile --budget 30`` searches with trainers that misbehave, and prints how long that took and what was left
running. ``python -m tests.soak styles --budget 60`` types ``autotune init`` and ``autotune search`` over each trainer
of tests/trainers, as it comes from its user, and prints the screens, a hash of the project's tree before and after, and
what differs in it. Those in `MODULES` say themselves what they do (``python -m tests.soak fuzz-edit --help``);
``python -m tests.soak real DIR`` does all this with trainers of public repositories, whose checkouts are in DIR.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path

import optuna
import psutil
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tests.commands.conftest import CONFIG, TRAINER, start_search
from tests.commands.test_search import left_running
from tests.commands.test_styles import tree, tree_hash, with_folders
from tests.trainers.styles import STYLES

MODULES = {
    "fuzz-edit": "tests.soak_edits",
    "odd-files": "tests.soak_odd_files",
    "fuzz-record": "tests.soak_records",
    "trainers": "tests.soak_trainers",
    "json-under-signals": "tests.soak_signals",
    "outage": "tests.soak_outage",
    "netns": "tests.soak_netns",
    "slurm": "tests.soak_slurm",
    "real": "tests.soak_real",
    "warm": "tests.soak_warm",
    "attack": "tests.soak_attack",
    "idle": "tests.soak_idle",
    "daemon": "tests.soak_daemon",
    "page": "tests.soak_page",
    "page-attack": "tests.soak_page_attack",
    "drift": "tests.soak_drift",
    "imports": "tests.soak_imports",
    "one-device": "tests.soak_one_device",
    "answers": "tests.soak_answers",
    "standing": "tests.soak_standing",
    "looking": "tests.commands.test_looking",
}
"""Commands with a module of their own, whose `main` takes the arguments."""

MOODS = ("ignores SIGTERM", "sleeps for ever", "forks away", "prints 100 MB", "ends at once", "writes no step")


def _project(mood: str = "") -> Path:
    folder = Path(tempfile.mkdtemp(prefix="autotune soak "))
    (folder / "config.yaml").write_text((CONFIG % TRAINER).replace("out:", f"mood: {json.dumps(mood)}\nout:"))
    return folder


def hostile(budget_s: float) -> bool:
    """Search once for each kind of bad trainer."""
    good = True
    for mood in MOODS:
        project = _project(mood)
        started_s = time.monotonic()
        with start_search(project, budget_s) as search:
            search.communicate()
        took_s, left = time.monotonic() - started_s, left_running(project)
        print(
            f"{mood:<16} {took_s:6.2f} s of {budget_s:g} s, exit {search.returncode}, left running: {left or 'nothing'}"
        )
        good = good and took_s < budget_s + 2 and not left
        shutil.rmtree(project)
    return good


def kill(times: int, seed: int) -> bool:
    """Kill each of them at random moments, and go on in the same project."""
    rng = random.Random(seed)
    good = True
    for victim in ("search", "guard", "trial", "zygote", "worker"):
        project, stayed = _project(), 0
        known: set[str] = set()
        lost: set[str] = set()
        for _ in range(times):
            search = start_search(project, 6, "worker" if victim == "worker" else "search")
            timer = threading.Timer(rng.uniform(0.8, 5.0), _strike, [search.pid, victim])
            timer.start()
            with search:
                search.communicate()
            timer.cancel()
            _settle(project)
            stayed += len(left_running(project))
            lost |= known - (finished := _finished(project))
            known |= finished
        with start_search(project, 6) as last:
            last.communicate()
        interrupted, running = _unfinished(project)
        print(
            f"SIGKILL of the {victim}: {times} times, {len(known)} trials in the record, {len(lost)} lost, "
            f"{interrupted} closed as interrupted, {running} still running, {stayed} processes stayed",
            flush=True,
        )
        good = good and not lost and not running and not stayed
        shutil.rmtree(project)
    return good


def _finished(project: Path) -> set[str]:
    """Return what the record holds of each trial that has finished."""
    return {json.dumps(trial.user_attrs["record"]) for trial in _trials(project) if "record" in trial.user_attrs}


def _unfinished(project: Path) -> tuple[int, int]:
    """Return the number of trials of a project that were interrupted, and of those that are said to go on."""
    trials = _trials(project)
    running = sum(trial.state is TrialState.RUNNING for trial in trials)
    return sum("record" not in trial.user_attrs for trial in trials) - running, running


def _trials(project: Path) -> list[optuna.trial.FrozenTrial]:
    journals = list(project.glob(".autotune/studies/*.journal"))
    if not journals:
        return []  # it was killed before that
    backend = JournalFileBackend(str(journals[0]))
    study = optuna.load_study(study_name=journals[0].stem, storage=JournalStorage(backend))
    return study.get_trials(deepcopy=False)


def styles(budget_s: float, only: str | None) -> bool:
    """Init and search once for each style of trainer."""
    good = True
    for name, style in STYLES.items():
        if only not in (None, name):
            continue
        project = Path(tempfile.mkdtemp(prefix="autotune soak "))
        style.lay_out(project)
        before = tree(project)
        kind = "--from-flags" if style.config is None else "--separate"
        command = [sys.executable, "train.py", *shlex.split(style.flags)]
        print(f"\n=== {name}: python train.py {style.flags}", flush=True)
        init = ["init", "--yes", kind, "--config", "config.yaml"]
        made = _autotune(project, *init, "--", *command)
        if made.returncode == 1:
            print(made.stderr)  # the user's config does not train; whoever wants to search all the same says so
            made = _autotune(project, *init, "--no-preflight", "--", *command)
        if made.returncode == 0:
            print(made.stdout)
            searched = _autotune(project, "search", "--config", "config.yaml", "--budget", f"{budget_s:g}s")
            print(searched.stdout if searched.returncode == 0 else searched.stderr)
            good = good and searched.returncode == 0
        else:
            print(made.stderr)
            good = False
        own = {"config.autotune.yaml"} if style.config else {"config.yaml"}
        after = {name: content for name, content in tree(project).items() if name not in own}
        differs = {name for name in after.keys() | before.keys() if after.get(name) != before.get(name)}
        running = left_running(project)
        print(f"tree before {tree_hash(before)}\ntree after  {tree_hash(after)}")
        print(f"what differs in the project: {', '.join(sorted(differs)) or 'nothing'}; left running: {running or 0}")
        good = good and not running and not differs - set(with_folders(style.leaves))
        if style.finds:
            known = json.loads(_autotune(project, "status", "--config", "config.yaml", "--json").stdout)
            values = known["best"]["values"]
            missed = {path: values[path] for path, value in style.finds.items() if values[path] != value}
            print(f"as expected of it: {'no: ' + str(missed) if missed else 'yes'}")
            good = good and not missed
        shutil.rmtree(project)
    return good


def _autotune(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _strike(search: int, victim: str) -> None:
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        try:
            if victim in ("search", "worker"):
                os.kill(search, signal.SIGKILL)
                return
            guard = next(c for c in psutil.Process(search).children() if "guard_process" in str(c.cmdline()))
            if victim == "guard":
                guard.kill()
                return
            # A trial looks like the interpreter that it was forked from, which is older; the first is a fresh process.
            zygote, *trials = sorted(guard.children(), key=psutil.Process.create_time)
            (zygote if victim == "zygote" else trials[-1]).kill()
            return
        except (StopIteration, IndexError, ValueError, psutil.Error, ProcessLookupError):
            continue  # between two trials there is none


def _settle(project: Path) -> None:
    """Wait until the guard of a killed search has done its work, at most 5 s."""
    wait = threading.Event()
    deadline_s = time.monotonic() + 5
    while left_running(project) and time.monotonic() < deadline_s:
        wait.wait(0.05)


def main() -> int:
    """Run one of them."""
    if sys.argv[1:2] and sys.argv[1] in MODULES:
        return int(import_module(MODULES[sys.argv[1]]).main(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    commands = parser.add_subparsers(dest="soak", required=True)
    for name in MODULES:
        commands.add_parser(name)
    killing = commands.add_parser("kill")
    killing.add_argument("--times", type=int, default=20)
    killing.add_argument("--seed", type=int, default=0)
    commands.add_parser("hostile").add_argument("--budget", type=float, default=30.0)
    styling = commands.add_parser("styles")
    styling.add_argument("--budget", type=float, default=60.0)
    styling.add_argument("--only", choices=STYLES)
    arguments = parser.parse_args()
    if arguments.soak == "kill":
        good = kill(arguments.times, arguments.seed)
    elif arguments.soak == "hostile":
        good = hostile(arguments.budget)
    else:
        good = styles(arguments.budget, arguments.only)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
