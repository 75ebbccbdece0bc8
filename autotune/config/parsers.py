"""Parsers that verify every edit: PyYAML (YAML 1.1) and ruamel.yaml (YAML 1.2), and those of JSON, TOML and Python.

Trainers use one of the YAML parsers, and the two disagree on ``1e-4``, ``yes`` or ``010``. They compose node
trees only: no object that a tag names is constructed.
"""

import ast
import json
import math
import re
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from types import NoneType
from typing import Any

import ruamel.yaml
import ruamel.yaml.error
import yaml

from autotune.config.keys import Syntax, shown
from autotune.errors import ConfigError
from autotune.records import Scalar

MERGE_TAG = "tag:yaml.org,2002:merge"
STANDARD_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("str", "bool", "int", "float", "null"))
TAGS: Mapping[type, str] = dict(zip((str, bool, int, float, NoneType), STANDARD_TAGS, strict=True))
"""Tags by the type of a value."""
# Further errors of both parsers, on unusual texts such as ``%YAML 1.3``.
_FAILURES = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, AssertionError, NotImplementedError)

TEMPLATE = (
    "this is a template, not YAML: it contains {{ ... }} or {% ... %}",
    "Render the template first, and pass the resulting config.",
)
TOO_DEEP = ("the file is nested too deeply, or an alias contains itself", "Check that it is the right file.")
_FIX_REMEDY = "Fix this line; training cannot read it either."


class Parser(Enum):
    """YAML parser; the value is its display name."""

    YAML_1_1 = "PyYAML"
    YAML_1_2 = "a YAML 1.2 parser (ruamel.yaml)"


def compose(text: str, name: str, parser: Parser) -> Any:
    """Compose a parser's node tree, shared between callers; None if empty.

    Raises:
        ConfigError: It is not one YAML document.
    """
    try:
        return _composed(text, parser)
    except (yaml.YAMLError, ruamel.yaml.error.YAMLError, RecursionError, *_FAILURES) as error:
        why, line, remedy = _explained(error, text, parser)
        raise ConfigError(why, where=f"{name}:{line}" if line else name, remedy=remedy) from error


@lru_cache(maxsize=4)  # a config and its copies are parsed repeatedly
def _composed(text: str, parser: Parser) -> Any:
    # Trainers use the pure Python loader; libyaml's accepts texts that it rejects.
    return yaml.compose(text, Loader=yaml.SafeLoader) if parser is Parser.YAML_1_1 else _yaml_1_2().compose(text)


def _yaml_1_2() -> Any:
    return ruamel.yaml.YAML(typ="safe", pure=True)


def _explained(error: Any, text: str, parser: Parser) -> tuple[str, int | None, str]:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = None if mark is None else int(mark.line) + 1
    problem = getattr(error, "problem", None) or str(error)
    if isinstance(error, RecursionError):
        return TOO_DEEP[0], None, TOO_DEEP[1]
    if isinstance(error, yaml.reader.ReaderError):
        why = f"YAML does not allow the character {chr(error.character)!r}"
        line = text.count("\n", 0, error.position) + 1
        return why, line, "Delete it, or escape it in double quotes."
    if isinstance(error, ruamel.yaml.error.YAMLError):
        remedy = "Write this line so that both YAML 1.1 and 1.2 parsers read it."
        return f"a YAML 1.2 parser cannot read it: {problem}", line, remedy
    if not isinstance(error, yaml.YAMLError):
        remedy = "Check unusual directives (%...), tags (!...) and escapes."
        return f"{parser.value} cannot read it: {type(error).__name__}: {error}", None, remedy
    if "another document" in problem:
        why = "the file has several YAML documents; which one the trainer reads is unknown"
        return why, line, "Keep the training config in a separate file."
    if line and looks_like_template("\n".join(text.splitlines()[max(line - 2, 0) : line + 1])):
        return TEMPLATE[0], line, TEMPLATE[1]
    context = getattr(error, "context", None)
    remedy = _FIX_REMEDY
    if r"'\t'" in problem:
        remedy = "Indent with spaces: YAML does not allow tabs there."
    return f"not valid YAML{f' {context}' if context else ''}: {problem}", line, remedy


def mapping_node(pairs: Iterable[tuple[Any, yaml.Node]], mark: yaml.Mark) -> yaml.Node:
    """Return a mapping of nodes not composed from YAML; it and its keys share one mark."""
    keys = [(yaml.ScalarNode(TAGS[str], key, mark, mark), node) for key, node in pairs]
    return yaml.MappingNode("tag:yaml.org,2002:map", keys, mark, mark, True)


