"""Splicing: change single values of a config's text and nothing else.

The new value replaces exactly the old one's characters; dumping preserves a real config in only 7 to 20 % of edits.
Both parsers (for JSON and TOML the standard library's) then must see the planned difference only, so that a mistake
leads to a refusal, not to a wrong file. The method is that of pre-commit's ``yaml_rewrite.py``; the check by two
parsers is ours.
"""

import copy
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from autotune.config.document import Document, Leaf
from autotune.config.keys import KeyPath, NewValues, Syntax, dotted, shown
from autotune.config.parsers import (
    STANDARD_TAGS,
    TEMPLATE,
    children,
    is_too_long,
    nodes,
    outline,
    plain_reading_1_2,
    reading,
    same_value,
)
from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar

_REMEDY = "Change this value by hand, or remove the key from the knobs."


@dataclass(frozen=True, kw_only=True)
class Splice:
    """Replacement of one scalar's characters.

    Attributes:
        text: New characters, including quotes.
        whole: Whether to also replace a tag before the scalar.
        restores: Whether the characters were here before: then the two parsers may disagree on them, as on `1e-4`.
    """

    leaf: Leaf
    value: Scalar
    text: str
    whole: bool = False
    restores: bool = False


def edit_yaml(text: str, values: NewValues) -> str:
    """Change scalars of a YAML text; all else stays byte for byte.

    Floats are written so that YAML 1.1 and 1.2 parsers agree (``1.0e-04``); a bool keeps the file's words (``yes``,
    ``on``).

    Args:
        text: The file's text, read with ``newline=""``.
        values: New values by key path: dotted (``data.batch_size``, ``layers.0.size``), or a tuple of keys and list
            positions for keys that contain dots.

    Raises:
        CannotEditYaml: The key is missing, or holds a mapping, a list or a block of text; the value is or has an alias,
            comes from a merge key, is a template; or the text is not a single YAML mapping.
    """
    if not values:
        return text
    try:
        document = Document(text, "the text")
    except ConfigError as error:
        first: KeyPath = next(iter(values.keys()))
        place = (error.where or "").rpartition(":")[2]
        line = int(place) if place.isdigit() else None
        raise CannotEditYaml(dotted(first), error.message, line=line, remedy=error.remedy or _REMEDY) from error
    return splice(document, plan_splices(document, values))


def plan_splices(document: Document, values: NewValues) -> list[Splice]:
    """Return the splices for values that PyYAML does not read already."""
    splices: list[Splice] = []
    for path, value in values.items():
        leaf = document.leaf(path)
        if any(leaf.number == other.leaf.number for other in splices):
            raise _cannot(leaf, "two new values are given for this key")
        if leaf.is_clear and same_value(value, leaf.reading_1_1):
            continue
        check_editable(leaf)
        if is_too_long(value):
            raise _cannot(leaf, "the new number has too many digits to be read back")
        try:
            splices.append(Splice(leaf=leaf, value=value, text=write_scalar(value, leaf)))
        except ValueError as error:
            raise _cannot(leaf, str(error)) from error
    return splices


def check_editable(leaf: Leaf) -> None:
    """Raise CannotEditYaml if a scalar cannot be changed separately."""
    if leaf.why_fixed is not None:
        raise _cannot(leaf, leaf.why_fixed)


def splice(document: Document, splices: list[Splice]) -> str:
    """Apply splices; raise CannotEditYaml if a parser sees a difference other than the planned one."""
    if not splices:
        return document.text
    text = document.text
    for change in sorted(splices, key=lambda change: change.leaf.start, reverse=True):
        start, end = change.leaf.start, change.leaf.end
        if change.whole:
            start = int(document.nodes[change.leaf.number].start_mark.index) + document.shift
        new = change.text
        if start == end and new and text[start - 1 : start].strip():
            new = f" {new}"  # an empty value starts right after the colon
        elif not new and text[start - 1 : start] == " ":
            start -= 1
        text = text[:start] + new + text[end:]
    try:
        after = Document(text, document.name)
        for one in (document, after):
            one.check_by_second_parser()
    except ConfigError as error:
        raise _cannot(splices[0].leaf, f"the result could not be read: {error.message}") from error
    (_check if document.syntax is Syntax.YAML else _check_plain)(document, splices, after)
    return text


