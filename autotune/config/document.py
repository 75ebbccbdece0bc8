"""Config file as text, and as key paths with the exact place of every value.

Nothing is ever dumped back to YAML, JSON, TOML or Python: the text is the document, and the parser's marks say where in
it a value stands (`autotune.config.splice` changes it there). All four syntaxes have the same kind of node tree.
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
from typing import Any

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
)
from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar

_LARGEST_FILE_BYTES = 2**20


_KEPT_AS_TEXT = tuple(f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "value", "merge"))


_Entries = dict[str | int, tuple[Any, bool]]


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Scalar of a config.

    Attributes:
        value: Its value. Where the parsers disagree, the reading that is not a string counts: nobody
            writes ``1e-4`` or ``yes`` to say a word. A surrogate pair (as JSON writes an emoji) is
            decoded to its character, which PyYAML does not do.
        reading_1_1: The value that PyYAML reads.
        text: The scalar as written, without quotes and escapes; a surrogate pair is the character.
        start: Index of its first character in the document's text, tag and anchor excluded.
        end: Index behind its last character.
        style: The quote character; None for a plain scalar.
        number: Its number among the nodes of the tree.
        why_fixed: Reason for which it cannot be changed by itself; None if it can.
        computed: Whether it is fixed because of a template or a tag of the trainer's, so that only the
            trainer knows its value.
        is_clear: Whether its keys are there once: else another value may count to a parser.
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
        """Key path as people write it."""
        return dotted(self.path)


@dataclass(frozen=True, kw_only=True)
class _Spot:
    """Node with a path that leads to it."""

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
    """Config file: its text, its values by key path, and their places.

    Attributes:
        text: The whole text, byte order mark and line ends included.
        shift: Characters in front of the text that was parsed: a byte order mark is one.
        root: The mapping at the top, as PyYAML, `compose_plain` or `compose_python` composed it.
        nodes: All nodes below it, in file order.
    """

    def __init__(self, text: str, name: str = "<config>") -> None:
        self.name, self.text = name, text
        self.shift = int(text.startswith("\ufeff"))
        self.syntax = syntax_of(name)
        self._readings: dict[int, tuple[Scalar, Scalar]] = {}
        self._held: dict[int, _Entries] = {}
        body = text[self.shift :]
        try:
            if self.syntax is Syntax.YAML:
                self.root = compose(body, name, Parser.YAML_1_1)
            elif self.syntax is Syntax.PYTHON:
                self.root = compose_python(body, name)
            else:
                self.root = compose_plain(body, name, self.syntax)
            if self.root is None:
                raise ConfigError("the file is empty", where=name, remedy="Give the config that the trainer reads.")
            if self.root.id != "mapping":
                remedy = "autotune needs a config whose top level is a mapping (key: value)."
                raise _refused(self.name, f"the file is a {_kind(self.root)}, not keys with values", remedy, self.root)
            self.nodes = nodes(self.root)
            self._uses = Counter(map(id, self.nodes))
            for node in self.nodes:
                if node.id == "scalar":
                    self.readings(node)  # an error if a value does not match its tag
                _check_keys(self, node)
            self._spots = list(self._walk())
        except RecursionError as error:
            raise ConfigError(TOO_DEEP[0], where=name, remedy=TOO_DEEP[1]) from error

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Read a config from its file, every byte of which is kept in `text`.

        Raises:
            ConfigError: There is no such file, it cannot be read, or it is no single mapping.
        """
        content = read_bytes(path)
        try:
            return cls(content.decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"the file is not UTF-8: byte 0x{content[error.start]:02x} fits no character",
                where=f"{path}:{content.count(10, 0, error.start) + 1}",
                remedy="Save it as UTF-8.",
            ) from error

    @cached_property
    def data(self) -> dict[str, Any]:
        """Config as plain dicts, lists and scalars, merge keys resolved.

        Keys are as written, values as in `Leaf.value`; a value with a tag of the trainer's is the text after it.
        """

        def plain(node: Any) -> Any:
            if node.id == "scalar":
                return self.readings(node)[0]
            inside = {key: plain(child) for key, (child, _) in self._entries(node).items()}
            return inside if node.id == "mapping" else list(inside.values())

        return plain(self.root)  # type: ignore[no-any-return]  # the root is a mapping

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Scalars of the file, in file order.

        Those that an alias or a merge key brings in a second time are left out; of duplicate keys the last one
        counts, as for PyYAML.
        """
        own: dict[int, _Spot] = {}
        for spot in self._spots:
            if spot.node.id == "scalar" and not spot.merged:
                own.setdefault(id(spot.node), spot)
        return tuple(map(self._leaf, own.values()))

    @cached_property
    def scalars(self) -> Mapping[str, Scalar]:
        """Values of all scalars by dotted path, in file order."""
        return {leaf.dotted: leaf.value for leaf in self.leaves}

    @cached_property
    def refused(self) -> Mapping[str, str]:
        """Scalars that cannot be changed, with the reason."""
        return {leaf.dotted: leaf.why_fixed for leaf in self.leaves if leaf.why_fixed is not None}

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a value, or of the first thing in a mapping or list; None if the path does not exist."""
        spots = self._resolve(path)
        return spots[0].line if spots else None

    def __contains__(self, path: KeyPath) -> bool:
        return bool(self._resolve(path))

    def leaf(self, path: KeyPath) -> Leaf:
        """Return the scalar at a path.

        Raises:
            CannotEditYaml: There is no such key (the closest one is named), two keys fit the dotted path, or
                it holds a mapping or a list.
        """
        spots = self._resolve(path)
        if len(spots) == 1 and spots[0].node.id == "scalar":
            return self._leaf(spots[0])
        if not spots:
            why = f"there is no such key in {self.name}"
            remedy = did_you_mean(dotted(path), (leaf.dotted for leaf in self.leaves))
        elif len(spots) > 1:
            lines = " and ".join(str(spot.line) for spot in spots)
            why, remedy = f"two keys fit: one nested, one with dots in its name (lines {lines})", "Rename one of them."
        else:
            why = f"this is a {_kind(spots[0].node)}, not a single value"
            inside = [leaf.dotted for leaf in self.leaves if leaf.path[: len(spots[0].path)] == spots[0].path]
            remedy = f"Name a value inside it: {', '.join(inside[:5])}." if inside else "It is empty."
        raise CannotEditYaml(dotted(path), why, line=spots[0].line if spots else None, remedy=remedy)

    def readings(self, node: Any) -> tuple[Scalar, Scalar]:
        """Return the value of a scalar (see `Leaf.value`), and PyYAML's reading of it."""
        if id(node) not in self._readings:
            try:
                own = reading(node)
                meaning = self._reading_1_2(node, own) if isinstance(own, str) else own
            except ValueError as error:
                why = f"{shown(node.value)} cannot be read as {node.tag.rpartition(':')[2]}"
                raise _refused(self.name, why, "Write a value of that type, or put it in quotes.", node) from error
            self._readings[id(node)] = (joined_surrogates(meaning) if isinstance(meaning, str) else meaning), own
        return self._readings[id(node)]

    @cached_property
    def _numbers(self) -> Mapping[int, int]:
        return {id(node): i for i, node in reversed([*enumerate(self.nodes)])}

    @cached_property
    def root_1_2(self) -> Any:
        """Root node as ruamel.yaml composed it.

        Raises:
            ConfigError: That parser cannot read the text.
        """
        return compose(self.text[self.shift :], self.name, Parser.YAML_1_2)

    def check_by_second_parser(self) -> None:
        """Raise an error if the second parser of YAML, which checks every edit, cannot read the text.

        Raises:
            ConfigError: It cannot.
        """
        if self.syntax is Syntax.YAML:
            self.root_1_2  # noqa: B018  # edits compare both trees later; here it has to be readable

    def _walk(self) -> Iterator[_Spot]:
        """Yield every node by every path that leads to it, in file order."""
        count, pending = 0, [_Spot(node=self.root)]
        while pending:
            spot = pending.pop()
            yield spot
            count += 1
            if len(spot.path) > 100:
                raise _refused(self.name, *TOO_DEEP, spot.node)
            if count > 100_000:  # a file within both limits can be set up in seconds
                why = "it holds more than 100,000 values, those that aliases bring in again included"
                raise _refused(self.name, why, "Is this the file that you meant?", spot.node)
            entries, alike = self._entries(spot.node), self._alike(spot.node)
            pending += [
                _Spot(
                    node=node,
                    path=(*spot.path, key),
                    merged=spot.merged or merged,
                    shared=spot.shared or self._uses[id(node)] > 1,
                    in_set=spot.in_set or spot.node.tag == "tag:yaml.org,2002:set",
                    why_not_clear=spot.why_not_clear or (None if merged else alike.get(key)),
                )
                for key, (node, merged) in reversed(entries.items())
            ]

    def _entries(self, node: Any) -> _Entries:
        """Return what a mapping or list holds, and whether a merge key brings it in, by key or position.

        As in PyYAML, the last of duplicate keys wins, a mapping's own keys beat merged ones, and the first of
        several merged mappings beats the later ones.
        """
        if id(node) in self._held:
            return self._held[id(node)]
        pairs = node.value if node.id == "mapping" else ()
        found: _Entries = {key.value: (value, False) for key, value in pairs if key.tag != MERGE_TAG}
        if node.id == "sequence":
            found = {i: (item, False) for i, item in enumerate(node.value)}
        for value in reversed([value for key, value in pairs if key.tag == MERGE_TAG]):
            for source in value.value if value.id == "sequence" else [value]:
                for name, (child, _) in self._entries(source).items() if source.id == "mapping" else ():
                    found.setdefault(name, (child, True))
        self._held[id(node)] = found
        return found

    def _alike(self, node: Any) -> dict[str | int, str]:
        """Return the keys of a mapping that are one key with another of it to a parser, as are ``on`` and ``true``.

        Returns:
            Reason for which what is below cannot be changed, by the key as it is written.
        """
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
                    why = f"its place is not clear: {texts} are the same key"
                    found |= {other.value: why, key.value: why}
        return found

    def _reading_1_2(self, node: Any, own: Scalar) -> Scalar:
        """Return the number that a plain scalar is to ruamel.yaml; PyYAML's own reading if it is none."""
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
        """Return every place that a path may mean: a dotted one also fits keys that contain dots themselves."""
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
            (spot.merged, "it comes in through a merge key (<<), and changing it there would change other values"),
            (spot.shared, "an alias (*) uses the same value elsewhere, and both would change"),
            (spot.in_set, "it stands in a set (!!set), which has members and no values"),
            (node.tag == DATE_TAG, "it is a date or a time"),
            (node.tag == COMPUTED_TAG, "the file works it out, or changes it in another place"),
            (not is_plain, f"its tag {node.tag} makes the trainer work it out"),
            (computed, "it is a template that is filled in elsewhere"),
            (node.style in ("|", ">", '"""', "'''"), "it is written as a block of text"),
            ("\n" in written or "\r" in written, "it is written over several lines"),
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
    """Read a config file.

    Raises:
        ConfigError: It is not there, cannot be read, or is far too large for a config.
    """
    try:
        # Opened without blocking and checked afterwards: a file may be replaced by a FIFO at any moment.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
            status = os.fstat(file.fileno())
            content = file.read(_LARGEST_FILE_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), remedy="Check the path.") from error
    except IsADirectoryError as error:
        raise ConfigError("this is a folder", where=str(path), remedy="Name the config file.") from error
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigError(why, where=str(path), remedy="Check its permissions.") from error
    if content is None:
        remedy = "Name the config file; what a pipe holds has to be put into a file first."
        raise ConfigError("this is no ordinary file", where=str(path), remedy=remedy)
    if len(content) > _LARGEST_FILE_BYTES:
        size = max(status.st_size, len(content)) / 2**20
        why = f"the file has {size:.1f} MiB, and a config has 1 MiB at most"
        remedy = "Is this the file that you meant? Long lists are better kept in a file that it names."
        raise ConfigError(why, where=str(path), remedy=remedy)
    return content


