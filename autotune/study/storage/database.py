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
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy.engine import make_url

from autotune.clock import Clock
from autotune.config.secrets import Secret, without
from autotune.errors import StorageAway, StudyError
from autotune.files import open_regular
from autotune.process import STORAGE_VARIABLE
from autotune.study.storage.address import StorageAddress, StorageKind
from autotune.study.storage.lock import FileLock
from autotune.study.storage.server import ServerStorage
from autotune.study.storage.storage import DAMAGE, SET_ASIDE, Connection, is_member, member_names, next_member

_STATEMENT_S = 15
_SERVER = {
    "connect_timeout": 5,
    "application_name": "autotune",
    "client_encoding": "utf8",  # also where the database has none: its texts would be bytes
    "options": f"-c statement_timeout={_STATEMENT_S}s -c lock_timeout={_STATEMENT_S}s"
    " -c idle_in_transaction_session_timeout=60s",
    "prepare_threshold": None,  # behind PgBouncer the next transaction may be on another connection
    "tcp_user_timeout": 10_000,  # ms
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Parameters of a connection, as the driver calls them; those in the query of the URL take precedence."""
_LAST_TABLE = "alembic_version"  # of those that Optuna makes, in three transactions
_MAKING = int.from_bytes(b"autotune", "big")
"""Key of the lock in a server's database under which tables are made."""
_SERVER_POOL: Mapping[str, Any] = {
    "pool_size": 1,
    "max_overflow": 2,
    "pool_pre_ping": True,
    "pool_timeout": 10,
}

_NO_ANSWER = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    sqlalchemy.exc.TimeoutError,
    sqlalchemy.exc.PendingRollbackError,
)
_PASSING = re.compile("08|25006|25P0|40|53|55P03|57|58")
"""SQLSTATEs, or their classes, of what passes: no connection, a standby that takes no writes, a transaction that was
aborted or idle for too long, a conflict with another one, too few resources (a full disk, too many connections), a lock
that is held, an operator (a restart, a failover, a statement that was cancelled), the server's own system."""
_SQLITE = b"SQLite format 3\0"
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')
_REMEDIES = (
    (
        r"no password supplied|fe_sendauth",
        "Put the password into the variable PGPASSWORD or the file ~/.pgpass, or with the whole URL into "
        f"{STORAGE_VARIABLE}.",
    ),
    (r"password authentication failed", "Check the user and the password."),
    (r"unsupported startup parameter", "Let PgBouncer ignore it: ignore_startup_parameters = options"),
    (r"no pg_hba.conf entry|permission denied|not permitted|must be owner", "Ask for the right to use this database."),
    (_NO_DATABASE.pattern, "Create the database: createdb NAME."),
    (
        r"readonly database",
        "Check that the file is still the same, and yours to write; then run the same command again.",
    ),
    (r"is locked|lock timeout|holds its lock", "See who keeps it locked, then run the same command again: it goes on."),
    (r"unable to open|^No such file", "Check that its folder is there and is yours to write."),
    (r"read-?only", "Studies are written: name a database, or a server, that takes writes."),
    (r"refused|could not connect|timeout|timed out|resolve|translate host|No such file", "Check that it runs there."),
    (r"not a database|malformed|disk image", "Move the file away to start anew, or put a copy of it back."),
    (r"disk is full|No space left", "Free some space, then run the same command again: it goes on."),
    (r"disk I/O", "See to its disk (space, errors), then run the same command again: it goes on."),
)
"""What helps, by a pattern in what the driver says."""
_UNUSABLE = re.compile(r"authentication|no password supplied|pg_hba|does not exist|permission denied", re.IGNORECASE)
"""What is said of a connection that was refused for good; the driver gives no SQLSTATE then."""


