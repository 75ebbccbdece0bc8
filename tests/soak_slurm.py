"""Workers of a Slurm cluster: ``python -m tests.soak slurm`` lets an array of four finish a study on two nodes.

The cluster runs on this machine, with a config and keys of its own. One of the tasks is ended by scancel in the middle
of it. Printed are the states of the tasks, the ends of their output, and what the study has in the end.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tests.commands.conftest import CONFIG, TRAINER
from tests.slurm import Cluster, running_cluster


def main(arguments: list[str]) -> int:
    """Submit them once."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak slurm", description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--budget", type=float, default=90.0, metavar="S", help="budget of each worker")
    options = parser.parse_args(arguments)
    with running_cluster(2) as cluster:
        return 0 if array(cluster, options.workers, options.budget) else 1


def array(cluster: Cluster, workers: int, budget_s: float) -> bool:
    """Submit an array, cancel one task, and print what came of it; return whether all is well."""
    project = Path(tempfile.mkdtemp(prefix="autotune soak "))
    (project / "config.yaml").write_text(CONFIG % TRAINER)
    environ = {**os.environ, **cluster.environment}
    words = ("worker", "--config", "config.yaml", "--budget", f"{budget_s:g}s", "--reachable", "--allow-busy-gpu")
    submitted = _autotune(project, environ, *words, "--submit", "slurm", "-n", str(workers))
    print(submitted.stdout + submitted.stderr)
    if (match := re.search(r"Submitted job (\d+)", submitted.stdout)) is None:
        return False
    job, began_s, cancelled, wait = match[1], time.monotonic(), False, threading.Event()
    while cluster.run("squeue", "-h", "-j", job) and time.monotonic() < began_s + workers * budget_s + 60:
        running = [task for task, state in cluster.states(job).items() if state == "RUNNING"]
        if not cancelled and "1" in running and re.search(r"trial \d", _output(project, job, "1")):
            print(f"{time.monotonic() - began_s:.0f} s: scancel {job}_1\n{cluster.run('scancel', f'{job}_1')}", end="")
            cancelled = True
        wait.wait(0.5)
    states = cluster.states(job)
    print(f"{time.monotonic() - began_s:.0f} s: the job has ended: {states}")
    for task in map(str, range(workers)):
        print(f"--- output of task {task}")
        print("\n".join(_output(project, job, task).splitlines()[-8:]))
    wanted = {task: "CANCELLED" if task == "1" else "COMPLETED" for task in map(str, range(workers))}
    good = _show_study(project) and cancelled and states == wanted
    print(_autotune(project, environ, "status", "--config", "config.yaml").stdout)
    shutil.rmtree(project)
    return good


def _show_study(project: Path) -> bool:
    good = True
    for journal in project.glob(".autotune/studies/*.journal"):
        study = optuna.load_study(study_name=journal.stem, storage=JournalStorage(JournalFileBackend(str(journal))))
        trials = study.get_trials(deepcopy=False)
        records = [trial for trial in trials if "record" in trial.user_attrs]
        uuids = Counter(json.dumps(trial.user_attrs["claim"]["uuid"]) for trial in records)
        running = sum(trial.state is TrialState.RUNNING for trial in trials)
        doubles = len(records) - len(uuids)
        print(f"{journal.stem}: {len(records)} trials, {doubles} twice, {running} running, "
              f"{len(trials) - len(records) - running} interrupted")  # fmt: skip
        good = good and bool(records) and not doubles and not running
    return good


def _output(project: Path, job: str, task: str) -> str:
    return "".join(path.read_text() for path in project.glob(f".autotune/workers/*/{job}_{task}.log"))


def _autotune(project: Path, environ: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=project,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
