"""The page of a real daemon in a real browser, with a real search of a toy trainer."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import Autotune
from tests.commands.test_queue import Daemon, add, entries, home, start, states, until
from tests.commands.test_search import left_running
from tests.daemon.web.browser import chromium, complaints, text_of

__all__ = ["home", "start"]  # fixtures of the daemon


@pytest.fixture
def port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def browser() -> Iterator[Any]:
    """A browser."""
    with chromium() as page:
        yield page


def signed_in(autotune: Autotune) -> str:
    """Return a fresh address of the page."""
    done = autotune("daemon", "url")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def press(page: Any, key: str) -> None:
    """Press the button whose key begins so, and say yes where that is asked."""
    button = next(
        one for one in page.find_elements("tag name", "button") if one.get_attribute("data-key").startswith(key)
    )
    button.click()
    if not key.startswith("pause") and not key.startswith("resume"):
        page.switch_to.alert.accept()


@pytest.mark.services
def test_a_search_is_followed_from_the_queue_to_the_config(
    project: Path, autotune: Autotune, start: Callable[..., Daemon], port: int, browser: Any
) -> None:
    """It waits, it runs with its trials drawn, it survives the daemon's death, gives advice, and that is applied.

    All comes by itself into one page that was opened once.
    """
    options = ("--web", "--web-port", str(port), "--web-actions")
    daemon = start(*options)
    page = browser
    page.get(signed_in(autotune))

    def shows(selector: str, *texts: str) -> bool:
        return all(text in text_of(page, selector) for text in texts)

    until(lambda: shows("h1", "Nothing runs, and nothing waits."), "the page is not there")
    add(autotune, "--when", "idle", "--budget", "40s", "--no-check")
    until(lambda: shows("#queue", "waiting", "waits for an idle machine"), "the entry does not wait")
    press(page, "remove")
    until(lambda: entries(autotune) == [], "the entry was not removed")
    add(autotune, "--when", "now", "--budget", "60s", "--same-training", "--no-check")
    until(lambda: shows("#search", "explore", "best so far"), daemon.said())
    assert page.execute_script("return document.querySelectorAll('svg.search .mark').length") > 0
    press(page, "pause")
    until(lambda: states(autotune) == ["paused"] and not left_running(project), daemon.said())
    until(lambda: shows("#queue", "paused"), "it is not shown as paused")
    daemon.end(signal.SIGKILL)
    until(lambda: shows("#connection", "does not answer", "What is shown is of"), "the page does not notice")
    daemon = start(*options)
    until(lambda: shows("#connection", "live"), "the page does not come back")
    press(page, "resume")
    until(lambda: shows("h1", "Advice for", "as fast"), daemon.said())
    until(lambda: shows("#advice", "+    num_workers: 2", "same training"), "there is no advice")
    assert shows("#search", "better than today's config", "today's config")
    press(page, "apply")
    until(lambda: "num_workers: 2   # loaders" in (project / "config.yaml").read_text(), daemon.said())
    until(lambda: shows("#advice", "applied", "autotune revert"), "the page does not say that it is applied")
    assert complaints(page) == [] or all("ERR_CONNECTION_REFUSED" in one for one in complaints(page))


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--web-address", "192.0.2.1"), 2, "ssh -L 8577:127.0.0.1:8577"),
        (("--web-address", "0.0.0.0"), 2, "one address is expected"),
        (("--web-address", "elsewhere"), 2, "an IP address is expected"),
        (("--web-port", "70000"), 2, "--web-port"),
        (("--web-address", "192.0.2.1", "--web-exposed"), 1, "the page cannot be served at 192.0.2.1, port 8577"),
    ],
)
def test_where_it_cannot_or_should_not_serve_is_said(
    home: Path, autotune: Autotune, options: tuple[str, ...], code: int, said: str
) -> None:
    """Another address than this machine's own needs a flag that says so; the better way is named."""
    done = autotune("daemon", "run", "--web", *options)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())


def test_a_daemon_without_a_page_says_so(home: Path, autotune: Autotune, start: Callable[..., Daemon]) -> None:
    """`daemon url` names the option; so it does where no daemon runs."""
    nobody = autotune("daemon", "url")
    assert nobody.returncode == 1
    assert "autotune daemon run" in nobody.stderr
    start()
    done = autotune("daemon", "url")
    assert done.returncode == 1
    assert "daemon run --web" in done.stderr


def test_a_package_that_is_missing_is_named(
    home: Path, tmp_path: Path, autotune: Autotune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how to install it; without `--web` the daemon needs none of them."""
    missing = tmp_path / "missing"
    for name in ("starlette", "uvicorn", "prometheus_client"):
        (missing / name).mkdir(parents=True)
        (missing / name / "__init__.py").write_text(
            f"raise ModuleNotFoundError('No module named {name}', name='{name}')"
        )
    monkeypatch.setenv("PYTHONPATH", f"{missing}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    done = autotune("daemon", "run", "--web")
    assert done.returncode == 1
    assert "pip install '.[web]'" in " ".join(done.stderr.split())
    daemon = Daemon(dict(os.environ), tmp_path)
    until(lambda: "daemon, process" in daemon.said(), "it does not start")
    assert daemon.end() == 143


@pytest.mark.services
def test_the_page_of_one_search(project: Path, browser: Any) -> None:
    """Its address stands on stderr; nothing of a daemon is there; its end, and what it found, stay on the page."""
    command = [sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", "25s", "--web"]
    with subprocess.Popen(
        command, cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as search:
        assert search.stderr is not None
        address = next(line for line in search.stderr if line.startswith("Page: ")).split()[1]
        browser.get(address)
        rest = threading.Thread(target=search.stderr.read)
        rest.start()
        until(lambda: "best so far" in text_of(browser, "#search"), "no trial is shown")
        assert not browser.find_element("css selector", "#queue").is_displayed()
        assert complaints(browser) == []
        until(lambda: "The search has ended" in text_of(browser, "h1"), "its end is not shown")
        said = search.stdout.read() if search.stdout else ""
        rest.join()
    assert search.returncode == 0
    told = re.search(r"Better: ([\d.]+x)", said)
    assert told, said
    assert f"better than today's config: {told[1]} with " in text_of(browser, "h1")
    assert "autotune apply --config config.yaml" in text_of(browser, "#search")
    until(lambda: text_of(browser, "#connection") == "ended", "it does not say that nobody answers")
