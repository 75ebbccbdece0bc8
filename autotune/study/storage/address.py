"""Address of a storage: parsing, validation, display.

``journal:FOLDER``, ``sqlite:FILE``, ``postgresql://user@host/name``, or ``file:FILE`` for a file with one of them.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import unquote

from autotune.config.secrets import is_secret_name
from autotune.errors import ConfigError, os_errors_as
from autotune.files import open_regular
from autotune.process import STORAGE_VARIABLE

FORMS = "journal:FOLDER, sqlite:FILE, or postgresql://user@host/name"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)(?:\+([A-Za-z0-9_.-]+))?:(.*)", re.DOTALL)
_PYTHON_DRIVERS = {
    "file": (None,),
    "journal": (None,),
    "sqlite": (None, "pysqlite"),
    "postgresql": (None, "psycopg"),
}
_UNPICKLED = ("redis", "rediss", "unix")


class StorageKind(Enum):
    """Kind of storage."""

    JOURNAL = "journal"
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, kw_only=True)
class StorageAddress:
    """Address of a storage; its repr has no password.

    Attributes:
        secrets: Decoded passwords of the URL, by driver parameter.
    """

    kind: StorageKind
    shown: str
    path: Path | None = None
    url: str = field(default="", repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Folder or files of the storage."""
        if self.path is None or self.kind is StorageKind.JOURNAL:
            return () if self.path is None else (self.path,)
        return tuple(self.path.with_name(self.path.name + end) for end in ("", "-journal", "-wal", "-shm", ".flock"))


@dataclass(frozen=True, kw_only=True)
class GivenAddress:
    """Address text and its source.

    Attributes:
        may_hold_password: Whether no other user can read the source.
    """

    text: str = field(repr=False)
    where: str
    folder: Path
    may_hold_password: bool = False

    def error(self, what: str, remedy: str = f"Write {FORMS}.") -> ConfigError:
        return ConfigError(what, where=self.where, remedy=remedy)


def address_of(*given: GivenAddress | None) -> StorageAddress | None:
    """Return the first given address; None for the state folder.

    Raises:
        ConfigError: It is invalid.
    """
    first = next((one for one in given if one is not None and one.text.strip()), None)
    return None if first is None else parse_address(first)


def address_in_environment(environ: Mapping[str, str], folder: Path) -> GivenAddress | None:
    """Return the address in the environment variable, if any."""
    text = environ.get(STORAGE_VARIABLE)
    return GivenAddress(text=text, where=STORAGE_VARIABLE, folder=folder, may_hold_password=True) if text else None


def parse_address(given: GivenAddress) -> StorageAddress:
    """Parse an address.

    Raises:
        ConfigError: It is invalid, unsupported, or contains a password that others can read.
    """
    text = given.text.strip()
    match = _SCHEME.fullmatch(text)
    if match is None:
        shown = "this" if "@" in text else ascii(text[:200])  # without a password
        raise given.error(f"{shown} is not a storage address")
    scheme, driver, rest = match[1].lower(), match[2], match[3]
    scheme = {"postgres": "postgresql"}.get(scheme, scheme)
    if scheme in _PYTHON_DRIVERS and driver not in _PYTHON_DRIVERS[scheme]:
        raise given.error(f"{scheme} does not support the driver {driver}", f"Write {scheme}: without a driver.")
    if scheme == "file":
        return parse_address(_read(_path(rest, given), given))
    if scheme == "journal":
        path = _path(rest, given)
        return StorageAddress(kind=StorageKind.JOURNAL, shown=f"journal:{path}", path=path)
    if scheme == "sqlite":
        return _of_sqlite(rest, given)
    if scheme == "postgresql":
        return _of_postgresql(rest, given)
    unsafe = ": Optuna unpickles what it reads there, so anyone who can write it can run code here"
    raise given.error(f"{scheme}: is not supported as a storage{unsafe if scheme in _UNPICKLED else ''}")


def _of_sqlite(rest: str, given: GivenAddress) -> StorageAddress:
    # as in SQLAlchemy URLs: three slashes start a relative path, four an absolute one
    rest = rest.removeprefix("///") if rest.startswith("///") else rest
    if not rest or rest.startswith((":", "//", "file:")) or "?" in rest:
        raise given.error("sqlite: needs a file path and nothing else", "Write sqlite:studies.db.")
    path = _path(rest, given)
    return StorageAddress(kind=StorageKind.SQLITE, shown=f"sqlite:{path}", path=path)


def _of_postgresql(rest: str, given: GivenAddress) -> StorageAddress:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(f"postgresql+psycopg:{rest}")
        rest.encode()  # must be UTF-8
        # a second @ is in a password, whose rest would be parsed as host or database; a zero ends the driver's text
        if rest.count("@") > 1 or "\0" in unquote(rest):
            raise ValueError("misread")
    except (ArgumentError, ValueError):
        raise given.error(  # without the text, which may contain a password
            "this is not a PostgreSQL URL",
            "Write postgresql://user@host:5432/name; in user and password, @ is written %40, / %2F, : %3A.",
        ) from None
    named = [name for name in url.query if name == "sslpassword" or is_secret_name(name)]
    # not URL.normalized_query, which the oldest SQLAlchemy cannot read; a repeated key has a tuple
    secrets = {name: value if isinstance(value := url.query[name], str) else value[-1] for name in named}
    if url.password:
        secrets["password"] = url.password
    bare = url._replace(password=None).difference_update_query(named)
    if secrets and not given.may_hold_password:
        raise given.error(
            "this URL contains a password that others can read here",
            f"Put the URL into the variable {STORAGE_VARIABLE} or a file of mode 0600 (file:FILE), or only the "
            "password into ~/.pgpass.",
        )
    shown = bare.set(drivername="postgresql").render_as_string(hide_password=True)
    url_text = bare.render_as_string(hide_password=False)
    return StorageAddress(kind=StorageKind.POSTGRESQL, shown=shown, url=url_text, secrets=secrets)


def _path(text: str, given: GivenAddress) -> Path:
    text = text.removeprefix("//") if text.startswith("///") else text
    if not text or "\0" in text:
        raise given.error("the path of this address is missing")
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise given.error(f"unknown home folder: {error}", "Write the full path.") from error
    return Path(os.path.abspath(given.folder / path))


def _read(path: Path, given: GivenAddress) -> GivenAddress:
    """Read an address from a file that only its owner can access."""
    where, remedy = f"{given.where}: {path}", f"Write the address into this file, then run: chmod 600 {path}"
    expected = os_errors_as(ConfigError, "cannot read the storage address", where=where, remedy=remedy)
    with expected, open_regular(path) as file:
        about = os.fstat(file.fileno())
        text = file.read(10_000).decode(errors="replace").strip()
    if about.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(about.st_mode) & 0o077:
        what = "other users can access the file with the storage address"
        raise ConfigError(what, where=where, remedy=f"Run: chmod 600 {path}")
    if not text or "\n" in text or text.lower().startswith("file:"):
        raise ConfigError("this file contains no storage address", where=where, remedy=f"Write one line: {FORMS}.")
    return GivenAddress(text=text, where=where, folder=path.parent, may_hold_password=True)
