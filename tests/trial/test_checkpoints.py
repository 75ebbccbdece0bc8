"""Checkpoint backups while trials go on, detection of lost files, and copies from which a race goes on."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.events import TrialStarted
from autotune.records import Purpose
from autotune.search.problem import Problem, open_problem
from autotune.trial import protection
from autotune.trial.protection import (
    CheckpointBackups,
    CheckpointCopy,
    WatchedFile,
    copy_newest_checkpoint,
    is_called_a_checkpoint,
)
from tests.search.simulated import CONFIG
from tests.trial.conftest import next_tick


@pytest.fixture
def remarks() -> list[str]:
    """What the user was told."""
    return []


def test_copies_are_deleted_also_where_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe that a remark goes to may break: the file is put back, and no copy stays."""

    def breaks(_text: str) -> None:
        raise BrokenPipeError

    problem = problem_with(tmp_path, monkeypatch, best=b"old")
    files = CheckpointBackups(problem.trainer, VirtualClock(), name="search", remark=breaks)
    files.__enter__()
    files.after(started(0))
    write("best", b"new")
    with pytest.raises(BrokenPipeError):
        files.__exit__(None, None, None)
    assert checkpoint("best").read_bytes() == b"old"
    assert not list(Path(".autotune/kept").rglob("*.pth"))


@pytest.fixture
def kept(tmp_path: Path, remarks: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CheckpointBackups]:
    """Make the checkpoint backups of a project with these files, which is the working directory."""

    def make(config: str = "", **files: bytes) -> CheckpointBackups:
        problem = problem_with(tmp_path, monkeypatch, config, **files)
        return CheckpointBackups(problem.trainer, VirtualClock(), name="search", remark=remarks.append)

    return make


def problem_with(folder: Path, monkeypatch: pytest.MonkeyPatch, config: str = "", **files: bytes) -> Problem:
    """Make a project with these checkpoints, which is the working directory."""
    monkeypatch.chdir(folder)
    for name, content in files.items():
        path = folder / "checkpoints" / f"{name}.pth"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (folder / "config.yaml").write_text(config + CONFIG)
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    return problem


def started(number: int) -> TrialStarted:
    """Event that a trial begins."""
    return TrialStarted(number=number, purpose=Purpose.EXPLORE, changes={}, pair=None)


def checkpoint(name: str) -> Path:
    """Path of a file of the project."""
    return Path("checkpoints", f"{name}.pth")


def write(name: str, content: bytes) -> None:
    """Write over a file of the project, or make one, later than whatever was written before."""
    next_tick(Path(".autotune"))
    checkpoint(name).write_bytes(content)


@pytest.mark.parametrize(
    ("content", "comes_back"),
    [(b"old, and more", False), (b"old", False), (b"new", True), (b"ol", True), (None, True)],
    ids=["added to", "written again as it was", "other content", "cut", "taken away"],
)
def test_what_a_trial_has_taken_is_put_back(
    kept: Callable[..., CheckpointBackups], remarks: list[str], content: bytes | None, comes_back: bool
) -> None:
    """As it was, each time, and said once; what was only added to stays. In the end no copy is left."""
    with kept(best=b"old", other=b"x") as files:
        for number in range(3):
            files.after(started(number))
            if content is None:
                checkpoint("best").unlink()
            else:
                write("best", content)
            assert files.loss(f"trial {number}") is None
            assert checkpoint("best").read_bytes() == (b"old" if comes_back else content)
    assert len(remarks) == comes_back
    assert not comes_back or "during trial 0, overwritten or removed: checkpoints/best.pth;" in remarks[0]
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == ["best.pth", "other.pth"]
    assert list(Path(".autotune/kept").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("model_best.pth.tar", True),
        ("model.h5.gz", True),
        ("best_model.tar", True),
        ("weights.pt.bak", True),
        ("images.tar", False),
        ("data.npz.gz", False),
        ("train.py.old", False),
    ],
)
def test_checkpoints_are_known_by_their_names(name: str, is_one: bool) -> None:
    """Packed ones, too; archives of data are none."""
    assert is_called_a_checkpoint(Path("run", name)) is is_one


