"""Side effects of trials: folders that are checked, the sentence about them, and the snapshot that shows them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.search.problem import open_problem
from autotune.trial import protection as snapshot_module
from autotune.trial.protection import SideEffects, Snapshot, SnapshotChanges, folders_named, is_called_a_checkpoint
from tests.search.simulated import CONFIG
from tests.trial.conftest import next_tick


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project with data in it, and enter it."""
    folder = tmp_path / "project"
    (folder / "corpus" / "train").mkdir(parents=True)
    (folder / "corpus" / "train" / "clips.bin").write_text("x")
    monkeypatch.chdir(folder)
    return folder


def watched(project: Path, text: str = "") -> SideEffects:
    """Side effects of a search for this config."""
    (project / "config.yaml").write_text(text + CONFIG)
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    return SideEffects(problem.trainer, VirtualClock(), is_called_a_checkpoint)


DATA = "folder: corpus/train\nlog_dir: logs\n"


def test_what_is_written_where_one_works_is_named(project: Path) -> None:
    """With the remedy, once, also if more comes into a folder that was named, and without blaming the trial."""
    around = watched(project, DATA)
    (project / "train.log").write_text("x")
    (project / "trials").mkdir()
    found = around.since_then("trial 0")
    assert found.sentence == (
        "during trial 0, outside its folder: new: train.log trials. autotune removes nothing there; "
        "if a config key sets the path, list it in the autotune: section: redirect: [KEY]"
    )
    assert not found.fills_a_cache
    (project / "trials" / "1.log").touch()
    (project / "train.log").write_text("xx")
    assert around.since_then("trial 1") is None
    assert (project / "train.log").read_text() == "xx"


def test_what_is_new_among_the_data_is_taken_for_a_cache(project: Path) -> None:
    """The data are where the config says."""
    around = watched(project, DATA)
    (project / "corpus" / "train" / "features.npy").touch()
    found = around.since_then("trial 3")
    assert found.fills_a_cache
    assert "corpus/train/features.npy is treated as a cache, so that trial is not compared" in found.sentence
    assert "redirect:" not in found.sentence


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("corpus/train", "corpus/train"),
        ("corpus/train/clips.bin", "corpus/train"),
        ("corpus/train/cache.npy", "corpus/train"),
        ("./corpus/", "corpus"),
        ("nowhere/at/all", None),
        ("https://corpus/train", None),
        (".", None),
        ("/", None),
        ("~", None),
        ("clips\0", None),
        ("corpus/" + "word" * 100, "corpus"),
        ("a long description, and/or more of it " * 200, None),
        ("corpus/train/clips.bin/x", None),
        ("corpus/\ud83d\ude00", None),
        (4, None),
        (None, None),
    ],
)
def test_the_folders_that_values_name(project: Path, value: object, folder: str | None) -> None:
    """By themselves, or by a file that is there or is to come; not those that hold everything."""
    found = list(folders_named({"a.key": value}, project))  # type: ignore[dict-item]  # on purpose
    assert found == ([project / folder] if folder else [])


def snapshot_of(*folders: Path, apart: tuple[Path, ...] = ()) -> Snapshot:
    """Snapshot of these folders as they are now."""
    return Snapshot(folders, apart, VirtualClock())


def test_files_that_came_changed_and_went(hostile: Path) -> None:
    """Each once: a later look tells only what happened since."""
    for name in ("kept", "changed", "gone"):
        (hostile / name).write_text(name)
    around = snapshot_of(hostile)
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
    around = snapshot_of(tmp_path)
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
    around = snapshot_of(tmp_path, apart=(apart,))
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
    around = snapshot_of(tmp_path)
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
    assert clock.now_s() - began_s < 1.2 * snapshot_module.LOOK_LIMIT_S
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
        return calls(lambda: SnapshotChanges(new=new).excluding(known))

    assert work(800) < 3 * work(400)
