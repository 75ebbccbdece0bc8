"""What the daemon's page costs: the daemon's CPU, a tab's memory, the bytes sent, and the time to the first picture.

``python -m tests.soak page`` starts a real daemon with a search of the toy trainer, and follows its page from 20
places at once (``--pages``, for ``--seconds``), and from none. Then it serves a day's worth of a busy daemon to a tab
of chromium for ``--minutes``, and a study of 10,000 trials (``--trials``) to a new one.
"""

import argparse
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from autotune.daemon.home import open_home
from autotune.records import Purpose
from tests.commands.conftest import CONFIG, TRAINER
from tests.daemon.web.browser import chromium, text_of, until
from tests.daemon.web.busy_daemon import BusyDaemon
from tests.daemon.web.client import Client
from tests.daemon.web.page_server import PageServer

_MOST_CORES = 0.05
_MIB = 1 << 20
_TRIAL_EVERY_S = 10
_WARM_UP_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Measure, and print; 0 if the daemon took at most 5 % of a core."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak page", description=__doc__)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--trials", type=int, default=10_000)
    chosen = parser.parse_args(arguments)
    print(f"a study of {chosen.trials:,} trials")
    first_picture(chosen.trials)
    cores = daemon_cores(chosen.pages, chosen.seconds)
    print(f"one tab for {chosen.minutes:g} minutes, on a daemon that changes every second")
    tab(chosen.minutes)
    return 0 if cores <= _MOST_CORES else 1


def daemon_cores(pages: int, seconds: float) -> float:
    """Print the share of a core that a daemon takes with and without pages; return that with pages."""
    with TemporaryFolder() as folder, _daemon(folder) as (process, url):
        print("a daemon, its searches not counted")
        found = 0.0
        for many in (0, pages):
            with ExitStack() as stack:
                client = Client(urlsplit(url()).port or 0).sign_in(url())
                streams = [stack.enter_context(Stream(client)) for _ in range(many)]
                _pass(_WARM_UP_S)
                for stream in streams:
                    stream.bytes = 0
                before_s, began_s = sum(process.cpu_times()[:2]), time.monotonic()
                _pass(seconds)
                passed_s = time.monotonic() - began_s
                found = (sum(process.cpu_times()[:2]) - before_s) / passed_s
                sent = sum(stream.bytes for stream in streams)
            print(f"  {many:>3} open pages: {found:6.2%} of a core, {sent / 1000 / passed_s:7.1f} kB/s sent to all")
    return found


def tab(minutes: float) -> None:
    """Print what a tab takes at the beginning and at the end, and what was sent to it."""
    with TemporaryFolder() as folder, _busy(folder) as (daemon, server), chromium() as page:
        page.get(server.address)
        until(lambda: text_of(page, "#connection") == "live", "the page is not live")
        client = Client(server.port).sign_in(server.address)
        with Stream(client) as stream:
            ends_s, number, rows = time.monotonic() + 60.0 * minutes, 100, []
            while (left_s := ends_s - time.monotonic()) > 0:
                daemon.clock.wait(1.0)
                if int(left_s) % _TRIAL_EVERY_S == 0:
                    daemon.searching.trial(number, 1.2, Purpose.EXPLORE, takes_s=0.0)
                    number += 1
                daemon.note(0.5 + 0.4 * (number % 7) / 7)
                server.state = _state(daemon)
                if len(rows) <= 4 * (1 - left_s / (60.0 * minutes)):
                    rows.append((_memory(page), stream.bytes))
                _pass(min(1.0, left_s))
            rows.append((_memory(page), stream.bytes))
        for (memory, sent), share in zip(rows, ("0", "1/4", "1/2", "3/4", "1"), strict=True):
            heap, nodes = memory["JSHeapUsedSize"] / _MIB, int(memory["Nodes"])
            print(f"  after {share:>3}: JavaScript heap {heap:5.1f} MiB, {nodes:,} nodes, {sent / _MIB:6.2f} MiB sent")


