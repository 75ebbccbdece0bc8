"""The page in a real browser: what its reader sees, and can do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import AutotuneError
from autotune.events import TrialStarted
from autotune.records import Purpose
from tests.daemon.web.browser import chromium, complaints, text_of
from tests.daemon.web.busy_daemon import BusyDaemon
from tests.daemon.web.page_server import PageServer
from tests.daemon.web.test_state import HOSTILE
from tests.until import until

pytestmark = pytest.mark.services

SECTIONS = ("search", "gpus", "trainings", "queue", "advice", "daemon")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser."""
    with chromium() as page:
        yield page


@pytest.fixture
def served(daemon: BusyDaemon, tmp_path: Path) -> Iterator[PageServer]:
    """A server of the page with that daemon's state."""
    server = PageServer(tmp_path, state(daemon))
    yield server
    server.stop()


def state(daemon: BusyDaemon, **options: Any) -> dict[str, Any]:
    """Return the state now."""
    return {**(daemon.page.document() or {}), **options}


def opened(browser: Any, server: PageServer) -> Any:
    """Open the page; return it once it shows the state."""
    browser.get_log("browser")
    browser.get(server.address)
    until(lambda: text_of(browser, "#connection") == "live", "the page is not live")
    return browser


@pytest.mark.core
def test_every_section_shows_what_there_is(browser: Any, served: PageServer) -> None:
    """A headline, six sections with content, pictures with data in them, tables beside them; and no complaint."""
    page = opened(browser, served)
    assert "has trained at 70 % of its usual speed" in text_of(page, "h1")
    for section in SECTIONS:
        assert len(text_of(page, f"#{section} > div")) > 20, section
    assert "1.88x num_workers=8, batch_size=64" in text_of(page, "#search")
    assert "trial 19, pair 4" in text_of(page, "#search")
    assert "OOM when allocating tensor" in text_of(page, "#search")
    assert "ollama (777)" in text_of(page, "#gpus")
    assert "neighbour on the CPU" in text_of(page, "#trainings")
    assert "one search at a time" in text_of(page, "#queue")
    assert "+num_workers: 4" in text_of(page, "#advice")
    marks = page.execute_script("return [...document.querySelectorAll('svg.search .mark')].length")
    assert marks == served.state["search"]["trials"]
    pictures = page.execute_script(
        """return [...document.querySelectorAll('svg[role=img]')].map((one) => [one.getAttribute('aria-label'),
           [...one.querySelectorAll('.line, .best, .value, .mark')].some((part) => part.getAttribute('d') !== '')])"""
    )
    unknown = [label for label, has_data in pictures if not has_data]
    assert len(pictures) > 15
    assert all("GPU 1" in label or "unknown" in label for label in unknown), unknown
    assert all(label for label, _ in pictures)
    assert page.execute_script("return document.querySelectorAll('table').length") > 6
    assert complaints(page) == []


def test_changes_come_by_themselves(browser: Any, served: PageServer, daemon: BusyDaemon) -> None:
    """A new trial appears, a section that was unfolded stays so, and the focus where it is."""
    page = opened(browser, served)
    page.execute_script("document.querySelector('[data-key=\"best steps title\"]').click()")
    page.execute_script("document.querySelector('#queue button').focus()")
    key = page.execute_script("return document.activeElement.dataset.key")
    daemon.searching.trial(19, 1.0, Purpose.CONFIRM, pair=3)
    daemon.searching.tell(TrialStarted(number=20, purpose=Purpose.CONFIRM, changes={"data.num_workers": 8}, pair=3))
    daemon.add(config="/project/new.yaml")
    daemon.note(0.2)
    served.state = state(daemon)
    until(lambda: "trial 20, pair 4" in text_of(page, "#search"), "the trial is not shown")
    assert page.execute_script("return document.querySelector('[data-key=\"best steps\"]').open")
    until(lambda: "project/new.yaml" in text_of(page, "#queue"), "the entry is not shown")
    assert page.execute_script("return document.activeElement.dataset.key") == key


def test_the_page_survives_its_daemon(browser: Any, served: PageServer, daemon: BusyDaemon) -> None:
    """It says that the daemon is gone and of when its numbers are, keeps them, and goes on when it is back."""
    page = opened(browser, served)
    served.stop()
    until(lambda: "does not answer" in text_of(page, "#connection"), "the page does not notice")
    assert "Showing data from" in text_of(page, "#connection")
    assert "1.88x" in text_of(page, "#search")
    daemon.add(config="/project/later.yaml")
    served.state = state(daemon)
    served.start()
    until(lambda: text_of(page, "#connection") == "live", "the page does not come back")
    until(lambda: "project/later.yaml" in text_of(page, "#queue"), "the page shows the old state")


