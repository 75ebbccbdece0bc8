"""Config file as text, with the exact place of every value.

Nothing is dumped back: `autotune.config.splice` edits the text at the places that the parsers report. YAML, JSON, TOML
and Python share one kind of node tree.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from autotune.config.keys import KeyPath, Syntax, did_you_mean, dotted, shown, syntax_of
from autotune.config.parsers import (
    COMPUTED_TAG,
    DATE_TAG,
    MERGE_TAG,
    STANDARD_TAGS,
    TEMPLATE,
    TOO_DEEP,
    Parser,
    compose,
    compose_plain,
    compose_python,
    joined_surrogates,
    looks_like_template,
    nodes,
    plain_reading_1_2,
    reading,
    same_value,
)
from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar

_LARGEST_FILE_BYTES = 2**20


_KEPT_AS_TEXT = tuple(f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "value", "merge"))


_Entries = dict[str | int, tuple[Any, bool]]
_Path = TypeVar("_Path", bound=KeyPath)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Scalar of a config.

    Attributes:
        value: If the parsers disagree, the reading that is not a string: ``1e-4`` or ``yes``.
        reading_1_1: Value that PyYAML reads.
        text: As written, without quotes and escapes.
        start: Index of its first character in the document's text, after tag and anchor.
        style: Quote character; None for a plain scalar.
        number: Index among the nodes of the tree.
        why_fixed: Why it cannot be changed separately.
        computed: Whether only the trainer knows the value, because of a template or a tag.
        is_clear: Whether its keys are unique.
    """

    path: tuple[str | int, ...]
    value: Scalar
    reading_1_1: Scalar
    text: str
    line: int
    start: int
    end: int
    style: str | None
    number: int
    why_fixed: str | None
    computed: bool
    syntax: Syntax = Syntax.YAML
    is_clear: bool = True

    @property
    def dotted(self) -> str:
        return dotted(self.path)


@dataclass(frozen=True, kw_only=True)
class _Spot:
    node: Any
    path: tuple[str | int, ...] = ()
    merged: bool = False
    shared: bool = False
    in_set: bool = False
    why_not_clear: str | None = None

    @property
    def line(self) -> int:
        return _line(self.node)


