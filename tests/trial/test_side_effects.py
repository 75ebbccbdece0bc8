"""Side effects of trials: folders that are checked, and the sentence about them."""

from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.search.problem import open_problem
from autotune.trial.checkpoint_backups import is_called_a_checkpoint
from autotune.trial.side_effects import SideEffects, folders_named
from tests.search.simulated import CONFIG


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
        "while trial 0 went on, outside its folder: new: train.log trials. autotune takes nothing away there; "
        "where a key says where it goes, name that key in the section: redirect: [KEY]"
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
    assert "corpus/train/features.npy is taken for a cache, so that trial is not compared" in found.sentence
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
