"""Node trees of configs that are Python, as those of MMEngine; their syntax is read, and nothing of them runs.

Keys are the names that the file assigns and those within: ``train_dataloader = dict(batch_size=2)``. Of a function
``get_config``, as ml_collections has it, they are the attributes that it sets: ``config.data.batch_size = 2``.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import yaml

from autotune.config.parsers import TAGS, mapping_node
from autotune.errors import ConfigError

COMPUTED_TAG = "computed"
"""Tag of a value that is known only when the file runs."""

_TEXT = re.compile(r"""(\"\"\"|'''|["'])(?:(?!\1)[^\\]|\\.)*\1""", re.DOTALL)
_CHANGES = ("append", "extend", "insert", "merge_from_dict", "pop", "setdefault", "update")


def compose(text: str, name: str) -> yaml.Node:
    """Compose the node tree of a Python text.

    Args:
        text: The text, without a byte order mark.

    Raises:
        ConfigError: It is no Python.
        RecursionError: It is nested too deeply.
    """
    remedy = "Mend this line; it cannot be trained with as it stands either."
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"not valid Python: {error.msg}", where=f"{name}:{error.lineno}", remedy=remedy) from error
    except ValueError as error:  # a null character
        raise ConfigError(f"not readable as Python: {error}", where=name, remedy=remedy) from error
    return _Composer(text, name).mapping(_assigned(tree))


@dataclass(frozen=True)
class _Assigned:
    """Assignment of the file: what leads to its value, and whether that is all there is to know of it."""

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
        # `config.data = ConfigDict()`, `dataloader = common.dataloader`: what is set within counts
        is_opened = isinstance(value, ast.Name | ast.Attribute | ast.Call) and not list(_named(value))
        if is_opened and any(other.startswith(f"{text}.") for other in below):
            continue
        found.append(_Assigned(path, value, stored[text] == 1 and text not in changed and not below))
    return found


@dataclass
class _Composer:
    text: str
    name: str
    _starts: list[int] = field(init=False)  # of the lines
    _lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n|\Z)", self.text)
        self._starts = [0, *accumulate(map(len, self._lines))]

    def mapping(self, assigned: Iterable[_Assigned]) -> yaml.Node:
        """Return the mapping of assignments, those below one key together."""
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
        quoted = _TEXT.fullmatch(text)
        tag = TAGS.get(type(content)) if is_clear else None
        if tag is None or isinstance(content, str) != bool(quoted) or not (quoted or text.split() == [text]):
            return self._computed(value)
        written = content if isinstance(content, str) else text
        return yaml.ScalarNode(tag, written, start, end, quoted and quoted[1])

    def _computed(self, value: ast.expr) -> yaml.Node:
        start, end = self._marks(value)
        return yaml.ScalarNode(COMPUTED_TAG, self.text[start.index : end.index], start, end)

    def _marks(self, value: ast.expr) -> tuple[yaml.Mark, yaml.Mark]:
        assert value.end_lineno is not None
        assert value.end_col_offset is not None
        return self._mark(value.lineno, value.col_offset), self._mark(value.end_lineno, value.end_col_offset)

    def _mark(self, line: int, at_byte: int) -> yaml.Mark:
        column = len(self._lines[line - 1].encode()[:at_byte].decode(errors="ignore"))
        return yaml.Mark(self.name, self._starts[line - 1] + column, line - 1, column, None, 0)


def _named(value: ast.expr) -> Iterator[tuple[str | None, ast.expr]]:
    """Yield what has a name in a value: entries of a dict, arguments of a call; the name is None if it is not known."""
    if isinstance(value, ast.Dict):
        for key, one in zip(value.keys, value.values, strict=True):
            yield (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None), one
    elif isinstance(value, ast.Call):
        yield from ((one.arg, one.value) for one in value.keywords)
