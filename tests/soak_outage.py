"""Outages: ``python -m tests.soak outage`` searches with a PostgreSQL server that goes away in the middle of it.

Once it is restarted, once killed with SIGKILL and started again, and once it answers nothing for a while (its processes
are stopped, connections stay open). For each the number of trials that the search has finished is compared with what
the database has in the end; where the budget ended before the server was back, a second search writes the rest.
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
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.trial import TrialState

from tests.commands.conftest import CONFIG, TRAINER
from tests.postgresql import PASSWORD, Server, running_server
from tests.study.test_storages import at


def restart(server: Server, _away_s: float) -> None:
    """Stop the server as an administrator does, and start it again."""
    server.stop()
    server.start()


def kill(server: Server, away_s: float) -> None:
    """Kill the server, and start it after a while."""
    server.kill()
    threading.Event().wait(away_s / 3)
    server.start()


def silence(server: Server, away_s: float) -> None:
    """Let the server answer nothing for a while."""
    server.freeze()
    threading.Event().wait(away_s)
    server.thaw()


OUTAGES: dict[str, Callable[[Server, float], None]] = {"restart": restart, "kill": kill, "silence": silence}


def outage(server: Server, name: str, *, budget_s: float, after_s: float, away_s: float) -> bool:
    """Search while the server goes away; print what became of the trials, and return whether all is well."""
    project = Path(tempfile.mkdtemp(prefix="autotune soak "))
    (project / "config.yaml").write_text(CONFIG % TRAINER)
    url = server.new_database(name)
    started_s = time.monotonic()
    timer = threading.Timer(after_s, OUTAGES[name], [server, away_s])
    timer.start()
    first = _search(project, url, budget_s)
    took_s = time.monotonic() - started_s
    timer.join()
    said = first.stderr
    if list(project.glob(".autotune/studies/*.pending")):
        said += _search(project, url, 20).stderr
    finished = len(re.findall(r"\] trial \d", said))
    kept, doubles, running = _in_storage(url, project)
    leaks = PASSWORD in said or any(
        PASSWORD.encode() in path.read_bytes() for path in project.rglob("*") if path.is_file()
    )
    remarks = [line for line in said.splitlines() if "kept here" in line or "answers again" in line or "missed" in line]
    print(
        f"{name}: {took_s:.1f} s of {budget_s:g} s, exit {first.returncode}; {finished} trials finished, {kept} in the "
        f"database, {doubles} twice, {running} running; the password {'was' if leaks else 'was not'} written anywhere"
    )
    for line in remarks:
        print(f"    {line.strip()}")
    shutil.rmtree(project)
    return finished == kept and not doubles and not running and not leaks and took_s < budget_s + 2


def _search(project: Path, url: str, budget_s: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", f"{budget_s:g}s"],
        cwd=project,
        env={**os.environ, "AUTOTUNE_STORAGE": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def _in_storage(url: str, folder: Path) -> tuple[int, int, int]:
    """Return the number of finished trials, of those that are there twice, and of those that are said to go on."""
    storage = at(url, folder)
    name = storage.latest("*")
    assert name is not None, "nothing was ever written"
    connection = storage.connect(name)
    trials = optuna.load_study(study_name=name, storage=connection.storage).get_trials()
    uuids = [json.dumps(one.user_attrs["claim"]["uuid"]) for one in trials if "record" in one.user_attrs]
    connection.close()
    running = sum(one.state is TrialState.RUNNING for one in trials)
    return len(set(uuids)), len(uuids) - len(set(uuids)), running


def main(arguments: list[str]) -> int:
    """Make each outage once."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak outage", description=__doc__)
    parser.add_argument("--budget", type=float, default=150.0, metavar="S")
    parser.add_argument("--after", type=float, default=20.0, metavar="S", help="time of a search before the outage")
    parser.add_argument("--away", type=float, default=90.0, metavar="S", help="length of the silence")
    parser.add_argument("--only", choices=OUTAGES)
    options = parser.parse_args(arguments)
    good = True
    with running_server() as server:
        for name in OUTAGES:
            if options.only in (None, name):
                good &= outage(server, name, budget_s=options.budget, after_s=options.after, away_s=options.away)
    return 0 if good else 1
