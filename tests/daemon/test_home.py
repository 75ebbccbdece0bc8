"""Folders of the daemon: where they are, whose they are, and that one daemon holds them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.daemon.home import DaemonHome, locate_home, open_home, sole_daemon
from autotune.errors import AutotuneError
from tests.users import ALICE, MALLORY, acting_as, made, only_root


def test_the_state_is_where_the_user_keeps_state(tmp_path: Path) -> None:
    """A named folder goes before the XDG one, and that before the home; each machine has a folder of its own."""
    machine = os.uname().nodename
    environ = {"HOME": str(tmp_path)}
    assert locate_home(environ).state == tmp_path / ".local" / "state" / "autotune" / "daemon" / machine
    environ["XDG_STATE_HOME"] = str(tmp_path / "xdg")
    assert locate_home(environ).state == tmp_path / "xdg" / "autotune" / "daemon" / machine
    environ["AUTOTUNE_DAEMON_DIR"] = str(tmp_path / "named")
    assert locate_home(environ).state == tmp_path / "named" / machine


@pytest.mark.parametrize("node", ["../up", ".hidden", "a/b", "", "new\nline", "x" * 300, "ünïcode"])
def test_a_machine_with_any_name_has_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    """The name becomes one safe part of the path; different names stay different."""

    def named(name: str) -> Path:
        uname = type("Uname", (), {"nodename": name})
        monkeypatch.setattr(os, "uname", lambda: uname)
        return locate_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path)}).state

    state = named(node)
    assert state.parent == tmp_path
    assert len(state.name) < 100
    assert named(node + "2") != state


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """Nobody else can look into them."""
    before = os.umask(0)
    try:
        home = open_home({"HOME": str(tmp_path)})
    finally:
        os.umask(before)
    for folder in (home.state, home.queue, home.trainings, home.advice, home.state.parent):
        assert folder.stat().st_mode & 0o777 == 0o700, folder


PLANTED: dict[str, Callable[[Path], Path]] = {
    "a folder of another user": lambda at: made(at / "daemon", owner=MALLORY, mode=0o700),
    "a folder that all may write to": lambda at: made(at / "daemon", owner=ALICE, mode=0o777),
    "a link of another user": lambda at: _link(at / "daemon", made(at / "target", owner=ALICE, mode=0o700)),
    "a folder in one of another user": lambda at: made(at / "m", owner=MALLORY, mode=0o755) / "daemon",
}


@only_root
@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_another_user_planted_is_refused(shared: Path, plant: Callable[[Path], Path]) -> None:
    """The message names the place, the reason and what to do."""
    place = plant(shared)
    with acting_as(ALICE), pytest.raises(AutotuneError) as caught:
        open_home({"AUTOTUNE_DAEMON_DIR": str(place)})
    assert caught.value.where.startswith(str(shared))
    assert "AUTOTUNE_DAEMON_DIR" in (caught.value.remedy or "")


@pytest.mark.parametrize("named", ["relative/path", "~/daemon"])
def test_a_relative_folder_is_refused(named: str) -> None:
    """Daemon and commands would each have another one."""
    with pytest.raises(AutotuneError, match="relative path"):
        locate_home({"AUTOTUNE_DAEMON_DIR": named})


HOLD = """
import os, sys
from autotune.daemon.home import open_home, sole_daemon
with sole_daemon(open_home(os.environ)):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_daemon_leaves_the_lock_free(tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """The kernel frees it with the process, and its children do not hold it."""
    place = str(tmp_path / "daemon")
    home = open_home({"AUTOTUNE_DAEMON_DIR": place})
    process = start(HOLD, AUTOTUNE_DAEMON_DIR=place)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(AutotuneError, match=f"process {process.pid}"), sole_daemon(home):
        pass
    process.kill()
    process.wait()
    with sole_daemon(home), pytest.raises(AutotuneError, match=rf"already running \(process {os.getpid()}\)"):
        sole_daemon(home).__enter__()
    with sole_daemon(home):  # it has ended
        pass


def test_a_lock_that_was_taken_away_is_noticed(home: DaemonHome) -> None:
    """Another daemon could start then, which the first one can look for."""
    with sole_daemon(home) as is_held:
        assert is_held()
        shutil.rmtree(home.state)
        assert not is_held()


def test_the_daemon_is_small() -> None:
    """Nothing heavy is imported, as it waits for hours: for its loop, what it watches, and its page."""
    heavy = "{'numpy', 'optuna', 'yaml', 'ruamel', 'rich', 'click', 'sqlalchemy'}"
    code = f"import sys, autotune.daemon.service, autotune.daemon.web.state; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def _link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.chown(path, MALLORY, MALLORY, follow_symlinks=False)
    return path