def _check(document: Document, splices: list[Splice], after: Document) -> None:
    planned = {change.leaf.number: change for change in splices}
    trees = ((document.nodes, after.nodes), (nodes(document.root_1_2), nodes(after.root_1_2)))
    shapes = [[len(children(node)) for node in before[: max(planned)]] for before, _ in trees]
    if shapes[0] != shapes[1]:
        raise _cannot(splices[0].leaf, "the parsers of YAML 1.1 and 1.2 disagree on its place")
    for before, now in trees:
        pairs = zip_longest(outline(before), outline(now))
        differing = {number for number, (old, new) in enumerate(pairs) if old != new}
        if differing - planned.keys() or any(now[number].id != "scalar" for number in planned):
            raise _cannot(splices[0].leaf, "the new value would change the meaning of other lines")
    for number, change in planned.items():
        node, node_1_2 = (now[number] for _, now in trees)
        meaning, reading_1_1 = after.readings(node)
        try:
            readings = [meaning] if change.restores else [reading_1_1, reading(node_1_2)]
        except ValueError as error:
            raise _cannot(change.leaf, f"a YAML 1.2 parser cannot read {shown(change.value)} there: {error}") from error
        if not change.restores and not (node.tag in STANDARD_TAGS and str(node_1_2.tag) in STANDARD_TAGS):
            raise _cannot(change.leaf, f"{shown(change.value)} would not be read as text there")
        # A file with `yes` is read by a YAML 1.1 parser, so `no` may be written.
        if isinstance(change.value, bool) and str(node_1_2.value).lower() in ("yes", "no", "on", "off"):
            readings = [reading_1_1]
        if not all(same_value(one, change.value) for one in readings):
            read = " or ".join(map(shown, readings))
            raise _cannot(change.leaf, f"{shown(change.value)} would be read back as {read}")


def _check_plain(document: Document, splices: list[Splice], after: Document) -> None:
    wanted = {leaf.path: leaf.value for leaf in document.leaves} | {one.leaf.path: one.value for one in splices}
    found = {leaf.path: leaf.value for leaf in after.leaves}
    if wanted.keys() != found.keys() or not all(same_value(found[path], value) for path, value in wanted.items()):
        why = "the new value would change the meaning of other lines, or be read back differently"
        raise _cannot(splices[0].leaf, why)


def _cannot(leaf: Leaf, why: str) -> CannotEditYaml:
    return CannotEditYaml(leaf.dotted, why, line=leaf.line, remedy=_REMEDY)


# A line with more than a comment on it.
_CONTENT = re.compile(r"^[ \t]*[^\s#].*\n?", re.MULTILINE)


