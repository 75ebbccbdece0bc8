"""Clients of the daemon's page: attackers, and what the page costs when it is followed."""

import contextlib
import http.client
import json
import os
import resource
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from autotune.daemon.home import open_home
from autotune.records import Purpose
from tests.daemon.web.browser import chromium, text_of, until
from tests.daemon.web.busy_daemon import BusyDaemon
from tests.daemon.web.client import Client
from tests.daemon.web.page_server import PageServer
from tests.soak.harness import AUTOTUNE, Result, Soak, check, forked

_SECONDS = 120.0  # of one attack at most
_CONCURRENT = 20  # clients at a time that send without a pause
_OTHER_USER = 65534  # "nobody" on most systems; any that is not the owner's
_FILES = 1024  # that the server may have open: what most systems give a process
_MIB = 1 << 20
_HOLD, _DRIP, _AGAIN, _ON, _FLOOD = "and hold on", "byte by byte", "again when dropped", "without a pause", "flood"
_PORT = b"Host: 127.0.0.1:%d\r\n"
_GET, _POST = b"GET / HTTP/1.1\r\n" + _PORT, b"POST / HTTP/1.1\r\n" + _PORT
_BIG = 10_000_000

PAGE_ATTACKS: Mapping[str, tuple[str, bytes]] = {
    "nobody": ("", b""),
    "silent": (_HOLD, b""),
    "flood": (_FLOOD, b""),
    "half": (_HOLD, _GET),
    "drip": (_DRIP, _GET + b"X: "),
    "body": (_DRIP, _POST + b"Content-Length: 16000\r\n\r\n"),
    "again": (_AGAIN, _GET),
    "head": (_ON, _GET + b"X: " + b"x" * _BIG),
    "lines": (_ON, _GET + b"X: x\r\n" * 50_000),
    "cookies": (_ON, _GET + b"Cookie: " + b"c=;" * 5_000 + b"\r\n\r\n"),
    "quoted": (_ON, _GET + b'Cookie: c="' + b"\\" * 60_000 + b'"\r\n\r\n'),
    "large": (_ON, _POST + b"Content-Length: %d\r\n\r\n" % _BIG + b"x" * _BIG),
    "ask": (_ON, b"GET /login?code=x HTTP/1.1\r\n" + _PORT + b"\r\n"),
}
"""By their names: in which way clients send, and what each of their connections sends first."""


