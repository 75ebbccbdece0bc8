"""Daemons whose page is looked at."""

from pathlib import Path

import pytest

from autotune.daemon.home import DaemonHome
from autotune.records import Purpose
from tests.daemon.web.busy_daemon import BusyDaemon


@pytest.fixture
def fresh(home: DaemonHome, tmp_path: Path) -> BusyDaemon:
    """A daemon that has done nothing yet."""
    return BusyDaemon(home, tmp_path / "a project")


@pytest.fixture
def begun(fresh: BusyDaemon) -> BusyDaemon:
    """A daemon with a search that has measured today's config."""
    fresh.add_running()
    fresh.searching.begin()
    fresh.searching.trial(0, 1.0, Purpose.BASELINE)
    return fresh


@pytest.fixture
def daemon(fresh: BusyDaemon) -> BusyDaemon:
    """A daemon of which there is something to see everywhere."""
    fresh.fill()
    return fresh
