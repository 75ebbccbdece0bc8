"""Folders for the temporary files of trials: where they are, whose they are, and that they go."""

import os
import socket
from pathlib import Path

import pytest

from autotune.trial.folders import delete_temporary_folder, make_temporary_folder, temporary_folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's place for temporary files, with a short name."""
    short = Path(f"/tmp/t{os.getpid()}")
    short.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", str(short))
    yield short
    for path in short.iterdir():
        path.rmdir()
    short.rmdir()


@pytest.mark.parametrize("project", ["long" * 20, "with space"])
def test_sockets_fit_into_it_and_compilers_take_its_path(place: Path, tmp_path: Path, project: str) -> None:
    """Multiprocessing and PyTorch put theirs there; the folder is this user's alone, and goes."""
    trial = tmp_path / project / "trial"
    folder = temporary_folder(trial)
    assert folder.parent == place
    assert folder != temporary_folder(trial.with_name("other"))
    make_temporary_folder(trial)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "torch-shm-dir-XXXXXX").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "torch-shm-dir-XXXXXX" / "manager.sock"))
    delete_temporary_folder(trial)
    assert not folder.exists()


def test_a_link_in_its_place_is_not_followed(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else may know its name: nothing is made, and nothing deleted, behind a link."""
    trial, target = tmp_path / ("long" * 20) / "trial", tmp_path / "target"
    target.mkdir()
    (target / "precious").write_text("x")
    folder = temporary_folder(trial)
    folder.symlink_to(target)
    make_temporary_folder(trial)
    delete_temporary_folder(trial)
    assert "not private to this user" in caplog.text
    assert (target / "precious").exists()
    folder.unlink()
