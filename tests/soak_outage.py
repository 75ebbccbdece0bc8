"""Outages: ``python -m tests.soak outage`` searches while a PostgreSQL server is ill, once for each fault of `FAULTS`.

A search and its workers, each as on a machine of its own, work on one study. For each fault a line says how many trials
they have finished, how many of these the database lacks in the end or has twice, and how many processes have ended
before their time; where a budget ended before the server was well, a second search writes the rest. What was seen of
passwords is looked for too.
"""

import argparse
import contextlib
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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna
from optuna.trial import TrialState

from tests.postgresql import PASSWORD, Server, running_server, small_disk
from tests.soak_netns import config_of_many
from tests.study.test_storages import at

_PATIENT = "?options=-c%20client_min_messages%3Dwarning"
"""Makes the server's own time limit of a statement count: the session asks for none."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fault of a server.

    Attributes:
        begin: Begins it; given the server and the database.
        end: Ends it.
        every_s: Time after which it begins anew, until all have ended; None for a fault that lasts.
        query: Query of the database's URL.
    """

    begin: Callable[[Server, str], None]
    end: Callable[[Server, str], None] = lambda _server, _database: None
    every_s: float | None = None
    query: str = ""


def _restart(server: Server, _database: str) -> None:
    server.stop()
    server.start()


