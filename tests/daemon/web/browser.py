"""A real browser for tests: Debian's chromium, without a screen."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync"),
    "--no-first-run",
)


@contextmanager
def chromium(*, width: int = 1280) -> Iterator[Any]:
    """Run a browser for as long as a ``with`` block lasts; skips the test where chromium or selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in (*_ARGUMENTS, f"--window-size={width},900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as page:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        yield page


def text_of(page: Any, selector: str) -> str:
    """Return the text of an element as a reader sees it; empty while it is not there."""
    found = page.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
    assert isinstance(found, str)
    return found


def complaints(page: Any) -> list[str]:
    """Return what the browser's console has said of errors, refusals of the content policy among them.

    A page before it may have asked its own server, which has ended, in its last moment: that says nothing of this one.
    Nor does a daemon that has not looked around yet, on a busy machine: the page asks again.
    """
    origin = page.execute_script("return location.origin")
    said = [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    own = [message for message in said if origin in message or "ERR_CONNECTION_REFUSED" not in message]
    return [message for message in own if "/api/state" not in message or "status of 503" not in message]
