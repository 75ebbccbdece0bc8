"""Code of a trainer: the project's own files that it loads, each by a digest of what it means.

Trials are compared only where these files were the same. A Python file counts by its parsed code, so that comments and
layout do not matter, nor values that a search may vary there, but for their lines, by which it names them; every other
one by its bytes. What a config says is no part of it: that is the study's identity.
"""

import ast
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from autotune.config.code import without_values
from autotune.config.command import find_script
from autotune.config.sources import trainer_files
from autotune.files import file_sha256, read_beginning
from autotune.records import Scalar

_MOST_FILES = 500
_MOST_BYTES = 4 << 20  # of one file
_SOURCES = (".py", ".sh", ".bash")
_NOT_ITS_OWN = frozenset({"site-packages", "dist-packages", ".git"})
_LAYOUT = frozenset({"type_comment", "type_ignores", "kind"})  # fields of syntax trees that mean nothing
_DIGITS = 16
_WHOLE = "all files"
_ELSEWHERE = "(script)/"  # begins the names of files outside of the project
_NAMED = 3


class TrainerCode:
    """Code that a command starts, as it is on disk now.

    Args:
        words: The command, placeholders filled in or not.
        folder: The folder that it is started in; files are named by their paths from there, so that a project may
            move.
        apart: Files and folders that do not count: those of the config, and of what is kept of trials.
    """

    def __init__(self, words: Sequence[str], folder: Path, apart: Sequence[Path] = ()) -> None:
        self._words = words
        self._folder = folder.absolute()
        self._real = os.path.realpath(folder)
        self._project = _project_of(Path(self._real))
        self._apart = tuple(os.path.realpath(path) for path in apart)

    def digests(self, loaded: Iterable[str] = ()) -> dict[str, str]:
        """Return the digest of each of the project's own files that the command loads, by its name.

        Args:
            loaded: Further files, as a trial of the command has reported them; those of the project count.

        Returns:
            At most 500 files; none where the command starts no script that is found.
        """
        found = [*trainer_files(self._words, self._folder), *self._scripts()]
        found += [Path(path) for path in loaded if self._is_own(path)]
        return {
            name: digest
            for path in dict.fromkeys(found[:_MOST_FILES])
            if not self._is_apart(os.path.realpath(path))
            and (name := self._name(path)).isprintable()
            and (digest := _digest(path))
        }

    def facts(self) -> dict[str, str]:
        """Return the digest of all files, and those of the first few, for `why_code_differs` on another machine."""
        digests = self.digests()
        whole = hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:_DIGITS]
        return {_WHOLE: whole, **dict(list(digests.items())[:40])} if digests else {}

    def changed(self, code: Mapping[str, str], present: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Return the names of the files that are not what they were when a trial loaded them, or are gone.

        Args:
            code: Digests of `digests`; they may come from a storage, and only files of this project are looked at.
            present: What `digests` returns now, for who asks of several codes; None to find out.
        """
        present = self.digests() if code and present is None else present or {}
        return tuple(
            name
            for name, digest in sorted(code.items())
            if digest != (present.get(name) or self._digest_of(name))
            and (self._words or not name.startswith(_ELSEWHERE))  # without a command nobody knows where that is
        )

    def _scripts(self) -> Iterator[Path]:
        """Yield the scripts of the project that the command names besides a trainer in Python."""
        for word in self._words:
            path = self._folder / word
            if path.suffix in _SOURCES and self._is_own(str(path)):
                yield path

    def _is_own(self, path: str) -> bool:
        if "\0" in path:
            return False
        real = os.path.realpath(path)
        inside = os.path.relpath(real, self._project)
        parts = inside.split(os.sep)
        if parts[0] == os.pardir or not _NOT_ITS_OWN.isdisjoint(parts) or not real.endswith(_SOURCES):
            return False
        if self._is_apart(real):
            return False
        return os.path.isfile(real) and not _is_in_environment(real, self._project)

    def _is_apart(self, real: str) -> bool:
        return any(real == place or real.startswith(place + os.sep) for place in self._apart)

    def _name(self, path: Path) -> str:
        """Return the path of a file from the folder, whichever of their names these go by."""
        for folder in (str(self._folder), self._real):
            if str(path).startswith(folder.rstrip(os.sep) + os.sep):
                return os.path.relpath(path, folder)
        real = os.path.realpath(path)
        if os.path.relpath(real, self._project).partition(os.sep)[0] != os.pardir:
            return os.path.relpath(real, self._real)
        # Of a trainer outside of the project, which the command names: it stays where it is when the project moves.
        script = find_script(self._words, self._folder).path
        return _ELSEWHERE + os.path.relpath(real, os.path.realpath(script.parent if script else self._folder))

    def _digest_of(self, name: str) -> str | None:
        path = os.path.normpath(os.path.join(self._real, name))
        return _digest(Path(path)) if not os.path.isabs(name) and self._is_own(path) else None


def why_code_differs(here: Mapping[str, Scalar], there: Mapping[str, Scalar]) -> str | None:
    """Compare what two machines say of their code.

    Args:
        here: `TrainerCode.facts` of this machine.
        there: Those of the other; they may come from a storage, and are to be shown escaped.

    Returns:
        What differs, as a part of a sentence; None if nothing does, or nothing is known of one of them.
    """
    if not here or not there or here.get(_WHOLE) == there.get(_WHOLE):
        return None
    names = [name for name in here if name != _WHOLE and there.get(name, here[name]) != here[name]]
    return f"{' and '.join(names[:_NAMED]) or 'a module that the trainer loads'} is not the same there"


def _project_of(folder: Path) -> str:
    return str(next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder))


def _is_in_environment(real: str, project: str) -> bool:
    places = Path(real).parents
    return any((place / "pyvenv.cfg").is_file() for place in places if str(place).startswith(project))


def _digest(path: Path) -> str | None:
    """Return the digest of a file; None for what cannot be read."""
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
                said = repr(_meaning(without_values(ast.parse(read_beginning(Path(path), _MOST_BYTES)))))
            return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # of another version of Python, or none
    return (file_sha256(Path(path), _MOST_BYTES) or "")[:_DIGITS] or None


def _meaning(node: object) -> object:
    """Return a syntax tree without places and empty fields: the same from each version of Python that reads it."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in _LAYOUT)
        return type(node).__name__, [(name, _meaning(value)) for name, value in fields if value not in (None, [])]
    return [_meaning(one) for one in node] if isinstance(node, list) else node
