"""Scan of a trainer's sources for slow code."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.diagnose.static.code.live_code import LiveCode
from autotune.diagnose.static.code.rule import Rule, Surroundings
from autotune.diagnose.static.code.rules import RULES
from autotune.diagnose.static.code.source_file import SourceFile, parse
from autotune.diagnose.static.code.training import Training
from autotune.files import read_beginning

_LARGEST_BYTES = 1 << 20  # of one file: what is larger was not written by hand
_MOST_BYTES = 4 << 20  # of all of them: some seconds


@dataclass(frozen=True, kw_only=True)
class Place:
    """Line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """Places that a rule found, in order of file and line."""

    rule: Rule
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Result of a scan.

    Attributes:
        found: What was found, by rule.
        files: Number of files that were read.
        unread: Why others were not, for people.
    """

    found: tuple[Found, ...]
    files: int
    unread: tuple[str, ...]


def scan(paths: Sequence[Path], folder: Path, named: Iterable[str], surroundings: Surroundings) -> Scan:
    """Read sources and look for what the rules know.

    Args:
        paths: The sources, the script first.
        folder: Folder that their names are relative to, where they are in it.
        named: Words of the config, which may name classes and functions.
        surroundings: What the rules may depend on.
    """
    files: list[SourceFile] = []
    unread: list[str] = []
    left = _MOST_BYTES
    for path in paths:
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        content = read_beginning(path.resolve(), _LARGEST_BYTES + 1)
        if len(content) > min(_LARGEST_BYTES, left):
            unread.append(f"{name} was not read: it is larger than {min(_LARGEST_BYTES, left) >> 10} KiB")
            continue
        left -= len(content)
        parsed = parse(path, name, content, is_script=path == paths[0])
        if isinstance(parsed, SourceFile):
            files.append(parsed)
        else:
            unread.append(parsed)
    training = Training(LiveCode(files, named))
    found = [
        Found(rule=rule, places=places)
        for rule in RULES
        if rule.applies(surroundings) and (places := tuple(_places(rule, training)))
    ]
    return Scan(found=tuple(found), files=len(files), unread=tuple(unread))


def _places(rule: Rule, training: Training) -> Iterator[Place]:
    order = {file: place for place, file in enumerate(training.code.files)}
    found = {(order[unit.file], _line(node), unit.file.name) for unit, node in rule.find(training)}
    return (Place(file=name, line=line) for _, line, name in sorted(found))


def _line(node: ast.AST) -> int:
    """Return the line of a node: of a call of a method its own, not that in which the object before it begins."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return int(getattr(node, "lineno", 1))
