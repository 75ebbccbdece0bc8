"""Code of a trainer that runs in training: what its script reaches by name, evaluation left out.

Python decides at run time what a name means, so every function or class of a name that is used counts as reached. What
is never named, what only evaluation names, and what stands under ``if __name__ == "__main__"`` of an imported module
does not.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from autotune.messages import _

_HARMLESS = frozenset(("property", "staticmethod", "classmethod", "tensorflow.function", "abstractmethod"))


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """Function or class of a source file, or the code of the module itself.

    Attributes:
        outer: The function, class or module that it is defined in; None for a module.
    """

    file: SourceFile
    node: Definition | ast.Module
    outer: Unit | None = None

    @property
    def name(self) -> str:
        """Its name; empty for a module."""
        return "" if isinstance(self.node, ast.Module) else self.node.name

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Its nodes, those of functions and classes inside it left out, and what belongs to evaluation."""
        return tuple(own_nodes(self.node, partial(is_evaluation_part, self.file)))

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that it uses: variables, attributes, and texts that may be names of something."""
        found = set[str]()
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
            elif isinstance(node, ast.ImportFrom):
                found |= {one.name for one in node.names if one.asname}
        return frozenset(found)

    @property
    def calls(self) -> Iterator[ast.Call]:
        return (node for node in self.nodes if isinstance(node, ast.Call))


class LiveCode:
    """Code that runs in training.

    Args:
        named: Names that something else uses, such as a config that names a class.

    Attributes:
        units: Modules, functions and classes that are reached.
    """

    def __init__(self, files: Sequence[SourceFile], named: Iterable[str] = ()) -> None:
        self.files = tuple(files)
        waiting: list[Unit] = []
        self._reached: dict[ast.AST, Unit] = {}
        for file in self.files:
            module = Unit(file=file, node=file.tree)
            self._reached[file.tree] = module
            waiting += _definitions(module)
        names = set(named).union(*(unit.names for unit in self._reached.values()))
        while new := [unit for unit in waiting if self._is_reached(unit, names)]:
            waiting = [unit for unit in waiting if not self._is_reached(unit, names)]
            for unit in new:
                self._reached[unit.node] = unit
                names |= unit.names
                waiting += _definitions(unit)
        overridden = self._overridden()
        self.units = tuple(unit for unit in self._reached.values() if unit.node not in overridden)

    @cached_property
    def functions(self) -> Mapping[str, tuple[Unit, ...]]:
        """Functions that are reached, by name."""
        found: dict[str, list[Unit]] = {}
        for unit in self.units:
            if isinstance(unit.node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(unit.name, []).append(unit)
        return {name: tuple(units) for name, units in found.items()}

    def calls(self, *names: str) -> Iterator[tuple[Unit, ast.Call]]:
        """Yield the calls of what has one of these whole names."""
        for unit in self.units:
            for call in unit.calls:
                if unit.file.full_name(call.func) in names:
                    yield unit, call

    def imports(self, package: str) -> bool:
        return any(file.imports(package) for file in self.files)

    def _overridden(self) -> set[ast.AST]:
        """Return the methods of classes that nothing makes an object of, which all subclasses have of their own."""
        reached = list(self._reached.values())
        below: dict[str, list[Unit]] = {}
        for unit in reached:
            for name in _bases(unit.node):
                below.setdefault(name, []).append(unit)
        made = set[str]().union(*(unit.names - _bases_in(unit) for unit in reached))
        called_above = set[str]().union(*(unit.names for unit in reached if "super" in unit.names))
        own = {
            name: [{node.name for node in unit.nodes if isinstance(node, Definition)} for unit in units]
            for name, units in below.items()
        }
        return {
            unit.node
            for unit in reached
            if unit.outer is not None
            and unit.outer.name in below
            and unit.outer.name not in made
            and unit.name not in called_above
            and all(unit.name in names for names in own[unit.outer.name])
        }

    @staticmethod
    def _is_reached(unit: Unit, names: set[str]) -> bool:
        """Return whether a definition in code that is reached is so too, given the names that are used."""
        assert not isinstance(unit.node, ast.Module), "modules are reached from the beginning"
        node, outer = unit.node, unit.outer
        if is_evaluation(node.name) or without_gradients(unit.file, node.decorator_list):
            return False
        if node.name in names or (node.name.startswith("__") and node.name.endswith("__")):
            return True
        if any(_called(unit.file, one) not in _HARMLESS for one in node.decorator_list):
            return True  # it may be a registry
        # A method of a class that stands on another one may be what that one calls.
        return outer is not None and isinstance(outer.node, ast.ClassDef) and bool(outer.node.bases)


def _definitions(unit: Unit) -> list[Unit]:
    """Return the functions and classes directly in a unit, but for those in parts that training does not reach."""
    return [Unit(file=unit.file, node=node, outer=unit) for node in unit.nodes if isinstance(node, Definition)]


def _bases(node: ast.AST) -> set[str]:
    """Return the last parts of the names of the classes that a class stands on; none for anything else."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in bases}


