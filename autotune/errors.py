"""Errors a user can act on.

    AutotuneError            says what happened, where, and what to do; the command exits with 1
    ├── ConfigError          the config, or its ``autotune:`` section, cannot be used as it stands
    │   └── CannotEditYaml   a value cannot be changed without touching something else
    ├── CommandError         the trainer's command cannot be started
    ├── GpuError             the GPU is not there, or somebody else works on it
    ├── TrialError           no trial could be made, or none gave a result
    │   └── CodeChanged      the trainer's code was edited while it was measured
    ├── DaemonAway           no daemon of this user runs on this machine
    └── StudyError           the record of trials cannot be read or written
        ├── StudyBusy        another search is working on this study
        └── StorageAway      the server that keeps the record cannot be reached for the moment

`Terminated` is none of them: it is to SIGTERM what KeyboardInterrupt is to ^C. Anything else that reaches the top of
the process is a bug: exit code 3, with a crash log.
"""


class AutotuneError(Exception):
    """Expected error: what happened, where, and what to do next.

    Attributes:
        kind: Stable name of the sort of error, for ``--json``.
        message: What is wrong, with the offending value.
        where: File and line, key, or trial; None where there is no such place.
        remedy: What the user can do; None only where the message says it already.
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
    """Config, or its ``autotune:`` section, that cannot be used as it stands."""

    kind = "config"


class CannotEditYaml(ConfigError):
    """Refusal to change a value that cannot be changed without touching something else in the file.

    Attributes:
        path: The dotted key path that was to be changed.
        line: Line of the value in the text, counted from 1; None if the key is not there.
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
    """GPU of the trials that is missing, or that somebody else works on."""

    kind = "gpu"


class TrialError(AutotuneError):
    """Failure to make a trial, or to get a result from any."""

    kind = "trial"


class CodeChanged(TrialError):
    """Edit of the trainer's code while it was measured; the same search may begin again at once."""

    kind = "code_changed"


class DaemonAway(AutotuneError):
    """Absence of a daemon of this user on this machine: nothing was asked."""

    kind = "daemon_away"


class StudyError(AutotuneError):
    """Failure to read or write the record of trials."""

    kind = "study"


class StudyBusy(StudyError):
    """Refusal to open a study that another search is working on."""

    kind = "study_busy"


class StorageAway(StudyError):
    """Failure to reach the server that keeps the record; what could not be written may be written later."""

    kind = "storage_away"


class Terminated(KeyboardInterrupt):
    """SIGTERM received: this process is asked to end. Code that does not tell the two apart treats it like ^C."""


def how_it_ended(interrupt: BaseException | None) -> tuple[str, int]:
    """Return the words for what interrupted a command, and its exit code: 128 plus the signal's number, as in a shell.

    Args:
        interrupt: The exception; None, and all others, count as ^C.
    """
    return ("ended by SIGTERM", 143) if isinstance(interrupt, Terminated) else ("interrupted", 130)
