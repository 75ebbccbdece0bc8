"""Splicing: changes single values of a config's text and nothing else.

The new value replaces exactly the characters of the old one; the rest of the text is not touched. Dumping instead
preserves a real config in only 7 to 20 % of edits. Afterwards both parsers read the result again and must see the
planned difference and no other, so a mistake of this module leads to a refusal and not to a wrong file. The method is
that of pre-commit's ``yaml_rewrite.py``; the check by two parsers is ours. For JSON and TOML the second parser is that
of the standard library.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.config.document import Document, Leaf, differences, second_reading, with_values
from autotune.config.keys import KeyPath, NewValues, Syntax, dotted, shown
from autotune.config.parsers import (
    content_end,
    document_end,
    is_standard,
    is_too_long,
    node_at,
    outline,
    read_1_2,
    same_value,
)
from autotune.config.scalars import write_scalar
from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar

_REMEDY = "Change this value by hand, or leave the key out of the knobs."


@dataclass(frozen=True, kw_only=True)
class Splice:
    """Replacement of one scalar's characters.

    Attributes:
        text: The new characters, quotes included.
        whole: Whether a tag before the scalar is replaced too.
        restores: Whether the characters stood here before: then they have to mean the value, as `1e-4` does,
            but the two parsers may read them differently.
    """

    leaf: Leaf
    value: Scalar
    text: str
    whole: bool = False
    restores: bool = False


def edit_yaml(text: str, values: NewValues) -> str:
    """Change scalars of a YAML text and keep everything else byte for byte.

    Comments, blank lines, columns, quotes, line ends, a byte order mark and a missing final newline stay. Floats
    are written so that YAML 1.1 and 1.2 parsers read the same number (``1.0e-04``); a bool keeps the file's own
    words (``True``, ``yes``, ``on``).

    Args:
        text: The file's text, read with ``newline=""``.
        values: New values by key path: dotted (``data.batch_size``, ``layers.0.size``), or a tuple of keys and
            list positions for keys that contain dots.

    Returns:
        The new text; the very same where every value is there already.

    Raises:
        CannotEditYaml: A value cannot be changed by itself: there is no such key, it is a mapping, a list or a
            block of text, it is or has an alias, comes in through a merge key, is a template, or the text is no
            single YAML mapping.
    """
    if not values:
        return text
    try:
        document = Document.parse(text, "the text")
    except ConfigError as error:
        first: KeyPath = next(iter(values.keys()))
        raise CannotEditYaml(
            dotted(first),
            error.message,
            line=_line_in(error.where),
            remedy=error.remedy or _REMEDY,
        ) from error
    return splice(document, plan_splices(document, values))


def plan_splices(document: Document, values: NewValues) -> list[Splice]:
    """Return the splices that write these values; values that PyYAML reads already are left out.

    Raises:
        CannotEditYaml: See `edit_yaml`.
    """
    splices: list[Splice] = []
    for path, value in values.items():
        leaf = document.leaf(path)
        if any(leaf.where == other.leaf.where for other in splices):
            raise _cannot(leaf, "two of the new values are for this key")
        if leaf.is_clear and same_value(value, leaf.reading_1_1):
            continue
        check_editable(leaf)
        if is_too_long(value):
            raise _cannot(leaf, "the new number has more digits than can be read back")
        try:
            splices.append(Splice(leaf=leaf, value=value, text=write_scalar(value, leaf)))
        except ValueError as error:
            raise _cannot(leaf, str(error)) from error
    return splices


def check_editable(leaf: Leaf) -> None:
    """Raise CannotEditYaml if a scalar cannot be changed by itself."""
    if leaf.why_fixed is not None:
        raise _cannot(leaf, leaf.why_fixed)


def splice(document: Document, splices: list[Splice]) -> str:
    """Apply splices to a document, and have both parsers check the result.

    Raises:
        CannotEditYaml: A parser sees another difference than the planned one.
    """
    if not splices:
        return document.text
    text = document.text
    for change in sorted(splices, key=lambda change: change.leaf.start, reverse=True):
        start, end = change.leaf.start, change.leaf.end
        if change.whole:
            start = int(node_at(document.root, change.leaf.where).start_mark.index) + document.shift
        new = change.text
        if start == end and new and text[start - 1 : start].strip():
            new = f" {new}"  # an empty value starts right behind the colon
        elif not new and text[start - 1 : start] == " ":
            start -= 1
        text = text[:start] + new + text[end:]
    check = _check if document.syntax is Syntax.YAML else _check_plain
    check(document, splices, text)
    return text


def _check(document: Document, splices: list[Splice], text: str) -> None:
    planned = {change.leaf.where: change for change in splices}
    first = splices[0].leaf
    try:
        after = Document.parse(text, document.name)
        before_1_2, after_1_2 = document.root_1_2, after.root_1_2
    except ConfigError as error:
        raise _cannot(first, f"the file could not be read afterwards: {error.message}") from error
    for before_outline, after_outline in (
        (document.outline_1_1, after.outline_1_1),
        (outline(before_1_2), outline(after_1_2)),
    ):
        differing = {
            where
            for where in before_outline.keys() | after_outline.keys()
            if before_outline.get(where) != after_outline.get(where)
        }
        if differing - planned.keys() or any(after_outline[where][0] != "scalar" for where in planned):
            raise _cannot(first, "the new value would change the meaning of other lines")
    for where, change in planned.items():
        meaning, reading_1_1 = after.readings(where)
        node_1_2 = node_at(after_1_2, where)
        try:
            readings = [meaning] if change.restores else [reading_1_1, read_1_2(node_1_2)]
        except ValueError as error:
            raise _cannot(change.leaf, f"a YAML 1.2 parser cannot read {shown(change.value)} there: {error}") from error
        if not change.restores and not (is_standard(node_at(after.root, where)) and is_standard(node_1_2)):
            raise _cannot(change.leaf, f"{shown(change.value)} would not be read as a text there")
        # A file that says `yes` is read by a YAML 1.1 parser, and goes on saying `no`.
        if isinstance(change.value, bool) and str(node_1_2.value).lower() in ("yes", "no", "on", "off"):
            readings = [reading_1_1]
        if not all(same_value(reading, change.value) for reading in readings):
            raise _cannot(
                change.leaf,
                f"{shown(change.value)} would be read back as {' or '.join(shown(reading) for reading in readings)}",
            )


def _check_plain(document: Document, splices: list[Splice], text: str) -> None:
    """Check a JSON or TOML text with the parser of the standard library, which is what trainers read it with."""
    first = splices[0].leaf
    try:
        Document.parse(text, document.name)
        after = second_reading(document.syntax, text, document.name)
    except ConfigError as error:
        raise _cannot(first, f"the file could not be read afterwards: {error.message}") from error
    before = second_reading(document.syntax, document.text, document.name)
    wanted = with_values(before, {change.leaf.path: change.value for change in splices})
    if differences(wanted, after):
        raise _cannot(first, "the new value would change the meaning of other lines, or be read back as another")


def _cannot(leaf: Leaf, why: str) -> CannotEditYaml:
    return CannotEditYaml(leaf.dotted, why, line=leaf.line, remedy=_REMEDY)


def _line_in(where: str | None) -> int | None:
    line = (where or "").rpartition(":")[2]
    return int(line) if line.isdigit() else None


# Removal of one top-level key from a config, all other lines unchanged.


_CUT_REMEDY = "Move the section into a file of its own: <name of the config>.autotune.yaml, beside it."
_NEWLINE = "\n"
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?\r?\n?")


def without_key(document: Document, key: str) -> Document:
    """Return the config without one top-level key: the lines of the key and its value go, comments around them stay.

    Returns:
        The document itself if it has no such key.

    Raises:
        ConfigError: The key cannot be cut out by whole lines, or other values refer to something in it.
    """
    entry = document.entry(key)
    if entry is None:
        return document
    where = f"{document.name}:{document.line((key,))}"
    body = document.text[document.shift :]
    start = int(entry[0].start_mark.index)
    line_start = body.rfind("\n", 0, start) + 1
    later = [int(k.start_mark.index) for k, _ in document.root.value if k.start_mark.index > start]
    end = content_end(body, start, min(later, default=None))
    rest = _REST_OF_LINE.match(body, 0 if end == 0 else end)
    line_end = end if body[end - 1] == "\n" else rest.end() if rest else end
    whole_lines = not body[line_start:start].strip() and (line_end == len(body) or body[line_end - 1] == "\n")
    if document.root.flow_style or not whole_lines:
        raise ConfigError(
            f"the {key}: section shares its lines with other keys, so it cannot be left out of the trials' copies",
            where=where,
            remedy=_CUT_REMEDY,
        )
    text = document.text[: document.shift] + body[:line_start] + body[line_end:]
    if len(document.root.value) == 1:
        # Nothing else is in it: the trials get a config without keys, since an empty file is none.
        text = f"{text}{'' if text[document.shift :][-1:] in ('', _NEWLINE) else _NEWLINE}{{}}{_NEWLINE}"
    try:
        shorter = Document.parse(text, document.name)
        same = differs_by_key(document, shorter, key)
    except ConfigError as error:
        raise ConfigError(
            f"without the {key}: section the config cannot be read: {error.message}", where=where, remedy=_CUT_REMEDY
        ) from error
    if not same:
        raise ConfigError(f"leaving the {key}: section out would change other keys", where=where, remedy=_CUT_REMEDY)
    return shorter


def differs_by_key(longer: Document, shorter: Document, key: str) -> bool:
    """Return whether both parsers see the same in two configs except for one top-level key that only the first one has.

    Raises:
        ConfigError: A parser cannot read one of them.
    """
    return all(
        outline(after) == outline(_pruned(before, key))
        for before, after in ((longer.root, shorter.root), (longer.root_1_2, shorter.root_1_2))
    )


def _pruned(root: Any, key: str) -> Any:
    shorter = copy.copy(root)
    shorter.value = [(k, v) for k, v in root.value if k.value != key]
    return shorter


_TEMPLATE_NAME = re.compile(r".*\.(?:j2|jinja2?|tmpl|tpl|template|in|erb|mustache)", re.IGNORECASE)
_APPEND_REMEDY = "Give it a file of its own beside the config: autotune init --separate ..."


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """Result of an insertion into a text."""

    text: str
    inserted: str


def with_section(document: Document, key: str, lines: Sequence[str]) -> Insertion:
    """Add a section at the end of a config.

    It starts on a line of its own behind a blank one, indented like the other keys, with the file's own line ends; a
    file without a final newline ends without one again. Both parsers read the result, and must see one key more and
    nothing else changed.

    Args:
        document: The config; without such a key.
        lines: The lines of the section, the first with the key; without line ends.

    Raises:
        ConfigError: It is a template, or another key cannot be added at the end of it.
    """
    if _TEMPLATE_NAME.fullmatch(document.name) or re.search(r"#.*\{%", document.text):
        raise ConfigError(
            "this looks like a template, and what is made of it is not known",
            where=document.name,
            remedy="Fill the template in first, and give the config that comes out.",
        )
    if document.root.flow_style:
        raise ConfigError(
            "the config is written in braces, {key: value}, and lines cannot be added to that",
            where=document.name,
            remedy=_APPEND_REMEDY,
        )
    newline = _newline(document.text)
    indent = " " * int(document.root.value[0][0].start_mark.column) if document.root.value else ""
    block = newline.join(f"{indent}{line}" for line in lines)
    why = "the new lines would change the meaning of others"
    # A block scalar at the end may take a blank line as its own.
    for blank in (newline, ""):
        new = _insert(document, block, blank, newline)
        try:
            longer = Document.parse(new.text, document.name)
            if key in longer and differs_by_key(longer, document, key):
                return new
        except ConfigError as error:
            why = error.message
    raise ConfigError(
        f"the {key}: section cannot be added at its end: {why}", where=document.name, remedy=_APPEND_REMEDY
    )


def _insert(document: Document, block: str, blank: str, newline: str) -> Insertion:
    old = document.text
    end = document_end(old[document.shift :])
    if end is not None:  # `...` ends the document: the section has to be in front of it
        at, inserted = document.shift + end, f"{blank}{block}{newline}"
    elif old.endswith(("\n", "\r")):
        at, inserted = len(old), f"{blank}{block}{newline}"
    else:
        at, inserted = len(old), f"{newline}{blank}{block}"
    return Insertion(text=f"{old[:at]}{inserted}{old[at:]}", inserted=inserted)


def _newline(text: str) -> str:
    ends = re.findall(r"\r\n|\n|\r", text)
    return ends[-1] if ends else "\n"
