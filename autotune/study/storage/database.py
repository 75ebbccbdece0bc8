"""Database of studies: SQLite for one machine, PostgreSQL for several."""

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import RDBStorage
from sqlalchemy.engine import make_url

from autotune.clock import Clock
from autotune.config.secrets import Secret, without
from autotune.errors import StorageAway, StudyError
from autotune.files import open_regular
from autotune.process import STORAGE_VARIABLE
from autotune.study.storage.address import StorageAddress, StorageKind
from autotune.study.storage.lock import FileLock
from autotune.study.storage.server import ServerStorage
from autotune.study.storage.storage import ARCHIVED_BEFORE, DAMAGE, Connection, is_member, member_names, next_member

_STATEMENT_S = 15
_SERVER = {
    "connect_timeout": 5,
    "application_name": "autotune",
    "client_encoding": "utf8",  # a database without encoding would return bytes
    "options": f"-c statement_timeout={_STATEMENT_S}s -c lock_timeout={_STATEMENT_S}s"
    " -c idle_in_transaction_session_timeout=60s",
    "prepare_threshold": None,  # with PgBouncer the next transaction may use another connection
    "tcp_user_timeout": 10_000,  # ms
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Connection parameters of the driver, unless the URL has others."""
_LAST_TABLE = "alembic_version"  # the last one that Optuna creates
_SCHEMA_LOCK = int.from_bytes(b"autotune", "big")
"""Key of the advisory lock while tables are created."""
_SERVER_POOL: Mapping[str, Any] = {
    "pool_size": 1,
    "max_overflow": 2,
    "pool_pre_ping": True,
    "pool_timeout": 10,
}

_CONNECTION_ERRORS = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    sqlalchemy.exc.TimeoutError,
    sqlalchemy.exc.PendingRollbackError,
)
_TRANSIENT = re.compile("08|25006|25P0|40|53|55P03|57|58")
"""SQLSTATEs or classes of transient errors: no connection, read-only standby, aborted or idle transaction, conflict, no
resources (full disk, too many connections), held lock, operator intervention (restart, failover), system error."""
_SQLITE = b"SQLite format 3\0"
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')
_REMEDIES = (
    (
        r"no password supplied|fe_sendauth",
        "Put the password into the variable PGPASSWORD or the file ~/.pgpass, or with the whole URL into "
        f"{STORAGE_VARIABLE}.",
    ),
    (r"password authentication failed", "Check the user and the password."),
    (r"unsupported startup parameter", "Set in PgBouncer: ignore_startup_parameters = options"),
    (r"no pg_hba.conf entry|permission denied|not permitted|must be owner", "Ask its administrator for access."),
    (_NO_DATABASE.pattern, "Create the database: createdb NAME."),
    (r"readonly database", "Check that the file was not replaced and is writable, then run the same command again."),
    (r"is locked|lock timeout|holds its lock", "Find the process that locks it, then run the same command again."),
    (r"unable to open|^No such file", "Check that its folder exists and is writable."),
    (r"read-?only", "Name a database or server that accepts writes."),
    (r"refused|could not connect|timeout|timed out|resolve|translate host|No such file", "Check that it runs there."),
    (r"not a database|malformed|disk image", "Move the file away to start again, or restore a copy of it."),
    (r"disk is full|No space left|disk I/O", "Check its disk (space, errors), then run the same command to resume."),
)
"""Remedies, by a pattern in the driver's message."""
_PERMANENT = re.compile(r"authentication|no password supplied|pg_hba|does not exist|permission denied", re.IGNORECASE)
"""Messages of permanently refused connections, without SQLSTATE."""


class Database:
    """Storage of studies in an SQLite file or on a server, opened at the first use.

    An archived study stays in place; the next member of its group of Optuna studies follows it.
    """

    def __init__(self, address: StorageAddress) -> None:
        self._address = address
        self._errors = DatabaseErrors(address)
        self._is_server = address.kind is StorageKind.POSTGRESQL
        self._lock = self._lock_of(creates=True)
        self._reading_lock = self._lock_of(creates=False)
        self._connected: list[ServerStorage] = []
        self._has_schema = False  # of a server

    def where(self, study: str) -> str:
        return self._address.shown

    def latest(self, pattern: str) -> str | None:
        with self._reading() as names:
            found = [name for name in names if not is_member(name) and fnmatchcase(name, pattern)]
            return max(found, key=lambda name: self._last_start(name, names), default=None)

    def names(self) -> list[str]:
        with self._reading() as names:
            return sorted(name for name in names if not is_member(name))

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Connect; create Optuna's tables if missing."""
        with self._expected(reads_only=True):  # no lock file for an unusable database
            tables = self._optuna if self._is_server or self._has_tables() else None
        if tables is None:
            with self._expected():
                tables = self._optuna
        expected, names = partial(self._expected, reads_only=reads_only), partial(optuna.get_all_study_names, tables)
        if not self._is_server:
            return Connection(storage=tables, expected=expected, names=names, close=self.close)
        server = ServerStorage(study, tables, self._batch_connection)
        self._connected.append(server)
        return Connection(
            storage=server, expected=expected, names=server.names, pull=server.pull, is_remote=True, close=self.close
        )

    def attributes(self, name: str) -> list[object]:
        with self._reading() as names:
            attributes = [study.user_attrs for study in self._optuna.get_all_studies()] if names else []
            return [some[name] for some in attributes if name in some]

    def archive(self, study: str, clock: Clock) -> None:
        with self._expected(), closing(self):
            members = member_names(study, optuna.get_all_study_names(self._optuna))
            if members:
                name = next_member(study, members)
                new = optuna.create_study(storage=self._optuna, study_name=name, direction="maximize")
                new.set_user_attr(ARCHIVED_BEFORE, clock.utc().isoformat(timespec="seconds"))

    def discard(self, study: str, trash: Path) -> None:
        with self._expected(), closing(self):
            for member in member_names(study, optuna.get_all_study_names(self._optuna)):
                optuna.delete_study(study_name=member, storage=self._optuna)

    def close(self) -> None:
        """Close all connections; the next use reopens them."""
        for one in self._connected:
            one.close()
        if "_optuna" in self.__dict__:
            self._optuna.remove_session()
            self._optuna.engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[list[str]]:
        with self._expected(reads_only=True), nullcontext() if self._connected else closing(self):
            yield optuna.get_all_study_names(self._optuna) if self._has_tables() else []

    def _lock_of(self, *, creates: bool) -> AbstractContextManager[Any]:
        path = self._address.path
        if path is None:
            return nullcontext()
        # 30 s: others write a trial under it, in a dozen transactions on possibly slow disks
        return FileLock(path.with_name(path.name + ".flock"), timeout_s=30.0, creates=creates)

    def _is_there(self) -> bool:
        if self._address.path is None:
            return True
        try:
            with open_regular(self._address.path) as file:
                begins = file.read(len(_SQLITE))
        except FileNotFoundError:
            return False
        if begins not in (b"", _SQLITE):
            raise OSError(errno.EINVAL, "file is not a database")
        return True

    @cached_property
    def _optuna(self) -> RDBStorage:
        if self._address.path is not None and not self._is_there():
            open_regular(self._address.path, append=True, create=True).close()  # accessible only by its owner
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # hides statements
        # without password, as Optuna shows the URL in messages; it also formats fields in braces
        url = self._url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
        pool = _SERVER_POOL if self._is_server else {}
        with self._creating_tables():
            options = {**pool, **self._engine_options()}
            storage = RDBStorage(url, engine_kwargs=options, skip_table_creation=self._has_schema)
        if self._is_server:
            sqlalchemy.event.listen(storage.engine, "handle_error", self._errors.raise_if_unavailable)
        return storage

    def _batch_connection(self) -> sqlalchemy.Connection:
        """Connect so that several statements in one text are one transaction."""
        from psycopg import ClientCursor  # optional dependency

        connection = self._optuna.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        driver: Any = connection.connection.driver_connection
        driver.cursor_factory = ClientCursor
        return connection

    @contextmanager
    def _creating_tables(self) -> Iterator[None]:
        """Serialize the creation of a server's tables, which fails in Optuna otherwise."""
        self._has_schema = self._is_server and self._has_tables(_LAST_TABLE)
        if not self._is_server or self._has_schema:
            yield
            return
        with self._reading_engine.begin() as connection:  # its end releases the lock
            connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
            yield

    @property
    def _url(self) -> sqlalchemy.URL:
        if self._address.path is None:
            return make_url(self._address.url)
        name = str(self._address.path)
        name.encode()  # must be valid text; SQLAlchemy < 2.1 doesn't check
        return sqlalchemy.URL.create("sqlite", database=name)

    def _engine_options(self) -> dict[str, Any]:
        if not self._is_server:
            return {"connect_args": {"timeout": _STATEMENT_S}}
        defaults = {name: value for name, value in _SERVER.items() if name not in self._url.query}
        # hstore support would cost a query
        return {"connect_args": {**defaults, **self._address.secrets}, "use_native_hstore": False}

    def _has_tables(self, last: str = "studies") -> bool:
        if self._has_schema or not self._is_there():
            return self._has_schema
        with self._reading_engine.connect() as connection:
            return sqlalchemy.inspect(connection).has_table(last)

    @cached_property
    def _reading_engine(self) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(self._url, poolclass=sqlalchemy.NullPool, **self._engine_options())

    def _last_start(self, name: str, names: list[str]) -> datetime:
        starts = [
            trial.datetime_start
            for member in member_names(name, names)
            for trial in optuna.load_study(study_name=member, storage=self._optuna).get_trials(deepcopy=False)[-1:]
        ]
        return max((start for start in starts if start), default=datetime.min)

    @contextmanager
    def _expected(self, *, reads_only: bool = False) -> Iterator[None]:
        """Hold the lock of a file, and translate errors."""
        try:
            with self._errors.translated(), self._reading_lock if reads_only else self._lock:
                yield
                for one in self._connected:
                    one.flush()
        except StorageAway:
            self.close()  # the next call reconnects, possibly to another server
            raise


class DatabaseErrors:
    """Database errors as messages to act on: without statements, parameters and passwords."""

    def __init__(self, address: StorageAddress) -> None:
        self._address = address
        self._is_server = address.kind is StorageKind.POSTGRESQL

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of a database call as `StudyError`, or as `StorageAway` if transient."""
        try:
            yield
        except StorageAway as away:
            raise away from None  # from `raise_if_unavailable`, inside the driver's error
        except (OSError, sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError) as error:
            raise self.of(error) from None  # its text has statements and parameters
        except ImportError as error:
            named = error.name or self._shown(str(error))
            raise self._unusable(
                f"a package that this database needs cannot be imported: {named}",
                "Run, in the clone of autotune: pip install '.[postgresql]'",
            ) from None
        except DAMAGE as error:
            # Optuna trusts its own tables, which were changed
            shown = f"{type(error).__name__}: {self._shown(str(error))}"
            remedy = "Restore a copy of it, or name another storage."
            raise self._unusable(f"the storage contains unreadable data: {shown}", remedy) from None
        except RuntimeError as error:
            if "schema" not in str(error):
                raise
            raise self._unusable(
                f"its tables are of another Optuna version: {self._shown(str(error))}",
                "Copy it, then run `optuna storage upgrade`, or install the Optuna version that created it.",
            ) from None

    def raise_if_unavailable(self, context: sqlalchemy.engine.ExceptionContext) -> None:
        """Raise `StorageAway` for a transient error, before Optuna continues or repeats the transaction."""
        error = context.sqlalchemy_exception
        if error is not None and not getattr(context, "is_pre_ping", False):  # SQLAlchemy 2.0.5: it reconnects then
            translated = self.of(error)
            if isinstance(translated, StorageAway):
                raise translated

    def _unusable(self, what: str, remedy: str) -> StudyError:
        return StudyError(what, where=self._address.shown, remedy=remedy)

    def of(self, error: Exception) -> StudyError:
        cause = _cause(error)
        message = _first_line(str(getattr(cause, "orig", None) or getattr(cause, "strerror", None) or cause))
        remedy = self._remedy(message)
        sqlstate = getattr(getattr(cause, "orig", None), "sqlstate", None)
        if sqlstate:
            is_transient = bool(_TRANSIENT.match(sqlstate))
        else:
            is_transient = isinstance(cause, _CONNECTION_ERRORS) and not _PERMANENT.search(message)
        is_away = self._is_server and (is_transient or getattr(cause, "connection_invalidated", False))
        return (StorageAway if is_away else StudyError)(
            f"the storage cannot be {'reached' if is_away and not sqlstate else 'used'}: {self._shown(message)}",
            where=self._address.shown,
            remedy=remedy or "Fix that, then run the same command again to resume.",
        )

    def _remedy(self, message: str) -> str | None:
        path = self._address.path
        if path is not None and "permission denied" in message.lower():
            return f"Check that {path.parent}, and in it {path.name} and {path.name}.flock, are writable."
        if path is None and _NO_DATABASE.search(message) and not make_url(self._address.url).database:
            return "The URL names no database: add /NAME after host and port."
        return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, message, re.IGNORECASE)), None)

    def _shown(self, text: str) -> str:
        """Return the first line of a message without secrets."""
        secrets = [Secret(name=name, value=text) for name, text in self._address.secrets.items()]
        return ascii(without(_first_line(text), secrets))[1:-1][:200]


def _cause(error: BaseException) -> BaseException:
    if isinstance(error, sqlalchemy.exc.DBAPIError | OSError) or error.__cause__ is None:
        return error
    return _cause(error.__cause__)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