def _check_keys(document: Document, node: Any) -> None:
    """Raise an error if a key is no scalar, as in ``{{ x }}``."""
    for key in [key for key in _keys(node) if key.id != "scalar"]:
        if looks_like_template(document.text):
            raise _refused(document.name, *TEMPLATE, key)
        remedy = "Quote the value if braces or brackets are part of it."
        raise _refused(document.name, f"a key is a {_kind(key)}, which YAML loaders refuse", remedy, key)


def _refused(name: str, why: str, remedy: str, node: Any) -> ConfigError:
    return ConfigError(why, where=f"{name}:{_line(node)}", remedy=remedy)


def _properties(whole: str) -> str:
    """Return the tag and the anchor in front of a scalar's own characters, which its node's span includes."""
    return next(re.finditer(r"(?:[!&]\S*\s*)*", whole))[0]


def _keys(node: Any) -> list[Any]:
    return [key for key, _ in node.value] if node.id == "mapping" else []


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: Any) -> str:
    return {"mapping": "mapping", "sequence": "list"}.get(node.id, "single value")


class JoinedDocument(Document):
    """First config with further ones below their prefixes.

    It is for reading: text, name and syntax are the first one's, and each file is spliced by itself.

    Args:
        first: The config that `text` and `name` are of.
        further: The other ones by prefix.
    """

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
        return _below(prefix, self.further[prefix].leaf(inside)) if prefix else self.first.leaf(inside)

    def line(self, path: KeyPath) -> int | None:
        """See `Document.line`; the line is that of the file which holds the value."""
        prefix, inside = self.split(path)
        return (self.further[prefix] if prefix else self.first).line(inside) if inside else 1

    def __contains__(self, path: KeyPath) -> bool:
        prefix, inside = self.split(path)
        return not inside or inside in (self.further[prefix] if prefix else self.first)

    def check_by_second_parser(self) -> None:
        for one in (self.first, *self.further.values()):
            one.check_by_second_parser()

    def split(self, path: KeyPath) -> tuple[str, KeyPath]:
        """Return the prefix of the file that a path leads into, empty for the first one, and the path in there."""
        for prefix in self.further:
            if isinstance(path, str):
                if path == prefix or path.startswith(f"{prefix}."):
                    return prefix, path[len(prefix) + 1 :]
            elif path and path[0] == prefix:
                return prefix, path[1:]
        return "", path


def check_prefix(prefix: str, first: Document, others: Mapping[str, Document], where: str) -> None:
    """Raise an error if a file's name cannot stand in front of its keys.

    Raises:
        ConfigError: It is a key of the first config, another file has it, or a placeholder could not name it.
    """
    why = None
    if prefix in others:
        why = "two files have that name"
    elif prefix in first:
        why = f"{first.name} has a key of that name in line {first.line(prefix)}"
    elif prefix in ("autotune", "config", "python"):
        why = "it means something else in a command, or in the config"
    elif not re.fullmatch(r"\w[\w.-]*", prefix):
        why = "it is no word of letters, digits, points and dashes"
    if why is not None:
        remedy = "Rename the file, or give it by a link of another name (ln -s)."
        raise ConfigError(f"the keys of this file would be called {prefix}.…, but {why}", where=where, remedy=remedy)


def _below(prefix: str, leaf: Leaf) -> Leaf:
    return replace(leaf, path=(prefix, *leaf.path))