def _serve_page(tell: Callable[[object], None], folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    server = PageServer(folder, {"headline": {"text": "Nothing runs."}, "filling": "x" * 100_000})
    tell((server.port, server.address))
    threading.Event().wait()


def _owner_of_page(where: tuple[int, str]) -> Callable[[], object]:
    owner = Client(where[0]).sign_in(where[1])

    def asks() -> None:
        if owner.ask("/api/state", timeout_s=10.0).status != 200:
            raise OSError("refused")

    return asks


@check(cases=PAGE_ATTACKS, options={"--clients": 500, "--asks": 200})
def page_attack(soak: Soak) -> Iterator[Result]:
    """The daemon's page under attack by another user of the machine: how long its owner waits meanwhile.

    At most a second, or two in a flood; it is never refused, and the server's memory grows by less than 64 MiB.
    """
    whose = f"user {_OTHER_USER}" if os.geteuid() == 0 else "the owner"
    yield Result(f"{soak.options.clients} clients of {whose}; the owner asks {soak.options.asks} times")
    yield Result(f"{'':>8} {'median, ms':>10} {'99 %':>7} {'worst':>7} refused  server: MiB more   CPU")
    for name in soak.cases:
        way, first = PAGE_ATTACKS[name]
        # What came before the owner of a flood is accepted first.
        most_ms = 2000 if way == _FLOOD else 1000
        took_ms, refused = list[float](), list[str]()
        with forked(_serve_page, soak.place()) as (server, where):
            asks = _owner_of_page(where)
            for _ in range(20):  # it warms up
                asks()
            before = most = server.memory_info().rss
            with forked(_attack, where[0], way, first, soak.options.clients if way else 0):
                began_s, cpu_s = time.monotonic(), sum(server.cpu_times()[:2])
                for _ in range(soak.options.asks):
                    asked_s = time.monotonic()
                    try:
                        asks()
                    except (OSError, http.client.HTTPException) as error:
                        refused.append(f"refused: {error}")
                    took_ms.append((time.monotonic() - asked_s) * 1000)
                    most = max(most, server.memory_info().rss)
                    time.sleep(0.005)
                    if len(refused) >= 3:
                        break  # as good as all of them
                share = (sum(server.cpu_times()[:2]) - cpu_s) / (time.monotonic() - began_s)
        took_ms.sort()
        grown = (most - before) / _MIB
        yield Result(
            f"{name:>8} {statistics.median(took_ms):>10.1f} {took_ms[int(len(took_ms) * 0.99) - 1]:>7.1f} "
            f"{took_ms[-1]:>7.1f} {len(refused):>7} {grown:>17.1f} {share:>5.0%}",
            *refused,
            took_ms[-1] >= most_ms and f"the owner waited for {took_ms[-1]:.0f} ms",
            grown >= 64 and f"{grown:.0f} MiB more",
        )


def _attack(tell: Callable[[object], None], port: int, way: str, first: bytes, clients: int) -> None:
    """Misbehave until killed, or the time is over; as another user, where this one may."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setuid(_OTHER_USER)
    address, over_s = ("127.0.0.1", port), time.monotonic() + _SECONDS
    first = first.replace(_PORT, _PORT % port)
    held: deque[socket.socket] = deque()
    if way not in (_ON, _FLOOD):
        held.extend(_connected(address, first) for _ in range(clients))
    tell("ready")
    if way == _ON:
        for _ in range(_CONCURRENT):
            threading.Thread(target=_send_on, args=(address, first, over_s)).start()
    while way == _FLOOD and time.monotonic() < over_s:
        held.append(one := socket.socket())
        one.setblocking(False)
        one.connect_ex(address)
        if len(held) > clients:
            held.popleft().close()
    while time.monotonic() < over_s:
        for place, one in enumerate(held):
            if way == _DRIP:
                with contextlib.suppress(OSError):
                    one.send(b"x")
            elif way == _AGAIN and _is_dropped(one):
                one.close()
                held[place] = _connected(address, first)
        time.sleep(0.001 if way == _AGAIN else 0.2)


def _send_on(address: tuple[str, int], first: bytes, over_s: float) -> None:
    while time.monotonic() < over_s:
        one = _connected(address, first)
        one.settimeout(5)
        with contextlib.suppress(OSError):
            one.recv(1 << 16)
        one.close()


def _connected(address: tuple[str, int], first: bytes) -> socket.socket:
    client = socket.socket()
    client.settimeout(10)
    for _ in range(1000):
        try:
            client.connect(address)
            client.sendall(first)
            break
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            break  # it was dropped before it had said all
    client.setblocking(False)
    return client


def _is_dropped(client: socket.socket) -> bool:
    try:
        return len(client.recv(1 << 16)) >= 0
    except BlockingIOError:
        return False
    except OSError:
        return True


# What the page costs


@check(
    cases=("picture", "daemon", "tab"),
    options={"--pages": 20, "--seconds": 60.0, "--tab": 28_800.0, "--trials": 10_000},
)
def page(soak: Soak) -> Iterator[Result]:
    """What the daemon's page costs: its CPU, a tab's memory, the bytes sent, and the time to the first picture.

    A daemon with a search is followed from --pages for --seconds; chromium shows a study of --trials, and all that
    changes in --tab seconds, one change a second, as fast as it can.
    """
    options = soak.options
    if "picture" in soak.cases:
        yield from _first_picture(soak, options.trials)
    if "daemon" in soak.cases:
        yield from _daemon_cores(soak, options.pages, options.seconds)
    if "tab" in soak.cases:
        yield from _tab(soak, options.tab)


def _first_picture(soak: Soak, trials: int) -> Iterator[Result]:
    daemon = _busy(soak.place())
    for number in range(100, 100 + trials):
        speed = None if number % 50 == 0 else 1.0 + number % 97 / 100
        daemon.searching.trial(number, speed, takes_s=5.0)
    daemon.note(0.5)
    began_s = time.monotonic()
    server = PageServer(soak.place(), _state(daemon))
    made_s = time.monotonic() - began_s
    marks = "return document.querySelectorAll('svg.search .mark').length"
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        page = stack.enter_context(chromium())
        for visit, reading_s in (("first", made_s), ("second", 0.0)):
            began_s = time.monotonic()
            page.get(server.address)
            until(lambda: page.execute_script(marks), "there is no picture")
            took_s = reading_s + time.monotonic() - began_s
            yield Result(f"{trials:,} trials, {visit} visit: picture after {took_s:.2f} s, {reading_s:.2f} s to read")
    yield Result(f"the state: {len(json.dumps(server.state)) / 1000:.0f} kB")


def _daemon_cores(soak: Soak, pages: int, seconds: float) -> Iterator[Result]:
    folder = soak.project()
    env = {"AUTOTUNE_DAEMON_DIR": str(folder / "home"), "XDG_CONFIG_HOME": str(folder)}

    def said(*words: str) -> str:
        done = soak.autotune(folder, *words, env=env)
        return done.stdout.strip() if done.returncode == 0 else ""

    assert said("queue", "add", "--config", "config.yaml", "--when", "now", "--budget", "2h", "--no-check")
    daemon = soak.start(folder, *AUTOTUNE, "daemon", "run", "--web", "--web-port", "0", env=env)
    until(lambda: said("daemon", "url"), "there is no daemon")
    until(lambda: '"running"' in said("queue", "list", "--json"), "the search does not begin")
    process = psutil.Process(daemon.pid)
    client = Client(urlsplit(said("daemon", "url")).port or 0).sign_in(said("daemon", "url"))
    for many in (0, pages):
        streams = [_followed(client) for _ in range(many)]
        time.sleep(5.0)  # it warms up
        sent, cpu_s, began_s = sum(map(sum, streams)), sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        passed_s = time.monotonic() - began_s
        share = (sum(process.cpu_times()[:2]) - cpu_s) / passed_s
        rate = (sum(map(sum, streams)) - sent) / 1000 / passed_s
        yield Result(
            f"a daemon with {many} open pages, its search not counted: {share:.2%} of a core, {rate:.1f} kB/s to all",
            share > 0.05 and "more than 5 % of a core",
            not all(streams) and "a page is not told anything",
        )
    said("queue", "remove", "1")
    daemon.terminate()
    daemon.wait()


def _tab(soak: Soak, seconds: float) -> Iterator[Result]:
    daemon = _busy(soak.place())
    server = PageServer(soak.place(), _state(daemon))
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        page = stack.enter_context(chromium())
        page.get(server.address)
        until(lambda: text_of(page, "#connection") == "live", "the page is not live")
        # The changes come as from another page of this browser: the server would send one a second.
        tell = "(self.other ??= new BroadcastChannel('autotune')).postMessage({state: arguments[0]})"
        changes, began_s = int(seconds), time.monotonic()
        for number in range(changes + 1):
            if number % max(1, changes // 8) == 0:
                page.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
                page.execute_cdp_cmd("Performance.enable", {})
                metrics = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
                found = {one["name"]: one["value"] for one in metrics}
                heap, nodes = found["JSHeapUsedSize"] / _MIB, int(found["Nodes"])
                text = f"{heap:.1f} MiB of JavaScript, {nodes:,} nodes, {time.monotonic() - began_s:.0f} s here"
                yield Result(f"a tab after {number:,} changes ({number / 3600:.1f} hours of one a second): {text}")
            daemon.clock.wait(1.0)
            if number % 10 == 0:
                daemon.searching.trial(100 + number // 10, 1.2, Purpose.EXPLORE, takes_s=0.0)
            daemon.note(0.5 + 0.4 * (number % 7) / 7)
            state = _state(daemon)
            page.execute_script(tell, state)
        trials = str(state["search"]["trials"])
        until(lambda: trials in text_of(page, "#search"), "the page does not show the last change")


def _busy(folder: Path) -> BusyDaemon:
    """Return the files of a daemon that has much to show."""
    daemon = BusyDaemon(open_home({"AUTOTUNE_DAEMON_DIR": str(folder / "home")}), folder / "project")
    daemon.fill()
    return daemon


def _state(daemon: BusyDaemon) -> dict[str, Any]:
    document = daemon.page.document()
    assert document is not None
    return dict(document)


def _followed(client: Client) -> list[int]:
    """Follow the page's stream in a thread; return the bytes of each part, as they come."""
    sent: list[int] = []
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    connection.request("GET", "/api/events", headers={"Cookie": client.cookie})

    def read() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException), connection.getresponse() as stream:
            while part := stream.read1(1 << 16):
                sent.append(len(part))

    threading.Thread(target=read, daemon=True).start()
    return sent