class Database:
    """Storage of studies in a database; see `Storage`.

    Nothing is opened before the first use. A study that is set aside stays as it is: another member of its group of
    Optuna studies begins behind it.

    Args:
        address: SQLite's file, or a server.
    """

    def __init__(self, address: StorageAddress) -> None:
        self._address = address
        self._errors = DatabaseErrors(address)
        self._is_server = address.kind is StorageKind.POSTGRESQL
        self._lock = self._lock_of(creates=True)
        self._reading_lock = self._lock_of(creates=False)
        self._connected: list[ServerStorage] = []
        self._is_made = False  # a server's tables

    def where(self, study: str) -> str:
        """Return the address without its password."""
        return self._address.shown

    def latest(self, pattern: str) -> str | None:
        """Return the study whose last trial began last."""
        with self._looking() as names:
            found = [name for name in names if not is_member(name) and fnmatchcase(name, pattern)]
            return max(found, key=lambda name: self._last_start(name, names), default=None)

    def names(self) -> list[str]:
        """Return the names of the groups of Optuna studies."""
        with self._looking() as names:
            return sorted(name for name in names if not is_member(name))

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Connect, and make the tables of Optuna's if there are none."""
        with self._expected(reads_only=True):  # what cannot be used gets no lock beside it
            is_made = self._is_server or self._has_tables()
            if is_made:
                storage: BaseStorage = self._optuna
                if self._is_server:
                    storage = ServerStorage(study, self._optuna, self._batches)
                    self._connected.append(storage)
        if not is_made:
            with self._expected():
                storage = self._optuna
        return Connection(
            storage=storage,
            expected=partial(self._expected, reads_only=reads_only),
            names=storage.names if isinstance(storage, ServerStorage) else partial(optuna.get_all_study_names, storage),
            pull=storage.pull if isinstance(storage, ServerStorage) else lambda: None,
            is_remote=self._is_server,
            close=self.close,
        )

    def attributes(self, name: str) -> list[object]:
        with self._looking() as names:
            attributes = [study.user_attrs for study in self._optuna.get_all_studies()] if names else []
            return [some[name] for some in attributes if name in some]

    def set_aside(self, study: str, clock: Clock) -> None:
        """Begin a new member of the study's group, which the next search goes on with."""
        with self._expected(), closing(self):
            members = member_names(study, optuna.get_all_study_names(self._optuna))
            if members:
                name = next_member(study, members)
                new = optuna.create_study(storage=self._optuna, study_name=name, direction="maximize")
                new.set_user_attr(SET_ASIDE, clock.utc().isoformat(timespec="seconds"))

    def discard(self, study: str, trash: Path) -> None:
        """Delete the Optuna studies of a group; there is no file of its own."""
        with self._expected(), closing(self):
            for member in member_names(study, optuna.get_all_study_names(self._optuna)):
                optuna.delete_study(study_name=member, storage=self._optuna)

    def close(self) -> None:
        """Close all connections; the next use opens them again."""
        for one in self._connected:
            one.close()
        if "_optuna" in self.__dict__:
            self._optuna.remove_session()
            self._optuna.engine.dispose()

    @contextmanager
    def _looking(self) -> Iterator[list[str]]:
        """Yield the names of all Optuna studies; none where there is nothing, and nothing is made."""
        with self._expected(reads_only=True), nullcontext() if self._connected else closing(self):
            yield optuna.get_all_study_names(self._optuna) if self._has_tables() else []

    def _lock_of(self, *, creates: bool) -> AbstractContextManager[Any]:
        path = self._address.path
        if path is None:
            return nullcontext()
        # of a file: others make a trial under it, in a dozen transactions, and disks may be slow
        return FileLock(path.with_name(path.name + ".flock"), timeout_s=30.0, creates=creates)

    def _is_there(self) -> bool:
        """Return whether there is something to read; OSError where SQLite's file cannot be one."""
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
            open_regular(self._address.path, append=True, create=True).close()  # its owner's alone
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would show statements
        # Without its password: Optuna keeps the URL, fills fields in braces into it, and shows it in its messages.
        url = self._url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
        pool = _SERVER_POOL if self._is_server else {}
        with self._making_tables():
            options = {**pool, **self._engine_options()}
            storage = RDBStorage(url, engine_kwargs=options, skip_table_creation=self._is_made)
        if self._is_server:
            sqlalchemy.event.listen(storage.engine, "handle_error", self._errors.raise_if_away)
        return storage

    def _batches(self) -> sqlalchemy.Connection:
        """Connect so that several statements may go as one text, which the server makes one transaction."""
        from psycopg import ClientCursor  # of an extra

        connection = self._optuna.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        driver: Any = connection.connection.driver_connection
        driver.cursor_factory = ClientCursor
        return connection

    @contextmanager
    def _making_tables(self) -> Iterator[None]:
        """Let one machine at a time make the tables of a server, if it has none: Optuna fails where two do."""
        self._is_made = self._is_server and self._has_tables(_LAST_TABLE)
        if not self._is_server or self._is_made:
            yield
            return
        with self._looking_engine.begin() as connection:  # at whose end the server frees the lock, whatever ends it
            connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_MAKING)))
            yield

    @property
    def _url(self) -> sqlalchemy.URL:
        if self._address.path is None:
            return make_url(self._address.url)
        name = str(self._address.path)
        name.encode()  # a name that is no text: SQLAlchemy refuses it from 2.1 on only
        return sqlalchemy.URL.create("sqlite", database=name)

    def _engine_options(self) -> dict[str, Any]:
        if not self._is_server:
            return {"connect_args": {"timeout": _STATEMENT_S}}
        ours = {name: value for name, value in _SERVER.items() if name not in self._url.query}
        # With its own hstore, SQLAlchemy would ask whether the server has that type.
        return {"connect_args": {**ours, **self._address.secrets}, "use_native_hstore": False}

    def _has_tables(self, last: str = "studies") -> bool:
        if self._is_made or not self._is_there():
            return self._is_made
        with self._looking_engine.connect() as connection:
            return sqlalchemy.inspect(connection).has_table(last)

    @cached_property
    def _looking_engine(self) -> sqlalchemy.Engine:
        """Engine for a look before Optuna's own is there: no connection outlives its use."""
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
        """Hold the lock of a file, and raise what goes wrong as what users can act on."""
        try:
            with self._errors.translated(), self._reading_lock if reads_only else self._lock:
                yield
                for one in self._connected:
                    one.flush()
        except StorageAway:
            self.close()  # the next call connects anew, perhaps to another server
            raise


