"""The page of a real daemon in a real browser, with a real search of a toy trainer; and what is said without one."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.commands import daemon as daemon_commands
from tests.command_line import CommandLine
from tests.commands.conftest import Autotune
from tests.commands.test_queue import Daemon, add, entries, home, start
from tests.daemon.web.browser import chromium, complaints, text_of
from tests.until import until

__all__ = ["home", "start"]  # fixtures of the daemon


@pytest.fixture
def browser() -> Iterator[Any]:
    """A browser."""
    with chromium() as page:
        yield page


def press(page: Any, key: str) -> None:
    """Press the button whose key begins so, and say yes."""
    button = next(
        one for one in page.find_elements("tag name", "button") if one.get_attribute("data-key").startswith(key)
    )
    button.click()
    page.switch_to.alert.accept()


@pytest.mark.services
def test_a_search_is_followed_from_the_queue_to_the_config(
    project: Path, autotune: Autotune, start: Callable[..., Daemon], browser: Any
) -> None:
    """It waits, it runs with its trials drawn, gives advice, and that is applied: in a page that was opened once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = start("--web", "--web-port", str(port), "--web-actions")
    browser.get(autotune("daemon", "url").stdout.strip())

    def shows(selector: str, *texts: str) -> None:
        until(lambda: all(text in text_of(browser, selector) for text in texts), daemon.said)

    shows("h1", "Nothing running, nothing queued.")
    add(autotune, "--when", "idle", "--budget", "40s", "--no-check")
    shows("#queue", "waiting", "waits for an idle machine")
    press(browser, "remove")
    until(lambda: entries(autotune) == [], "the entry was not removed")
    add(autotune, "--when", "now", "--budget", "60s", "--same-training", "--no-check")
    shows("#search", "explore", "best so far")
    assert browser.execute_script("return document.querySelectorAll('svg.search .mark').length") > 0
    shows("h1", "Recommendation for", "not applied yet")
    shows("#advice", "+    num_workers: 2", "same training")
    shows("#search", "better than today's config", "current config")
    press(browser, "apply")
    until(lambda: "num_workers: 2   # loaders" in (project / "config.yaml").read_text(), daemon.said)
    shows("#advice", "applied", "autotune revert")
    assert complaints(browser) == []


@pytest.mark.services
def test_the_page_of_one_search(project: Path, browser: Any) -> None:
    """Its address stands on stderr; nothing of a daemon is there; its end, and what it found, stay on the page."""
    command = [sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", "25s", "--web"]
    with subprocess.Popen(
        command, cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as search:
        assert search.stdout is not None
        assert search.stderr is not None
        browser.get(next(line for line in search.stderr if line.startswith("Page: ")).split()[1])
        rest = threading.Thread(target=search.stderr.read)
        rest.start()
        until(lambda: "best so far" in text_of(browser, "#search"), "no trial is shown")
        assert not browser.find_element("css selector", "#queue").is_displayed()
        assert complaints(browser) == []
        until(lambda: "The search has ended" in text_of(browser, "h1"), "its end is not shown")
        said = search.stdout.read()
        rest.join()
    assert search.returncode == 0
    told = re.search(r"Better: ([\d.]+x)", said)
    assert told, said
    assert f"better than today's config, {told[1]} with " in text_of(browser, "h1")
    assert "autotune apply --config config.yaml" in text_of(browser, "#search")
    until(lambda: text_of(browser, "#connection") == "ended", "it does not say that nobody answers")


def test_a_port_that_is_taken_is_said(home: Path, simulated: CommandLine) -> None:
    """With the option that names another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = simulated("daemon", "run", "--web", "--web-port", str(taken.getsockname()[1])).refusal()
    assert "--web-port" in said


def test_a_daemon_without_a_page_says_so(home: Path, autotune: Autotune, start: Callable[..., Daemon]) -> None:
    """`daemon url` names the option; so it does where no daemon runs."""
    nobody = autotune("daemon", "url")
    assert (nobody.returncode, "autotune daemon run" in nobody.stderr) == (1, True)
    start()
    done = autotune("daemon", "url")
    assert (done.returncode, "daemon run --web" in done.stderr) == (1, True)


def test_a_package_that_is_missing_is_named(
    home: Path, simulated: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how to install it."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name="starlette")

    monkeypatch.setattr(daemon_commands, "import_module", missing)
    said = simulated("daemon", "run", "--web").refusal()
    assert "pip install '.[web]'" in " ".join(said.split())
