"""Daemon's folders."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.daemon.home import DaemonHome, open_home


@pytest.fixture
def home(tmp_path: Path) -> DaemonHome:
    """Folders of a daemon."""
    return open_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path / "daemon")})


def until(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    """Wait until something is so."""
    over_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < over_s, "it did not come"
        time.sleep(0.005)
