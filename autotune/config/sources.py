"""Source files of a trainer: the script that its command starts and the modules beside it, read and never imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config.code_source import LiveCode, SourceFile, parse
from autotune.config.command import Script, find_script, takes_values
from autotune.files import read_beginning
from autotune.frameworks import FRAMEWORKS
from autotune.records import Scalar

_MOST_FILES = 500
_MOST_BYTES = 4 << 20  # of a file whose imports are looked for
_LARGEST_BYTES = 1 << 20  # of one file that is parsed: what is larger was not written by hand
_MOST_PARSED_BYTES = 2 << 20  # of all of them: some seconds
_FRAMEWORKS = {*(name for row in FRAMEWORKS for name in (row.module, *row.built_on_it)), "accelerate", "flax"}
_IMPORT = re.compile(
    r"^[ \t]*(?:import[ \t]+([^\n#;(]+)|from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]+))", re.M
)
_NAME = re.compile(r"[^\W\d][\w.]*")


def trainer_files(words: Sequence[str], cwd: Path) -> tuple[Path, ...]:
    """Return the script that a command starts, first, and the modules beside it that it imports, and these do.

    Args:
        words: The command, placeholders filled in or not.

    Returns:
        At most 500 files; none where the command starts no Python script that is found.
    """
    script = find_script(words, cwd)
    files = _imported_files(script, cwd)
    return tuple(sorted(files, key=lambda path: path != script.path))


def opens_by_name(words: Sequence[str], cwd: Path, configs: Iterable[Path]) -> bool:
    """Return whether a trainer opens its configs by itself, as far as one sees: its command names none, its source all.

    Args:
        words: The command, placeholders not filled in.
    """
    if takes_values(words):
        return False
    texts = [read_beginning(path, _MOST_BYTES) for path in trainer_files(words, cwd)]
    ends = (re.escape(os.fsencode(config.name)) for config in configs)
    return all(any(re.search(rb"""['"](?:[^'"\n]*/)?%b['"]""" % end, text) for text in texts) for end in ends)


def _imported_files(script: Script, cwd: Path) -> list[Path]:
    if script.path is None:
        return []
    roots = tuple(dict.fromkeys((str(script.path.parent), _above_package(script.path), str(cwd))))
    found, waiting, asked = {str(script.path)}, [str(script.path)], set[str]()
    while waiting and len(found) < _MOST_FILES:
        names = set(_imports(waiting.pop(), roots)) - asked
        asked |= names
        new = {path for name in names for path in _files_of(name, roots)} - found
        found |= new
        waiting += sorted(new)
    return [Path(path) for path in sorted(found)[:_MOST_FILES]]


def _above_package(script: Path) -> str:
    folder = script.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return str(folder)


def _imports(path: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield dotted names of modules that a file may import, as seen from the folders that modules are looked up in.

    Lines that look like an import count, which is many times faster than to parse the file. Names in a text that looks
    so do no harm: there is no such module, or one more counts.
    """
    for plain, start, named in _IMPORT.findall(read_beginning(Path(path), _MOST_BYTES).decode("utf-8", "replace")):
        if plain:
            yield from _NAME.findall(plain)
            continue
        module = start.lstrip(".")
        package = _package(path, len(start) - len(module), roots) if start.startswith(".") else ""
        if package is not None:
            base = ".".join(filter(None, (package, module)))
            yield base
            yield from (f"{base}.{name}".lstrip(".") for name in _NAME.findall(named))


def _package(path: str, level: int, roots: Sequence[str]) -> str | None:
    """Return the dotted name of the package that a relative import starts from; None if it is in none of the roots."""
    folder = path
    for _level in range(level):
        folder = os.path.dirname(folder)
    for root in roots:
        if folder == root or folder.startswith(root.rstrip(os.sep) + os.sep):
            return folder[len(root) :].strip(os.sep).replace(os.sep, ".")
    return None


def _files_of(name: str, roots: Sequence[str]) -> Iterator[str]:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return
    for root in roots:
        for length in range(1, len(parts) + 1):
            place = os.path.join(root, *parts[:length])
            found = [path for path in (f"{place}.py", os.path.join(place, "__init__.py")) if os.path.isfile(path)]
            yield from found
            if not found and not os.path.isdir(place):
                break


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Sources of a trainer as they were read.

    Attributes:
        code: What of them runs in training.
        files: How many were read.
        unread: Why others were not, for people.
    """

    code: LiveCode
    files: int
    unread: tuple[str, ...]


def read_sources(paths: Sequence[Path], folder: Path, named: Iterable[str], telling: re.Pattern[bytes]) -> Sources:
    """Read sources; of those without anything to tell only the names that they use.

    Args:
        paths: The sources, the script first.
        folder: Folder that their names are relative to, where they are in it.
        named: Words of the config, which may name classes and functions.
        telling: Found in each source that is parsed, besides the script.
    """
    files: list[SourceFile] = []
    unread: list[str] = []
    words = set(named)
    left, seen = _MOST_PARSED_BYTES, 0
    for path in paths:
        parts = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
        if parts[:1] and (parts[0] in _FRAMEWORKS or (parts[0] == "autotune" and parts[1:2] != ("workloads",))):
            continue  # somebody trains beside the sources of a framework, or of ours
        name, why = str(Path(*parts) if parts else path), ""
        content = read_beginning(path.resolve(), _LARGEST_BYTES + 1)
        seen += 1
        if len(content) > _LARGEST_BYTES:
            why = f"{name} was not read: it is larger than {_LARGEST_BYTES >> 20} MiB"
        elif path == paths[0] or telling.search(content):
            if len(content) <= left:
                parsed = parse(name, content, is_script=path == paths[0])
                if isinstance(parsed, SourceFile):
                    files.append(parsed)
                    left -= len(content)
                    continue
                why = parsed
            else:
                size = _MOST_PARSED_BYTES >> 20
                why = f"{name} was not read: the sources are larger than {size} MiB together"
        words |= _words_of_code(content)
        unread += [why] if why else []
    return Sources(code=LiveCode(files, words), files=seen - len(unread), unread=tuple(unread))


def words_in(values: Iterable[Scalar]) -> Iterator[str]:
    """Yield the words of texts that may name something in code: ``models.net:Net`` names models and net."""
    for text in values:
        if isinstance(text, str):
            yield from text.replace("/", ".").replace("=", ".").split(".")


def _words_of_code(content: bytes) -> set[str]:
    imports = rb"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]*(?:\([^)]*\)|[^\n]*)"
    return {word.decode() for word in re.findall(rb"[A-Za-z_]\w*", re.sub(imports, b"", content, flags=re.M))}
