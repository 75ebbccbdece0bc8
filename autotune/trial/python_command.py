"""Python command lines: parsing as CPython does, for forks of a warm interpreter, and exec."""

import os
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from autotune.errors import CommandError
from autotune.files import read_beginning
from autotune.trial.termination import release_signals

_INTERPRETER = re.compile(r"python[0-9.]*t?")
_SWITCHES = frozenset("bBdEIOPqRsSu")  # options without a value, with the same effect in a fork
_WITH_VALUE = frozenset("WX")
_ISOLATING = "IES"  # they ignore PYTHONPATH or sitecustomize, which load the observer
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_NOT_SCRIPTS = (".pyc", ".pyo", ".zip", ".pyz", ".egg", ".whl")


@dataclass(frozen=True, kw_only=True)
class PythonCommand:
    """Command that runs a Python script or module.

    Attributes:
        interpreter: Path or name; for a script with a ``#!`` line, that of the line.
        script: Path as typed.
        module: Name after ``-m``.
    """

    interpreter: str
    options: tuple[str, ...]
    script: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()

    @property
    def isolating_options(self) -> tuple[str, ...]:
        switches = [word for word in self.options if word[0] == "-" and word[1] not in {"-", *_WITH_VALUE}]
        return tuple(f"-{letter}" for letter in _ISOLATING if any(letter in word for word in switches))


def python_command(argv: Sequence[str], *, cwd: Path, search_path: str | None) -> PythonCommand | None:
    """Parse ``python [options] script [arguments]`` or ``python [options] -m module [arguments]``.

    A program whose ``#!`` line names a Python interpreter counts as a script. None for other programs, ``-c``, a folder
    or archive as script, and options without effect in a fork.

    Args:
        search_path: ``PATH`` of the command.
    """
    if not argv:
        return None
    if not _is_interpreter(argv[0], cwd, search_path):
        argv = [*_shebang(argv[0], cwd, search_path), *argv[1:]]
        if len(argv) < 2 or not _is_interpreter(argv[0], cwd, search_path):
            return None
    options: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == _LONG_WITH_VALUE and words:
            options += [word, words.pop(0)]
        elif word.startswith("-") and word != "-":
            read = _read_switches(word, words)
            if read is None:
                return None
            options += read[0]
            if read[1] is not None:
                return PythonCommand(
                    interpreter=argv[0], options=tuple(options), module=read[1], arguments=tuple(words)
                )
        else:
            if not _is_script(cwd / word):
                return None
            return PythonCommand(interpreter=argv[0], options=tuple(options), script=word, arguments=tuple(words))
    return None


def _read_switches(word: str, following: list[str]) -> tuple[tuple[str, ...], str | None] | None:
    """Parse one word of options, and pop its value from the next words.

    Returns:
        The options and the module after ``-m``; None for options without effect in a fork (``-i``, ``-x``, ``-v``,
        ``-X importtime``).
    """
    for place, letter in enumerate(word[1:], start=1):
        if letter in _SWITCHES:
            continue
        value = word[place + 1 :]
        if not value:
            if not following:
                return None
            value = following.pop(0)
        before = (word[:place],) if place > 1 else ()
        if letter == "m":
            return before, value
        if letter in _WITH_VALUE and not value.startswith("importtime"):
            return (*before, f"-{letter}{value}"), None
        return None
    return (word,), None


def _shebang(program: str, cwd: Path, search_path: str | None) -> list[str]:
    """Return the words of a program's ``#!`` line, followed by its path; empty without one."""
    found = _file_of(program, cwd, search_path)
    line = read_beginning(Path(found), 512).partition(b"\n")[0] if found and os.path.isfile(found) else b""
    if found is None or not line.startswith(b"#!"):
        return []
    words = line[2:].decode(errors="replace").split(maxsplit=1)
    return [*(words[1:] if words and os.path.basename(words[0]) == "env" else words), found]


def _file_of(program: str, cwd: Path, search_path: str | None) -> str | None:
    return str(cwd / program) if os.sep in program else shutil.which(program, path=search_path)


def _is_interpreter(program: str, cwd: Path, search_path: str | None) -> bool:
    found = _file_of(program, cwd, search_path)
    if found is None or not os.path.isfile(found) or not os.access(found, os.X_OK):
        return False
    return any(_INTERPRETER.fullmatch(os.path.basename(path)) for path in (found, os.path.realpath(found)))


def _is_script(path: Path) -> bool:
    return os.path.isfile(path) and not path.name.endswith(_NOT_SCRIPTS) and not zipfile.is_zipfile(path)


# Exec of a real training in place of this process.


def exec_program(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> NoReturn:
    """Replace this process with a command, without a shell; raise CommandError if it cannot be started."""
    sys.stdout.flush()
    sys.stderr.flush()
    release_signals()
    # Python ignores these signals, and ignored signals stay ignored after exec: `train.py | head` would never end.
    for one in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)
    try:
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 -- no shell, on purpose
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{argv[0]} cannot be started: {getattr(error, 'strerror', None) or error}",
            where="command",
            remedy="Check that it is executable; a script needs a first line such as #!/usr/bin/env python.",
        ) from error