class Document:
    """Config file: complete text, and values by key path with their places.

    Attributes:
        shift: Length of the byte order mark, which is not parsed.
        nodes: All nodes, in file order.
    """

    def __init__(self, text: str, name: str = "<config>") -> None:
        self.name, self.text = name, text
        self.shift = int(text.startswith("\ufeff"))
        self.syntax = syntax_of(name)
        self._readings: dict[int, tuple[Scalar, Scalar]] = {}
        self._cached_entries: dict[int, _Entries] = {}
        body = text[self.shift :]
        try:
            if self.syntax is Syntax.YAML:
                self.root = compose(body, name, Parser.YAML_1_1)
            elif self.syntax is Syntax.PYTHON:
                self.root = compose_python(body, name)
            else:
                self.root = compose_plain(body, name, self.syntax)
            if self.root is None:
                raise ConfigError("the file is empty", where=name, remedy="Pass the config that the trainer reads.")
            if self.root.id != "mapping":
                remedy = "autotune needs a config whose top level is a mapping (key: value)."
                raise _refused(self.name, f"the file is a {_kind(self.root)}, not keys with values", remedy, self.root)
            self.nodes = nodes(self.root)
            self._uses = Counter(map(id, self.nodes))
            for node in self.nodes:
                if node.id == "scalar":
                    self.readings(node)  # raises if a value does not match its tag
                _check_keys(self, node)
            self._spots = list(self._walk())
        except RecursionError as error:
            raise ConfigError(TOO_DEEP[0], where=name, remedy=TOO_DEEP[1]) from error

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Read a config file; raise a ConfigError if it is unreadable, or not a single mapping."""
        content = read_bytes(path)
        try:
            return cls(content.decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"the file is not UTF-8: invalid byte 0x{content[error.start]:02x}",
                where=f"{path}:{content.count(10, 0, error.start) + 1}",
                remedy="Save it as UTF-8.",
            ) from error

    @cached_property
    def data(self) -> dict[str, Any]:
        """Config as dicts, lists and `Leaf.value`, merge keys resolved; a value with a custom tag is its text."""

        def plain(node: Any) -> Any:
            if node.id == "scalar":
                return self.readings(node)[0]
            inside = {key: plain(child) for key, (child, _) in self._entries(node).items()}
            return inside if node.id == "mapping" else list(inside.values())

        return plain(self.root)  # type: ignore[no-any-return]  # the root is a mapping

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Scalars in file order, each once despite aliases and merge keys; the last of duplicate keys, as in PyYAML."""
        own: dict[int, _Spot] = {}
        for spot in self._spots:
            if spot.node.id == "scalar" and not spot.merged:
                own.setdefault(id(spot.node), spot)
        return tuple(map(self._leaf, own.values()))

    @cached_property
    def scalars(self) -> Mapping[str, Scalar]:
        return {leaf.dotted: leaf.value for leaf in self.leaves}

    @cached_property
    def refused(self) -> Mapping[str, str]:
        return {leaf.dotted: leaf.why_fixed for leaf in self.leaves if leaf.why_fixed is not None}

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a value, or of the first one in a mapping or list."""
        spots = self._resolve(path)
        return spots[0].line if spots else None

    def __contains__(self, path: KeyPath) -> bool:
        return bool(self._resolve(path))

    def leaf(self, path: KeyPath) -> Leaf:
        """Return the scalar at a path.

        Raises:
            CannotEditYaml: The key is missing or ambiguous, or holds a mapping or a list.
        """
        spots = self._resolve(path)
        if len(spots) == 1 and spots[0].node.id == "scalar":
            return self._leaf(spots[0])
        if not spots:
            why = f"no such key in {self.name}"
            remedy = did_you_mean(dotted(path), (leaf.dotted for leaf in self.leaves))
        elif len(spots) > 1:
            lines = " and ".join(str(spot.line) for spot in spots)
            why = f"two keys match: one nested, one with dots in its name (lines {lines})"
            remedy = "Rename one of them."
        else:
            why = f"this is a {_kind(spots[0].node)}, not a single value"
            inside = [leaf.dotted for leaf in self.leaves if leaf.path[: len(spots[0].path)] == spots[0].path]
            remedy = f"Name a value inside it: {', '.join(inside[:5])}." if inside else "It is empty."
        raise CannotEditYaml(dotted(path), why, line=spots[0].line if spots else None, remedy=remedy)

    def differing(self, values: Mapping[_Path, Scalar]) -> dict[_Path, Scalar]:
        """Return the values that differ from those of the config."""
        return {path: value for path, value in values.items() if not same_value(self.leaf(path).value, value)}

    def readings(self, node: Any) -> tuple[Scalar, Scalar]:
        """Return `Leaf.value` and `Leaf.reading_1_1` of a scalar node."""
        if id(node) not in self._readings:
            try:
                own = reading(node)
                meaning = self._reading_1_2(node, own) if isinstance(own, str) else own
            except ValueError as error:
                why = f"{shown(node.value)} cannot be read as {node.tag.rpartition(':')[2]}"
                raise _refused(self.name, why, "Write a value of that type, or quote it.", node) from error
            self._readings[id(node)] = (joined_surrogates(meaning) if isinstance(meaning, str) else meaning), own
        return self._readings[id(node)]

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        return {id(node): i for i, node in reversed([*enumerate(self.nodes)])}

    @cached_property
    def root_1_2(self) -> Any:
        """Root node by ruamel.yaml; raises a ConfigError if that cannot read the text."""
        return compose(self.text[self.shift :], self.name, Parser.YAML_1_2)

    def check_by_second_parser(self) -> None:
        """Raise a ConfigError if the second YAML parser cannot read the text."""
        if self.syntax is Syntax.YAML:
            self.root_1_2  # noqa: B018  # edits compare both trees later; here it only has to be readable

    def _walk(self) -> Iterator[_Spot]:
        """Yield every node once per path that leads to it, in file order."""
        count, pending = 0, [_Spot(node=self.root)]
        while pending:
            spot = pending.pop()
            yield spot
            count += 1
            if len(spot.path) > 100:
                raise _refused(self.name, *TOO_DEEP, spot.node)
            if count > 100_000:  # a file within both limits loads in seconds
                why = "the file has more than 100,000 values, counting repetitions by aliases"
                raise _refused(self.name, why, "Check that it is the right file.", spot.node)
            entries, ambiguous = self._entries(spot.node), self._ambiguous_keys(spot.node)
            pending += [
                _Spot(
                    node=node,
                    path=(*spot.path, key),
                    merged=spot.merged or merged,
                    shared=spot.shared or self._uses[id(node)] > 1,
                    in_set=spot.in_set or spot.node.tag == "tag:yaml.org,2002:set",
                    why_not_clear=spot.why_not_clear or (None if merged else ambiguous.get(key)),
                )
                for key, (node, merged) in reversed(entries.items())
            ]

    def _entries(self, node: Any) -> _Entries:
        """Return a node's children by key or index, each with whether a merge key brings it in, as in PyYAML."""
        if id(node) in self._cached_entries:
            return self._cached_entries[id(node)]
        pairs = node.value if node.id == "mapping" else ()
        found: _Entries = {key.value: (value, False) for key, value in pairs if key.tag != MERGE_TAG}
        if node.id == "sequence":
            found = {i: (item, False) for i, item in enumerate(node.value)}
        for value in reversed([value for key, value in pairs if key.tag == MERGE_TAG]):
            for source in value.value if value.id == "sequence" else [value]:
                for name, (child, _) in self._entries(source).items() if source.id == "mapping" else ():
                    found.setdefault(name, (child, True))
        self._cached_entries[id(node)] = found
        return found

    def _ambiguous_keys(self, node: Any) -> dict[str | int, str]:
        """Return keys that a parser takes for one key, as ``on`` and ``true``."""
        found: dict[str | int, str] = {}
        first: dict[object, Any] = {}
        for key in [key for key in _keys(node) if key.tag != MERGE_TAG]:
            own = self.readings(key)[1]
            readings: list[object] = [("as written", key.value), own]
            with suppress(ValueError):
                readings.append(self._reading_1_2(key, own))
            for one in readings:
                other = first.setdefault(one, key)
                if other is not key:
                    texts = " and ".join(f"{one.value} (line {_line(one)})" for one in (other, key))
                    why = f"its place is ambiguous: {texts} are the same key"
                    found |= {other.value: why, key.value: why}
        return found

    def _reading_1_2(self, node: Any, own: Scalar) -> Scalar:
        """Return ruamel.yaml's reading of a plain scalar if it is a number, else PyYAML's."""
        whole = self.text[node.start_mark.index + self.shift : node.end_mark.index + self.shift]
        is_plain = self.syntax is Syntax.YAML and not node.style and "!" not in _properties(whole)
        is_number_like = is_plain and re.fullmatch(r"[-+.]?[0-9][-+.\w]*", node.value, re.ASCII)
        found = plain_reading_1_2(node.value) if is_number_like else own
        return found if isinstance(found, int | float) else own

    @cached_property
    def _by_name(self) -> Mapping[str, list[_Spot]]:
        found: dict[str, list[_Spot]] = {}
        for spot in self._spots:
            found.setdefault(dotted(spot.path), []).append(spot)
        return found

    def _resolve(self, path: KeyPath) -> list[_Spot]:
        """Return all places that match a path, for a dotted one also keys that contain dots."""
        named = self._by_name.get(dotted(path), ())
        parts = None if isinstance(path, str) else [str(part) for part in path]
        return [spot for spot in named if (spot.path if parts is None else [str(part) for part in spot.path] == parts)]

    def _leaf(self, spot: _Spot) -> Leaf:
        node = spot.node
        whole = self.text[node.start_mark.index + self.shift : node.end_mark.index + self.shift]
        end = node.end_mark.index + self.shift
        start = end - len(whole) + len(_properties(whole))
        value, reading_1_1 = self.readings(node)
        written = self.text[start:end]
        is_plain = node.tag in STANDARD_TAGS or (node.tag in _KEPT_AS_TEXT and "!" not in _properties(whole))
        computed = not is_plain or "${" in node.value or looks_like_template(node.value)
        why_fixed = (
            (spot.why_not_clear, spot.why_not_clear),
            (spot.merged, "it comes from a merge key (<<), and changing it there would change other values"),
            (spot.shared, "an alias (*) uses the same value elsewhere, and both would change"),
            (spot.in_set, "it is in a set (!!set), which has members but no values"),
            (node.tag == DATE_TAG, "it is a date or a time"),
            (node.tag == COMPUTED_TAG, "the file computes it, or changes it elsewhere"),
            (not is_plain, f"the trainer computes it by its tag {node.tag}"),
            (computed, "it is a template that is filled in elsewhere"),
            (node.style in ("|", ">", '"""', "'''"), "it is a block of text"),
            ("\n" in written or "\r" in written, "it spans several lines"),
        )
        return Leaf(
            path=spot.path,
            value=value,
            reading_1_1=reading_1_1,
            text=joined_surrogates(node.value),
            line=spot.line,
            start=start,
            end=end,
            style=node.style,
            number=self._numbers[id(node)],
            why_fixed=next((why for holds, why in why_fixed if holds), None),
            computed=computed and not spot.merged and not spot.shared and "\n" not in written,
            syntax=self.syntax,
            is_clear=spot.why_not_clear is None,
        )


