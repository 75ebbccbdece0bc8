"""Daemon's folders."""

from pathlib import Path

import pytest

from autotune.daemon.home import DaemonHome, open_home


@pytest.fixture
def home(tmp_path: Path) -> DaemonHome:
    """Folders of a daemon."""
    return open_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path / "daemon")})