def looks_like_template(text: str) -> bool:
    """Return whether a text has placeholders to be rendered before YAML is read."""
    return "{{" in text or "{%" in text


def reading(node: Any) -> Scalar:
    """Return a scalar node's value by the parser that composed it; for a custom tag, its text.

    Raises:
        ValueError: The text does not match its tag, or is too long.
    """
    if str(node.tag) not in STANDARD_TAGS[1:]:
        return str(node.value)
    constructor: Any = yaml.constructor.SafeConstructor() if isinstance(node, yaml.Node) else _yaml_1_2().constructor
    try:
        value: Scalar = constructor.construct_object(node)
    except _FAILURES as error:  # e.g. a KeyError for `!!bool 5`, an IndexError for `!!int ''`
        raise ValueError(f"{shown(node.value)} is not such a value") from error
    if is_too_long(value):
        raise ValueError("the number has too many digits")
    return value


def is_too_long(value: Scalar) -> bool:
    """Return whether an integer has more digits than Python formats: 4,300 by default."""
    return isinstance(value, int) and value.bit_length() > 14_000  # 4,214 digits


@lru_cache(maxsize=4096)
def plain_reading_1_2(word: str) -> Scalar:
    """Return ruamel.yaml's reading of a single plain scalar, e.g. the float in ``1e-4``."""
    node = _yaml_1_2().compose(f"- {word}\n").value[0]
    return reading(node) if node.id == "scalar" else word


def children(node: Any) -> list[Any]:
    """Return a node's direct children, including keys."""
    if node.id == "mapping":
        return [part for pair in node.value for part in pair]
    return list(node.value) if node.id == "sequence" else []


def nodes(root: Any) -> list[Any]:
    """Return a tree's nodes in file order; aliases are listed but not followed."""
    found: list[Any] = []
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        found.append(node)
        if id(node) not in seen:
            seen.add(id(node))
            pending.extend(reversed(children(node)))
    return found


def outline(tree: list[Any]) -> list[tuple[Any, ...]]:
    """Return a comparable form of a tree's `nodes`, including aliases."""
    first: dict[int, int] = {}
    return [
        (node.id, first.setdefault(id(node), i), str(node.tag), node.value if node.id == "scalar" else len(node.value))
        for i, node in enumerate(tree)
    ]


def same_value(one: Scalar, other: Scalar) -> bool:
    """Return whether a trainer sees two scalars as the same: ``2`` is ``2.0``, but neither ``True`` nor ``"2"``."""
    if isinstance(one, bool | str) or isinstance(other, bool | str):
        return type(one) is type(other) and one == other
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return one == other


