"""Digests of a trainer's own files; trials are compared only if these are equal.

A Python file is hashed by its syntax tree, without comments, layout and values that a search may vary there, but with
the line numbers that identify them. Other files are hashed by their bytes.
"""

import ast
import hashlib
import math
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from autotune.config.code import without_values
from autotune.config.sources import find_script, trainer_files
from autotune.files import file_sha256, read_beginning
from autotune.records import Scalar, TrialRecord

_MOST_FILES = 500
_MOST_BYTES = 4 << 20  # of one file
_SOURCES = (".py", ".sh", ".bash")
_NOT_ITS_OWN = frozenset({"site-packages", "dist-packages", "__pycache__"})
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")  # of virtual environments and caches
_LAYOUT = frozenset({"type_comment", "type_ignores", "kind"})  # fields of syntax trees without meaning
_DIGITS = 16
_WHOLE = "all files"
_ELSEWHERE = "(script)/"  # prefix of files outside the project
_NAMED = 3


class TrainerCode:
    """Current code of a command.

    Args:
        words: The command.
        folder: Working folder; file names are relative to it, so that a project may move.
        excluded: Files and folders: configs and trial data.
    """

    def __init__(self, words: Sequence[str], folder: Path, excluded: Sequence[Path] = ()) -> None:
        self._words = words
        self._folder = folder.absolute()
        self._real = os.path.realpath(folder)
        above = (Path(self._real), *Path(self._real).parents)
        self._project = str(next((place for place in above if (place / ".git").exists()), self._real))
        temporary = os.path.realpath(tempfile.gettempdir())
        if not _is_below(self._real, temporary):  # on clusters TMPDIR is often inside the project
            excluded = (*excluded, Path(temporary))
        self._excluded = tuple(os.path.realpath(path) for path in excluded)

    def digests(self, loaded: Iterable[str] = (), *, before_s: float = math.inf) -> dict[str, str]:
        """Return the digests of the project's files that the command loads, by name.

        Args:
            loaded: Files that a trial reported.
            before_s: Start of that trial in Unix time; files written later are generated (AutoGraph, torch.compile).
        """
        found = [*trainer_files(self._words, self._folder), *self._scripts()]
        found += [Path(path) for path in loaded if self._is_own(path, before_s)]
        return {
            name: digest
            for path in dict.fromkeys(found[:_MOST_FILES])
            if not self._is_excluded(os.path.realpath(path))
            and (name := self._name(path)).isprintable()
            and (digest := _digest(path))
        }

    def facts(self) -> dict[str, str]:
        """Return digests of all files together and of the first few, for `why_code_differs`."""
        digests = self.digests()
        whole = hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:_DIGITS]
        return {_WHOLE: whole, **dict(list(digests.items())[:40])} if digests else {}

    def changed(self, code: Mapping[str, str], present: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Return the names of files changed or deleted since a trial; files outside this project are never read."""
        present = self.digests() if code and present is None else present or {}
        return tuple(
            name
            for name, digest in sorted(code.items())
            if digest != (present.get(name) or self._digest_of(name))
            and (self._words or not name.startswith(_ELSEWHERE))  # whose place is unknown without a command
        )

    def _scripts(self) -> Iterator[Path]:
        """Yield the project's scripts that the command names, apart from a trainer in Python."""
        paths = (self._folder / word for word in self._words)
        yield from (path for path in paths if path.suffix in _SOURCES and self._is_own(str(path)))

    def _is_own(self, path: str, before_s: float = math.inf) -> bool:
        if "\0" in path:
            return False
        real = os.path.realpath(path)
        inside = os.path.relpath(real, self._project)
        parts = inside.split(os.sep)
        if parts[0] in (os.pardir, "build") or not _NOT_ITS_OWN.isdisjoint(parts) or not real.endswith(_SOURCES):
            return False
        if any(part.startswith(".") for part in parts) or self._is_excluded(real):
            return False
        return _modified_s(real) < before_s and not _is_in_environment(real, self._project)

    def _is_excluded(self, real: str) -> bool:
        return any(_is_below(real, place) for place in self._excluded)

    def _name(self, path: Path) -> str:
        """Return a file's path relative to the folder, resolved only if necessary."""
        for folder in (str(self._folder), self._real):
            if str(path).startswith(folder.rstrip(os.sep) + os.sep):
                return os.path.relpath(path, folder)
        real = os.path.realpath(path)
        if os.path.relpath(real, self._project).partition(os.sep)[0] != os.pardir:
            return os.path.relpath(real, self._real)
        # Relative to the script of a trainer outside the project, which does not move with the project.
        script = find_script(self._words, self._folder).path
        return _ELSEWHERE + os.path.relpath(real, os.path.realpath(script.parent if script else self._folder))

    def _digest_of(self, name: str) -> str | None:
        path = os.path.normpath(os.path.join(self._real, name))
        return _digest(Path(path)) if not os.path.isabs(name) and self._is_own(path) else None


class ProjectCode:
    """Code of a trainer, seen from each folder that its command may run in."""

    def __init__(self, seen: Sequence[TrainerCode]) -> None:
        self._seen = seen

    @property
    def now(self) -> TrainerCode:
        return self._seen[0]

    def changed(self, code: Mapping[str, str]) -> tuple[str, ...]:
        return min((one.changed(code) for one in self._seen), key=len)

    def of_now(self, records: Iterable[TrialRecord]) -> list[TrialRecord]:
        """Return the trials of the current code, or of unknown code."""
        records, is_now, kept = list(records), dict[frozenset[tuple[str, str]], bool](), []
        present = [(one, one.digests()) for one in self._seen] if any(trial.code for trial in records) else []
        for trial in records:
            code = frozenset(trial.code.items())
            if code not in is_now:
                is_now[code] = not code or not all(one.changed(trial.code, now) for one, now in present)
            if is_now[code]:
                kept.append(trial)
        return kept


def why_code_differs(here: Mapping[str, Scalar], there: Mapping[str, Scalar]) -> str | None:
    """Return what differs between the `TrainerCode.facts` of two machines, if known; to be escaped by the caller."""
    if not here or not there or here.get(_WHOLE) == there.get(_WHOLE):
        return None
    names = [name for name in here if name != _WHOLE and there.get(name, here[name]) != here[name]]
    return f"{' and '.join(names[:_NAMED]) or 'a module that the trainer loads'} is not the same there"


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _modified_s(path: str) -> float:
    try:
        return os.stat(path).st_mtime if os.path.isfile(path) else math.inf
    except OSError:
        return math.inf


def _is_in_environment(real: str, project: str) -> bool:
    places = [place for place in Path(real).parents if _is_below(str(place), project)]
    return any((place / mark).exists() for place in places for mark in _ENVIRONMENT_MARKS)


def _digest(path: Path) -> str | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return _digest_at(str(path), status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4096)
def _digest_at(path: str, _mtime_ns: int, size: int, _inode: int) -> str | None:
    if path.endswith(".py") and size <= _MOST_BYTES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the user's code: an odd escape, `is` with a literal
                text = repr(_meaning(without_values(ast.parse(read_beginning(Path(path), _MOST_BYTES)))))
            return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # of another version of Python, or not Python
    return (file_sha256(Path(path), _MOST_BYTES) or "")[:_DIGITS] or None


def _meaning(node: object) -> object:
    """Return a syntax tree without positions and empty fields, equal across Python versions."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in _LAYOUT)
        return type(node).__name__, [(name, _meaning(value)) for name, value in fields if value not in (None, [])]
    return [_meaning(one) for one in node] if isinstance(node, list) else node
