"""Promises about the files of GPU collectors: a search's own go with it, and those of a killed one with the next."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.trial.gpu_collector import CollectorFiles, remove_abandoned

NAME = "20260101T000000Z-a.host-with_dots-4711.gpu.jsonl"
HOLDER = """
import sys
from pathlib import Path
from autotune.trial.gpu_collector import CollectorFiles
files = CollectorFiles(Path(sys.argv[1]))
files.hold()
for path in (files.stream(2), files.log):
    path.write_text("said")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of the files of all searches."""
    folder = tmp_path / "searches"
    folder.mkdir()
    return folder


def test_a_search_takes_its_own_files_away(folder: Path) -> None:
    """All of them, and nothing else; twice is allowed."""
    files = CollectorFiles(folder / NAME)
    files.hold()
    for path in (files.stream(2), files.log, folder / "other"):
        path.write_text("said")
    files.remove()
    files.remove()
    assert [path.name for path in folder.iterdir()] == ["other"]


def test_files_of_a_killed_search_go_with_the_next(folder: Path) -> None:
    """While it lives they stay, after SIGKILL they are taken away."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / NAME)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as search:
        assert search.stdout
        assert search.stdout.readline() == b"held\n"
        remove_abandoned(folder)
        assert len(list(folder.iterdir())) == 3
        search.kill()
        search.wait(timeout=60)
    remove_abandoned(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        NAME.replace("gpu", "events"),
        f"{NAME}.bak",
        f"my-{NAME}",
        "notes.gpu.jsonl",
        f"{NAME}.2.old",
    ],
)
def test_what_is_not_exactly_ours_stays(folder: Path, name: str) -> None:
    """A user's own file, and the events of the same search."""
    (folder / name).write_text("mine")
    remove_abandoned(folder)
    assert (folder / name).read_text() == "mine"


def test_links_and_folders_stay_and_so_does_what_they_point_to(folder: Path, tmp_path: Path) -> None:
    """Under our names too."""
    target = tmp_path / "precious"
    target.write_text("mine")
    (folder / NAME).symlink_to(target)
    (folder / f"{NAME}.2").symlink_to(target)
    other = folder / NAME.replace("4711", "4712")
    other.mkdir()
    os.mkfifo(folder / NAME.replace("4711", "4713"))
    (folder / f"{NAME.replace('4711', '4714')}.log").symlink_to(tmp_path / "nowhere")
    remove_abandoned(folder)
    assert target.read_text() == "mine"
    assert len(list(folder.iterdir())) == 5
