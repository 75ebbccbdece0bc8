"""Address of a storage: how a user says where studies are kept, what is refused, and what is shown of it.

``journal:FOLDER``, ``sqlite:FILE``, ``postgresql://user@host/name``, or ``file:FILE`` for a file that holds one.
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
    "redis": "what Optuna keeps there is unpickled when it is read: whoever can write it can run programs here",
    "mysql": "no study was ever tried on it",
    "http": "Optuna's proxy has no password of its own, and no study was ever tried on it",
}
"""Reason why a storage that Optuna knows is refused, by the beginning of its scheme."""
_SAME_AS = {"rediss": "redis", "unix": "redis", "mariadb": "mysql", "https": "http", "grpc": "http"}


class StorageKind(Enum):
    """Kind of a storage."""

    JOURNAL = "journal"
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, kw_only=True)
class StorageAddress:
    """Address of a storage, which shows no password, whatever prints it.

    Attributes:
        secrets: Passwords that stood in its URL, decoded, by the name that the driver has for each; without one,
            the driver's own files may have it.
    """

    kind: StorageKind
    shown: str
    path: Path | None = None
    url: str = field(default="", repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Folder, or files, on this machine that hold it; none of a server."""
        if self.path is None or self.kind is StorageKind.JOURNAL:
            return () if self.path is None else (self.path,)
        return tuple(self.path.with_name(self.path.name + end) for end in ("", "-journal", "-wal", "-shm", ".flock"))


@dataclass(frozen=True, kw_only=True)
class SaidAddress:
    """Text of an address, and where it was said.

    Attributes:
        may_hold_password: Whether nobody else can read that place.
    """

    text: str = field(repr=False)
    where: str
    folder: Path
    may_hold_password: bool = False

    def error(self, what: str, remedy: str = f"Write {FORMS}.") -> ConfigError:
        return ConfigError(what, where=self.where, remedy=remedy)


def address_of(*said: SaidAddress | None) -> StorageAddress | None:
    """Return the first address that was said; None if there is none, and studies are kept in the state folder.

    Raises:
        ConfigError: It cannot be used.
    """
    first = next((one for one in said if one is not None and one.text.strip()), None)
    return None if first is None else parse_address(first)


def said_by_environment(environ: Mapping[str, str], folder: Path) -> SaidAddress | None:
    """Return what the environment says; None if it says nothing."""
    text = environ.get(STORAGE_VARIABLE)
    return SaidAddress(text=text, where=STORAGE_VARIABLE, folder=folder, may_hold_password=True) if text else None


def parse_address(said: SaidAddress) -> StorageAddress:
    """Parse an address.

    Raises:
        ConfigError: It is none, of a kind that is refused, or holds a password where others can read it.
    """
    match = _SCHEME.fullmatch(said.text.strip())
    if match is None:
        raise _none(said)
    scheme, driver, rest = match[1].lower(), match[2], match[3]
    scheme = {"postgres": "postgresql"}.get(scheme, scheme)
    if scheme in _PYTHON_DRIVERS and driver not in _PYTHON_DRIVERS[scheme]:
        raise said.error(f"{scheme} is not used through {driver} here", f"Write {scheme}: alone.")
    if scheme == "file":
        path = _path(rest, said)
        return parse_address(_read(path, said))
    if scheme == "journal":
        path = _path(rest, said)
        return StorageAddress(kind=StorageKind.JOURNAL, shown=f"journal:{path}", path=path)
    if scheme == "sqlite":
        return _of_sqlite(rest, said)
    if scheme == "postgresql":
        return _of_postgresql(rest, said)
    why = _REFUSED.get(_SAME_AS.get(scheme, scheme), "studies are not kept in such a storage")
    meant = get_close_matches(scheme, _PYTHON_DRIVERS, 1)
    remedy = f"Is {meant[0]}: meant? Else write {FORMS}." if meant else f"Write {FORMS}."
    raise said.error(f"{scheme}: is refused as a storage: {why}", remedy)


def _none(said: SaidAddress) -> ConfigError:
    """Return the error for a text that names no kind of storage; it is repeated where it can hold no password."""
    text = said.text.strip()
    if "@" in text or len(text) > _LONGEST_SHOWN:
        return said.error("this names no storage")
    form = f"For a file of SQLite's write sqlite:{text}" if _DATABASE.search(text) else f"Write {FORMS}"
    return said.error(f"{text!a} names no storage", f"{form}.")


