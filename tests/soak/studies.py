"""Studies under harm: processes that are killed, databases that are ill, hosts that are cut off.

Whatever happens, what was finished is on record, once, and nothing is said to go on in the end.
"""

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import optuna
import psutil
from optuna.trial import TrialState

from autotune.clock import parse_duration_s
from autotune.study.storage.address import GivenAddress, parse_address
from autotune.study.storage.journal import open_storage
from tests.command_line import CONFIG
from tests.netns import hosts
from tests.postgresql import PASSWORD, Server, running_server, small_disk
from tests.soak.harness import TRAINER, Result, Soak, check, left
from tests.until import until

_MANY = CONFIG.replace("[4, 16, 64]", str([*range(4, 65, 4)])).replace("[1, 2]", str([*range(1, 9)]))
_LOCAL = "journal:.autotune/studies"
_TRIAL = r"\] trial \d"
_wait = threading.Event().wait


class Tally:
    """Trials of the latest study in a storage.

    Attributes:
        records: Number of times that each finished trial is there, by its UUID.
        hosts: Number of them by host.
        running: Number of trials that are said to go on.
        interrupted: Number of trials that were closed without a record.
    """

    def __init__(self, address: str, folder: Path) -> None:
        said = GivenAddress(text=address, where="", folder=folder, may_hold_password=True)
        storage, trials = open_storage(parse_address(said), folder), []
        if (name := storage.latest("*")) is not None:
            connection = storage.connect(name)
            trials = optuna.load_study(study_name=name, storage=connection.storage).get_trials()
            connection.close()
        finished = [trial.user_attrs for trial in trials if "record" in trial.user_attrs]
        self.records = Counter(json.dumps(one["claim"]["uuid"]) for one in finished)
        self.hosts = Counter(one["record"]["conditions"].get("host") for one in finished)
        self.running = sum(trial.state is TrialState.RUNNING for trial in trials)
        self.interrupted = len(trials) - len(finished) - self.running

    def __str__(self) -> str:
        doubled = self.records.total() - len(self.records)
        return f"{len(self.records)} trials, {doubled} twice, {self.running} running, {self.interrupted} interrupted"

    def wrong(self, finished: int | None = None) -> list[str]:
        """Say what must not be, given the number of trials that were told to be finished."""
        lost = 0 if finished is None else finished - len(self.records)
        found = {"lost": lost, "twice": self.records.total() - len(self.records), "running": self.running}
        return [f"{count} trials {what}" for what, count in found.items() if count]


@check(times=20, cases=("search", "guard", "trial", "zygote", "worker"), options={"--jobs": 1})
def kill(soak: Soak) -> Iterator[Result]:
    """SIGKILL of the search, the guard, a trial, the warm interpreter or a worker at random moments.

    The same command goes on each time: no finished trial is lost, no process stays, the config is as it was.
    """
    yield from soak.map(lambda victim: _killed(soak, victim), soak.cases)


def _killed(soak: Soak, victim: str) -> Result:
    project = soak.project(f"import numpy\n{TRAINER.read_text()}")  # so that trials are forked
    config, rng = (project / "config.yaml").read_bytes(), random.Random(f"{soak.options.seed} {victim}")
    said, known, lost, stayed = project / "said", set[str](), set[str](), list[str]()
    for number in range(soak.options.times + 1):
        with said.open("wb") as file:
            search = soak.search(project, 300, command="worker" if victim == "worker" else "search", stderr=file)
        until(lambda search=search: search.poll() is not None or re.search(_TRIAL, said.read_text()), said.read_text)
        if number < soak.options.times:
            _wait(rng.uniform(0.0, 2.0))
            _strike(search.pid, victim)
        search.terminate()
        search.wait()
        stayed += left(project, 30.0)
        finished = set(Tally(_LOCAL, project).records)
        lost |= known - finished
        known |= finished
    tally, is_changed = Tally(_LOCAL, project), (project / "config.yaml").read_bytes() != config
    wrong = [*stayed, *tally.wrong(), lost and f"{len(lost)} trials lost", is_changed and "the config was changed"]
    return Result(f"SIGKILL of the {victim}, {soak.options.times} times: {tally}", *wrong, not known and "no trial")