def without_key(document: Document, key: str) -> Document:
    """Return the config without the lines of one top-level key; raise a ConfigError if that changes others."""
    root, text = document.root, document.text[document.shift :]
    entry = next(((name, value) for name, value in reversed(root.value) if name.value == key), None)
    if entry is None:
        return document
    remedy = "Move the section into a separate file next to it: <name of the config>.autotune.yaml"
    refused = partial(ConfigError, where=f"{document.name}:{document.line((key,))}", remedy=remedy)
    start = int(entry[0].start_mark.index)
    line_start = text.rfind("\n", 0, start) + 1
    if root.flow_style or text[line_start:start].strip():
        why = "shares its lines with other keys, so it cannot be removed from trials' copies"
        raise refused(f"the {key}: section {why}")
    later = [int(name.start_mark.index) for name, _ in root.value if name.start_mark.index > start]
    stop = min(later, default=int(root.end_mark.index))
    # In a block of text, lines that look like comments are content. The target of an alias is elsewhere.
    scalars = [node for node in nodes(entry[1]) if node.id == "scalar" and node.start_mark.index > start]
    ends = [node.end_mark.index for node in scalars] + [line.end() for line in _CONTENT.finditer(text, start, stop)]
    end = text.find("\n", max(ends) - 1) + 1 or len(text)
    shorter_text = document.text[: document.shift] + text[:line_start] + text[end:]
    if len(root.value) == 1:
        # No other key: trials get an empty mapping, because an empty file is not a config.
        shorter_text += "{}\n" if shorter_text[document.shift :][-1:] in ("", "\n") else "\n{}\n"
    try:
        shorter = Document(shorter_text, document.name)
        same = differs_by_key(document, shorter, key)
    except ConfigError as error:
        raise refused(f"without the {key}: section the config cannot be read: {error.message}") from error
    if not same:
        raise refused(f"removing the {key}: section would change other keys")
    return shorter


def differs_by_key(longer: Document, shorter: Document, key: str) -> bool:
    """Return whether both parsers see one top-level key of the first as the only difference."""
    for before, after in ((longer.root, shorter.root), (longer.root_1_2, shorter.root_1_2)):
        pruned = copy.copy(before)
        pruned.value = [(name, value) for name, value in before.value if name.value != key]
        if outline(nodes(after)) != outline(nodes(pruned)):
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """Result of an insertion."""

    text: str
    inserted: str


def with_section(document: Document, key: str, lines: Sequence[str]) -> Insertion:
    """Append a section to a config, after a blank line, with the file's indentation and line ends.

    A missing final newline stays missing. Both parsers must see one more key and no other change.

    Raises:
        ConfigError: The config is a template, or cannot take another key at its end.
    """
    old, root = document.text, document.root
    is_template = re.search(r"\.(?:j2|jinja2?|tmpl|tpl|template|in|erb|mustache)\Z", document.name, re.IGNORECASE)
    if is_template or re.search(r"#.*\{%", old):
        why = "this looks like a template, whose result is unknown"
        raise ConfigError(why, where=document.name, remedy=TEMPLATE[1])
    remedy = "Write it into a separate file next to the config: autotune init --separate ..."
    refused = partial(ConfigError, where=document.name, remedy=remedy)
    if root.flow_style:
        raise refused("the config is in braces, {key: value}, so no lines can be added")
    newline = (re.findall(r"\r\n|\n|\r", old) or ["\n"])[-1]
    block = newline.join(" " * int(root.value[0][0].start_mark.column) + line for line in lines)
    at = int(root.end_mark.index) + document.shift
    if not old.startswith("...", at):  # it ends the document: the section must precede it
        at = len(old)
    why = "the new lines would change the meaning of others"
    # A block scalar at the end may take a blank line as its own.
    for blank in (newline, ""):
        is_after_line = at < len(old) or old.endswith(("\n", "\r"))
        inserted = f"{blank}{block}{newline}" if is_after_line else f"{newline}{blank}{block}"
        new = Insertion(text=old[:at] + inserted + old[at:], inserted=inserted)
        try:
            longer = Document(new.text, document.name)
            if key in longer and differs_by_key(longer, document, key):
                return new
        except ConfigError as error:
            why = error.message
    raise refused(f"the {key}: section cannot be added at its end: {why}")


# Characters of single values, in the style of those that they replace.


# Words that no YAML construct starts with; others are quoted.
_PLAIN = re.compile(r"[^\W\d_](?:[\w./+-]|(?<=\w) (?=\w))*|[./]{1,2}[\w./+-]*[\w/]|_[\w./+-]*")


