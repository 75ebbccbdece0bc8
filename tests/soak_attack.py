"""The daemon's socket under attack, with numbers: how long a good client waits while others misbehave.

``python -m tests.soak attack --clients 500 --asks 200`` starts a control server in a process of its own, and attackers
in another one; it asks as a command does, and prints answer times, and the memory and CPU time of the server.
"""

import argparse
import contextlib
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from autotune.daemon.control.client import ask
from autotune.daemon.control.protocol import Request, encode_request
from autotune.daemon.control.server import ControlServer, Deferred
from autotune.daemon.home import open_home, sole_daemon
from autotune.errors import AutotuneError

ATTACKS = {
    "nobody": "no other client",
    "silent": "connect, and say nothing",
    "half": "send half of a request",
    "drip": "send one byte of a request every 0.2 s",
    "again": "connect, send half of a request, and connect again when dropped",
    "unread": "ask for 500 kB, and read nothing of it",
    "waiting": "wait for an answer that does not come",
    "garbage": "send garbage, again and again",
    "large": "send 10 MB, again and again",
}
_CONCURRENT = {"garbage": 20, "large": 20}
"""Number of clients at a time that send without a pause; the others hold as many connections as are asked for."""

_SECONDS = 60.0  # of one attack at most


def main(arguments: list[str]) -> int:
    """Print the table; return 1 if a good client was refused or waited for more than 2 s."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak attack", description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--asks", type=int, default=200)
    parser.add_argument("--only", choices=ATTACKS)
    parser.add_argument("--role", choices=["all", "server", *ATTACKS], default="all", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.role == "server":
        _serve()
    if chosen.role != "all":
        _attack(chosen.role, chosen.clients)
        return 0
    good = True
    print(f"{'':>8}  {'good client, ms: median':>23} {'99 %':>7} {'worst':>7}  refused  server: MiB  CPU s")
    for attack, words in ATTACKS.items():
        if chosen.only in (None, attack):
            good = _measure(attack, words, chosen.clients, chosen.asks) and good
    return 0 if good else 1


def _measure(attack: str, words: str, clients: int, asks: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="autotune soak ") as folder:
        environ = {**os.environ, "AUTOTUNE_DAEMON_DIR": folder}
        home = open_home(environ)
        server = _start("server", clients, environ)
        attacker = _start(attack, clients, environ)
        process = psutil.Process(server.pid)
        took_ms: list[float] = []
        refused = 0
        cpu_s = sum(process.cpu_times()[:2])
        for _ in range(asks):
            began_s = time.monotonic()
            try:
                ask(home, "status", timeout_s=10.0)
            except AutotuneError as error:
                refused += 1
                print(f"          {error}")
            took_ms.append((time.monotonic() - began_s) * 1000)
            time.sleep(0.005)
        took_ms.sort()
        used_s = sum(process.cpu_times()[:2]) - cpu_s
        print(
            f"{attack:>8}  {statistics.median(took_ms):>23.1f} {took_ms[int(len(took_ms) * 0.99) - 1]:>7.1f} "
            f"{took_ms[-1]:>7.1f}  {refused:>7}  {process.memory_info().rss / 2**20:>11.0f}  {used_s:>5.2f}  {words}",
            flush=True,
        )
        for one in (attacker, server):
            one.kill()
            one.communicate()
        return not refused and took_ms[-1] < 2000


def _start(role: str, clients: int, environ: dict[str, str]) -> "subprocess.Popen[str]":
    """Start a process, and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.soak_attack", "--role", role, "--clients", str(clients)],
        env=environ,
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _serve() -> None:
    """Serve until killed."""
    waiting: list[Deferred] = []

    def answer(request: Request) -> dict[str, object] | Deferred:
        if request.op == "large":
            return {"text": "x" * 500_000}
        if request.op == "wait":
            waiting[:] = [one for one in waiting if not one.is_abandoned] + [Deferred()]
            return waiting[-1]
        return {"state": "idle", "queue": [{"id": n, "config": "configs/config.yaml"} for n in range(10)]}

    home = open_home(os.environ)
    with sole_daemon(home), ControlServer(home, answer) as server:
        print("ready", flush=True)
        while True:
            server.serve(0.5)


def _attack(attack: str, clients: int) -> None:
    """Misbehave until killed, or the time is over."""
    path = str(open_home(os.environ).socket)
    over_s = time.monotonic() + _SECONDS
    rng = random.Random(0)
    half = encode_request("status", {})[:10]
    first = {
        "silent": b"",
        "half": half,
        "drip": half[:1],
        "again": half,
        "unread": encode_request("large", {}),
        "waiting": encode_request("wait", {}),
        "garbage": rng.randbytes(1000) + b"\n",
        "large": b"x" * 10_000_000,
    }
    held: list[socket.socket] = []
    if attack != "nobody":
        held = [_connected(path, first[attack]) for _ in range(_CONCURRENT.get(attack, clients))]
    print("ready", flush=True)
    while time.monotonic() < over_s:
        if attack in ("again", "garbage", "large"):
            for place, one in enumerate(held):
                if attack != "again" or is_dropped(one):
                    one.close()
                    held[place] = _connected(path, first[attack])
            time.sleep(0.001)
        else:
            time.sleep(0.2)
            for one in held if attack == "drip" else ():
                with contextlib.suppress(OSError):
                    one.send(b" ")


def _connected(path: str, first: bytes) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    for _ in range(1000):
        try:
            client.connect(path)
            break
        except BlockingIOError:
            time.sleep(0.01)
    with contextlib.suppress(OSError):  # it was dropped before it had said all
        client.sendall(first)
    client.setblocking(False)
    return client


def is_dropped(client: socket.socket) -> bool:
    """Return whether the other end has ended a connection."""
    try:
        return len(client.recv(1 << 16)) >= 0
    except BlockingIOError:
        return False
    except OSError:
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
