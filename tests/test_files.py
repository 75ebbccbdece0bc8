"""Files in folders that others may write to: no link is followed, nobody is waited for, nobody else may read them."""

import errno
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.files import (
    create_private,
    file_sha256,
    make_private_folder,
    open_regular,
    read_beginning,
    read_tail,
    replace_durably,
)


@pytest.fixture
def umask_of_a_careless_user() -> Iterator[None]:
    """Umask that takes nothing away; put back after the test."""
    before = os.umask(0)
    yield
    os.umask(before)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may have 107 bytes only
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "socket": _socket,
    "link": lambda path: path.symlink_to(path.with_name("victim")),
    "link to a fifo": lambda path: (os.mkfifo(path.with_name("f")), path.symlink_to(path.with_name("f"))),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("plant", NO_FILES.values(), ids=NO_FILES)
def test_only_regular_files_are_opened(plant: Callable[[Path], object], tmp_path: Path) -> None:
    """Anything else of that name is an error at once, for reading as for writing; nothing behind it is touched."""
    (tmp_path / "victim").write_text("thesis")
    path = tmp_path / "stderr.log"
    plant(path)
    for ways in ({}, {"append": True}, {"create": True}, {"append": True, "create": True}):
        with pytest.raises(OSError):  # noqa: PT011 -- of several numbers
            open_regular(path, **ways)
    assert read_tail(path, 10) == (b"", 0)
    assert read_beginning(path, 10) == b""
    assert (tmp_path / "victim").read_text() == "thesis"


def test_a_device_is_no_regular_file() -> None:
    """Reading it would never end."""
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/zero"))


@pytest.mark.usefixtures("umask_of_a_careless_user")
def test_new_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Nobody else gets into such a folder or file, whatever the umask."""
    make_private_folder(tmp_path / "a" / "b")
    with open_regular(tmp_path / "a" / "b" / "lock", create=True) as file:
        file.write(b"1")
    create_private(tmp_path / "a" / "b" / "new", b"content")
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/lock": 0o600, "a/b/new": 0o600}


def test_a_folder_that_is_there_is_closed(tmp_path: Path) -> None:
    """An earlier version made it, with what the umask left; the folder above it is none of ours."""
    (tmp_path / "theirs" / "studies").mkdir(parents=True)
    for folder in (tmp_path / "theirs", tmp_path / "theirs" / "studies"):
        folder.chmod(0o755)
    make_private_folder(tmp_path / "theirs" / "studies")
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "theirs" / "studies").stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    """The target of the link keeps its mode."""
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "trials").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="File exists"):
        make_private_folder(tmp_path / "trials")
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to(path.with_name("victim"))])
def test_a_planted_link_is_replaced_and_not_written_to(plant: Callable[[Path], object], tmp_path: Path) -> None:
    """The new file is a regular one, and the target of the link is as it was."""
    (tmp_path / "victim").write_text("thesis")
    plant(tmp_path / "config.yaml")
    create_private(tmp_path / "config.yaml", b"a: 1\n")
    assert not (tmp_path / "config.yaml").is_symlink()
    assert (tmp_path / "config.yaml").read_bytes() == b"a: 1\n"
    assert (tmp_path / "victim").read_text() == "thesis"


def test_files_are_read_and_written(tmp_path: Path) -> None:
    """The last bytes with the size, the first ones, and appending."""
    path = tmp_path / "log"
    with open_regular(path, append=True, create=True) as file:
        file.write(b"0123456789")
    with open_regular(path, append=True) as file:
        file.write(b"abc")
        file.seek(0)
        assert file.read(2) == b"01"
    assert read_tail(path, 4) == (b"9abc", 13)
    assert read_tail(path, 100) == (b"0123456789abc", 13)
    assert read_beginning(path, 3) == b"012"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none", append=True)


def test_an_interrupt_while_a_file_is_opened_stays_an_interrupt(
    tmp_path: Path, replace_here: Callable[..., None]
) -> None:
    """The file object is gone by then, and its descriptor with it: closing that again would be an error of its own."""
    path = tmp_path / "file"
    path.touch()

    def interrupted(descriptor: int, mode: str) -> None:
        os.close(descriptor)  # as the file object does when nobody holds it any more
        raise KeyboardInterrupt(mode)

    replace_here("fdopen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_regular(path)


def test_a_file_that_cannot_be_replaced_leaves_nothing(tmp_path: Path, replace_here: Callable[..., None]) -> None:
    """The old one stays; the part of the new one that a full disk took is gone, so that the disk is no fuller."""
    (tmp_path / "file").write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replace_here("fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_durably(tmp_path / "file", b"new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_what_cannot_be_read_has_no_hash(tmp_path: Path) -> None:
    """A file that is gone, a folder in its place, a FIFO, links in a circle; of a link its file counts."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (tmp_path / "none", tmp_path, tmp_path / "fifo", tmp_path / "a", Path("zero\0byte")):
        assert file_sha256(path, 100) is None
    (tmp_path / "file").write_bytes(b"x" * 101)
    (tmp_path / "link").symlink_to("file")
    assert file_sha256(tmp_path / "link", 100) == hashlib.sha256(b"x" * 100).hexdigest()