def _of_sqlite(rest: str, said: SaidAddress) -> StorageAddress:
    # As in a URL of SQLAlchemy's, three slashes begin a relative path and four an absolute one.
    rest = rest.removeprefix("///") if rest.startswith("///") else rest
    if not rest or rest.startswith((":", "//", "file:")) or "?" in rest:
        raise said.error("sqlite: needs the path of a file, and nothing else", "Write sqlite:studies.db.")
    path = _path(rest, said)
    return StorageAddress(kind=StorageKind.SQLITE, shown=f"sqlite:{path}", path=path)


def _of_postgresql(rest: str, said: SaidAddress) -> StorageAddress:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if rest.count("@") > 1:  # one of them is in a password: the rest of that would be taken for a host or a database
        user = _USER.match(rest)
        raise ConfigError(  # without the text behind the user
            "this is no URL of a PostgreSQL database: @ stands in it more than once"
            + (f" (postgresql://{ascii(user[1])[1:-1]}:...)" if user else ""),
            where=said.where,
            remedy="In a user, a password, and whatever comes behind them, write @ as %40, / as %2F, : as %3A.",
        )
    try:
        url = make_url(f"postgresql+psycopg:{rest}")
        rest.encode()  # what is not UTF-8 cannot be sent
        if "\0" in unquote(rest):  # the end of what the driver reads
            raise ValueError("misread")
    except (ArgumentError, ValueError):
        raise said.error(  # without the text, which may hold a password
            "this is no URL of a PostgreSQL database",
            "Write postgresql://user@host:5432/name; in a password, @ is written %40, / %2F, : %3A.",
        ) from None
    query = dict(url.query)
    secrets = {name: _last(query.pop(name)) for name in url.query if name == "sslpassword" or is_secret_name(name)}
    if url.password:
        secrets["password"] = url.password
    bare = url._replace(password=None).set(query=query)
    if secrets and not said.may_hold_password:
        raise said.error(
            "this URL holds a password, which others can read here",
            f"Put the URL into the variable {STORAGE_VARIABLE}, or into a file of mode 0600 and write file:FILE "
            "here; or leave the password out and keep it in ~/.pgpass.",
        )
    shown = bare.set(drivername="postgresql").render_as_string(hide_password=True)
    return StorageAddress(
        kind=StorageKind.POSTGRESQL,
        shown=shown,
        url=bare.render_as_string(hide_password=False),
        secrets=secrets,
    )


def _last(texts: str | tuple[str, ...]) -> str:
    """Return the value of a name in a query, which may stand there more than once."""
    return texts if isinstance(texts, str) else texts[-1]


def _path(text: str, said: SaidAddress) -> Path:
    text = text.removeprefix("//") if text.startswith("///") else text
    if not text or "\0" in text:
        raise said.error("this address has no path")
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise said.error(f"this path has no home folder: {error}", "Write it out.") from error
    return Path(os.path.abspath(said.folder / path))


def _read(path: Path, said: SaidAddress) -> SaidAddress:
    """Return the address in a file that is its owner's alone."""
    try:
        with open_regular(path) as file:
            about = os.fstat(file.fileno())
            text = file.read(10_000).decode(errors="replace").strip()
    except OSError as error:
        raise ConfigError(
            f"the file with the storage's address cannot be read: {error.strerror}",
            where=f"{said.where}: {path}",
            remedy="Write the address into it, and make it yours alone: chmod 600.",
        ) from error
    if about.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(about.st_mode) & 0o077:
        raise ConfigError(
            "the file with the storage's address can be read by others",
            where=f"{said.where}: {path}",
            remedy=f"Make it yours alone: chmod 600 {path}",
        )
    if not text or "\n" in text or text.lower().startswith("file:"):
        raise ConfigError(
            "the file holds no address of a storage", where=f"{said.where}: {path}", remedy=f"Write one line: {FORMS}."
        )
    return SaidAddress(text=text, where=f"{said.where}: {path}", folder=path.parent, may_hold_password=True)
