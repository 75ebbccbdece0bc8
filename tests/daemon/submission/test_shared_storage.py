"""Storage as other machines are told of it."""

from pathlib import Path

import pytest

from autotune.daemon import submission as module
from autotune.daemon.submission import SharedStorage, shared_storage
from autotune.errors import ConfigError
from autotune.study.storage.address import SaidAddress


def shared(text: str | None, folder: Path, *, is_reachable: bool = False, private: bool = False) -> SharedStorage:
    """Return what is said of an address, typed in a folder."""
    said = None if text is None else SaidAddress(text=text, where="here", folder=folder, may_hold_password=private)
    return shared_storage([said], folder / "studies", is_reachable=is_reachable)


def test_a_database_on_another_machine_is_told_as_it_is(tmp_path: Path) -> None:
    """A user, a port and options stay."""
    for text in ("postgresql://me@db.lab/studies", "postgresql://me@10.0.0.7:5433/studies?sslmode=require"):
        assert shared(text, tmp_path) == SharedStorage(text=text)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "", "/studies?host=/var/run/pg&x="])
def test_a_server_that_only_this_machine_reaches_is_refused(host: str, tmp_path: Path) -> None:
    """By its loopback address, or its socket; unless all workers are here."""
    text = f"postgresql://{host}" if host.startswith("/") else f"postgresql://me@{host}/studies"
    with pytest.raises(ConfigError, match="is this machine alone") as error:
        shared(text, tmp_path)
    assert "--reachable" in str(error.value)
    assert shared(text, tmp_path, is_reachable=True).folder is None


def test_sqlite_is_refused(tmp_path: Path) -> None:
    """Also where somebody says that it is reachable."""
    with pytest.raises(ConfigError, match="one machine only"):
        shared("sqlite:studies.db", tmp_path, is_reachable=True)


def test_a_password_is_told_by_the_name_of_its_file_alone(tmp_path: Path) -> None:
    """From the environment, which could be written into a job, it is refused."""
    url = "postgresql://me:secret@db.lab/studies"
    with pytest.raises(ConfigError, match="a password") as error:
        shared(url, tmp_path, private=True)
    assert "secret" not in str(error.value)
    (tmp_path / "address").write_text(url)
    (tmp_path / "address").chmod(0o600)
    told = shared("file:address", tmp_path)
    assert told == SharedStorage(text=f"file:{tmp_path}/address")


@pytest.mark.parametrize("text", [None, "journal:studies"])
def test_a_folder_on_a_local_disk_is_refused(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy says what is needed; on a network file system, or where the user says so, its number is told."""
    monkeypatch.setattr(module, "file_system", lambda _path: "ext4")
    with pytest.raises(ConfigError, match="on a disk of this machine") as error:
        shared(text, tmp_path)
    assert "postgresql://user@host/name" in str(error.value)
    assert not (tmp_path / "studies").exists()
    told = shared(text, tmp_path, is_reachable=True)
    monkeypatch.setattr(module, "file_system", lambda _path: "nfs4")
    assert shared(text, tmp_path) == told
    assert told.folder is not None
    assert (told.text, told.folder.inode) == (f"journal:{tmp_path}/studies", (tmp_path / "studies").stat().st_ino)
