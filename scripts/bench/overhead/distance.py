"""What the distance to a server costs: searches over a proxy on loopback that lets each answer wait.

The trainer only sleeps, so that the machine is idle. The server is what AUTOTUNE_STORAGE names; its studies stay there.
A round trip is counted where the search sends after it has received: the server, and its answer, are waited for. With
``--workers``, a search and so many workers less one make trials of five seconds of one study.
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from autotune.process import STORAGE_VARIABLE
from autotune.study.record import StudyRecord
from autotune.study.storage.address import address_in_environment, address_of
from autotune.study.storage.journal import open_storage
from scripts.bench.results import Commands, markdown_table

_BEGUN_S, _AT_WORK_S = 6, 24  # from the first end of a trial; then some confirm, and some leave
_OWN = (sys.executable, "-m", "autotune")
_TRAINER = """\
import random, sys, time
import yaml
from autotune.trainee import step
values = yaml.safe_load(open(sys.argv[1]))
batch, workers, prefetch = values["batch_size"], values["num_workers"], values["prefetch"]
load_s, compute_s = 0.004 * batch / max(1, workers), 0.01 + 0.0005 * batch
step_s = max(load_s, compute_s) + min(load_s, compute_s) / (1 + workers * prefetch)
while True:
    time.sleep(step_s * random.lognormvariate(0.0, 0.05))
    step(samples=batch)
"""


class DelayingProxy:
    """Proxy on loopback that hands on each piece of what either side says after half of a delay.

    Args:
        delay_s: What a round trip takes longer through it.

    Attributes:
        port: Where it listens.
        round_trips: Times that a client has sent something after it had received.
    """

    def __init__(self, host: str, port: int, delay_s: float) -> None:
        self._server = host, port
        self._half_s = delay_s / 2.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.round_trips = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                has_received = threading.Event()
                has_received.set()
                self._relay(client, server, partial(self._asked, has_received))
                self._relay(server, client, has_received.set)

    def _asked(self, heard: threading.Event) -> None:
        self.round_trips += heard.is_set()
        heard.clear()

    def _relay(self, source: socket.socket, sink: socket.socket, note: Callable[[], None]) -> None:
        pieces: deque[tuple[float, bytes]] = deque()
        there = threading.Semaphore(0)

        def read() -> None:
            data = b"-"
            while data:
                try:
                    data = source.recv(1 << 16)
                except OSError:
                    data = b""
                if data:
                    note()
                pieces.append((time.monotonic() + self._half_s, data))
                there.release()

        def write() -> None:
            data = b"-"
            with suppress(OSError):
                while data:
                    there.acquire()
                    due_s, data = pieces.popleft()
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    sink.sendall(data)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        for target in (read, write):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


def _run(arguments: argparse.Namespace) -> None:
    if arguments.workers:
        made = [_together(count, arguments.delays[0], arguments.budget) for count in arguments.workers]
        rows = [
            [str(count), *map(str, trials), *said]
            for count, (trials, said) in zip(arguments.workers, made, strict=True)
        ]
        print(markdown_table(["workers", "trials", f"in {_AT_WORK_S} s of them", "verdict", "told"], rows))
        return
    rows = [_search("journal", None, arguments.budget)]
    rows += [_search(f"server, {delay_ms:g} ms", delay_ms / 1e3, arguments.budget) for delay_ms in arguments.delays]
    heads = ["storage", "trials", "a minute", "verdict", "told", "round trips to open", "a trial"]
    print(markdown_table(heads, rows))


def _search(name: str, delay_s: float | None, budget: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, _storage(delay_s) as (address, proxy):
        config = _config(Path(folder))
        command = [*_OWN, "search", *_options(config, budget), "--no-apply", "--json"]
        env = {**os.environ, STORAGE_VARIABLE: address or f"journal:{folder}/studies"}
        with subprocess.Popen(command, cwd=folder, env=env, stdout=-1, stderr=-1, text=True) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            opened, opened_s = 0, math.nan
            for line in process.stderr:
                if " study " in line and math.isnan(opened_s):
                    opened, opened_s = proxy.round_trips if proxy else 0, time.monotonic()
            answer = json.loads(process.stdout.read())
            took_s = time.monotonic() - opened_s
    trials = int(answer.get("trials") or 0)
    each = f"{(proxy.round_trips - opened) / max(1, trials):.1f}" if proxy else ""
    row = [
        name,
        str(trials),
        f"{60.0 * trials / took_s:.1f}",
        *_said(answer),
        str(opened) if proxy else "",
        each,
    ]
    print(*row, file=sys.stderr, flush=True)
    return row


def _together(count: int, delay_ms: float, budget: str) -> tuple[tuple[int, int], Sequence[str]]:
    """Search with so many processes; return their trials, those while all were at work, and the search's answer."""
    with tempfile.TemporaryDirectory() as folder, _storage(delay_ms / 1e3) as (address, _proxy):
        config = _config(Path(folder), more="  trial: {min_s: 5}\n")
        further = _options(config, budget)
        commands = [[*_OWN, "search", *further, "--no-apply", "--exhaust", "--json", "--state-dir", f"{folder}/state0"]]
        for place in range(1, count):
            commands.append([*_OWN, "worker", *further, "--seed", str(place), "--state-dir", f"{folder}/state{place}"])
        env = {**os.environ, STORAGE_VARIABLE: str(address), "OMP_NUM_THREADS": "1"}
        members = [
            subprocess.Popen(command, cwd=folder, env=env, stdout=-1, stderr=subprocess.DEVNULL, text=True)
            for command in commands
        ]
        answer = json.loads(members[0].communicate()[0] or "{}")
        for member in members[1:]:
            member.communicate()
        storage = open_storage(address_of(address_in_environment(env, Path(folder))), Path(folder))
        study = StudyRecord(str(storage.latest("config-*")), storage)
        ends_s = sorted(datetime.fromisoformat(trial.ended_utc).timestamp() for trial in study.records())
        study.close()
    at_work = sum(ends_s[0] + _BEGUN_S < end_s <= ends_s[0] + _BEGUN_S + _AT_WORK_S for end_s in ends_s)
    print(count, len(ends_s), at_work, *_said(answer), file=sys.stderr, flush=True)
    return (len(ends_s), at_work), _said(answer)