def read_bytes(path: Path) -> bytes:
    """Read a config file; raise a ConfigError if it is unreadable or far too large."""
    try:
        # Opened without blocking, then checked: the file may become a FIFO at any moment.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
            status = os.fstat(file.fileno())
            content = file.read(_LARGEST_FILE_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
    except OSError as error:
        why, remedy = str(error.strerror).lower(), "Check the path and its permissions."
        raise ConfigError(why, where=str(path), remedy=remedy) from error
    if content is None:
        remedy = "Pass the config file; save a pipe's content to a file first."
        raise ConfigError("this is not a regular file", where=str(path), remedy=remedy)
    if len(content) > _LARGEST_FILE_BYTES:
        size = max(status.st_size, len(content)) / 2**20
        why = f"the file has {size:.1f} MiB; a config may have 1 MiB"
        remedy = "Check that it is the right file. Move long lists to a file that it names."
        raise ConfigError(why, where=str(path), remedy=remedy)
    return content


def _check_keys(document: Document, node: Any) -> None:
    for key in [key for key in _keys(node) if key.id != "scalar"]:
        if looks_like_template(document.text):
            raise _refused(document.name, *TEMPLATE, key)
        remedy = "Quote the value if braces or brackets are part of it."
        raise _refused(document.name, f"a key is a {_kind(key)}, which YAML loaders refuse", remedy, key)


def _refused(name: str, why: str, remedy: str, node: Any) -> ConfigError:
    return ConfigError(why, where=f"{name}:{_line(node)}", remedy=remedy)


def _properties(whole: str) -> str:
    """Return the tag and anchor in a node's span."""
    return next(re.finditer(r"(?:[!&]\S*\s*)*", whole))[0]


def _keys(node: Any) -> list[Any]:
    return [key for key, _ in node.value] if node.id == "mapping" else []


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: Any) -> str:
    return {"mapping": "mapping", "sequence": "list"}.get(node.id, "single value")


