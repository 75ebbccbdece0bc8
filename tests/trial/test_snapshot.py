"""Snapshot of folders around a trial: added, changed and removed files."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.trial import side_effects as snapshot_module
from autotune.trial.side_effects import Snapshot, SnapshotChanges
from tests.trial.conftest import next_tick


def watched(*folders: Path, apart: tuple[Path, ...] = ()) -> Snapshot:
    """Snapshot of these folders as they are now."""
    return Snapshot(folders, apart, VirtualClock())


def test_files_that_came_changed_and_went(hostile: Path) -> None:
    """Each once: a later look tells only what happened since."""
    for name in ("kept", "changed", "gone"):
        (hostile / name).write_text(name)
    around = watched(hostile)
    (hostile / "changed").write_text("other")
    (hostile / "gone").unlink()
    (hostile / "new").write_text("new")
    (hostile / "folder" / "deep").mkdir(parents=True)
    (hostile / "folder" / "deep" / "file").touch()
    traces = around.traces()
    assert traces.new == (hostile / "folder", hostile / "new")
    assert traces.changed == (hostile / "changed",)
    assert traces.gone == (hostile / "gone",)
    assert traces.unseen == ()
    assert not around.traces().any


def test_a_file_that_looks_unchanged_is_found(tmp_path: Path) -> None:
    """Same size, and the time of its last change set back."""
    file = tmp_path / "file"
    file.write_text("one")
    before = file.stat()
    around = watched(tmp_path)
    next_tick(tmp_path)
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert around.traces().changed == (file,)


def test_what_does_not_count(tmp_path: Path) -> None:
    """Our own folder, what git keeps, compiled modules, virtual environments, and what a link leads to."""
    apart, elsewhere = tmp_path / "ours", tmp_path.parent / f"{tmp_path.name} elsewhere"
    places = [apart, tmp_path / ".git", tmp_path / "__pycache__", tmp_path / "env", elsewhere]
    for place in places:
        place.mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "link").symlink_to(elsewhere)
    around = watched(tmp_path, apart=(apart,))
    for place in places:
        (place / "new").touch()
    assert not around.traces().any


def test_a_tree_that_is_too_large_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the part that was seen is compared, and the result says so."""
    monkeypatch.setattr(snapshot_module, "MOST_ENTRIES", 30)
    (tmp_path / "data").mkdir()
    for number in range(100):
        (tmp_path / "data" / f"{number}").touch()
    (tmp_path / "log").touch()
    around = watched(tmp_path)
    (tmp_path / "log").write_text("x")
    traces = around.traces()
    assert traces.changed == (tmp_path / "log",)
    assert traces.new == traces.gone == ()
    assert traces.unseen == (tmp_path,)


def test_a_slow_file_system_does_not_hold_the_search_up(tmp_path: Path) -> None:
    """A look takes about a second at most, whatever the tree."""

    class Slow(VirtualClock):
        """A clock by which each look at it takes 10 ms."""

        def now_s(self) -> float:
            self.wait(0.01)
            return super().now_s()

    for number in range(500):
        (tmp_path / f"{number}").touch()
    clock = Slow()
    began_s = clock.now_s()
    around = Snapshot([tmp_path], [], clock)
    assert clock.now_s() - began_s < 1.2 * snapshot_module.MOST_S
    assert around.traces().unseen == (tmp_path,)


def calls(work: Callable[[], object]) -> int:
    """Count the function calls during some work: a measure that does not depend on the machine's speed."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_what_was_named_is_left_out_in_time_however_much_it_is() -> None:
    """Twice as many files are twice the work, in one folder and deep below it; a trainer may write thousands."""
    folder = "/".join(["deep"] * 30)

    def work(files: int) -> int:
        new = tuple(Path("/data", folder, f"{number}.npy") for number in range(files))
        known = {Path("/data", folder, f"old {number}.npy") for number in range(files)} | {Path("/data/named")}
        return calls(lambda: SnapshotChanges(new=new).beyond(known))

    assert work(800) < 3 * work(400)
