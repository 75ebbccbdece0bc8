"""Splicing: changes single values of a config's text and nothing else.

The new value replaces exactly the characters of the old one; the rest of the text is not touched. Dumping instead
preserves a real config in only 7 to 20 % of edits. Afterwards both parsers read the result again and must see the
planned difference and no other, so a mistake of this module leads to a refusal and not to a wrong file. The method is
that of pre-commit's ``yaml_rewrite.py``; the check by two parsers is ours. For JSON and TOML the second parser is that
of the standard library.
"""

from dataclasses import dataclass

from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar
from autotune.settings.text.document import Document, Leaf
from autotune.settings.text.keys import KeyPath, NewValues, dotted, shown
from autotune.settings.text.parsers import (
    is_standard,
    is_too_long,
    node_at,
    outline,
    read_1_2,
    same_value,
)
from autotune.settings.text.scalars import write_scalar
from autotune.settings.text.second_reading import differences, second_reading, with_values
from autotune.settings.text.syntax import Syntax

_REMEDY = "Change this value by hand, or leave the key out of the knobs."


@dataclass(frozen=True, kw_only=True)
class Splice:
    """Replacement of one scalar's characters.

    Attributes:
        leaf: The present scalar.
        value: The new value.
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
