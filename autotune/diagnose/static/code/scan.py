"""Scan of a trainer's sources for slow code."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.diagnose.messages.message import said
from autotune.diagnose.static.code.live_code import LiveCode
from autotune.diagnose.static.code.rule import Rule, Surroundings
from autotune.diagnose.static.code.rules import RULES
from autotune.diagnose.static.code.source_file import SourceFile, parse
from autotune.diagnose.static.code.training import Training
from autotune.files import read_beginning

_LARGEST_BYTES = 1 << 20  # of one file: what is larger was not written by hand
_MOST_BYTES = 2 << 20  # of all that are parsed: some seconds
# A source without any of these has nothing that a rule could find, and is not parsed: most of a library of models.
_TELLING = re.compile(
    rb"DataLoader|TrainingArguments|\bDataset\.|\.Dataset\b|tfds|_dataset_from_directory|\.prefetch\(|\.interleave\("
    rb"|backward\(|apply_gradients|train_on_batch|training_step|numpy_function|py_func|eagerly|enable_debug_mode"
    rb"|check_numerics|detect_anomaly|\.function\b|import function"
)
_FRAMEWORKS = frozenset(
    (name,) for name in ("keras", "tensorflow", "torch", "transformers", "accelerate", "lightning", "jax", "flax")
)
_OWN = ("autotune", "workloads")
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]*(?:\([^)]*\)|[^\n]*)", re.MULTILINE)
_WORD = re.compile(rb"[A-Za-z_]\w*")


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
    words = set(named)
    left, seen = _MOST_BYTES, 0
    for path in paths:
        parts = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
        if parts[:1] in _FRAMEWORKS or (parts[:1] == _OWN[:1] and parts[:2] != _OWN):
            continue  # somebody trains beside the sources of a framework, or of ours
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        content = read_beginning(path.resolve(), _LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            unread.append(
                said(
                    "code.large",
                    "{file} was not read: it is larger than {size} MiB",
                    file=name,
                    size=_LARGEST_BYTES >> 20,
                )
            )
        elif path != paths[0] and not _TELLING.search(content):
            words |= _words(content)
        elif len(content) > left:
            unread.append(
                said(
                    "code.large-together",
                    "{file} was not read: the sources are larger than {size} MiB together",
                    file=name,
                    size=_MOST_BYTES >> 20,
                )
            )
            words |= _words(content)
        elif isinstance(parsed := parse(path, name, content, is_script=path == paths[0]), SourceFile):
            files.append(parsed)
            left -= len(content)
        else:
            unread.append(parsed)
            words |= _words(content)
        seen += 1
    training = Training(LiveCode(files, words))
    found = [
        Found(rule=rule, places=places)
        for rule in RULES
        if rule.applies(surroundings) and (places := tuple(_places(rule, training)))
    ]
    return Scan(found=tuple(found), files=seen - len(unread), unread=tuple(unread))


def _words(content: bytes) -> set[str]:
    """Return the words of a source that is not parsed, which count as used; those that it only imports do not."""
    return {word.decode() for word in _WORD.findall(_IMPORT.sub(b"", content))}


def _places(rule: Rule, training: Training) -> Iterator[Place]:
    order = {file: place for place, file in enumerate(training.code.files)}
    found = {(order[unit.file], _line(node), unit.file.name) for unit, node in rule.find(training)}
    return (Place(file=name, line=line) for _, line, name in sorted(found))


def _line(node: ast.AST) -> int:
    """Return the line of a node: of a call of a method its own, not that in which the object before it begins."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return int(getattr(node, "lineno", 1))