class JoinedDocument(Document):
    """First config, with further ones below their prefixes, for reading only."""

    def __init__(self, first: Document, further: Mapping[str, Document]) -> None:
        self.name, self.text, self.syntax = first.name, first.text, first.syntax
        self.first = first
        self.further = further

    @cached_property
    def data(self) -> dict[str, Any]:
        return {**self.first.data, **{prefix: one.data for prefix, one in self.further.items()}}

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        below = (_below(prefix, leaf) for prefix, one in self.further.items() for leaf in one.leaves)
        return (*self.first.leaves, *below)

    def leaf(self, path: KeyPath) -> Leaf:
        prefix, inside = self.split(path)
        if not inside:
            raise CannotEditYaml(dotted(path), "this is a whole file", line=1, remedy="Name a value inside it.")
        leaf = self.part(prefix).leaf(inside)
        return _below(prefix, leaf) if prefix else leaf

    def line(self, path: KeyPath) -> int | None:
        """Return the line in the file that holds the value."""
        prefix, inside = self.split(path)
        return self.part(prefix).line(inside) if inside else 1

    def __contains__(self, path: KeyPath) -> bool:
        prefix, inside = self.split(path)
        return not inside or inside in self.part(prefix)

    def check_by_second_parser(self) -> None:
        for one in (self.first, *self.further.values()):
            one.check_by_second_parser()

    def part(self, prefix: str) -> Document:
        return self.further[prefix] if prefix else self.first

    def split(self, path: KeyPath) -> tuple[str, KeyPath]:
        """Return the prefix of the file that a path leads to, and the path inside it."""
        for prefix in self.further:
            if isinstance(path, str):
                if path == prefix or path.startswith(f"{prefix}."):
                    return prefix, path[len(prefix) + 1 :]
            elif path and path[0] == prefix:
                return prefix, path[1:]
        return "", path


def check_prefix(prefix: str, first: Document, others: Mapping[str, Document], where: str) -> None:
    """Raise a ConfigError if a file's name cannot be the prefix of its keys."""
    why = None
    if prefix in others:
        why = "two files have that name"
    elif prefix in first:
        why = f"{first.name} has a key of that name in line {first.line(prefix)}"
    elif prefix in ("autotune", "config", "python"):
        why = "it is reserved"
    elif not re.fullmatch(r"\w[\w.-]*", prefix):
        why = "only letters, digits, dots and dashes are allowed"
    if why is not None:
        remedy = "Rename the file, or use a link with another name (ln -s)."
        raise ConfigError(f"the keys of this file would start with {prefix}.…, but {why}", where=where, remedy=remedy)


def _below(prefix: str, leaf: Leaf) -> Leaf:
    return replace(leaf, path=(prefix, *leaf.path))
