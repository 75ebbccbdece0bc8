"""Parsers of YAML that every edit is checked with: PyYAML (YAML 1.1) and ruamel.yaml (YAML 1.2).

Trainers read their config with one or the other, and they disagree on what ``1e-4``, ``yes`` or ``010`` mean.
Both are used to compose node trees only: no object that a file names by a tag is ever constructed.
"""

import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, cast

import ruamel.yaml
import ruamel.yaml.composer
import ruamel.yaml.error
import ruamel.yaml.parser
import ruamel.yaml.reader
import ruamel.yaml.scanner
import yaml

from autotune.config.keys import shown
from autotune.errors import ConfigError
from autotune.records import Scalar

Outline = dict[tuple[int, ...], tuple[Any, ...]]
"""Node tree laid flat: position → node. Equal outlines mean equal trees, aliases included."""

MERGE_TAG = "tag:yaml.org,2002:merge"
SET_TAG = "tag:yaml.org,2002:set"
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_STANDARD_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null", "str"))
_TEXT_TAG = "tag:yaml.org,2002:str"
_KEPT_AS_TEXT = tuple(f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "value", "merge"))
FAILURES = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, AssertionError, NotImplementedError)
"""Errors that both parsers raise, beside their own, on texts that they were not tested with, e.g. ``%YAML 1.3``."""


def compose_1_1(text: str, name: str) -> yaml.Node | None:
    """Compose the node tree as PyYAML sees it.

    Args:
        text: The document, without a byte order mark.

    Returns:
        The root, shared with other callers and not to be changed; None for an empty document.

    Raises:
        ConfigError: It is not one YAML document.
    """
    try:
        return _composed_1_1(text)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text, name) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"YAML does not allow the character {chr(int(error.character))!r}",
            where=f"{name}:{line}",
            remedy="Delete it, or write it as an escape in double quotes.",
        ) from error
    except RecursionError as error:
        raise _too_deep(name) from error
    except FAILURES as error:
        raise _stumbled("PyYAML", error, name) from error


def compose_1_2(text: str, name: str) -> Any:
    """Compose the node tree as ruamel.yaml sees it; see `compose_1_1`."""
    try:
        return _composed_1_2(text)
    except ruamel.yaml.error.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            f"a YAML 1.2 parser cannot read it: {getattr(error, 'problem', None) or error}",
            where=f"{name}:{mark.line + 1}" if mark is not None else name,
            remedy="Write this line so that both YAML 1.1 and 1.2 parsers read it.",
        ) from error
    except RecursionError as error:
        raise _too_deep(name) from error
    except FAILURES as error:
        raise _stumbled("a YAML 1.2 parser (ruamel.yaml)", error, name) from error


@lru_cache(maxsize=2)
def _composed_1_1(text: str) -> yaml.Node | None:
    """Return the cached node tree of one of the last texts: a config and its copies are parsed again and again."""
    with no_garbage():
        return yaml.compose(text, Loader=Scanner1_1)


@lru_cache(maxsize=2)
def _composed_1_2(text: str) -> Any:
    with no_garbage():
        return yaml_1_2().compose(text)


def read_1_1(node: yaml.ScalarNode) -> Scalar:
    """Return the value that PyYAML gives a scalar; for a tag that is no plain type, its text.

    Raises:
        ValueError: Its tag promises a type that its text is not.
    """
    if node.tag not in _STANDARD_TAGS or node.tag == _TEXT_TAG:
        return str(node.value)
    return _constructed(yaml.constructor.SafeConstructor(), node)


def read_1_2(node: Any) -> Scalar:
    """Return the value that ruamel.yaml gives a scalar node of its own; see `read_1_1`."""
    if str(node.tag) not in _STANDARD_TAGS:
        return str(node.value)
    return _constructed(yaml_1_2().constructor, node)


def _constructed(constructor: Any, node: Any) -> Scalar:
    """Construct the value of a scalar with a parser, according to its tag.

    Raises:
        ValueError: The parser cannot, or the result is a number that Python cannot write down again.
    """
    try:
        value = cast("Scalar", constructor.construct_object(node))
    except FAILURES as error:  # `!!bool 5`, `!!int ''`: they look the text up in a table, or take its first character
        raise ValueError(f"{shown(node.value)} is no such value") from error
    if is_too_long(value):
        raise ValueError("the number has too many digits")
    return value


def is_too_long(value: Scalar) -> bool:
    """Return whether a whole number has more digits than Python formats (4,300, unless configured otherwise)."""
    return isinstance(value, int) and value.bit_length() > 14_000  # 4,214 digits


@lru_cache(maxsize=4096)
def plain_reading_1_2(word: str) -> Scalar:
    """Return ruamel.yaml's reading of a plain scalar on its own, e.g. the float in ``1e-4``."""
    node = yaml_1_2().compose(f"- {word}\n").value[0]
    return read_1_2(node) if node.id == "scalar" else word