def test_who_is_signed_out_is_told_how_to_sign_in(browser: Any, served: PageServer) -> None:
    """An old cookie: the command is named; after signing in, in another tab perhaps, the page goes on."""
    page = opened(browser, served)
    page.delete_all_cookies()
    served.stop()
    served.start()
    until(lambda: "log in again with `autotune daemon url`" in text_of(page, "#connection"), "it is not said")
    first = page.current_window_handle
    page.switch_to.new_window("tab")
    page.get(served.address)
    page.close()
    page.switch_to.window(first)
    until(lambda: text_of(page, "#connection") == "live", "the page does not come back")


def test_markup_is_shown_as_text(browser: Any, served: PageServer, daemon: BusyDaemon) -> None:
    """A script in a trial's stderr, in a key and in a study's name is text, and nothing of it runs."""
    daemon.searching.trial(19, None, detail=HOSTILE, stderr_tail=HOSTILE, **{HOSTILE: HOSTILE})
    image = '<img src=x onerror="document.title = 1">'
    daemon.add(config=f"/{image}", note=image)
    served.state = state(daemon)
    served.state["search"]["study"] = image
    page = opened(browser, served)
    until(lambda: "<script>alert(1)</script>" in text_of(page, "#search"), "the text is not shown")
    assert image in text_of(page, "#queue")
    assert f"Study {image}" in text_of(page, "#search")
    assert page.execute_script("return document.querySelectorAll('img, script:not([src])').length") == 0
    assert complaints(page) == []


def test_actions_are_let_through_and_say_what_came_of_them(browser: Any, served: PageServer) -> None:
    """Pausing is done at once, removing and applying ask first; a refusal is shown with its remedy."""
    page = opened(browser, served)
    entries = {entry["state"]: entry["id"] for entry in served.state["queue"]["entries"]}
    press(page, f"pause {entries['running']}")
    until(lambda: text_of(page, "#notice").startswith("Done: pause entry 2"), "it is not said")
    assert served.acted == [{"action": "pause", "id": entries["running"]}]
    press(page, f"remove {entries['failed']}")
    page.switch_to.alert.dismiss()
    assert len(served.acted) == 1
    served.refusal = AutotuneError("the config was edited", remedy="Search again.")
    given = served.state["advice"]["advice"][0]["id"]
    press(page, f"apply {given}")
    page.switch_to.alert.accept()
    until(lambda: "Not done" in text_of(page, "#notice"), "it is not said")
    assert "the config was edited Search again." in text_of(page, "#notice")
    assert served.acted[-1] == {"action": "apply", "id": given}


def test_a_page_that_only_shows_changes_nothing(browser: Any, served: PageServer, daemon: BusyDaemon) -> None:
    """It names the commands instead, with buttons that copy them, and no others."""
    served.state = state(daemon, actions=False)
    page = opened(browser, served)
    assert page.execute_script("return document.querySelectorAll('button:not(.copy)').length") == 0
    assert "autotune apply --config" in text_of(page, "#advice")


def test_an_alarm_is_spoken_once(browser: Any, served: PageServer, daemon: BusyDaemon) -> None:
    """It stands in a live region when it comes, and is not repeated by later states."""
    page = opened(browser, served)
    region = "document.querySelector('#said')"
    assert page.execute_script(f"return {region}.getAttribute('aria-live')") == "assertive"
    until(lambda: "Alarm: /project/tts/config.yaml" in page.execute_script(f"return {region}.textContent"), "not said")
    page.execute_script(f"{region}.textContent = ''")
    daemon.add(config="/project/new.yaml")
    served.state = state(daemon)
    until(lambda: "project/new.yaml" in text_of(page, "#queue"), "the state did not come")
    assert page.execute_script(f"return {region}.textContent") == ""


def test_pages_of_one_browser_share_a_stream(browser: Any, served: PageServer, daemon: BusyDaemon) -> None:
    """Eight of them, where a browser opens six connections; when the one with the stream closes, another takes over."""
    page = opened(browser, served)
    first = page.current_window_handle
    try:
        for _ in range(7):
            page.switch_to.new_window("tab")
            opened(page, served)
        assert served.streams == 1
        page.switch_to.window(first)
        page.close()
        page.switch_to.window(page.window_handles[-1])
        daemon.add(config="/project/shared.yaml")
        served.state = state(daemon)
        for handle in page.window_handles:
            page.switch_to.window(handle)
            until(lambda: "project/shared.yaml" in text_of(page, "#queue"), "a page was left behind")
    finally:
        for handle in page.window_handles[1:]:
            page.switch_to.window(handle)
            page.close()
        page.switch_to.window(page.window_handles[0])


def press(page: Any, key: str) -> None:
    """Press the button of that key, as a keyboard does."""
    keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys
    button = next(one for one in page.find_elements("tag name", "button") if one.get_attribute("data-key") == key)
    button.send_keys(keys.ENTER)
