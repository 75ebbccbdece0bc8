"""Storage that workers on other machines are told of: reachable from there, and without its password."""

import errno
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from autotune.environment import STORAGE_VARIABLE
from autotune.errors import ConfigError
from autotune.process.mounts import file_system
from autotune.study.storage.address import SaidAddress, StorageAddress, StorageKind, address_of

_SAY_OTHER = "Name a database, --storage postgresql://user@host/name, or a folder that all of them see, --storage "
_LOCAL = frozenset(
    {"aufs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"}
    | {"squashfs", "tmpfs", "vfat", "xfs", "zfs"}
)
"""File systems that only the machine sees which has their disk, unless it exports them."""


@dataclass(frozen=True, kw_only=True)
class SharedFolder:
    """Folder that is to be the same one on several machines.

    Attributes:
        path: Its path on all of them.
        inode: Its number in its file system, which network file systems show on each machine alike.
    """

    path: Path
    inode: int


@dataclass(frozen=True, kw_only=True)
class SharedStorage:
    """Storage of several machines.

    Attributes:
        text: Address to give to each of them: without a password, which may be in a file that it names.
        folder: Folder of its journals; None for a database.
    """

    text: str
    folder: SharedFolder | None = None


def shared_storage(
    said: Sequence[SaidAddress | None], journals: Path, *, is_reachable: bool, make: bool = True
) -> SharedStorage:
    """Return the storage as other machines are told of it.

    Args:
        said: What was said of it, the first that says something counts.
        journals: Folder of journals where nothing was said.
        is_reachable: Whether the user says that other machines reach it, though it looks like this machine's own.
        make: Whether to make a folder of journals that is not there; its parent has to be.

    Raises:
        ConfigError: They could not reach it, or would have to be told its password.
    """
    first = next((one for one in said if one is not None and one.text.strip()), None)
    where = first.where if first else None
    address = address_of(first) or StorageAddress(kind=StorageKind.JOURNAL, shown=f"journal:{journals}", path=journals)
    if address.kind is StorageKind.SQLITE:
        raise ConfigError(
            f"{address.shown} serves one machine only: SQLite's locks do not work between machines",
            where=where,
            remedy=f"{_SAY_OTHER}journal:FOLDER.",
        )
    if address.secrets and address.kept_in is None:
        raise ConfigError(
            f"{STORAGE_VARIABLE} holds an address with a password, which is not written into a job",
            where=STORAGE_VARIABLE,
            remedy="Put the address into a file with mode 0600 that the other machines see too, and name that: "
            "--storage file:FILE.",
        )
    text = address.shown if address.kept_in is None else f"file:{address.kept_in}"
    if address.kind is StorageKind.POSTGRESQL:
        if not is_reachable and (host := _own_host(address)) is not None:
            raise ConfigError(
                f"the server at {host} is this machine alone, and other machines have to reach it",
                where=where,
                remedy="Name it as they do: postgresql://user@host/name. If all workers run on this machine, say "
                "--reachable.",
            )
        return SharedStorage(text=text)
    assert address.path is not None, "a folder of journals has a path"
    return SharedStorage(text=text, folder=_shared_folder(address.path, where, is_reachable=is_reachable, make=make))


def _shared_folder(path: Path, where: str | None, *, is_reachable: bool, make: bool) -> SharedFolder | None:
    """Return a folder of journals; None if it is not there and shall not be made."""
    kind = file_system(path)
    if kind in _LOCAL and not is_reachable:
        raise ConfigError(
            f"{path} is on a disk of this machine ({kind}), and journals in it serve this machine only",
            where=where,
            remedy=f"{_SAY_OTHER}journal:FOLDER (NFS 4, Lustre and the like). If this machine exports the folder "
            "to the others under this path, or all workers run on this machine, say --reachable.",
        )
    try:
        if make:
            path.mkdir(mode=0o700, exist_ok=True)
        elif not path.exists():
            return None
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "nothing can be written into it from here")
        return SharedFolder(path=path, inode=os.stat(path).st_ino)
    except OSError as error:
        raise ConfigError(
            f"the folder of journals cannot be used: {error.strerror}",
            where=str(path),
            remedy="Name another with --storage.",
        ) from error


def _own_host(address: StorageAddress) -> str | None:
    """Return the host of a server that only this machine reaches by that name; None for any other."""
    parts = urlsplit(address.url)
    query = parse_qs(parts.query)
    host = next(iter(query.get("host", [])), None) or parts.hostname or ""
    if not host or host.startswith(("/", "@")):
        return host or "its local socket"
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return host if host == "localhost" or host.endswith(".localhost") else None