def is_plain_type(node: yaml.ScalarNode, *, tagged: bool) -> bool:
    """Return whether a scalar means what its text says.

    It does not with a tag of the trainer's (``!ref``, ``!!python/name``), or one that makes bytes or a date of it.

    Args:
        tagged: Whether a tag is written in front of it; without, a date is a word as any other.
    """
    return node.tag in _STANDARD_TAGS or (node.tag in _KEPT_AS_TEXT and not tagged)


def is_standard(node: Any) -> bool:
    """Return whether a scalar node of either parser is a text, a number, a bool or null, and not a date, say."""
    return str(node.tag) in _STANDARD_TAGS


def outline(root: Any) -> Outline:
    """Lay a node tree of either parser flat. An alias is noted, not followed, so alias bombs stay small."""
    found: Outline = {}
    first_seen: dict[int, tuple[int, ...]] = {}
    pending: list[tuple[tuple[int, ...], Any]] = [((), root)] if root is not None else []
    while pending:
        where, node = pending.pop()
        if id(node) in first_seen:
            found[where] = ("alias", first_seen[id(node)])
            continue
        first_seen[id(node)] = where
        if node.id == "scalar":
            found[where] = ("scalar", str(node.tag), node.value)
            continue
        children = [part for pair in node.value for part in pair] if node.id == "mapping" else node.value
        found[where] = (node.id, str(node.tag), len(children))
        # Reversed, so that the first in the file is visited first and counts as the anchor.
        pending.extend(((*where, i), child) for i, child in reversed(list(enumerate(children))))
    return found


