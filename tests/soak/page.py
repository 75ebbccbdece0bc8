"""What the daemon's page costs: CPU, bytes, the time to the first picture, a tab's memory over hours."""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil

from autotune.daemon.home import open_home
from autotune.records import Purpose
from tests.daemon.web.browser import chromium, text_of
from tests.daemon.web.busy_daemon import BusyDaemon
from tests.daemon.web.client import Client
from tests.daemon.web.page_server import PageServer
from tests.soak.harness import AUTOTUNE, Result, Soak, check
from tests.until import until


@check(cases=("daemon", "tab"), options={"--pages": 20, "--seconds": 60.0, "--tab": 28_800.0, "--trials": 10_000})
def page(soak: Soak) -> Iterator[Result]:
    """What the daemon's page costs: its CPU, the bytes sent, the time to the first picture, and a tab's memory.

    A daemon with a search is followed from --pages for --seconds; chromium shows a study of --trials, and all that
    changes in --tab seconds, one change a second, as fast as it can.
    """
    if "daemon" in soak.cases:
        yield from _daemon_cores(soak, soak.options.pages, soak.options.seconds)
    if "tab" in soak.cases:
        yield from _tab(soak, soak.options.trials, int(soak.options.tab))


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


def _tab(soak: Soak, trials: int, changes: int) -> Iterator[Result]:
    daemon = BusyDaemon(open_home({"AUTOTUNE_DAEMON_DIR": str(soak.place())}), soak.place())
    daemon.fill()
    for number in range(100, 100 + trials):
        daemon.searching.trial(number, None if number % 50 == 0 else 1.0 + number % 97 / 100, takes_s=5.0)
    daemon.note(0.5)
    server = PageServer(soak.place(), daemon.page.document() or {})
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        page, began_s = stack.enter_context(chromium()), time.monotonic()
        page.get(server.address)
        marks = "return document.querySelectorAll('svg.search .mark').length"
        until(lambda: page.execute_script(marks), "there is no picture")
        yield Result(f"{trials:,} trials: picture after {time.monotonic() - began_s:.2f} s")
        # The changes come as from another page of this browser: the server would send one a second.
        tell = "(self.other ??= new BroadcastChannel('autotune')).postMessage({state: arguments[0]})"
        for number in range(changes + 1):
            if number % max(1, changes // 8) == 0:
                page.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
                page.execute_cdp_cmd("Performance.enable", {})
                metrics = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
                found = {one["name"]: one["value"] for one in metrics}
                text = f"{found['JSHeapUsedSize'] / (1 << 20):.1f} MiB of JavaScript, {int(found['Nodes']):,} nodes"
                yield Result(f"a tab after {number:,} changes ({number / 3600:.1f} hours of one a second): {text}")
            daemon.clock.wait(1.0)
            if number % 10 == 0:
                daemon.searching.trial(100 + trials + number // 10, 1.2, Purpose.EXPLORE, takes_s=0.0)
            daemon.note(0.5 + 0.4 * (number % 7) / 7)
            state: Any = daemon.page.document()
            page.execute_script(tell, state)
        shown = str(state["search"]["trials"])
        until(lambda: shown in text_of(page, "#search"), "the page does not show the last change")


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
