"""Code of a trainer that runs in training: what its script reaches by name, evaluation left out.

Python decides at run time what a name means, so every function or class of a name that is used counts as reached. What
is never named, what only evaluation names, and what stands under ``if __name__ == "__main__"`` of an imported module
does not.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from autotune.diagnose.static.code.evaluation import is_evaluation, is_evaluation_part, without_gradients
from autotune.diagnose.static.code.source_file import Definition, SourceFile, own_nodes

_HARMLESS = frozenset(("property", "staticmethod", "classmethod", "tensorflow.function", "abstractmethod"))


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """Function or class of a source file, or the code of the module itself.

    Attributes:
        file: Its file.
        node: Its syntax tree.
        outer: The function, class or module that it is defined in; None for a module.
    """

    file: SourceFile
    node: Definition | ast.Module
    outer: "Unit | None" = None

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
        """Calls that it makes."""
        return (node for node in self.nodes if isinstance(node, ast.Call))


class LiveCode:
    """Code that runs in training.

    Args:
        files: The sources.
        named: Names that something else uses, such as a config that names a class.

    Attributes:
        files: The sources.
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
        """Return whether one of the files imports a package."""
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
    """Return the names of classes that classes in a unit stand on, and that nothing else in it names."""
    bases = [base for node in unit.nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    used = [node.id for node in unit.nodes if isinstance(node, ast.Name) and node not in bases]
    return {base.id for base in bases if isinstance(base, ast.Name)} - set(used)


def _called(file: SourceFile, decorator: ast.expr) -> str | None:
    return file.full_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