def write_scalar(value: Scalar, old: Leaf) -> str:
    """Return the characters for a value in the style and syntax of the old one; ValueError if the syntax has none."""
    if isinstance(value, str):
        if old.syntax is Syntax.YAML:
            return _yaml_text(value, old.style)
        if old.syntax is Syntax.PYTHON:
            return _double_quoted(value, "\\x{:02x}") if old.style == '"' else repr(value)
        return json.dumps(value) if old.syntax is Syntax.JSON else _toml_text(value, old.style)
    if old.syntax is Syntax.PYTHON and (value is None or isinstance(value, bool)):
        return repr(value)
    if isinstance(value, bool):
        return _write_bool(value, old)
    if value is not None:
        return _write_number(value, old)
    if old.syntax is Syntax.TOML:
        raise ValueError("TOML has no None")
    return old.text if old.text in ("null", "Null", "NULL", "~") and old.style is None else "null"


def new_scalar(value: Scalar, *, style: str | None = None) -> str:
    """Return the characters for a new value, on one line, that both parsers read the same.

    `style` is the quote character for text; None quotes only if needed.
    """
    if isinstance(value, str):
        return _yaml_text(value, style)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _write_float(value) if isinstance(value, float) else str(value)


def _write_bool(value: bool, old: Leaf) -> str:
    pairs = (("true", "false"), ("yes", "no"), ("on", "off")) if old.syntax is Syntax.YAML else ()
    word = old.text.lower()
    pair = next((pair for pair in pairs if word in pair), ("true", "false"))
    new = pair[0 if value else 1]
    if old.style is not None or word not in pair:
        return new
    return new.upper() if old.text.isupper() else new.capitalize() if old.text[0].isupper() else new


def _write_number(value: int | float, old: Leaf) -> str:
    if (
        isinstance(value, float)
        and value.is_integer()
        and isinstance(old.value, int)
        and not isinstance(old.value, bool)
    ):
        value = int(value)
    elif isinstance(old.value, float) and abs(value) < 2**53:  # floats represent smaller integers exactly
        value = float(value)
    if isinstance(value, int):
        if old.syntax is Syntax.TOML and value.bit_length() > 63:  # and a sign
            raise ValueError("TOML integers have 64 bits")
        return str(value)
    if old.syntax is not Syntax.YAML and not math.isfinite(value):
        if old.syntax is not Syntax.TOML:
            raise ValueError(f"{old.syntax.value} has no {shown(value)}")
        return str(value)
    return _write_float(value, exponent="e" in old.text.lower() and not old.text.lower().startswith("0x"))


def _write_float(value: float, *, exponent: bool = False) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    if exponent and "e" not in text:
        text = next(short for digits in range(17) if float(short := f"{value:.{digits}e}") == value)
    mantissa, e, power = text.partition("e")
    # Without a point in the mantissa and a sign on the exponent, PyYAML reads a string.
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(power):+03d}" if e else text


def _yaml_text(value: str, style: str | None) -> str:
    if style is None and _PLAIN.fullmatch(value) and _reads_as_text(value):
        return value
    if style == '"' or not value.isprintable():
        return _double_quoted(value, "\\x{:02x}")
    return "'" + value.replace("'", "''") + "'"


def _toml_text(value: str, style: str | None) -> str:
    is_literal = style == "'" and "'" not in value and value.isprintable()
    return f"'{value}'" if is_literal else _double_quoted(value, "\\u{:04x}")


def _double_quoted(value: str, short: str) -> str:
    """Return a text in double quotes; `short` is the escape of characters below 0x100."""
    return '"' + "".join(_escaped(character, short) for character in value) + '"'


def _escaped(character: str, short: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in '"\\' else character
    code = ord(character)
    return (short if code < 0x100 else "\\u{:04x}" if code < 0x10000 else "\\U{:08x}").format(code)


def _reads_as_text(word: str) -> bool:
    try:
        return Document(f"a: {word}\n").leaves[0].reading_1_1 == word == plain_reading_1_2(word)
    except (ConfigError, ValueError):  # `._` looks like a number, but is not one
        return False