FAULTS = {
    "restart": Fault(begin=_restart),
    "restarts": Fault(begin=_restart, every_s=15.0),
    "stopped": Fault(begin=lambda server, _: server.stop(), end=lambda server, _: server.start()),
    "killed": Fault(begin=lambda server, _: server.kill(), end=lambda server, _: server.start()),
    "silent": Fault(begin=lambda server, _: server.freeze(), end=lambda server, _: server.thaw()),
    "connections ended": Fault(begin=lambda server, _: server.end_connections(), every_s=5.0),
    "statements too long": Fault(
        begin=lambda server, database: server.set_database(database, "SET statement_timeout = 1"),
        end=lambda server, database: server.set_database(database, "RESET statement_timeout"),
        query=_PATIENT,
    ),
    "read-only": Fault(
        begin=lambda server, database: server.set_database(database, "SET default_transaction_read_only = on"),
        end=lambda server, database: server.set_database(database, "RESET default_transaction_read_only"),
    ),
    "disk full": Fault(begin=lambda *_: None),  # see `_ill`
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of an outage.

    Attributes:
        budget_s: Budget of the search and of each worker.
        after_s: Time before the fault, once all have made a trial.
        away_s: Length of a fault that lasts.
        workers: Number of workers.
    """

    budget_s: float
    after_s: float
    away_s: float
    workers: int


def outage(server: Server, name: str, plan: Plan) -> bool:
    """Search with a fault; print what became of the trials, and return whether all is well."""
    fault, database = FAULTS[name], re.sub(r"\W", "_", name)
    folder = Path(tempfile.mkdtemp(prefix="autotune soak "))
    (folder / "config.yaml").write_text(config_of_many())
    url = server.new_database(database) + fault.query
    with small_disk(server, database) if name == "disk full" else contextlib.nullcontext() as disk:
        if disk is not None:
            fault = Fault(begin=lambda *_: disk.fill(), end=lambda *_: disk.empty())
        over = threading.Event()
        nodes = {"search": "search", **{f"worker{one}": "worker" for one in range(plan.workers)}}
        runs = {node: _start(folder, node, command, url, plan.budget_s) for node, command in nodes.items()}
        began = partial(_have_all_begun, folder, runs)
        illness = threading.Thread(target=_be_ill, args=(fault, server, database, plan, began, over))
        illness.start()
        with ThreadPoolExecutor(len(runs)) as waiting_for:  # each by itself: who ends late makes no other late
            took_s = dict(zip(runs, waiting_for.map(_took_s, runs.values()), strict=True))
        over.set()
        illness.join()
        codes = {node: run.returncode for node, run in runs.items()}
        waiting = [path.parents[1].name for path in sorted(folder.glob("*/studies/*.pending"))]
        for node in waiting:
            _start(folder, node, "search", url, 20.0).wait()
        said = {node: (folder / f"{node}.said").read_text() for node in nodes}
        kept, doubles, running = _in_storage(url, folder)
    finished = sum(len(re.findall(r"\] trial \d", text)) for text in said.values())
    ended = [node for node, code in codes.items() if code]
    late = [node for node, took in took_s.items() if took > plan.budget_s + 2.0]
    leaks = any(PASSWORD.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    print(
        f"{name:20} {finished:6} {finished - kept:5} {doubles:8} {running:8} "
        f"{len([one for one in ended if one == 'search']):9} {len([one for one in ended if one != 'search']):8} "
        f"{len(late):5} {len(waiting):9}{'  THE PASSWORD WAS WRITTEN' if leaks else ''}",
        flush=True,
    )
    for node in late:
        print(f"    {node} ended {took_s[node] - plan.budget_s:.1f} s after its budget, with its start")
    for node in ended:
        print(f"    {node} ended ({codes[node]}) after {took_s[node]:.0f} s:")
        print("".join(f"        {line}\n" for line in said[node].strip().splitlines()[-12:]), end="")
    shutil.rmtree(folder)
    return finished == kept and not (doubles or running or ended or late or leaks)


def _have_all_begun(folder: Path, runs: "Mapping[str, subprocess.Popen[bytes]]") -> bool:
    """Return whether each process has finished a trial, or ended."""
    return all(
        run.poll() is not None or re.search(r"\] trial \d", (folder / f"{node}.said").read_text())
        for node, run in runs.items()
    )


def _be_ill(
    fault: Fault, server: Server, database: str, plan: Plan, have_begun: Callable[[], bool], over: threading.Event
) -> None:
    while not over.is_set() and not have_begun():
        over.wait(0.2)
    over.wait(plan.after_s)
    while not over.is_set():
        fault.begin(server, database)
        over.wait(plan.away_s if fault.every_s is None else fault.every_s)
        fault.end(server, database)
        if fault.every_s is None:
            return


def _start(folder: Path, node: str, command: str, url: str, budget_s: float) -> "subprocess.Popen[bytes]":
    options = ("--config", "config.yaml", "--budget", f"{budget_s:g}s", "--state-dir", node)
    with open(folder / f"{node}.said", "ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", command, *options],
            cwd=folder,
            env={**os.environ, "AUTOTUNE_STORAGE": url, "SLURMD_NODENAME": node},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )


def _took_s(run: "subprocess.Popen[bytes]") -> float:
    """Wait for a process's end; return how long it took from now on."""
    began_s = time.monotonic()
    run.wait()
    return time.monotonic() - began_s


def _in_storage(url: str, folder: Path) -> tuple[int, int, int]:
    """Return the number of finished trials, of those that are there twice, and of those that are said to go on."""
    storage = at(url, folder)
    name = storage.latest("*")
    assert name is not None, "nothing was ever written"
    connection = storage.connect(name)
    trials = optuna.load_study(study_name=name, storage=connection.storage).get_trials()
    uuids = Counter(json.dumps(one.user_attrs["claim"]["uuid"]) for one in trials if "record" in one.user_attrs)
    connection.close()
    running = sum(one.state is TrialState.RUNNING for one in trials)
    return len(uuids), sum(uuids.values()) - len(uuids), running


def main(arguments: list[str]) -> int:
    """Make each outage once."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak outage", description=__doc__)
    parser.add_argument("--budget", type=float, default=120.0, metavar="S")
    parser.add_argument("--after", type=float, default=5.0, metavar="S", help="time before the fault, once all work")
    parser.add_argument("--away", type=float, default=30.0, metavar="S", help="length of a fault that lasts")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--only", choices=FAULTS, action="append")
    options = parser.parse_args(arguments)
    plan = Plan(budget_s=options.budget, after_s=options.after, away_s=options.away, workers=options.workers)
    good = True
    print(f"{'':20} {'trials':>6} {'lost':>5} {'doubled':>8} {'running':>8} {'searches':>9} {'workers':>8}")
    print(f"{'fault':20} {'made':>6} {'':>5} {'':>8} {'':>8} {'ended':>9} {'ended':>8} {'late':>5} {'delivered':>9}")
    with running_server() as server:
        for name in FAULTS:
            if options.only is None or name in options.only:
                good &= outage(server, name, plan)
    return 0 if good else 1