class DatabaseErrors:
    """Errors of a database, as what users can act on: without statements, parameters and passwords."""

    def __init__(self, address: StorageAddress) -> None:
        self._address = address
        self._is_server = address.kind is StorageKind.POSTGRESQL

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise a `StudyError` in the place of what a call to the database raises; `StorageAway` if that passes."""
        try:
            yield
        except StorageAway as away:
            raise away from None  # raised by `raise_if_away`, within the driver's own error
        except (OSError, sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError) as error:
            raise self.of(error) from None  # its text has statements and parameters
        except ImportError as error:
            if isinstance(error, ModuleNotFoundError):
                what, remedy = (
                    "is not installed",
                    "in the clone that autotune was installed from: pip install '.[postgresql]'",
                )
            else:
                what, remedy = "cannot be imported", "if it is psycopg: pip install 'psycopg[binary]'"
            named = error.name or self._said(str(error))
            raise self._unusable(f"a package that this database needs {what}: {named}", f"Run, {remedy}") from None
        except DAMAGE as error:
            # Somebody has deleted or changed what Optuna wrote: it trusts its own tables.
            said = f"{type(error).__name__}: {self._said(str(error))}"
            remedy = "Put a copy of it back, or name another storage."
            raise self._unusable(f"the storage holds what cannot be read: {said}", remedy) from None
        except RuntimeError as error:
            if "schema" not in str(error):
                raise
            raise self._unusable(
                f"its tables are of another version of Optuna's: {self._said(str(error))}",
                "Copy it, then run `optuna storage upgrade`, or install the version of Optuna that made it.",
            ) from None

    def raise_if_away(self, context: sqlalchemy.engine.ExceptionContext) -> None:
        """Raise `StorageAway` in the place of an error that passes.

        Optuna would go on in the transaction that has failed, or make the whole of it again, in which what was
        committed without an answer is there twice.
        """
        error = context.sqlalchemy_exception
        if error is not None and not getattr(context, "is_pre_ping", False):  # SQLAlchemy 2.0.5: it connects anew then
            said = self.of(error)
            if isinstance(said, StorageAway):
                raise said

    def _unusable(self, what: str, remedy: str) -> StudyError:
        return StudyError(what, where=self._address.shown, remedy=remedy)

    def of(self, error: Exception) -> StudyError:
        """Return an error of the driver, or of the system, as what users can act on."""
        cause = _cause(error)
        said = _first_line(str(getattr(cause, "orig", None) or getattr(cause, "strerror", None) or cause))
        remedy = self._remedy(said)
        sqlstate = getattr(getattr(cause, "orig", None), "sqlstate", None)
        passes = _PASSING.match(sqlstate) if sqlstate else isinstance(cause, _NO_ANSWER) and not _UNUSABLE.search(said)
        is_away = self._is_server and (bool(passes) or getattr(cause, "connection_invalidated", False))
        return (StorageAway if is_away else StudyError)(
            f"the storage cannot be {'reached' if is_away and not sqlstate else 'used'}: {self._said(said)}",
            where=self._address.shown,
            remedy=remedy or "Mend that, then run the same command again: it goes on.",
        )

    def _remedy(self, said: str) -> str | None:
        """Return what helps against what the driver, or the system, says."""
        path = self._address.path
        if path is not None and "permission denied" in said.lower():
            return f"Check that {path.parent}, and in it {path.name} and {path.name}.flock, are yours to write."
        if path is None and _NO_DATABASE.search(said) and not make_url(self._address.url).database:
            return "The URL names no database: add /NAME behind the host and its port."
        return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, said, re.IGNORECASE)), None)

    def _said(self, text: str) -> str:
        """Return the first line of a driver's message as it may be shown."""
        secrets = [Secret(name=name, value=text) for name, text in self._address.secrets.items()]
        return ascii(without(_first_line(text), secrets))[1:-1][:200]


def _cause(error: BaseException) -> BaseException:
    """Return what the driver, or the system, has raised first."""
    if isinstance(error, sqlalchemy.exc.DBAPIError | OSError) or error.__cause__ is None:
        return error
    return _cause(error.__cause__)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
