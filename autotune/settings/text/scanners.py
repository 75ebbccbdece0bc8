"""Scanners of both YAML parsers with fast paths for loops that they run character by character.

Sequences of comment lines and blank lines are skipped in one step, and so are words; the tokens and their marks are the
same, which tests check against the original scanners. Everything else is left to the parsers.
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import ruamel.yaml
import ruamel.yaml.composer
import ruamel.yaml.parser
import ruamel.yaml.reader
import ruamel.yaml.scanner
import yaml

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
    """Skip comment lines and blank lines; return False if there is none."""
    lines = _COMMENT_LINES.match(reader.buffer, reader.pointer)
    if lines is None:
        return False
    reader.index += lines.end() - reader.pointer
    reader.line += reader.buffer.count("\n", reader.pointer, lines.end())
    reader.column = 0
    reader.pointer = lines.end()
    return True
