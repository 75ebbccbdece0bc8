"""Errors a user can act on; the command exits with 1.

    AutotuneError
    ├── ConfigError
    │   └── CannotEditYaml
    ├── CommandError
    ├── GpuError
    ├── TrialError
    │   └── CodeChanged
    ├── DaemonAway
    └── StudyError
        ├── StudyBusy
        └── StorageAway

Any other exception at the top of the process is a bug: exit code 3 and a crash log.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class AutotuneError(Exception):
    """Expected error: what happened, where, and what to do next.

    Attributes:
        kind: Stable name of the error type, for ``--json``.
        where: File and line, key, or trial.
        remedy: What the user can do; None only if the message says it.
    """

    kind: str = "error"

    def __init__(self, message: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.message}" if self.where else self.message]
        if self.remedy:
            parts.append(self.remedy)
        return "\n".join(parts)


class ConfigError(AutotuneError):
    """Unusable config or ``autotune:`` section."""

    kind = "config"


class CannotEditYaml(ConfigError):
    """Value that cannot be changed without changing something else in the file.

    Attributes:
        path: Dotted key path.
        line: Line of the value, from 1; None if the key is missing.
    """

    kind = "cannot_edit_yaml"

    def __init__(self, path: str, why: str, *, line: int | None, remedy: str) -> None:
        place = f"{path} (line {line})" if line is not None else path
        super().__init__(why, where=place, remedy=remedy)
        self.path = path
        self.line = line


class CommandError(AutotuneError):
    """Failure to start the trainer's command."""

    kind = "command"


class GpuError(AutotuneError):
    """Missing GPU, or one that another process uses."""

    kind = "gpu"


class TrialError(AutotuneError):
    """Failure to run a trial, or to get a result."""

    kind = "trial"


class CodeChanged(TrialError):
    """Edit of the trainer's code during measurement."""

    kind = "code_changed"


class DaemonAway(AutotuneError):
    """Absence of a daemon of this user on this machine."""

    kind = "daemon_away"


class StudyError(AutotuneError):
    """Failure to read or write the record of trials."""

    kind = "study"


class StudyBusy(StudyError):
    """Study that another search uses."""

    kind = "study_busy"


class StorageAway(StudyError):
    """Unreachable storage server, possibly temporarily."""

    kind = "storage_away"


@contextmanager
def os_errors_as(kind: type[AutotuneError], what: str, *, where: object, remedy: str) -> Iterator[None]:
    """Raise each `OSError` as an expected error, with its reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}", where=str(where), remedy=remedy) from error


class Terminated(KeyboardInterrupt):
    """SIGTERM received, as KeyboardInterrupt is for ^C."""


def how_it_ended(interrupt: BaseException | None) -> tuple[str, int]:
    """Return a description of an interrupt and the exit code; None counts as ^C."""
    return ("ended by SIGTERM", 143) if isinstance(interrupt, Terminated) else ("interrupted", 130)
