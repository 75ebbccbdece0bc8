"""Config file as text, and as key paths with the exact place of every value.

Nothing is ever dumped back to YAML, JSON or TOML: the text is the document, and the parser's marks say where in it a
value stands (`autotune.config.splice` changes it there). All three syntaxes have the same kind of node tree.
"""

import copy
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from autotune.config.keys import KeyPath, Syntax, did_you_mean, dotted, shown, syntax_of
from autotune.config.parsers import (
    MERGE_TAG,
    SET_TAG,
    Outline,
    compose_1_1,
    compose_1_2,
    is_plain_type,
    joined_surrogates,
    looks_like_template,
    node_at,
    outline,
    plain_reading_1_2,
    read_1_1,
    template_error,
)
from autotune.config.tree import (
    DATE_TAG,
    Entry,
    children,
    collections,
    compose_json,
    compose_toml,
    entries,
    key_text,
    kind,
)
from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar

BOM = "\ufeff"
_LARGEST_FILE_BYTES = 2**20
_MOST_VALUES = 100_000  # a file within both limits can be set up in seconds
_DEEPEST = 100
_MULTILINE_STYLES = ("|", ">", '"""', "'''")
_NUMBER_LIKE = re.compile(r"[-+.]?[0-9][-+.\w]*", re.ASCII)


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
        where: Its position in the outline of the node tree.
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
    where: tuple[int, ...]
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
    """Node with the path that led to it."""

    node: yaml.Node
    path: tuple[str | int, ...]
    where: tuple[int, ...]
    shared: bool
    merged: bool
    in_set: bool = False
    why_not_clear: str | None = None


