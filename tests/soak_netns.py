"""Two hosts on one study: ``python -m tests.soak netns`` cuts the network of one of them for a while.

The hosts are network namespaces with names and boot ids of their own, and a PostgreSQL server that both reach through
cables. Both work on one study; the cable of the second is cut. What each of them finished has to be in the database,
once, and nothing may be said to go on in the end. Needs root, iproute2 and PostgreSQL.
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
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import optuna
from optuna.trial import FrozenTrial, TrialState

from autotune.clock import parse_duration_s
from tests.commands.conftest import CONFIG, TRAINER
from tests.netns import Host, hosts
from tests.postgresql import PASSWORD, running_server
from tests.study.test_storages import at

NAMES = ("host-a", "host-b")


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Cut of the network.

    Attributes:
        budget_s: Budget of both hosts.
        after_s: Time before the cut.
        cut_s: Length of it.
        second: Command of the second host, ``search`` or ``worker``.
    """

    budget_s: float
    after_s: float
    cut_s: float
    second: str = "search"


def main(arguments: list[str]) -> int:
    """Cut the network once."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak netns", description=__doc__)
    parser.add_argument("--budget", type=float, default=240.0, metavar="S")
    parser.add_argument("--after", type=float, default=40.0, metavar="S", help="time before the cut")
    parser.add_argument("--cut", type=float, default=90.0, metavar="S", help="length of the cut")
    parser.add_argument("--second", choices=("search", "worker"), default="search", help="command of the second host")
    options = parser.parse_args(arguments)
    with hosts(NAMES) as made, running_server({host.near: host.network for host in made}) as server:
        url = server.new_database("netns")
        plan = Cut(budget_s=options.budget, after_s=options.after, cut_s=options.cut, second=options.second)
        return 0 if cut(made, url, plan) else 1


def cut(made: list[Host], url: str, plan: Cut) -> bool:
    """Let both work, cut the second one off, and print what came of it; return whether all is well."""
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="autotune soak "))
    runs = []
    for host, command in zip(made, ("search", plan.second), strict=True):
        project = folder / host.name
        project.mkdir()
        (project / "config.yaml").write_text(config_of_many())
        runs.append(_start(host, project, url, command, plan.budget_s))
    threading.Event().wait(plan.after_s)
    made[1].unplug()
    down_s = time.monotonic() - began_s
    threading.Event().wait(plan.cut_s)
    made[1].plug()
    up_s = time.monotonic() - began_s
    said = [run.communicate()[1] for run in runs]
    for host, run, text in zip(made, runs, said, strict=True):
        finished = [parse_duration_s(at) for at in re.findall(r"\[\s*([\dhms.]+)\] trial \d", text)]
        during = sum(down_s < at_s < up_s for at_s in finished)
        print(f"{host.name}: exit {run.returncode}, {len(finished)} trials finished, {during} of them during the cut")
        lines = text.strip().splitlines()
        for line in lines[-40 if run.returncode else -2 :]:
            print(f"    ... {line.strip()}")
        for line in lines:
            if re.search("kept here|answers again|missed|another machine|given up|new number", line):
                print(f"    {line.strip()}")
    trials = _trials(url, folder)
    records = [trial for trial in trials if "record" in trial.user_attrs]
    uuids = Counter(json.dumps(trial.user_attrs["claim"]["uuid"]) for trial in records)
    doubles = sum(count - 1 for count in uuids.values())
    by_host = Counter(trial.user_attrs["record"]["conditions"]["host"] for trial in records)
    running = sum(trial.state is TrialState.RUNNING for trial in trials)
    total = sum(len(re.findall(r"\] trial \d", text)) for text in said)
    print(
        f"cut from {down_s:.0f} s to {up_s:.0f} s of {plan.budget_s:g} s; in the database: "
        f"{', '.join(f'{by_host[name]} of {name}' for name in NAMES)}, {doubles} twice, {running} running, "
        f"{len(trials) - len(records) - running} interrupted; {total} were finished"
    )
    leaks = any(PASSWORD in text for text in said)
    shutil.rmtree(folder)
    return total == len(uuids) and not doubles and not running and not leaks


def config_of_many() -> str:
    """Return a config with more values to try than the toy trainer's own."""
    text = CONFIG % TRAINER
    for few, many in {"[4, 16, 64]": list(range(4, 65, 4)), "[1, 2]": list(range(1, 9))}.items():
        assert few in text
        text = text.replace(few, str(many))
    return text


def _start(host: Host, project: Path, url: str, command: str, budget_s: float) -> "subprocess.Popen[str]":
    address = urlsplit(url)
    there = address._replace(netloc=address.netloc.replace("127.0.0.1", host.near)).geturl()
    words = ("-m", "autotune", command, "--config", "config.yaml", "--budget", f"{budget_s:g}s")
    return subprocess.Popen(
        host.command(sys.executable, *words),
        cwd=project,
        env={**os.environ, "AUTOTUNE_STORAGE": there},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _trials(url: str, folder: Path) -> list[FrozenTrial]:
    storage = at(url, folder)
    name = storage.latest("*")
    assert name is not None, "nothing was ever written"
    connection = storage.connect(name)
    trials = optuna.load_study(study_name=name, storage=connection.storage).get_trials()
    connection.close()
    return trials
