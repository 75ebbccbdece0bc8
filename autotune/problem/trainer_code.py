"""Code of a trainer on this machine: machines work on one study only if theirs is the same.

In a git project it is the commit and what differs from it; without one it is the script and the modules that it
imports from beside it. What a config says is no part of it: that is the study's identity.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autotune.files import file_sha256, read_beginning
from autotune.process.git_state import GitState, git_state, is_tracked
from autotune.records import Scalar
from autotune.settings.script import Script, find_script

COMMIT, CHANGES, CHANGED, FILES = "code.commit", "code.changes", "code.changed", "code.files"
"""Names of the scalars of a state: commit, hash of what differs from it, names of that, hash of the trainer's files."""

_MOST_FILES = 500
_MOST_BYTES = 4 << 20  # of one file
_NAMES_SHOWN = 5
_IMPORT = re.compile(
    r"^[ \t]*(?:import[ \t]+([^\n#;(]+)|from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]+))", re.M
)
_NAME = re.compile(r"[^\W\d][\w.]*")
_DIGITS = 16


def trainer_code(words: Sequence[str], cwd: Path, configs: Sequence[Path] = ()) -> dict[str, Scalar]:
    """Return the state of the code that a command starts, as scalars that may be kept and shown.

    Args:
        words: The command, placeholders filled in or not.
        cwd: The directory that it is started in.
        configs: Files of the config, which do not count.

    Returns:
        Scalars by `COMMIT`, `CHANGES`, `CHANGED` and `FILES`; the first three are None outside of a git project, the
        last one where the command starts no Python script that is found.
    """
    script = find_script(words, cwd)
    git = git_state(script.path.parent if script.path else cwd)
    own = {os.path.realpath(path) for path in configs}
    files = [path for path in _imported_files(script, cwd) if os.path.realpath(path) not in own]
    state: dict[str, Scalar] = {COMMIT: None, CHANGES: None, CHANGED: None}
    if git is not None:
        changed = [git.root / name for name in git.changed if os.path.realpath(git.root / name) not in own]
        if script.path is not None and not is_tracked(script.path):
            changed.append(Path(os.path.realpath(script.path)))
        state = {COMMIT: git.commit, CHANGES: _digest(changed, git.root), CHANGED: _shown(changed, git)}
    return {**state, FILES: _digest(files, script.path.parent) if script.path else None}


def trainer_files(words: Sequence[str], cwd: Path) -> tuple[Path, ...]:
    """Return the script that a command starts, first, and the modules beside it that it imports, and these do.

    Args:
        words: The command, placeholders filled in or not.
        cwd: The directory that it is started in.

    Returns:
        At most 500 files; none where the command starts no Python script that is found.
    """
    script = find_script(words, cwd)
    files = _imported_files(script, cwd)
    return tuple(sorted(files, key=lambda path: path != script.path))


def why_code_differs(here: Mapping[str, Scalar], there: Mapping[str, Scalar]) -> str | None:
    """Compare two states of `trainer_code`; names missing in one of them are not compared.

    Args:
        here: That of this machine.
        there: That of the other machines; it may come from a storage, and is to be shown escaped.

    Returns:
        What differs, as a part of a sentence; None if nothing does.
    """
    if here.get(COMMIT) is not None and there.get(COMMIT) is not None:
        if here[COMMIT] != there[COMMIT]:
            return f"the trainer's project is at commit {_short(here[COMMIT])} here, at {_short(there[COMMIT])} there"
        if here.get(CHANGES) == there.get(CHANGES):
            return None
        names = f"{here.get(CHANGED) or 'nothing'} here, {there.get(CHANGED) or 'nothing'} there"
        return f"the trainer's project has other changes that are not committed ({names})"
    if here.get(FILES) is not None and there.get(FILES) is not None and here[FILES] != there[FILES]:
        return "the trainer's script, or a module that it imports from beside it, is not the same"
    return None


def _imported_files(script: Script, cwd: Path) -> list[Path]:
    """Return the script and the modules below its folder, or the working directory, that it imports, and these do."""
    if script.path is None:
        return []
    roots = tuple(dict.fromkeys((str(script.path.parent), str(cwd))))
    found, waiting, asked = {str(script.path)}, [str(script.path)], set[str]()
    while waiting and len(found) < _MOST_FILES:
        names = set(_imports(waiting.pop(), roots)) - asked
        asked |= names
        new = {path for name in names for path in _files_of(name, roots)} - found
        found |= new
        waiting += sorted(new)
    return [Path(path) for path in sorted(found)[:_MOST_FILES]]


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
    for _ in range(level):
        folder = os.path.dirname(folder)
    for root in roots:
        if folder == root or folder.startswith(root.rstrip(os.sep) + os.sep):
            return folder[len(root) :].strip(os.sep).replace(os.sep, ".")
    return None


def _files_of(name: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield the file of a module, and those of the packages that it is in."""
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


def _digest(paths: Sequence[Path], root: Path) -> str:
    """Return a hash of the names and contents of files; empty for none."""
    if not paths:
        return ""
    digest = hashlib.sha256()
    for path in paths[:_MOST_FILES]:
        name = os.path.relpath(path, root)
        digest.update(f"{name}\0{file_sha256(path, _MOST_BYTES)}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:_DIGITS]


def _shown(changed: Sequence[Path], git: GitState) -> str:
    names = [os.path.relpath(path, git.root) for path in changed]
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ascii(", ".join(names[:_NAMES_SHOWN]))[1:-1] + more


def _short(commit: Scalar) -> str:
    return str(commit)[:8]
