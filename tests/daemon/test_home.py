"""Folders of the daemon: where they are, whose they are, and that one daemon holds them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.daemon.home import DaemonHome, locate_home, open_home, sole_daemon
from autotune.errors import AutotuneError
from tests.users import ALICE, MALLORY, acting_as, made, only_root

HOLD = """
import os, sys
from autotune.daemon.home import open_home, sole_daemon
with sole_daemon(open_home(os.environ)):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_state_is_where_the_user_keeps_state(tmp_path: Path) -> None:
    """A named folder goes before the XDG one, and that before the home; each machine has a folder of its own."""
    machine = os.uname().nodename
    environ = {"HOME": str(tmp_path)}
    assert locate_home(environ).state == tmp_path / ".local" / "state" / "autotune" / "daemon" / machine
    environ["XDG_STATE_HOME"] = str(tmp_path / "xdg")
    assert locate_home(environ).state == tmp_path / "xdg" / "autotune" / "daemon" / machine
    environ["AUTOTUNE_DAEMON_DIR"] = str(tmp_path / "named")
    assert locate_home(environ).state == tmp_path / "named" / machine


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    """A question after the daemon leaves no folders behind."""
    locate_home({"HOME": str(tmp_path)})
    assert not list(tmp_path.iterdir())


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
    assert caught.value.where is not None
    assert caught.value.where.startswith(str(shared))
    assert "AUTOTUNE_DAEMON_DIR" in (caught.value.remedy or "")


@only_root
def test_a_machine_folder_that_another_user_planted_is_refused(shared: Path) -> None:
    """Also where the folder around it was open for a moment."""
    base = made(shared / "daemon", owner=ALICE, mode=0o700)
    made(base / os.uname().nodename, owner=MALLORY, mode=0o777)
    with acting_as(ALICE), pytest.raises(AutotuneError, match="belongs to user 4343"):
        open_home({"AUTOTUNE_DAEMON_DIR": str(base)})


def test_a_link_of_ones_own_is_followed(tmp_path: Path) -> None:
    """State is kept on a larger disk by a link."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "daemon").symlink_to(disk)
    assert open_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path / "daemon")}).state.parent == disk


@pytest.mark.parametrize("named", ["relative/path", "~/daemon"])
def test_a_relative_folder_is_refused(named: str) -> None:
    """Daemon and commands would each have another one."""
    with pytest.raises(AutotuneError, match="depends on where"):
        locate_home({"AUTOTUNE_DAEMON_DIR": named})


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    """It is named."""
    (tmp_path / "daemon").write_text("")
    with pytest.raises(AutotuneError, match="cannot be written") as caught:
        open_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path / "daemon")})
    assert str(tmp_path) in str(caught.value.where)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Real file system that is read-only."""
    place = tmp_path / "read only"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_home_is_an_error(read_only: Path) -> None:
    """It says what to do."""
    with pytest.raises(AutotuneError, match="Read-only") as caught:
        open_home({"HOME": str(read_only)})
    assert "AUTOTUNE_DAEMON_DIR" in (caught.value.remedy or "")


def test_a_second_daemon_is_refused_and_told_of_the_first(home: DaemonHome) -> None:
    """The message has the number of its process."""
    with (
        sole_daemon(home),
        pytest.raises(AutotuneError, match=rf"runs already \(process {os.getpid()}\)"),
        sole_daemon(home),
    ):
        pass
    with sole_daemon(home):  # it has ended
        pass


def test_a_killed_daemon_leaves_the_lock_free(tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """The kernel frees it with the process, and its children do not hold it."""
    place = str(tmp_path / "daemon")
    process = start(HOLD, AUTOTUNE_DAEMON_DIR=place)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    home = open_home({"AUTOTUNE_DAEMON_DIR": place})
    with pytest.raises(AutotuneError, match=f"process {process.pid}"), sole_daemon(home):
        pass
    process.kill()
    process.wait(timeout=60)
    with sole_daemon(home):
        pass


def test_a_lock_that_was_taken_away_is_noticed(home: DaemonHome) -> None:
    """Another daemon could start then, which the first one can look for."""
    with sole_daemon(home) as lock:
        assert not lock.is_lost
        shutil.rmtree(home.state)
        assert lock.is_lost


@pytest.mark.parametrize("plant", [lambda p: p.symlink_to("elsewhere"), lambda p: p.mkdir(), lambda p: os.mkfifo(p)])
def test_a_lock_that_is_no_file_is_an_error(home: DaemonHome, plant: Callable[[Path], None]) -> None:
    """It is neither followed nor waited for."""
    plant(home.lock)
    with pytest.raises(AutotuneError, match="cannot be used"), sole_daemon(home):
        pass


def test_the_lock_holds_on_a_full_disk(small_disk: Path) -> None:
    """Only the number for the message is missing."""
    home = open_home({"AUTOTUNE_DAEMON_DIR": str(small_disk / "d")})
    with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    with sole_daemon(home), pytest.raises(AutotuneError, match="runs already"), sole_daemon(home):
        pass


def test_daemons_of_this_module_start_lightly() -> None:
    """Nothing heavy is imported: the daemon has to stay small."""
    heavy = "{'numpy', 'optuna', 'yaml', 'ruamel', 'rich', 'click'}"
    code = (
        "import sys, autotune.daemon.control, autotune.trial.notifier, autotune.daemon.service, "
        f"autotune.config.daemon_settings; print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def _link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.chown(path, MALLORY, MALLORY, follow_symlinks=False)
    return path
