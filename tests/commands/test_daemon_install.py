"""``autotune daemon install`` and ``uninstall``, with a program of ours in place of systemd's."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import CommandLine, Done

SYSTEMCTL = """\
#!/bin/sh
echo "$*" >>"$0.log"
fails=$(cat "$0.fails" 2>/dev/null || echo nothing)
case "$*" in *"$fails"*) echo "Failed to connect to bus: No medium found"; exit 1;; esac
"""

Install = Callable[..., Done]


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """Folder with a `systemctl` that notes what it is asked for; `systemctl.fails` names what fails."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "systemctl").write_text(SYSTEMCTL)
    (folder / "systemctl").chmod(0o755)
    return folder


@pytest.fixture
def daemon(tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Run ``autotune daemon ...`` with a home of its own."""
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    return lambda *arguments, **env: CommandLine(tmp_path)("daemon", *arguments, env=env)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Path of the unit."""
    return tmp_path / ".config" / "systemd" / "user" / "autotune.service"


def asked(bin_folder: Path) -> list[str]:
    """Requests that systemd was sent."""
    log = bin_folder / "systemctl.log"
    return log.read_text().splitlines() if log.exists() else []


def test_install_writes_the_unit_and_says_the_rest(daemon: Install, unit: Path, bin_folder: Path) -> None:
    """Nothing is started; the commands are there to copy, and how to have it run without a login."""
    done = daemon("install").well()
    assert f"Written: {unit}" in done.stdout
    assert "  systemctl --user daemon-reload\n  systemctl --user enable --now autotune.service\n" in done.stdout
    assert "loginctl enable-linger" in done.stdout
    assert f"ExecStart={sys.executable} -P -m autotune daemon run" in unit.read_text()
    assert asked(bin_folder) == []


def test_install_now_starts_it(daemon: Install, bin_folder: Path) -> None:
    """A later install restarts the daemon, so that it is of the new version."""
    assert daemon("install", "--now").returncode == 0
    first = asked(bin_folder)
    assert first[-2:] == ["--user daemon-reload", "--user enable --now autotune.service"]
    done = daemon("install", "--now")
    assert "The daemon is running" in done.stdout
    assert asked(bin_folder)[-2:] == ["--user enable autotune.service", "--user restart autotune.service"]


def test_without_systemd_nothing_is_written(daemon: Install, unit: Path, bin_folder: Path) -> None:
    """In a container: the error says how to start the daemon there."""
    (bin_folder / "systemctl.fails").write_text("show")
    said = daemon("install", "--now").refusal()
    assert "no systemd user manager" in said
    assert "No medium found" in said
    assert "autotune daemon run" in said
    assert not unit.exists()


def test_a_start_that_fails_is_an_error(daemon: Install, unit: Path, bin_folder: Path) -> None:
    """With the command that failed, and where the daemon's last words are; the unit stays."""
    (bin_folder / "systemctl.fails").write_text("enable")
    said = daemon("install", "--now").refusal()
    assert "systemctl --user enable --now autotune.service" in said
    assert "journalctl --user" in said
    assert unit.exists()


def test_uninstall_takes_away_what_install_wrote(daemon: Install, unit: Path, bin_folder: Path) -> None:
    """And says how to end the daemon; state stays."""
    daemon("install")
    done = daemon("uninstall").well()
    assert "systemctl --user stop autotune.service" in done.stdout
    assert not unit.exists()
    assert asked(bin_folder) == []
    assert daemon("install").returncode == 0
    assert daemon("uninstall", "--now").returncode == 0
    assert asked(bin_folder)[-2:] == ["--user stop autotune.service", "--user daemon-reload"]
    again = daemon("uninstall").well()
    assert "No unit to remove" in again.stdout


def test_an_edited_unit_is_kept(daemon: Install, unit: Path) -> None:
    """Both say where changes belong."""
    daemon("install")
    edited = unit.read_text() + "# mine\n"
    unit.write_text(edited)
    for verb in ("install", "uninstall"):
        said = daemon(verb).refusal()
        assert "was edited since" in said
        assert "systemctl --user edit" in said
        assert unit.read_text() == edited


def test_a_daemon_that_could_not_start_is_not_installed(daemon: Install, unit: Path, tmp_path: Path) -> None:
    """Its state folder is another user's, or may be written by others."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    assert "others may write to it" in daemon("install", AUTOTUNE_DAEMON_DIR=str(place)).refusal()
    assert not unit.exists()


def test_an_autotune_that_is_not_installed_is_told(daemon: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout that is only on PYTHONPATH would not be found by systemd."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/false")
    said = daemon("install").refusal()
    assert "systemd could not start the daemon" in said
    assert "pip install" in said
