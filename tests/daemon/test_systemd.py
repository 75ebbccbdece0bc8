"""Systemd unit of the daemon: its text, which systemd reads, and its file, which is never somebody else's."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.daemon.systemd import NAME, daemon_command, remove_unit, unit_path, unit_text, write_unit
from autotune.errors import AutotuneError

COMMAND = daemon_command("/usr/bin/python3")
OURS = unit_text(COMMAND, {})
has_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of the unit."""
    return unit_path({"XDG_CONFIG_HOME": str(tmp_path / "config")})


def verified(path: Path) -> str:
    """What `systemd-analyze verify` complains about."""
    env = {**os.environ, "XDG_RUNTIME_DIR": str(path.parent), "HOME": str(path.parent)}
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return f"status {done.returncode}: {done.stdout}{done.stderr}" if done.returncode or done.stderr else ""


FOLDERS = ("plain", "sp ace", "100%n", "do$llar ${HOME}", "quo'te\"s", "back\\slash\\x41", "ünïcode-é", "semi;colon")


@has_systemd
@pytest.mark.parametrize("folder", [*FOLDERS, "a=b", "new\nline"])
def test_systemd_accepts_the_unit_and_starts_this_interpreter(tmp_path: Path, folder: str) -> None:
    """Whatever is in its path: systemd complains of a program that is not there, and of nothing else."""
    place = tmp_path / folder
    place.mkdir()
    python = place / "python"
    environ = {"AUTOTUNE_DAEMON_DIR": str(place), "XDG_STATE_HOME": "/x y%z", "WANDB_API_KEY": "hunter2"}
    unit = tmp_path / NAME
    unit.write_text(unit_text(daemon_command(str(python)), environ))
    if " -c " not in unit.read_text():  # then systemd sees the shell, which starts the interpreter
        assert "is not executable" in verified(unit)
    python.symlink_to(sys.executable)
    assert verified(unit) == ""


def test_the_unit_says_what_the_daemon_relies_on() -> None:
    """Readiness and watchdog by messages, a restart on failure, and searches that end by themselves."""
    expected = {
        *("Type=notify", "NotifyAccess=main", "WatchdogSec=60", "Restart=on-failure", "KillMode=process"),
        *("OOMPolicy=continue", "ExecStart=/usr/bin/python3 -P -m autotune daemon run"),
    }
    assert expected <= set(OURS.splitlines())


def test_the_unit_holds_no_secret() -> None:
    """Of the environment it takes over where state and settings are, and nothing else."""
    environ = {"AUTOTUNE_DAEMON_DIR": "/d", "AUTOTUNE_STORAGE": "postgresql://u:hunter2@h/d", "TOKEN": "hunter2"}
    text = unit_text(COMMAND, environ)
    assert "hunter2" not in text
    assert 'Environment="AUTOTUNE_DAEMON_DIR=/d"' in text


def test_a_line_cannot_be_slipped_in() -> None:
    """A path with a newline stays one word."""
    text = unit_text(daemon_command("/a\nExecStartPre=/bin/evil"), {"XDG_STATE_HOME": "/b\nUser=root"})
    assert not [line for line in text.splitlines() if line.startswith(("ExecStartPre", "User"))]


def test_a_unit_is_written_and_written_anew(path: Path) -> None:
    """Its folders are made; one of an older version is replaced without a question."""
    other = unit_text(daemon_command("/opt/python"), {})
    for text, is_new in ((OURS, True), (other, False)):
        assert write_unit(path, text) is is_new
    assert path.read_text() == other
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == [NAME]


def test_what_somebody_wrote_is_kept(path: Path) -> None:
    """It is neither replaced nor taken away."""
    path.parent.mkdir(parents=True)
    for text, words in ((OURS + "\n[X]\n", "was edited"), ("[Service]\n", "not written by autotune")):
        path.write_text(text)
        for act in (lambda: write_unit(path, OURS), lambda: remove_unit(path)):
            with pytest.raises(AutotuneError, match=words):
                act()
        assert path.read_text() == text


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link to a file": lambda path: path.symlink_to("notes"),
    "a masked unit": lambda path: path.symlink_to("/dev/null"),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_links_are_not_followed(path: Path, plant: Callable[[Path], object]) -> None:
    """Nor is anything else replaced that is no file."""
    path.parent.mkdir(parents=True)
    (path.parent / "notes").write_text("mine")
    plant(path)
    before = sorted((entry.name, entry.lstat().st_ino) for entry in path.parent.iterdir())
    for act in (lambda: write_unit(path, OURS), lambda: remove_unit(path)):
        with pytest.raises((AutotuneError, OSError), match=re.escape(str(path))):
            act()
    assert sorted((entry.name, entry.lstat().st_ino) for entry in path.parent.iterdir()) == before
    assert (path.parent / "notes").read_text() == "mine"


def test_a_folder_that_others_may_write_to_is_refused(path: Path) -> None:
    """Whoever writes there has programs started."""
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    with pytest.raises(AutotuneError, match="others may write to it"):
        write_unit(path, OURS)


def test_a_unit_is_taken_away_with_the_link_that_has_it_started(path: Path) -> None:
    """Also where it is gone already."""
    assert not remove_unit(path)
    write_unit(path, OURS)
    wants = path.parent / "default.target.wants"
    wants.mkdir()
    (wants / NAME).symlink_to(path)
    assert remove_unit(path)
    assert not path.exists()
    assert not (wants / NAME).is_symlink()