def first_picture(trials: int) -> None:
    """Print the time from the request for a page, just after the daemon's start, to its picture of the search."""
    with TemporaryFolder() as folder:
        daemon = BusyDaemon(open_home({"AUTOTUNE_DAEMON_DIR": str(folder / "home")}), folder / "project")
        daemon.fill()
        for number in range(100, 100 + trials):
            failed = number % 50 == 0
            daemon.searching.trial(number, None if failed else 1.0 + number % 97 / 100, takes_s=5.0)
        daemon.note(0.5)
        began_s = time.monotonic()
        server = PageServer(folder, _state(daemon))
        made_s = time.monotonic() - began_s
        try:
            with chromium() as page:
                for visit in ("first", "second"):
                    address = server.address
                    began_s = time.monotonic()
                    page.get(address)
                    until(lambda: _has_marks(page), "there is no picture")
                    print(f"  {visit} visit: picture after {made_s + time.monotonic() - began_s:.2f} s", end="")
                    print(f", {made_s:.2f} s of it to read the study" if made_s else "")
                    made_s = 0.0
        finally:
            server.stop()
        print(f"  the state: {len(json.dumps(server.state)) / 1000:.0f} kB")


class Stream:
    """Page's stream, read as it comes; counts its bytes.

    Args:
        client: Client that has signed in.
    """

    def __init__(self, client: Client) -> None:
        self.bytes = 0
        self._connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
        self._connection.request("GET", "/api/events", headers={"Cookie": client.cookie})
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "Stream":
        self._response = self._connection.getresponse()
        self._socket = self._connection.sock
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while part := self._response.read1(1 << 16):
                self.bytes += len(part)


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """Temporary folder, as a path."""

    def __enter__(self) -> Path:  # type: ignore[override]  # a path is what is wanted
        return Path(super().__enter__())


@contextmanager
def _daemon(folder: Path) -> Iterator[tuple[psutil.Process, Any]]:
    """Run a daemon that searches; yield its process, and what gives a fresh address of its page."""
    environ = {**os.environ, "AUTOTUNE_DAEMON_DIR": str(folder / "home"), "XDG_CONFIG_HOME": str(folder)}
    (folder / "config.yaml").write_text(CONFIG % TRAINER)

    def autotune(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "autotune", *arguments]
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)

    options = ("queue", "add", "--config", "config.yaml", "--when", "now", "--budget", "2h", "--no-check")
    assert autotune(*options).returncode == 0
    command = [sys.executable, "-m", "autotune", "daemon", "run", "--web", "--web-port", "0"]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: autotune("daemon", "url").returncode == 0, "there is no daemon")
        until(lambda: '"running"' in autotune("queue", "list", "--json").stdout, "the search does not begin")
        yield psutil.Process(daemon.pid), lambda: autotune("daemon", "url").stdout.strip()
    finally:
        autotune("queue", "remove", "1")
        daemon.terminate()
        daemon.wait()


@contextmanager
def _busy(folder: Path) -> Iterator[tuple[BusyDaemon, PageServer]]:
    """Yield the files of a daemon that has much to show, and a server of its page."""
    daemon = BusyDaemon(open_home({"AUTOTUNE_DAEMON_DIR": str(folder / "home")}), folder / "project")
    daemon.fill()
    server = PageServer(folder, _state(daemon))
    yield daemon, server
    server.stop()


def _state(daemon: BusyDaemon) -> dict[str, Any]:
    document = daemon.page.document()
    assert document is not None
    return dict(document)


def _memory(page: Any) -> Mapping[str, float]:
    page.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    page.execute_cdp_cmd("Performance.enable", {})
    found = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return {one["name"]: one["value"] for one in found}


def _has_marks(page: Any) -> bool:
    return bool(page.execute_script("return document.querySelectorAll('svg.search .mark').length"))


def _pass(seconds: float) -> None:
    threading.Event().wait(seconds)