def joined_surrogates(text: str) -> str:
    """Replace surrogate pairs by their characters; lone halves stay."""
    pair = "[\ud800-\udbff][\udc00-\udfff]"
    return re.sub(pair, lambda found: found[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


# JSON and TOML. The standard library's parsers, which trainers use, report no positions. So each value in the text is
# replaced by a number, and the parsed result maps keys to numbers. (tomlkit changes some texts: it joins the tables of
# one list, and rejects a byte order mark.)


DATE_TAG = "date"
"""Tag of a date or time of TOML, which a trainer does not read as text."""

_LINE = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_BLOCK = r'"""(?:[^\\]|\\.)*?"""(?:"{0,2}(?!"))|\'\'\'.*?\'\'\'(?:\'{0,2}(?!\'))'
_VALUE = rf"(?P<value>{_BLOCK}|{_LINE}|\d{{4}}-\d\d-\d\d \d\d:[^\s,\]}}#]*|[^\s,\[\]{{}}#]+)"
_REST = rf"{_VALUE}|(?P<opening>[\[{{])|(?P<closing>[\]}}])|#[^\n]*|[^\S\n]+|[\n,]"
_KEYS = rf"(?:[\w-]+|{_LINE})(?:[ \t]*\.[ \t]*(?:[\w-]+|{_LINE}))*[ \t]*"
_HEADER = rf"^[ \t]*\[{{1,2}}[ \t]*{_KEYS}\]{{1,2}}"
_IN_JSON, _IN_BRACKETS, _IN_TABLES = (
    re.compile(f"{passed_over}|{_REST}", re.DOTALL | re.MULTILINE)
    for passed_over in (rf"{_LINE}\s*:", f"{_KEYS}=", f"{_HEADER}|{_KEYS}=")
)


def compose_plain(text: str, name: str, syntax: Syntax) -> yaml.Node:
    """Compose a JSON or TOML text into a node tree like YAML's.

    Raises:
        ConfigError: The text is invalid, or the place of a value is ambiguous.
    """
    data = _load(text, name, syntax)
    places = _values(text, syntax)
    lines = [0, *(end.end() for end in re.finditer("\n", text))]

    def mark(index: int) -> yaml.Mark:
        line = bisect_right(lines, index) - 1
        return yaml.Mark(name, index, line, index - lines[line], None, 0)

    def tree(numbers: Any) -> yaml.Node:
        if isinstance(numbers, int):
            value, place = values[numbers], places[numbers]
            tag, start, end = TAGS.get(type(value), DATE_TAG), mark(place.start()), mark(place.end())
            quote = re.match("\"{3}|'{3}|[\"']", place[0])
            return yaml.ScalarNode(tag, value if isinstance(value, str) else place[0], start, end, quote and quote[0])
        items = numbers.items() if isinstance(numbers, dict) else enumerate(numbers)
        nodes = {key: tree(inside) for key, inside in items}
        first = min((node.start_mark for node in nodes.values()), key=lambda mark: mark.index, default=mark(0))
        if isinstance(numbers, list):
            return yaml.SequenceNode("tag:yaml.org,2002:seq", [*nodes.values()], first, first, True)
        return mapping_node(nodes.items(), first)

    try:
        ends = [0, *(place.end() for place in places)]
        between = [text[end : place.start()] for end, place in zip(ends, places, strict=False)]
        numbers = _load("".join(f"{before}{i}" for i, before in enumerate(between)) + text[ends[-1] :], name, syntax)
        alone = '{{"x": {}}}' if syntax is Syntax.JSON else "x = {}"
        values = [_load(alone.format(place[0]), name, syntax)["x"] for place in places]
        if repr(_filled(numbers, values)) != repr(data):
            raise ConfigError("another config was read")
    except (ConfigError, LookupError, TypeError) as error:
        why = "the values cannot be located in the text"
        remedy = "Please report this file as a bug; until then, keep the values in a simpler file."
        raise ConfigError(why, where=name, remedy=remedy) from error
    return tree(numbers)


def _load(text: str, name: str, syntax: Syntax) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_distinct) if syntax is Syntax.JSON else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not valid JSON: {error.msg}", where=f"{name}:{error.lineno}", remedy=_FIX_REMEDY) from error
    except tomllib.TOMLDecodeError as error:
        why, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        where = f"{name}:{line[1]}" if line else name
        raise ConfigError(f"not valid TOML: {why}", where=where, remedy=_FIX_REMEDY) from error
    except (ValueError, RecursionError) as error:  # a number with 5,000 digits; ten thousand brackets
        remedy = "Check that it is the right file."
        raise ConfigError(f"not readable as {syntax.value}: {error}", where=name, remedy=remedy) from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {shown(key)} in one object; parsers differ on which one counts")
    return found


def _values(text: str, syntax: Syntax) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    at = depth = 0
    while at < len(text):
        pattern = _IN_JSON if syntax is Syntax.JSON else _IN_BRACKETS if depth else _IN_TABLES
        match = pattern.match(text, at)
        assert match is not None, "each character is a token at least"
        at = match.end()
        depth += (match["opening"] is not None) - (match["closing"] is not None)
        if match["value"] is not None:
            found.append(match)
    return found


def _filled(numbers: Any, values: list[Any]) -> Any:
    if isinstance(numbers, dict):
        return {key: _filled(number, values) for key, number in numbers.items()}
    return [_filled(number, values) for number in numbers] if isinstance(numbers, list) else values[numbers]


# Python configs, e.g. of MMEngine: parsed, never executed.
#
# Keys are assigned names and names inside the values: ``train_dataloader = dict(batch_size=2)``. In a function
# ``get_config`` of ml_collections they are the attributes that it sets: ``config.data.batch_size = 2``.


COMPUTED_TAG = "computed"
"""Tag of a value that only execution reveals."""

_QUOTED_PYTHON = re.compile(r"""(\"\"\"|'''|["'])(?:(?!\1)[^\\]|\\.)*\1""", re.DOTALL)
_CHANGES = ("append", "extend", "insert", "merge_from_dict", "pop", "setdefault", "update")


def compose_python(text: str, name: str) -> yaml.Node:
    """Compose the node tree of a Python text; raise a ConfigError if it is invalid."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        where = f"{name}:{error.lineno}"
        raise ConfigError(f"not valid Python: {error.msg}", where=where, remedy=_FIX_REMEDY) from error
    except ValueError as error:  # a null character
        raise ConfigError(f"not readable as Python: {error}", where=name, remedy=_FIX_REMEDY) from error
    return _NodeComposer(text, name).mapping(_assigned(tree))


@dataclass(frozen=True)
class _Assigned:
    """Assignment in the file; `is_final` means that nothing else sets or changes the value."""

    path: tuple[str, ...]
    value: ast.expr
    is_final: bool


def _assigned(tree: ast.Module) -> list[_Assigned]:
    stored = Counter(
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
    )
    changed = {
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES
    }
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "get_config"]
    found = []
    for node, skipped in [
        *((node, 0) for node in tree.body),
        *((node, 1) for function in functions for node in function.body),
    ]:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        text = ast.unparse(target)
        path = tuple(text.split("."))[skipped:]
        if not path or not re.fullmatch(r"\w+(?:\.\w+)*", text):
            continue
        below = [other for other in stored.keys() | changed if re.match(re.escape(text) + r"[.\[]", other)]
        # `config.data = ConfigDict()`, `dataloader = common.dataloader`: the values set inside count
        is_opened = isinstance(value, ast.Name | ast.Attribute | ast.Call) and not list(_named(value))
        if is_opened and any(other.startswith(f"{text}.") for other in below):
            continue
        found.append(_Assigned(path, value, stored[text] == 1 and text not in changed and not below))
    return found


class _NodeComposer:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n|\Z)", text)
        self._starts = [0, *accumulate(map(len, self._lines))]

    def mapping(self, assigned: Iterable[_Assigned]) -> yaml.Node:
        below: dict[str, list[_Assigned]] = {}
        for one in assigned:
            below.setdefault(one.path[0], []).append(one)
        pairs = []
        for key, ones in below.items():
            if all(one.path[1:] for one in ones):
                inside = [_Assigned(one.path[1:], one.value, one.is_final) for one in ones]
                pairs.append((key, self.mapping(inside)))
            else:
                is_final = len(ones) == 1 and ones[0].is_final
                pairs += [(key, self._node(one.value) if is_final else self._computed(one.value)) for one in ones]
        return self._mapping(pairs)

    def _mapping(self, pairs: list[tuple[str, yaml.Node]]) -> yaml.Node:
        first = pairs[0][1].start_mark if pairs else yaml.Mark(self.name, 0, 0, 0, None, 0)
        return mapping_node(pairs, first)

    def _node(self, value: ast.expr) -> yaml.Node:
        named = list(_named(value))
        if named and all(key is not None for key, _ in named):
            return self._mapping([(key, self._node(one)) for key, one in named if key is not None])
        if isinstance(value, ast.List | ast.Tuple):
            start, _ = self._marks(value)
            return yaml.SequenceNode("tag:yaml.org,2002:seq", list(map(self._node, value.elts)), start, start, True)
        start, end = self._marks(value)
        text = self.text[start.index : end.index]
        try:
            content = ast.literal_eval(value)
            is_clear = repr(ast.literal_eval(text)) == repr(content)
        except (ValueError, SyntaxError):
            is_clear = False
        quoted = _QUOTED_PYTHON.fullmatch(text)
        tag = TAGS.get(type(content)) if is_clear else None
        if tag is None or isinstance(content, str) != bool(quoted) or not (quoted or text.split() == [text]):
            return self._computed(value)
        written = content if isinstance(content, str) else text
        return yaml.ScalarNode(tag, written, start, end, quoted and quoted[1])

    def _computed(self, value: ast.expr) -> yaml.Node:
        start, end = self._marks(value)
        return yaml.ScalarNode(COMPUTED_TAG, self.text[start.index : end.index], start, end)

    def _marks(self, value: ast.expr) -> tuple[yaml.Mark, yaml.Mark]:
        end = self._mark(value.end_lineno or 0, value.end_col_offset or 0)
        return self._mark(value.lineno, value.col_offset), end

    def _mark(self, line: int, at_byte: int) -> yaml.Mark:
        column = len(self._lines[line - 1].encode()[:at_byte].decode(errors="ignore"))
        return yaml.Mark(self.name, self._starts[line - 1] + column, line - 1, column, None, 0)


def _named(value: ast.expr) -> Iterator[tuple[str | None, ast.expr]]:
    """Yield the entries of a dict or call; the name is None if unknown."""
    if isinstance(value, ast.Dict):
        for key, one in zip(value.keys, value.values, strict=True):
            yield (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None), one
    elif isinstance(value, ast.Call):
        yield from ((one.arg, one.value) for one in value.keywords)
