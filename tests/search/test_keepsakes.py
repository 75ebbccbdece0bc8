"""Which files are kept while runs go on, and when one counts as lost."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.search import keepsakes
from autotune.search.keepsakes import Keepsakes, is_called_a_checkpoint
from autotune.search.setup import open_setup
from tests.search.test_tuner import CONFIG


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Keepsakes]:
    """Makes the keepsakes of a project with these files, in which one works."""
    monkeypatch.chdir(tmp_path)

    def make(config: str = "", **files: bytes) -> Keepsakes:
        for name, content in files.items():
            path = tmp_path / "checkpoints" / f"{name}.pth"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        (tmp_path / "config.yaml").write_text(config + CONFIG)
        setup = open_setup(Path("config.yaml"), command=None, state_dir=None)
        setup.state.create()
        return Keepsakes(setup, SystemClock(), cwd=tmp_path, name="search")

    return make


def checkpoint(name: str) -> Path:
    """A file of the project."""
    return Path("checkpoints", f"{name}.pth")


def test_files_that_stay_leave_no_copy(kept: Callable[..., Keepsakes]) -> None:
    """Nor any word."""
    with kept(best=b"1") as files:
        checkpoint("new").write_bytes(b"2")
        assert files.loss("run 0") is None
    assert files.remark is None
    assert not Path(".autotune", "kept", "search").exists()


@pytest.mark.parametrize(
    ("content", "is_lost"),
    [(b"old, and more", False), (b"old", False), (b"new", True), (b"ol", True), (None, True)],
    ids=["added to", "written again as it was", "other content", "cut", "taken away"],
)
def test_what_counts_as_lost(kept: Callable[..., Keepsakes], content: bytes | None, is_lost: bool) -> None:
    """Only what is not there any more; the copy of that stays, and of nothing else."""
    with kept(best=b"old", other=b"x") as files:
        if content is None:
            checkpoint("best").unlink()
        else:
            checkpoint("best").write_bytes(content)
        loss = files.loss("run 0")
        assert (loss is not None) == is_lost
    copies = [path.name for path in Path(".autotune/kept").rglob("*.pth")]
    assert copies == (["best.pth"] if is_lost else [])


def test_what_is_too_large_to_copy_is_said_beforehand(
    kept: Callable[..., Keepsakes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest come first; the others are watched all the same."""
    monkeypatch.setattr(keepsakes, "MOST_BYTES", 5)
    made = kept(old=b"1234", new=b"5678")
    os.utime(checkpoint("old"), (1, 1))
    with made as files:
        assert files.remark is not None
        assert "checkpoints/old.pth." in files.remark
        assert "new" not in files.remark
        checkpoint("old").write_bytes(b"0")
        loss = files.loss("run 0")
        assert loss is not None
        assert "no room or time" in str(loss.remedy)


def test_where_a_redirected_key_points_is_not_copied(kept: Callable[..., Keepsakes]) -> None:
    """Runs are pointed away from there; a change is seen all the same."""
    with kept("checkpoint_dir: checkpoints\n", best=b"old") as files:
        assert files.remark is None
        assert not Path(".autotune", "kept", "search").exists()
        checkpoint("best").write_bytes(b"other")
        assert files.loss("run 0") is not None


def test_what_an_earlier_run_has_left_is_not_the_users(kept: Callable[..., Keepsakes]) -> None:
    """It was written while that run went on; what was there before or came later is the user's."""
    made = kept(before=b"x", during=b"x", after=b"x")
    run = Path(".autotune/runs/study/1")
    run.mkdir(parents=True)
    now_s = time.time()
    for name, ago_s in (("before", 1000), ("during", 550), ("after", 100)):
        os.utime(checkpoint(name), (now_s - ago_s, now_s - ago_s))
    for name, ago_s in ((".autotune-run", 600), ("stdout.log", 500)):
        (run / name).touch()
        os.utime(run / name, (now_s - ago_s, now_s - ago_s))
    with made as files:
        for name in ("before", "during", "after"):
            checkpoint(name).write_bytes(b"other")
        loss = files.loss("run 0")
    assert loss is not None
    assert "before" in loss.message
    assert "after" in loss.message
    assert "during" not in loss.message


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("checkpoints/G_1000.pth", True),
        ("checkpoints/ckpt-7.index", True),
        ("checkpoints/checkpoint", True),
        ("ckpt-7.data-00000-of-00001", True),
        ("logs/epoch=3-step=100.ckpt", True),
        ("weights.best.h5", True),
        ("runs/exp/weights/best.pt", True),
        ("model.safetensors", True),
        ("output/pytorch_model.bin", True),
        ("export/saved_model.pb", True),
        ("MODEL.KERAS", True),
        ("corpus/train.h5", False),
        ("corpus/features.npz", False),
        ("train.log", False),
        ("logs/events.out.tfevents.1700000000.host", False),
        ("results.json", False),
        ("train.py", False),
    ],
)
def test_what_is_called_like_a_checkpoint(path: str, is_one: bool) -> None:
    """By its suffix, or a word where data come in the same kind of file."""
    assert is_called_a_checkpoint(Path("project", path)) == is_one
