"""Address of a storage: parsing, validation, display.

``journal:FOLDER``, ``sqlite:FILE``, ``postgresql://user@host/name``, or ``file:FILE`` for a file with one of them.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from urllib.parse import unquote

from autotune.config.secrets import is_secret_name
from autotune.errors import ConfigError
from autotune.files import open_regular
from autotune.process import STORAGE_VARIABLE

FORMS = "journal:FOLDER, sqlite:FILE, or postgresql://user@host/name"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)(?:\+([A-Za-z0-9_.-]+))?:(.*)", re.DOTALL)
_USER = re.compile(r"//([^:/?@]+):")
_DATABASE = re.compile(r"\.(db3?|sqlite3?)$", re.IGNORECASE)
_LONGEST_SHOWN = 200
_PYTHON_DRIVERS = {
    "file": (None,),
    "journal": (None,),
    "sqlite": (None, "pysqlite"),
    "postgresql": (None, "psycopg"),
}

_REFUSED = {
    "redis": "Optuna unpickles what it reads there, so anyone who can write it can run code here",
    "mysql": "it is untested",
    "http": "Optuna's proxy has no password, and it is untested",
}
"""Why a storage supported by Optuna is rejected, by scheme."""
_SAME_AS = {"rediss": "redis", "unix": "redis", "mariadb": "mysql", "https": "http", "grpc": "http"}


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
    match = _SCHEME.fullmatch(given.text.strip())
    if match is None:
        raise _not_an_address(given)
    scheme, driver, rest = match[1].lower(), match[2], match[3]
    scheme = {"postgres": "postgresql"}.get(scheme, scheme)
    if scheme in _PYTHON_DRIVERS and driver not in _PYTHON_DRIVERS[scheme]:
        raise given.error(f"{scheme} does not support the driver {driver}", f"Write {scheme}: without a driver.")
    if scheme == "file":
        path = _path(rest, given)
        return parse_address(_read(path, given))
    if scheme == "journal":
        path = _path(rest, given)
        return StorageAddress(kind=StorageKind.JOURNAL, shown=f"journal:{path}", path=path)
    if scheme == "sqlite":
        return _of_sqlite(rest, given)
    if scheme == "postgresql":
        return _of_postgresql(rest, given)
    why = _REFUSED.get(_SAME_AS.get(scheme, scheme), "unknown kind of storage")
    similar = get_close_matches(scheme, _PYTHON_DRIVERS, 1)
    remedy = f"Did you mean {similar[0]}:? Otherwise write {FORMS}." if similar else f"Write {FORMS}."
    raise given.error(f"{scheme}: is not supported as a storage: {why}", remedy)


def _not_an_address(given: GivenAddress) -> ConfigError:
    """Return the error for text that isn't an address, quoted unless it may contain a password."""
    text = given.text.strip()
    if "@" in text or len(text) > _LONGEST_SHOWN:
        return given.error("this is not a storage address")
    form = f"For an SQLite file, write sqlite:{text}" if _DATABASE.search(text) else f"Write {FORMS}"
    return given.error(f"{text!a} is not a storage address", f"{form}.")


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

    if rest.count("@") > 1:  # one is in a password, whose rest would be parsed as a host or database
        user = _USER.match(rest)
        raise ConfigError(  # without the text after the user
            "this is not a PostgreSQL URL: it contains @ more than once"
            + (f" (postgresql://{ascii(user[1])[1:-1]}:...)" if user else ""),
            where=given.where,
            remedy="Percent-encode user, password and all that follows: @ as %40, / as %2F, : as %3A.",
        )
    try:
        url = make_url(f"postgresql+psycopg:{rest}")
        rest.encode()  # must be UTF-8
        if "\0" in unquote(rest):  # ends the text for the driver
            raise ValueError("misread")
    except (ArgumentError, ValueError):
        raise given.error(  # without the text, which may contain a password
            "this is not a PostgreSQL URL",
            "Write postgresql://user@host:5432/name; in a password, @ is written %40, / %2F, : %3A.",
        ) from None
    query = dict(url.query)
    secrets = {name: _last(query.pop(name)) for name in url.query if name == "sslpassword" or is_secret_name(name)}
    if url.password:
        secrets["password"] = url.password
    bare = url._replace(password=None).set(query=query)
    if secrets and not given.may_hold_password:
        raise given.error(
            "this URL contains a password that others can read here",
            f"Put the URL into the variable {STORAGE_VARIABLE} or a file of mode 0600 (file:FILE), or only the "
            "password into ~/.pgpass.",
        )
    shown = bare.set(drivername="postgresql").render_as_string(hide_password=True)
    return StorageAddress(
        kind=StorageKind.POSTGRESQL,
        shown=shown,
        url=bare.render_as_string(hide_password=False),
        secrets=secrets,
    )


def _last(texts: str | tuple[str, ...]) -> str:
    return texts if isinstance(texts, str) else texts[-1]


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
    try:
        with open_regular(path) as file:
            about = os.fstat(file.fileno())
            text = file.read(10_000).decode(errors="replace").strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read the storage address: {error.strerror}",
            where=f"{given.where}: {path}",
            remedy=f"Write the address into this file, then run: chmod 600 {path}",
        ) from error
    if about.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(about.st_mode) & 0o077:
        raise ConfigError(
            "other users can access the file with the storage address",
            where=f"{given.where}: {path}",
            remedy=f"Run: chmod 600 {path}",
        )
    if not text or "\n" in text or text.lower().startswith("file:"):
        raise ConfigError(
            "this file contains no storage address", where=f"{given.where}: {path}", remedy=f"Write one line: {FORMS}."
        )
    return GivenAddress(text=text, where=f"{given.where}: {path}", folder=path.parent, may_hold_password=True)
