"""Errors a user can act on.

    AutotuneError            says what happened, where, and what to do; the command exits with 1
    ├── ConfigError          the config, or its ``autotune:`` section, cannot be used as it stands
    │   └── CannotEditYaml   a value cannot be changed without touching something else
    ├── CommandError         the trainer's command cannot be started
    ├── GpuError             the GPU is not there, or somebody else works on it
    ├── RunError             no run could be made, or none gave a result
    └── StudyError           the record of runs cannot be read or written
        └── StudyBusy        another search is working on this study

`ToldToEnd` is none of them: it is to SIGTERM what KeyboardInterrupt is to ^C. Anything else that reaches the top of the
process is a bug: exit code 3, with a crash log.
"""

import errno
import resource
from typing import ClassVar


class AutotuneError(Exception):
    """An expected error: what happened, where, and what to do next.

    Attributes:
        kind: Stable name of the sort of error, for ``--json``.
        message: What is wrong, with the offending value.
        where: File and line, key, or run; None where there is no such place.
        remedy: What the user can do; None only where the message says it already.
    """

    kind: ClassVar[str] = "error"

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
    """The config, or its ``autotune:`` section, cannot be used as it stands."""

    kind = "config"


class CannotEditYaml(ConfigError):
    """A value cannot be changed without touching something else in the file.

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
    """The trainer's command cannot be started."""

    kind = "command"


class GpuError(AutotuneError):
    """The GPU that the runs would use is not there, or somebody else works on it."""

    kind = "gpu"


class RunError(AutotuneError):
    """No run could be made, or none gave a result."""

    kind = "run"


class StudyError(AutotuneError):
    """The record of runs cannot be read or written."""

    kind = "study"


class StudyBusy(StudyError):
    """Another search is working on this study."""

    kind = "study_busy"


_NO_MORE = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
_NO_THREAD = "can't start new thread"
_NO_ROOM_FOR_CODE = ("failed to map segment", "cannot allocate memory", "cannot apply additional memory protection")


def expected(error: BaseException) -> AutotuneError | None:
    """What the machine, and not a bug, is to blame for, as an error that a user can act on; None for anything else.

    Args:
        error: Whatever was raised: one of ours, the system's word on a file, or a limit on memory, processes or files.
    """
    if isinstance(error, AutotuneError):
        return error
    text = str(error).lower()
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _NO_MORE)
        or (isinstance(error, RuntimeError) and _NO_THREAD in text)
        or (isinstance(error, ImportError) and any(words in text for words in _NO_ROOM_FOR_CODE))
    ):
        why = text.strip().splitlines()[-1] if text.strip() else "out of memory"
        return AutotuneError(
            f"the system gives this process no more memory, processes or open files: {why}",
            remedy="Look at the limits (ulimit -a) and at what else runs here, then run the command again.",
        )
    if isinstance(error, OSError):
        # The machine's doing (a folder gone, a disk full, no permission), wherever it struck.
        return AutotuneError(
            f"{error.strerror or error}",
            where=str(error.filename) if error.filename else None,
            remedy="Check that the place exists, may be written to, and has space; then run the command again.",
        )
    return None


_LEAST_ADDRESSES_BYTES = 240 << 20  # numpy's library ends the process by itself where it gets less than it needs


def require_addresses() -> None:
    """Refuses to begin where what has to be loaded would end the process without a word of ours.

    Raises:
        AutotuneError: The limit on address space is too low.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < _LEAST_ADDRESSES_BYTES:
        raise AutotuneError(
            f"the limit on address space is {limit_bytes >> 20} MiB, and {_LEAST_ADDRESSES_BYTES >> 20} are needed",
            remedy="Raise it (ulimit -v, or what a batch system sets), then run the command again.",
        )


class ToldToEnd(KeyboardInterrupt):
    """SIGTERM: somebody wants this process to end. What does not tell the two apart takes it for ^C."""


def how_it_ended(interrupt: BaseException | None) -> tuple[str, int]:
    """The words for what interrupted a command, and its exit code: 128 and the signal's number, as in a shell.

    Args:
        interrupt: The exception; None, and all others, count as ^C.
    """
    return ("ended by SIGTERM", 143) if isinstance(interrupt, ToldToEnd) else ("interrupted", 130)