def _options(config: Path, budget: str) -> list[str]:
    return ["--config", str(config), "--budget", budget, "--no-warm-start"]  # other studies are on the same server


def _said(answer: Mapping[str, Any]) -> tuple[str, str]:
    told = answer.get("speedup")
    return (
        answer.get("verdict") or str(answer.get("error")),
        f"{told['ratio']:.2f}x ({told['low']:.2f} to {told['high']:.2f})" if told else "-",
    )


@contextmanager
def _storage(delay_s: float | None) -> Iterator[tuple[str | None, DelayingProxy | None]]:
    if delay_s is None:
        yield None, None
        return
    address = urlsplit(os.environ[STORAGE_VARIABLE])
    proxy = DelayingProxy(address.hostname or "127.0.0.1", address.port or 5432, delay_s)
    user = address.netloc.rpartition("@")[0]
    try:
        yield urlunsplit(address._replace(netloc=f"{user}@127.0.0.1:{proxy.port}")), proxy
    finally:
        proxy.close()


def _config(folder: Path, more: str = "") -> Path:
    (folder / "train.py").write_text(_TRAINER)
    config = folder / "config.yaml"
    config.write_text(
        f"run: {uuid.uuid4().hex}\nbatch_size: 8\nnum_workers: 0\nprefetch: 1\n"
        f"autotune:\n  command: {sys.executable} train.py {{config}}\n"
        "  knobs:\n    batch_size: [4, 8, 16, 32]\n    num_workers: [0, 1, 2, 3, 4, 6, 8]\n    prefetch: [1, 2, 4, 8]\n"
        + more
    )
    return config


def add_distance(commands: Commands) -> None:
    """Add the parser of ``distance``."""
    parser = commands.add_parser("distance", help="what the distance to the server of AUTOTUNE_STORAGE costs a search")
    parser.add_argument("--delays", type=float, nargs="+", default=[0.2, 20, 50, 150], help="of a round trip, in ms")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of workers of one study, at the first delay")
    parser.add_argument("--budget", default="3m", help="of each search (default: 3m)")
    parser.set_defaults(run=_run)
