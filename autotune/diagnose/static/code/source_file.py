"""Python source of a trainer as a syntax tree whose names are resolved through its imports."""

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.diagnose.messages.message import said

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Loop = ast.For | ast.AsyncFor | ast.While

_COMPATIBLE = re.compile(r"^tensorflow\.compat\.v[12]\.")


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceFile:
    """Source file of a trainer.

    Attributes:
        path: Its path.
        name: Its path for people, relative where that is shorter.
        tree: Its syntax tree.
        is_script: Whether it is what the command starts; else it is imported.
    """

    path: Path
    name: str
    tree: ast.Module
    is_script: bool

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        """The node that each node is directly in."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """Whole names by the names that they have here: of imports, and of module-level aliases such as ``k = keras``.

        Modules of the trainer's own that are imported relatively begin with a point.
        """
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    top = one.name.partition(".")[0]
                    found[one.asname or top] = one.name if one.asname else top
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                found |= {one.asname or one.name: f"{module}.{one.name}" for one in node.names}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                whole = _dotted(node.value, found)
                if whole is not None and whole.partition(".")[0] in _tops(found):
                    found.setdefault(node.targets[0].id, whole)
        return found

    def full_name(self, node: ast.AST) -> str | None:
        """Return the whole name of what an expression names, e.g. ``tensorflow.data.Dataset``; None for other ones.

        The names of TensorFlow's ``compat.v1`` and ``compat.v2`` are those without these. A name that is not imported
        stands for itself.
        """
        whole = _dotted(node, self.imported)
        return None if whole is None else _COMPATIBLE.sub("tensorflow.", whole)

    def imports(self, package: str) -> bool:
        """Return whether it imports a package, or something out of it."""
        return any(whole.partition(".")[0] == package for whole in self.imported.values())

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield what a node is in, innermost first, each with the part of it that leads to the node."""
        while (parent := self.parents.get(node)) is not None:
            yield parent, node
            node = parent

    def definition_of(self, node: ast.AST) -> Definition | None:
        """Return the innermost function or class that a node is in the body of; None for code of the module itself."""
        for parent, part in self.above(node):
            if isinstance(parent, Definition) and part in parent.body:
                return parent
        return None


def parse(path: Path, name: str, content: bytes, *, is_script: bool) -> SourceFile | str:
    """Parse a source file, or return the reason, for people, for which that is not possible."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of the trainer's, which are none of ours to tell
            tree = ast.parse(content)
    except SyntaxError as error:
        return said(
            "code.no-python",
            "{place} is no Python that this version reads: {error}",
            place=f"{name}:{error.lineno or 1}",
            error=error.msg,
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return said("code.unreadable", "{file} is no Python that can be read: {error}", file=name, error=str(error))
    return SourceFile(path=path, name=name, tree=tree, is_script=is_script)


def own_nodes(
    definition: ast.AST, is_left_out: Callable[[ast.AST, ast.AST], bool] = lambda _node, _part: False
) -> Iterator[ast.AST]:
    """Yield the nodes of a function, class or module, but for the bodies of the functions and classes inside it.

    What such an inner one is decorated with, and its defaults, belong to the outer one.

    Args:
        definition: The function, class or module.
        is_left_out: Whether a part of a node is left out, with all that is in it.
    """
    waiting: list[ast.AST] = list(_fields(definition, inside=True))
    while waiting:
        node = waiting.pop()
        yield node
        parts = _fields(node, inside=False) if isinstance(node, Definition) else ast.iter_child_nodes(node)
        waiting += [part for part in parts if not is_left_out(node, part)]


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: those of ``valLoader_2`` are val, loader and 2."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return tuple(word for word in re.split(r"[\W_]+", spaced.lower()) if word)


def _fields(node: ast.AST, *, inside: bool) -> Iterator[ast.AST]:
    """Yield the statements of a definition's body, or else its other parts."""
    for name, value in ast.iter_fields(node):
        if (name == "body") is inside:
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST))


def _tops(found: Mapping[str, str]) -> set[str]:
    return {whole.partition(".")[0] for whole in found.values()}


def _dotted(node: ast.AST, imported: Mapping[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join((imported.get(node.id, node.id), *reversed(parts)))