def test_what_stands_in_its_place_is_replaced_and_not_followed(
    kept: Callable[..., CheckpointBackups], tmp_path: Path
) -> None:
    """A link goes, what it leads to stays; a pipe is not waited for."""
    victim = tmp_path / "thesis"
    victim.write_text("precious")
    with kept(best=b"1", other=b"2") as files:
        for name in ("best", "other"):
            checkpoint(name).unlink()
        checkpoint("best").symlink_to(victim)
        os.mkfifo(checkpoint("other"))
        assert files.loss("trial 0") is None
    assert (checkpoint("best").read_bytes(), checkpoint("other").read_bytes()) == (b"1", b"2")
    assert not checkpoint("best").is_symlink()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("how", ["between the trials", "by a process that still has it open", "before the eyes"])
def test_what_somebody_else_writes_is_left_to_them(
    kept: Callable[..., CheckpointBackups], remarks: list[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A real training beside the search goes on with its own file; the copy of the old one stays."""
    with kept(best=b"old") as files:
        files.after(started(0))
        write("best", b"newer")
        if how == "between the trials":
            files.after(started(1))
        elif how == "before the eyes":
            copied = protection._copy

            def meanwhile(*arguments: Any, **options: Any) -> None:
                copied(*arguments, **options)
                write("best", b"newest")

            monkeypatch.setattr(protection, "_copy", meanwhile)
        with checkpoint("best").open("ab") if how.startswith("by a process") else nullcontext():
            assert files.loss("trial 0") is None
        write("best", b"newest")
        assert files.loss("trial 1") is None
    assert checkpoint("best").read_bytes() == b"newest"
    (copy,) = (path for path in Path(".autotune/kept").rglob("*.pth"))
    assert copy.read_bytes() == b"old"
    (remark,) = remarks
    assert "another process writes to checkpoints/best.pth" in remark
    assert str(copy.parents[1]) in remark
    assert os.listdir("checkpoints") == ["best.pth"]


def test_a_look_that_is_interrupted_is_made_again(
    kept: Callable[..., CheckpointBackups], monkeypatch: pytest.MonkeyPatch
) -> None:
    """^C in the middle of putting back loses nothing, and leaves nothing half done."""
    with kept(best=b"1", other=b"2") as files:
        for name in ("best", "other"):
            write(name, b"new")
        restore = WatchedFile.restore

        def interrupted(self: WatchedFile, *arguments: Any) -> WatchedFile:
            monkeypatch.setattr(WatchedFile, "restore", restore)
            restore(self, *arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(WatchedFile, "restore", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.loss("trial 0")
        assert files.loss("trial 0") is None
    assert (checkpoint("best").read_bytes(), checkpoint("other").read_bytes()) == (b"1", b"2")


def test_what_cannot_be_put_back_ends_the_search(kept: Callable[..., CheckpointBackups]) -> None:
    """The reason is said, and the copy stays."""
    with kept(best=b"old") as files:
        checkpoint("best").unlink()
        checkpoint("best").mkdir()
        loss = files.loss("trial 0")
        assert "not restored (" in loss.message
    assert os.listdir("checkpoints") == ["best.pth"]
    assert len(list(Path(".autotune/kept").rglob("*.pth"))) == 1


def test_what_is_too_large_to_copy_is_said_beforehand(
    kept: Callable[..., CheckpointBackups], remarks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest come first; the others are watched all the same."""
    monkeypatch.setattr(protection, "MOST_BYTES", 5)
    made = kept(old=b"1234", new=b"5678")
    os.utime(checkpoint("old"), (1, 1))
    with made as files:
        (remark,) = remarks
        assert "checkpoints/old.pth." in remark
        assert "new" not in remark
        write("old", b"0")
        loss = files.loss("trial 0")
        assert "no space or time" in str(loss.remedy)


def test_where_a_redirected_key_points_is_not_copied(
    kept: Callable[..., CheckpointBackups], remarks: list[str]
) -> None:
    """Trials do not write there; a change is detected all the same."""
    with kept("checkpoint_dir: checkpoints\n", best=b"old") as files:
        assert not remarks
        assert not Path(".autotune", "kept", "search").exists()
        write("best", b"other")
        assert files.loss("trial 0") is not None


def test_what_an_earlier_trial_has_left_is_not_the_users(kept: Callable[..., CheckpointBackups]) -> None:
    """As long as nobody has touched it: what is put in its place, even while trials went on, is the user's."""
    with kept(best=b"1"):
        for name in ("left", "replaced", "touched"):
            write(name, b"of a trial")
    checkpoint("replaced").unlink()
    write("replaced", b"x")
    os.utime(checkpoint("replaced"), (checkpoint("left").stat().st_mtime,) * 2)
    next_tick(Path(".autotune"))
    os.utime(checkpoint("touched"))
    with kept(best=b"1") as files:
        for name in ("left", "replaced", "touched"):
            write(name, b"other")
        assert files.loss("trial 0") is None
    assert checkpoint("left").read_bytes() == b"other"
    assert checkpoint("replaced").read_bytes() == b"x"
    assert checkpoint("touched").read_bytes() == b"of a trial"


Copied = Callable[[], CheckpointCopy | str]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copied:
    """Copy the newest checkpoint of the project in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("checkpoint_dir: runs/checkpoints\n" + CONFIG)

    def copy() -> CheckpointCopy | str:
        problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
        problem.state.create()
        return copy_newest_checkpoint(problem.trainer, tmp_path / "copy", times=4)

    return copy


def write_aged(name: str, content: bytes, *, age_s: float) -> Path:
    """Write a file of the checkpoint folder so long ago."""
    path = Path("runs", "checkpoints", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    written_s = 1_700_000_000.0 - age_s
    os.utime(path, (written_s, written_s))
    return path


def names_below(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_was_written_with_the_newest_checkpoint_is_copied(copied: Copied, tmp_path: Path) -> None:
    """And the small file that names_below it; older checkpoints are not."""
    write_aged("ckpt-1.index", b"1" * 100_000, age_s=5000.0)
    write_aged("ckpt-1.data-00000-of-00001", b"1" * 100_000, age_s=5000.0)
    write_aged("ckpt-2.index", b"2", age_s=1.0)
    newest = write_aged("ckpt-2.data-00000-of-00001", b"22", age_s=0.0)
    write_aged("checkpoint", b"latest: 2", age_s=3000.0)
    copy = copied()
    assert copy.name == "runs/checkpoints/ckpt-2.data-00000-of-00001"
    outputs = tmp_path / "outputs"
    copy.put_into(outputs)
    assert names_below(outputs / "runs" / "checkpoints") == {"ckpt-2.index", "ckpt-2.data-00000-of-00001", "checkpoint"}
    put = outputs / "runs" / "checkpoints" / newest.name
    assert put.read_bytes() == b"22"
    assert put.stat().st_mtime == newest.stat().st_mtime


def test_the_copy_is_the_users_no_more(copied: Copied, tmp_path: Path) -> None:
    """A training that writes into its copy changes neither the user's file nor what the next one gets."""
    path = write_aged("last.pth", b"good", age_s=0.0)
    copy = copied()
    for place in ("one", "two"):
        copy.put_into(tmp_path / place)
        put = tmp_path / place / path
        assert put.read_bytes() == b"good"
        put.write_bytes(b"bad!")
    assert path.read_bytes() == b"good"


def test_a_checkpoint_that_is_too_large_stays(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is said, with its size."""
    write_aged("last.pth", b"x" * 1000, age_s=0.0)
    monkeypatch.setattr(protection, "MOST_OF_FREE", 0.0)
    found = copied()
    assert "5 copies of runs/checkpoints/last.pth take" in found