def _bases_in(unit: Unit) -> set[str]:
    bases = [base for node in unit.nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    used = [node.id for node in unit.nodes if isinstance(node, ast.Name) and node not in bases]
    return {base.id for base in bases if isinstance(base, ast.Name)} - set(used)


def _called(file: SourceFile, decorator: ast.expr) -> str | None:
    return file.full_name(decorator.func if isinstance(decorator, ast.Call) else decorator)


# Parts of sources that do not train: validation, testing, inference and debugging, as far as their names tell.


_EVALUATION = frozenset(
    ("val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "evaluator", "test", "testing")
) | frozenset(("infer", "inference", "predict", "predictor", "demo", "export", "visualize", "visualise", "plot", "dev"))
_WRITTEN_TOGETHER = re.compile(
    r"(?:val|valid|validation|eval|test|dev)(?:set|loader|data|dataset|ds|dl|iter|step|gen)s?"
)
_TRAINING = frozenset(("train", "training", "trainer", "fit"))
_TELLING_MODE = frozenset(("is", "train", "training", "self", "mode", "args", "cfg", "config"))
_DEBUGGING = frozenset(("debug", "debugging", "eager"))  # of a switch: what the config says is no matter of the code
_GRADIENTS_OFF = frozenset(("torch.no_grad", "torch.inference_mode"))


def is_evaluation(name: str) -> bool:
    """Return whether a name says that it is for evaluation, and not for training too."""
    return _are_evaluation([name])


def is_evaluation_part(file: SourceFile, node: ast.AST, part: ast.AST) -> bool:
    """Return whether a part of a node does not train: a branch, an argument, what is assigned to ``val_data``."""
    if isinstance(node, ast.If) and _asks_for_main(node.test):
        return part in node.body and not file.is_script
    if isinstance(node, ast.If | ast.IfExp):
        return _leads_to_evaluation(node, part)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return part is node.value and _are_evaluation([name for target in targets for name in _names(target)])
    if isinstance(node, ast.keyword):
        return node.arg is not None and is_evaluation(node.arg)
    if isinstance(node, ast.Dict):
        keys = [key for key, value in zip(node.keys, node.values, strict=True) if value is part and key is not None]
        return _are_evaluation(
            [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        )
    if isinstance(node, ast.With | ast.AsyncWith):
        return part in node.body and any(_named(file, item.context_expr) in _GRADIENTS_OFF for item in node.items)
    return False


def without_gradients(file: SourceFile, decorators: list[ast.expr]) -> bool:
    """Return whether a function computes no gradients, by its decorators."""
    return any(_named(file, one) in _GRADIENTS_OFF for one in decorators)


def _asks_for_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _named(file: SourceFile, node: ast.expr) -> str | None:
    return file.full_name(node.func if isinstance(node, ast.Call) else node)


def _leads_to_evaluation(branch: ast.If | ast.IfExp, part: ast.AST) -> bool:
    negated = any(isinstance(node, ast.Not | ast.NotEq | ast.NotIn) for node in ast.walk(branch.test))
    names = list(_names(branch.test))
    in_body = part in branch.body if isinstance(branch.body, list) else part is branch.body
    in_else = part in branch.orelse if isinstance(branch.orelse, list) else part is branch.orelse
    if in_body:
        return _says_training(names) if negated else _are_evaluation(names) or _says_debugging(names)
    if in_else:
        return _are_evaluation(names) if negated else _says_training(names)
    return False


def _are_evaluation(names: list[str]) -> bool:
    words = {word for name in names for word in words_of(name)}
    is_it = any(word in _EVALUATION or _WRITTEN_TOGETHER.fullmatch(word) for word in words)
    return is_it and not any(word in _TRAINING or word.startswith("train") for word in words)


def _says_debugging(names: list[str]) -> bool:
    return not _DEBUGGING.isdisjoint(word for name in names for word in words_of(name))


def _says_training(names: list[str]) -> bool:
    words = {word for name in names for word in words_of(name)}
    return bool(words & {"train", "training"}) and words <= _TELLING_MODE


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names, attributes and texts in an expression."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Loop = ast.For | ast.AsyncFor | ast.While
_COMPATIBLE = re.compile(r"^tensorflow\.compat\.v[12]\.")


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceFile:
    """Source file of a trainer.

    Attributes:
        name: Its path for people, relative where that is shorter.
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
        return any(whole.partition(".")[0] == package for whole in self.imported.values())

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield what a node is in, innermost first, each with the part of it that leads to the node."""
        while (parent := self.parents.get(node)) is not None:
            yield parent, node
            node = parent


def parse(path: Path, name: str, content: bytes, *, is_script: bool) -> SourceFile | str:
    """Parse a source file, or return the reason, for people, for which that is not possible."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of the trainer's, which are none of ours to tell
            tree = ast.parse(content)
    except SyntaxError as error:
        return _(
            "{place} is no Python that this version reads: {error}",
            place=f"{name}:{error.lineno or 1}",
            error=error.msg,
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return _("{file} is no Python that can be read: {error}", file=name, error=str(error))
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