class Document:
    """Config file: its text, its values by key path, and their places.

    Attributes:
        text: The whole text, byte order mark and line ends included.
        root: The mapping at the top, as PyYAML composed it, or our parser of JSON or TOML.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = text
        self.shift = len(BOM) if text.startswith(BOM) else 0
        self._held: dict[int, dict[str, Entry]] = {}
        self._alike: dict[int, dict[str, str]] = {}
        self.syntax = syntax_of(name)
        root = self._compose()
        if root is None:
            raise ConfigError("the file is empty", where=name, remedy="Give the config that the trainer reads.")
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(
                f"the file is a {kind(root)}, not keys with values",
                where=f"{name}:{self._line(root)}",
                remedy="autotune needs a config whose top level is a mapping (key: value).",
            )
        self.root = root
        self._check_shape()
        if self.syntax is not Syntax.YAML:
            self.check_by_second_parser()

    @classmethod
    def parse(cls, text: str, name: str = "<config>") -> "Document":
        """Parse a config from its text.

        Raises:
            ConfigError: It is no single mapping in the syntax that its name says; the message names the line.
        """
        return cls(text, name)

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Read a config from its file, every byte of which is kept in `text`.

        Raises:
            ConfigError: There is no such file, it cannot be read, or it is no single mapping.
        """
        return cls(decode(read_bytes(path), str(path)), str(path))

    @cached_property
    def data(self) -> dict[str, Any]:
        """Config as plain dicts, lists and scalars, merge keys resolved.

        Keys are as written, values as in `Leaf.value`; a value with a tag of the trainer's is the text after it.
        """
        built: dict[int, Any] = {}
        return self._plain(self.root, built)  # type: ignore[no-any-return]  # the root is a mapping

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Scalars of the file, in file order.

        Those that an alias or a merge key brings in a second time are left out; of duplicate keys the last one
        counts, as for PyYAML.
        """
        return tuple(
            self._leaf(spot) for spot in self._walk() if isinstance(spot.node, yaml.ScalarNode) and not spot.merged
        )

    @cached_property
    def scalars(self) -> Mapping[str, Scalar]:
        """Values of all scalars by dotted path, in file order."""
        return {leaf.dotted: leaf.value for leaf in self.leaves}

    @cached_property
    def refused(self) -> Mapping[str, str]:
        """Scalars that cannot be changed, with the reason."""
        return {leaf.dotted: leaf.why_fixed for leaf in self.leaves if leaf.why_fixed is not None}

    def value(self, path: KeyPath) -> Scalar:
        """Return the present value at a path, also where it cannot be edited.

        Raises:
            CannotEditYaml: There is no such key, or it holds a mapping or a list.
        """
        return self.leaf(path).value

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a value, or of the first thing in a mapping or list; None if the path does not exist."""
        spots = self._resolve(path)
        return self._line(spots[0].node) if spots else None

    def __contains__(self, path: KeyPath) -> bool:
        return bool(self._resolve(path))

    def leaf(self, path: KeyPath) -> Leaf:
        """Return the scalar at a path.

        Raises:
            CannotEditYaml: There is no such key (the closest one is named), two keys fit the dotted path, or
                it holds a mapping or a list.
        """
        spots = self._resolve(path)
        if not spots:
            raise CannotEditYaml(
                dotted(path),
                f"there is no such key in {self.name}",
                line=None,
                remedy=did_you_mean(dotted(path), (leaf.dotted for leaf in self.leaves)),
            )
        spot = spots[0]
        if len(spots) > 1:
            raise CannotEditYaml(
                dotted(path),
                f"two keys fit: one nested, one with dots in its name (line {self._line(spots[1].node)})",
                line=self._line(spot.node),
                remedy="Rename one of them.",
            )
        if not isinstance(spot.node, yaml.ScalarNode):
            inside = [leaf.dotted for leaf in self.leaves if leaf.path[: len(spot.path)] == spot.path]
            raise CannotEditYaml(
                dotted(path),
                f"this is a {kind(spot.node)}, not a single value",
                line=self._line(spot.node),
                remedy=f"Name a value inside it: {', '.join(inside[:5])}." if inside else "It is empty.",
            )
        return self._leaf(spot)

    def readings(self, where: tuple[int, ...]) -> tuple[Scalar, Scalar]:
        """Return the value of the scalar at a position of the outline, and PyYAML's reading of it."""
        return self._value(node_at(self.root, where))

    def entry(self, key: str) -> tuple[yaml.Node, yaml.Node] | None:
        """Return the nodes of a top-level key and of its value; None if there is no such key."""
        found = [(k, v) for k, v in self.root.value if key_text(k) == key and k.tag != MERGE_TAG]
        return found[-1] if found else None

    @cached_property
    def outline_1_1(self) -> Outline:
        """Outline of the node tree of PyYAML."""
        return outline(self.root)

    @cached_property
    def root_1_2(self) -> Any:
        """Root node as ruamel.yaml composed it.

        Raises:
            ConfigError: That parser cannot read the text.
        """
        return compose_1_2(self.text[self.shift :], self.name)

    def check_by_second_parser(self) -> None:
        """Raise an error if the second parser of this syntax, which checks every edit, reads something else.

        Raises:
            ConfigError: It does, or it cannot read the text.
        """
        if self.syntax is Syntax.YAML:
            self.root_1_2  # noqa: B018  # edits compare both trees later; here it has to be readable
            return
        if differing := differences(second_reading(self.syntax, self.text, self.name), self.data):
            raise ConfigError(
                f"the place of {dotted(min(differing, key=str))} in the text is not clear",
                where=self.name,
                remedy="Please report this file as a bug; keep the value in a file of a simpler form meanwhile.",
            )

    def _compose(self) -> yaml.Node | None:
        body = self.text[self.shift :]
        if self.syntax is Syntax.YAML:
            return compose_1_1(body, self.name)
        second_reading(self.syntax, body, self.name)  # our own parsers are for valid texts
        return (compose_json if self.syntax is Syntax.JSON else compose_toml)(body, self.name)

    def _line(self, node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1

    def _check_shape(self) -> None:
        """Raise an error for structures that no trainer could load.

        That is: keys that are no scalars, values that do not match their tag, aliases that contain themselves or unfold
        without end.
        """
        sizes: dict[int, int] = {}

        def measure(node: yaml.Node, above: tuple[int, ...]) -> int:
            if id(node) in sizes:
                return sizes[id(node)]
            if id(node) in above or len(above) > _DEEPEST:
                why = "an alias contains itself" if id(node) in above else "it is nested too deeply"
                raise ConfigError(why, where=self._place(node), remedy="Write the values out instead.")
            size = 1
            if isinstance(node, yaml.ScalarNode):
                self._value(node)
            else:
                inside = (*above, id(node))
                for child in children(node):
                    size += measure(child, inside)
            if size > _MOST_VALUES:
                raise ConfigError(
                    f"it holds more than {_MOST_VALUES:,} values, those that aliases bring in again included",
                    where=self._place(node),
                    remedy="Is this the file that you meant?",
                )
            sizes[id(node)] = size
            return size

        measure(self.root, ())
        for node in collections(self.root):
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else []:
                if not isinstance(key, yaml.ScalarNode):
                    if looks_like_template(self.text):
                        raise template_error(self.name, self._line(key))
                    raise ConfigError(
                        f"a key is a {kind(key)}, which YAML loaders refuse",
                        where=self._place(key),
                        remedy="Quote the value if braces or brackets are part of it.",
                    )

    def _place(self, node: yaml.Node) -> str:
        return f"{self.name}:{self._line(node)}"

    def _value(self, node: yaml.ScalarNode) -> tuple[Scalar, Scalar]:
        try:
            reading = read_1_1(node)
            number_like = isinstance(reading, str) and node.style is None and _NUMBER_LIKE.fullmatch(reading)
            if number_like and not self._is_tagged(node):
                other = plain_reading_1_2(str(reading))
                return (other if isinstance(other, int | float) else reading), reading
        except ValueError as error:
            raise ConfigError(
                f"{shown(node.value)} cannot be read as {node.tag.rpartition(':')[2]}",
                where=self._place(node),
                remedy="Write a value of that type, or put it in quotes.",
            ) from error
        return joined_surrogates(reading) if isinstance(reading, str) else reading, reading

    def _plain(self, node: yaml.Node, built: dict[int, Any]) -> Any:
        if id(node) in built:
            return built[id(node)]
        plain: Any
        if isinstance(node, yaml.ScalarNode):
            plain = self._value(node)[0]
        elif isinstance(node, yaml.SequenceNode):
            plain = [self._plain(item, built) for item in node.value]
        else:
            plain = {str(key): self._plain(child, built) for key, child, _, _ in self._entries(node).values()}
        built[id(node)] = plain
        return plain

    def _walk(self) -> Iterator[_Spot]:
        pending = [_Spot(node=self.root, path=(), where=(), shared=False, merged=False)]
        seen: set[int] = set()
        while pending:
            spot = pending.pop()
            if id(spot.node) in seen:
                continue
            seen.add(id(spot.node))
            yield spot
            pending.extend(reversed([self._step(spot, *entry) for entry in self._entries(spot.node).values()]))

    def _step(self, spot: _Spot, key: str | int, node: yaml.Node, where: tuple[int, ...], merged: bool) -> _Spot:
        return _Spot(
            node=node,
            path=(*spot.path, key),
            where=(*spot.where, *where),
            shared=spot.shared or self._references[id(node)] > 1,
            merged=spot.merged or merged,
            in_set=spot.in_set or spot.node.tag == SET_TAG,
            why_not_clear=spot.why_not_clear or (None if merged else self._keys_alike(spot.node).get(str(key))),
        )

    def _keys_alike(self, node: yaml.Node) -> dict[str, str]:
        """Return the keys of a mapping that are one key with another of it to a parser, as are ``on`` and ``true``.

        Returns:
            Reason for which what is below cannot be changed, by the key as it is written.
        """
        if id(node) in self._alike or not isinstance(node, yaml.MappingNode):
            return self._alike.get(id(node), {})
        same: dict[object, list[yaml.ScalarNode]] = {}
        for key, _ in node.value:
            if key.tag != MERGE_TAG:
                for reading in (("as written", key_text(key)), *self._readings_of_key(key)):
                    same.setdefault(reading, []).append(key)
        found = self._alike[id(node)] = {}
        for first, *others in same.values():
            for other in others:
                texts = " and ".join(f"{key_text(key)} (line {self._line(key)})" for key in (first, other))
                why = f"its place is not clear: {texts} are the same key"
                found |= dict.fromkeys((key_text(first), key_text(other)), why)
        return found

    def _readings_of_key(self, key: yaml.ScalarNode) -> set[Scalar]:
        is_plain = key.style is None and self.syntax is Syntax.YAML and not self._is_tagged(key)
        of_1_2 = {plain_reading_1_2(key.value)} if is_plain and _NUMBER_LIKE.fullmatch(key.value) else set()
        return {self._value(key)[1]} | of_1_2

    def _entries(self, node: yaml.Node) -> dict[str, Entry]:
        """Return the entries of a mapping or list, by key or position."""
        if id(node) not in self._held:
            self._held[id(node)] = {str(entry[0]): entry for entry in entries(node)}
        return self._held[id(node)]

    @cached_property
    def _references(self) -> dict[int, int]:
        """Count the uses of each node: more than one where aliases point to it."""
        counts = {id(self.root): 1}
        for node in collections(self.root):
            for child in children(node):
                counts[id(child)] = counts.get(id(child), 0) + 1
        return counts

    def _resolve(self, path: KeyPath) -> list[_Spot]:
        """Return every place that a path may mean: a dotted one also fits keys that contain dots themselves."""
        parts = tuple(path.split(".")) if isinstance(path, str) else path
        top = _Spot(node=self.root, path=(), where=(), shared=False, merged=False)
        found: list[_Spot] = []
        pending = [(top, parts)]
        while pending:
            spot, rest = pending.pop()
            if not rest:
                found.append(spot)
                continue
            held = self._entries(spot.node)
            for width in range(1, len(rest) + 1) if isinstance(path, str) else (1,):
                entry = held.get(".".join(str(part) for part in rest[:width]))
                if entry is not None:
                    pending.append((self._step(spot, *entry), rest[width:]))
        return found

    def _leaf(self, spot: _Spot) -> Leaf:
        node = spot.node
        assert isinstance(node, yaml.ScalarNode)
        start, end = self._after_properties(node), node.end_mark.index + self.shift
        value, reading_1_1 = self._value(node)
        written = self.text[start:end]
        plain = is_plain_type(node, tagged=self._is_tagged(node))
        computed = not plain or "${" in node.value or looks_like_template(node.value)
        return Leaf(
            path=spot.path,
            value=value,
            reading_1_1=reading_1_1,
            text=joined_surrogates(node.value),
            line=self._line(node),
            start=start,
            end=end,
            style=node.style,
            where=spot.where,
            why_fixed=_why_fixed(spot, node, written, plain=plain, computed=computed),
            computed=computed and not spot.merged and not spot.shared and "\n" not in written,
            syntax=self.syntax,
            is_clear=spot.why_not_clear is None,
        )

    def _is_tagged(self, node: yaml.ScalarNode) -> bool:
        """Return whether a tag is written in front of a scalar, also one of YAML's own."""
        return "!" in self.text[node.start_mark.index + self.shift : self._after_properties(node)]

    def _after_properties(self, node: yaml.ScalarNode) -> int:
        """Return the index where a scalar's own characters start: its node's span includes its tag and anchor."""
        start, end = int(node.start_mark.index) + self.shift, int(node.end_mark.index) + self.shift
        while start < end and self.text[start] in "!&":
            while start < end and not self.text[start].isspace():
                start += 1
            while start < end and self.text[start].isspace():
                start += 1
        return start


def read_bytes(path: Path) -> bytes:
    """Read a config file.

    Raises:
        ConfigError: It is not there, cannot be read, or is far too large for a config.
    """
    try:
        # Opened without blocking and checked afterwards: a file may be replaced by a FIFO at any moment.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no ordinary file"
                remedy = "Name the config file; what a pipe holds has to be put into a file first."
                raise ConfigError(f"this is {kind}", where=str(path), remedy=remedy)
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(_LARGEST_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(content) > _LARGEST_FILE_BYTES:
            raise ConfigError(
                f"the file has {max(status.st_size, len(content)) / 2**20:.1f} MiB, and a config has 1 MiB at most",
                where=str(path),
                remedy="Is this the file that you meant? Long lists are better kept in a file that it names.",
            )
        return content
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), remedy="Check the path.") from error
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="Check its permissions."
        ) from error