def node_at(root: Any, where: tuple[int, ...]) -> Any:
    """Return the node at a position of an `outline`."""
    node = root
    for index in where:
        node = node.value[index // 2][index % 2] if node.id == "mapping" else node.value[index]
    return node


def content_end(text: str, start: int, stop: int | None) -> int:
    """Return the index where the last content of a stretch of a document ends; comments and blank lines do not count.

    Args:
        text: The document, without a byte order mark.
        start: First character of the stretch.
        stop: The character behind it; None for the end of the document.
    """
    structure = (yaml.BlockEndToken, yaml.DocumentEndToken, yaml.StreamEndToken, yaml.StreamStartToken)
    # The stretch starts at the start of a line: its tokens are the same without the text before it.
    base = start if text[start - 1 : start] == "\n" else 0
    end = start
    for token in yaml.scan(text[base:], Loader=Scanner1_1):
        where = base + int(token.start_mark.index)
        if stop is not None and where >= stop:
            break
        if where >= start and not isinstance(token, structure):
            end = max(end, base + int(token.end_mark.index))
    return end


def document_end(text: str) -> int | None:
    """Return the index of the mark ``...`` that ends a document; None if there is none."""
    for token in yaml.scan(text, Loader=Scanner1_1):
        if isinstance(token, yaml.DocumentEndToken) and token.end_mark.index > token.start_mark.index:
            return int(token.start_mark.index)
    return None


def same_value(one: Scalar, other: Scalar) -> bool:
    """Return whether two scalars are the same to a trainer: ``2`` is ``2.0``, but neither ``True`` nor ``"2"``."""
    if isinstance(one, bool) or isinstance(other, bool) or isinstance(one, str) or isinstance(other, str):
        return type(one) is type(other) and one == other
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return one == other


def joined_surrogates(text: str) -> str:
    """Return a text with surrogate pairs replaced by their characters; lone halves stay."""
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def looks_like_template(text: str) -> bool:
    """Return whether a text holds placeholders that another program fills in before YAML is read."""
    return "{{" in text or "{%" in text


def template_error(name: str, line: int | None) -> ConfigError:
    """Return the error for a file that is not YAML yet."""
    return ConfigError(
        "this is a template, not YAML yet: it holds {{ ... }} or {% ... %}",
        where=f"{name}:{line}" if line else name,
        remedy="Fill the template in first, and give the config that comes out.",
    )


def _too_deep(name: str) -> ConfigError:
    return ConfigError("it is nested too deeply to be read", where=name, remedy="Is this the file that you meant?")


def _stumbled(parser: str, error: Exception, name: str) -> ConfigError:
    return ConfigError(
        f"{parser} cannot read it: {type(error).__name__}: {error}",
        where=name,
        remedy="Look for odd directives (%...), tags (!...) and escapes, and write them as they usually are.",
    )


def _not_yaml(error: yaml.MarkedYAMLError, text: str, name: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else None
    where = f"{name}:{line}" if line else name
    if error.problem and "another document" in error.problem:
        return ConfigError(
            "it holds several YAML documents, and which one the trainer reads is not known",
            where=where,
            remedy="Keep the training config in a file of its own.",
        )
    if line and looks_like_template("\n".join(text.splitlines()[max(line - 2, 0) : line + 1])):
        return template_error(name, line)
    context = f" {error.context}" if error.context else ""
    remedy = "Mend this line; it cannot be trained with as it stands either."
    if error.problem and r"'\t'" in error.problem:
        remedy = "Indent with spaces: YAML does not allow tabs there."
    return ConfigError(f"not valid YAML{context}: {error.problem}", where=where, remedy=remedy)


# Line ends that both parsers count alike; a line with another one in it is left to them. The group is not repeated
# possessively: early versions of Python 3.11, such as 3.11.2, then keep the blanks of a repetition that fails.
_COMMENT_LINES = re.compile("(?: *+(?:#[^\0\r\n\x85\u2028\u2029]*+)?+(?:\n|\r\n))+")
_NOT_ONE_COLUMN = "\n\r\x85\u2028\u2029\ufeff"
_COUNTED = re.compile(f"[{_NOT_ONE_COLUMN}]")


class Scanner1_1(yaml.SafeLoader):  # noqa: N801 -- YAML 1.1
    """Loader of PyYAML in pure Python: unlike the one built on libyaml, its marks count characters."""

    def forward(self, length: int = 1) -> None:
        """Skip some characters."""
        if not _pass_over(self, length):
            super().forward(length)

    def scan_to_next_token(self) -> None:
        """Skip blanks, line ends and comments."""
        if _pass_comments(self) and not self.flow_level:
            self.allow_simple_key = True
        super().scan_to_next_token()

    def need_more_tokens(self) -> bool:
        """Return whether it takes more tokens to know what the first one is."""
        if self.tokens and not self.possible_simple_keys:
            return False
        return bool(super().need_more_tokens())

    def check_token(self, *choices: Any) -> bool:
        """Return whether the next token is of one of these types, or exists at all if none is given."""
        while self.need_more_tokens():
            self.fetch_more_tokens()
        return bool(self.tokens) and (not choices or isinstance(self.tokens[0], choices))


class Reader1_2(ruamel.yaml.reader.Reader):  # noqa: N801 -- YAML 1.2
    """Reader of ruamel.yaml with the fast path."""

    def forward(self, length: int = 1) -> None:
        """Skip some characters."""
        if not _pass_over(self, length):
            super().forward(length)


class Scanner1_2(ruamel.yaml.scanner.Scanner):  # noqa: N801 -- YAML 1.2
    """Scanner of ruamel.yaml with the fast path."""

    @cached_property
    def reader(self) -> Any:
        """Reader that yields the characters."""
        return super().reader

    def scan_to_next_token(self) -> Any:
        """Skip blanks, line ends and comments."""
        if _pass_comments(self.reader) and not self.flow_level:
            self.allow_simple_key = True
        return super().scan_to_next_token()

    def need_more_tokens(self) -> bool:
        """Return whether it takes more tokens to know what the first one is."""
        if self.tokens and not self.possible_simple_keys:
            return False
        return super().need_more_tokens()

    def check_token(self, *choices: Any) -> bool:
        """Return whether the next token is of one of these types, or exists at all if none is given."""
        while self.need_more_tokens():
            self.fetch_more_tokens()
        return bool(self.tokens) and (not choices or isinstance(self.tokens[0], choices))


class Parser1_2(ruamel.yaml.parser.Parser):  # noqa: N801 -- YAML 1.2
    """Parser of ruamel.yaml that keeps its scanner, instead of looking it up for every token."""

    @cached_property
    def scanner(self) -> Any:
        """Scanner that yields the tokens."""
        return super().scanner


class Composer1_2(ruamel.yaml.composer.Composer):  # noqa: N801 -- YAML 1.2
    """Composer of ruamel.yaml that keeps its parser."""

    @cached_property
    def parser(self) -> Any:
        """Parser that yields the events."""
        return super().parser


def yaml_1_2() -> Any:
    """Return a loader of ruamel.yaml for one text."""
    loader = ruamel.yaml.YAML(typ="safe", pure=True)
    loader.Reader, loader.Scanner, loader.Parser, loader.Composer = Reader1_2, Scanner1_2, Parser1_2, Composer1_2
    return loader


@contextmanager
def no_garbage() -> Iterator[None]:
    """Disable the garbage collector while a tree grows: it would find nothing, and take longer and longer."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _pass_over(reader: Any, length: int) -> bool:
    """Skip characters that are one column each; return False, having skipped nothing, if some are not."""
    end = reader.pointer + length
    if end + 1 >= len(reader.buffer):
        return False
    if length == 1:
        if reader.buffer[reader.pointer] in _NOT_ONE_COLUMN:
            return False
    elif _COUNTED.search(reader.buffer, reader.pointer, end):
        return False
    reader.pointer = end
    reader.index += length
    reader.column += length
    return True


def _pass_comments(reader: Any) -> bool:
    lines = _COMMENT_LINES.match(reader.buffer, reader.pointer)
    if lines is None:
        return False
    reader.index += lines.end() - reader.pointer
    reader.line += reader.buffer.count("\n", reader.pointer, lines.end())
    reader.column = 0
    reader.pointer = lines.end()
    return True