def _strike(search: int, victim: str) -> None:
    over_s = time.monotonic() + 10
    while time.monotonic() < over_s:
        try:
            if victim in ("search", "worker"):
                os.kill(search, signal.SIGKILL)
                return
            guard = next(c for c in psutil.Process(search).children() if "guard_process" in str(c.cmdline()))
            # A trial looks like the interpreter that it was forked from, which is older; the first is a fresh process.
            below = sorted(guard.children(), key=psutil.Process.create_time)
            zygotes = [c for c in below if c.environ().get("AUTOTUNE_TRIAL_ID", "").endswith("/zygote")][:1]
            found = {"guard": [guard], "zygote": zygotes, "trial": [c for c in below if c not in zygotes]}
            found[victim][-1].kill()
            return
        except (StopIteration, IndexError, psutil.Error, ProcessLookupError):
            continue  # between two trials there is none


class Fault(NamedTuple):
    """Fault of a server: what begins and ends it in a database, after how long it begins anew, a query of the URL."""

    begin: Callable[[Server, str], object]
    end: Callable[[Server, str], object] = lambda _server, _database: None
    every_s: float | None = None
    query: str = ""


def _restart(server: Server, _database: str) -> None:
    server.stop()
    server.start()


def _setting(name: str, value: str, query: str = "") -> Fault:
    return Fault(
        begin=lambda server, database: server.set_database(database, f"SET {name} = {value}"),
        end=lambda server, database: server.set_database(database, f"RESET {name}"),
        query=query,
    )


FAULTS = {
    "restart": Fault(begin=_restart),
    "restarts": Fault(begin=_restart, every_s=15.0),
    "stopped": Fault(lambda server, _: server.stop(), lambda server, _: server.start()),
    "killed": Fault(begin=lambda server, _: server.kill(), end=lambda server, _: server.start()),
    "silent": Fault(begin=lambda server, _: server.freeze(), end=lambda server, _: server.thaw()),
    "connections ended": Fault(begin=lambda server, _: server.end_connections(), every_s=5.0),
    # The session then asks for no limit of its own.
    "statements too long": _setting("statement_timeout", "1", "?options=-c%20client_min_messages%3Dwarning"),
    "read-only": _setting("default_transaction_read_only", "on"),
    "disk full": Fault(begin=lambda *_: None),  # of a small disk that the database lies on
}


@check(cases=FAULTS, options={"--budget": 120.0, "--after": 5.0, "--away": 30.0, "--workers": 4})
def outage(soak: Soak) -> Iterator[Result]:
    """A PostgreSQL server that is ill while a search and its workers work on one study.

    No trial is lost or twice there, nobody ends early or late, and no password is written.
    """
    with running_server() as server:
        for name in soak.cases:
            yield _outage(soak, server, name)