def decode(content: bytes, name: str) -> str:
    """Decode a file's bytes, keeping its byte order mark and line ends.

    Raises:
        ConfigError: It is not UTF-8.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"the file is not UTF-8: byte 0x{content[error.start]:02x} fits no character",
            where=f"{name}:{line}",
            remedy="Save it as UTF-8.",
        ) from error


def _why_fixed(spot: _Spot, node: yaml.ScalarNode, written: str, *, plain: bool, computed: bool) -> str | None:
    if spot.why_not_clear:
        return spot.why_not_clear
    if spot.merged:
        return "it comes in through a merge key (<<), and changing it there would change other values"
    if spot.shared:
        return "an alias (*) uses the same value elsewhere, and both would change"
    if spot.in_set:
        return "it stands in a set (!!set), which has members and no values"
    if node.tag == DATE_TAG:
        return "it is a date or a time"
    if not plain:
        return f"its tag {node.tag} makes the trainer work it out"
    if computed:
        return "it is a template that is filled in elsewhere"
    if node.style in _MULTILINE_STYLES:
        return "it is written as a block of text"
    if "\n" in written or "\r" in written:
        return "it is written over several lines"
    return None


# Reading of JSON and TOML with the parsers of the standard library, which check what our own have found.


_BOM = "\ufeff"
_REMEDY = "Mend this line; it cannot be trained with as it stands either."
LoadedPath = tuple[str | int, ...]


def second_reading(syntax: Syntax, text: str, name: str) -> Any:
    """Return what the standard library reads in a text.

    Args:
        text: The text; a byte order mark is left out.

    Raises:
        ConfigError: It reads nothing.
    """
    body = text.removeprefix(_BOM)
    try:
        return json.loads(body) if syntax is Syntax.JSON else tomllib.loads(body)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not valid JSON: {error.msg}", where=f"{name}:{error.lineno}", remedy=_REMEDY) from error
    except tomllib.TOMLDecodeError as error:
        line = str(error).rpartition("at line ")[2].partition(",")[0]
        where = f"{name}:{line}" if line.isdigit() else name
        raise ConfigError(f"not valid TOML: {str(error).partition(' (at ')[0]}", where=where, remedy=_REMEDY) from error
    except (ValueError, RecursionError) as error:  # a number with 5,000 digits; ten thousand brackets
        raise ConfigError(
            f"not readable as {syntax.value}: {error}", where=name, remedy="Is this the file that you meant?"
        ) from error


def with_values(data: Any, values: Mapping[LoadedPath, Scalar]) -> Any:
    """Return a copy of a config with other values at these paths."""
    changed = copy.deepcopy(data)
    for path, value in values.items():
        holder = changed
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value
    return changed


def differences(one: Any, other: Any, path: LoadedPath = ()) -> set[LoadedPath]:
    """Return the paths at which two configs differ; ``1`` and ``1.0`` are equal, ``1`` and ``true`` are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            different
            for key in one.keys() | other.keys()
            for different in (
                differences(one[key], other[key], (*path, key)) if key in one and key in other else {(*path, key)}
            )
        }
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return {
            different
            for i, (left, right) in enumerate(zip(one, other, strict=True))
            for different in differences(left, right, (*path, i))
        }
    return set() if _is_same(one, other) else {path}


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, date | time) and isinstance(other, str):
        return True  # a date is known by its text here
    return type(one) is type(other) and bool(one == other)