def _outage(soak: Soak, server: Server, name: str) -> Result:
    """Let a search and its workers, each as on a machine of its own, work while the server is ill."""
    fault, database, budget_s = FAULTS[name], re.sub(r"\W", "_", name), soak.options.budget
    folder, over = soak.project(text=_MANY), threading.Event()
    url = server.new_database(database) + fault.query
    nodes = {"search": "search", **{f"worker{one}": "worker" for one in range(soak.options.workers)}}

    def start(node: str, command: str, budget_s: float) -> Any:
        env = {"AUTOTUNE_STORAGE": url, "SLURMD_NODENAME": node}
        with open(folder / f"{node}.said", "ab") as said:
            words = ("--state-dir", node)
            return soak.search(folder, budget_s, *words, command=command, env=env, stdout=said, stderr=said)

    def has_begun(node: str) -> bool:
        return runs[node].poll() is not None or bool(re.search(_TRIAL, (folder / f"{node}.said").read_text()))

    def be_ill() -> None:
        while not over.is_set() and not all(map(has_begun, nodes)):
            over.wait(0.2)
        over.wait(soak.options.after)
        while not over.is_set():
            fault.begin(server, database)
            over.wait(fault.every_s or soak.options.away)
            fault.end(server, database)
            if fault.every_s is None:
                return

    def took_s(run: Any) -> float:
        began_s = time.monotonic()
        run.wait()
        return time.monotonic() - began_s

    with small_disk(server, database) if name == "disk full" else contextlib.nullcontext() as disk:
        if disk is not None:
            fault = Fault(begin=lambda *_: disk.fill(), end=lambda *_: disk.empty())
        runs = {node: start(node, command, budget_s) for node, command in nodes.items()}
        illness = threading.Thread(target=be_ill)
        illness.start()
        with ThreadPoolExecutor(len(runs)) as waiting_for:  # each by itself: who ends late makes no other late
            took = dict(zip(runs, waiting_for.map(took_s, runs.values()), strict=True))
        over.set()
        illness.join()
        waiting = [path.parents[1].name for path in sorted(folder.glob("*/studies/*.pending"))]
        for node in waiting:  # a second search writes what could not be written in time
            start(node, "search", 20.0).wait()
        said = {node: (folder / f"{node}.said").read_text() for node in nodes}
        tally = Tally(url, folder)
    leaks = any(PASSWORD.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    wrong = [
        *tally.wrong(sum(len(re.findall(_TRIAL, text)) for text in said.values())),
        leaks and "the password is written",
    ]
    for node, run in runs.items():
        last = "\n        ".join(said[node].strip().splitlines()[-12:])
        wrong.append(run.returncode and f"{node} ended ({run.returncode}) after {took[node]:.0f} s:\n        {last}")
        wrong.append(took[node] > budget_s + 2.0 and f"{node} ended {took[node] - budget_s:.1f} s after its budget")
    return Result(f"{name:20} {tally}, {len(waiting)} delivered by another search", *wrong)


@check(options={"--budget": 240.0, "--after": 35.0, "--cut": 90.0, "--second": ("search", "worker")})
def netns(soak: Soak) -> Iterator[Result]:
    """Two hosts on one study, the network of one of which is cut for a while.

    They are network namespaces, with a PostgreSQL server that both reach; needs root, iproute2 and PostgreSQL.
    """
    names, options = ("host-a", "host-b"), soak.options
    with hosts(names) as made, running_server({host.near: host.network for host in made}) as server:
        url, began_s, runs = server.new_database("netns"), time.monotonic(), []
        for host, command in zip(made, ("search", options.second), strict=True):
            address = urlsplit(url)
            there = address._replace(netloc=address.netloc.replace("127.0.0.1", host.near)).geturl()
            project, said = soak.project(text=_MANY), soak.folder / f"{host.name}.said"
            with said.open("wb") as file:
                how = {"env": {"AUTOTUNE_STORAGE": there}, "stderr": file}
                runs.append(soak.search(project, options.budget, command=command, inside=host.command, **how))
        saids = [soak.folder / f"{name}.said" for name in names]
        while any(
            run.poll() is None and not re.search(_TRIAL, said.read_text())
            for run, said in zip(runs, saids, strict=True)
        ):
            _wait(0.2)
        _wait(options.after)
        made[1].unplug()
        down_s = time.monotonic() - began_s
        _wait(options.cut)
        made[1].plug()
        up_s, total, wrong = time.monotonic() - began_s, 0, []
        for host, run in zip(made, runs, strict=True):
            code, text = run.wait(), (soak.folder / f"{host.name}.said").read_text()
            finished = [parse_duration_s(at) for at in re.findall(r"\[\s*([\dhms.]+)\] trial \d", text)]
            total += len(finished)
            during = sum(down_s < at_s < up_s for at_s in finished)
            told = re.findall(".*(?:kept here|answers again|missed|another machine|given up|new number).*", text)
            wrong += [PASSWORD in text and "the password is told", code and f"{host.name}: exit {code}: {text[-2000:]}"]
            line = f"{host.name}: {len(finished)} trials finished, {during} of them during the cut"
            yield Result("\n    ".join([line, *map(str.strip, told)]))
        tally = Tally(url, soak.folder)
        line = f"cut from {down_s:.0f} s to {up_s:.0f} s of {options.budget:g} s; in the database: {tally}, of "
        yield Result(line + ", ".join(f"{name} {tally.hosts[name]}" for name in names), *wrong, *tally.wrong(total))
