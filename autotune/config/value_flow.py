"""Flow of values in a trainer's code: what a name may stand for, and under which conditions something is evaluated.

Python decides that at run time; here it is read from names, without running anything. Where several functions or
classes have one name, and nothing tells which is meant, none is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.config.sources import CodeScope, Function, LiveCode, last_part, spelled

Conditions = frozenset[tuple[str, bool]]
"""Tests, as `ast.dump` writes them, each with whether it holds."""


class ValueFlow:
    """Flow of values in a trainer's code, as far as its names tell.

    Attributes:
        classes: Classes that are reached, by name.
        inner: Functions and classes that are directly inside of one, by its node.
    """

    def __init__(self, code: LiveCode) -> None:
        self.code = code
        self.classes: dict[str, list[CodeScope]] = {}
        self.inner: dict[ast.AST, list[CodeScope]] = {}
        self._tests: dict[str, ast.expr] = {}
        self._calls: dict[str, list[tuple[CodeScope, ast.Call]]] = {}
        self._modules = {part.removesuffix(".py") for file in code.files for part in file.name.split("/")} | {""}
        for unit in code.units:
            if isinstance(unit.node, ast.ClassDef):
                self.classes.setdefault(unit.name, []).append(unit)
            if unit.outer is not None:
                self.inner.setdefault(unit.outer.node, []).append(unit)
            for call in unit.calls:
                self._calls.setdefault(last_part(call.func), []).append((unit, call))

    # Classes

    def bases(self, one: CodeScope) -> Iterator[str]:
        """Yield the whole names of what a class stands on, through the classes of the trainer's own."""
        waiting, seen = [one], {one}
        while waiting:
            unit = waiting.pop()
            assert isinstance(unit.node, ast.ClassDef)
            for base in unit.node.bases:
                base = base.value if isinstance(base, ast.Subscript) else base
                yield unit.file.full_name(base)
                new = [other for other in self.classes.get(last_part(base), ()) if other not in seen]
                seen.update(new)
                waiting += new

    def lineage(self, one: CodeScope) -> list[CodeScope]:
        """Return a class and those of the trainer's own that it stands on."""
        names = [name.rpartition(".")[2] for name in self.bases(one)]
        return [one, *(other for name in names for other in self.classes.get(name, ()) if other is not one)]

    def methods(self, one: CodeScope) -> dict[str, CodeScope]:
        """Return the methods of a class by name, those that it stands on included."""
        return {unit.name: unit for unit_ in reversed(self.lineage(one)) for unit in self.inner.get(unit_.node, ())}

    def reached(self, one: CodeScope, *names: str) -> list[CodeScope]:
        """Return methods of a class, the further ones that these call, and the functions inside them."""
        methods = self.methods(one)
        found = [methods[name] for name in names if name in methods]
        for unit in found:  # it grows meanwhile
            called = [methods[name] for node in unit.nodes if (name := own(node)) in methods]
            found += [other for other in (*called, *self.inner.get(unit.node, ())) if other not in found]
        return found

    def made(self, unit: CodeScope, node: ast.expr) -> Iterator[CodeScope]:
        """Yield the classes of the trainer's own of which an expression may be an object, or hold one."""
        for _, one in self.origins(unit, node, set()):
            if isinstance(one, ast.Call):
                yield from self.classes.get(last_part(one.func), ())

    def origins(self, unit: CodeScope, node: ast.expr, seen: set[ast.AST]) -> Iterator[tuple[CodeScope, ast.expr]]:
        """Yield the expressions that a value may come from, itself first, each with the function that it is in."""
        if node in seen:
            return
        seen.add(node)
        yield unit, node
        parts: list[tuple[CodeScope, ast.expr]] = []
        if isinstance(node, ast.Name):
            parts += self._assigned(unit, node.id)
        elif isinstance(node, ast.Attribute):
            parts += self.attribute_values(unit, node)
        elif isinstance(node, ast.Call):
            functions = self.functions_named(unit, node.func)
            parts += [
                (one, part.value)
                for one in functions
                for part in one.nodes
                if isinstance(part, ast.Return) and part.value is not None
            ]
            if not functions:  # it may hold what it is given
                parts += [(unit, one) for one in (*node.args, *(one.value for one in node.keywords))]
        elif isinstance(node, ast.IfExp):
            parts += [(unit, node.body), (unit, node.orelse)]
        elif isinstance(node, ast.BoolOp):
            parts += [(unit, one) for one in node.values]
        elif isinstance(node, ast.Tuple | ast.List):
            parts += [(unit, one) for one in node.elts]
        elif isinstance(node, ast.Dict):
            parts += [(unit, one) for one in node.values if one in unit.nodes]
        elif isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr):
            parts.append((unit, node.value))
        for where, part in parts:
            yield from self.origins(where, part, seen)

    def _assigned(self, unit: CodeScope, name: str) -> list[tuple[CodeScope, ast.expr]]:
        """Return what a name may stand for in a function: what is assigned to it, or given for a parameter."""
        found = [(unit, value) for node in unit.nodes for value in assigned_to(node, name)]
        if isinstance(unit.node, Function) and name in parameters(unit.node):
            found += [(where, given[name]) for where, given in self.given(unit) if name in given]
        elif not found and unit.outer is not None:
            return self._assigned(unit.outer, name)
        return found

    def attribute_values(self, unit: CodeScope, node: ast.Attribute) -> list[tuple[CodeScope, ast.expr]]:
        owner = next((one for one in _around(unit) if isinstance(one.node, ast.ClassDef)), None)
        units: Iterable[CodeScope] = self.code.units
        if spelled(node.value) == "self" and owner is not None:
            units = [method for one in self.lineage(owner) for method in self.inner.get(one.node, ())]
        return [
            (one, value)
            for one in units
            for part in one.nodes
            for target, value in assignments(part)
            if own(target) == node.attr
        ]

    def functions_named(self, unit: CodeScope, node: ast.AST) -> list[CodeScope]:
        """Return the functions of the trainer's own that an expression names, if it is clear which."""
        name = last_part(node)
        known = self.code.functions.get(name, [])
        owner = next((one for one in _around(unit) if isinstance(one.node, ast.ClassDef)), None)
        if own(node) and owner is not None:
            method = self.methods(owner).get(name)
            return [method] if method else []
        plain = [one for one in known if one.outer is None or not isinstance(one.outer.node, ast.ClassDef)]
        if isinstance(node, ast.Name):
            near = [one for one in plain if one.file is unit.file]
            return near or (plain if len(plain) == 1 else [])
        if not isinstance(node, ast.Attribute) or len(known) != 1:
            return []
        module = unit.file.imported.get(spelled(node).partition(".")[0])
        if module is None:  # of some object
            return known if known != plain else []
        return known if module.partition(".")[0] in self._modules else []

    def given(self, unit: CodeScope) -> Iterator[tuple[CodeScope, dict[str, ast.expr]]]:
        """Yield the calls of a function with what each gives for its parameters, defaults included."""
        assert isinstance(unit.node, Function)
        is_method = unit.outer is not None and isinstance(unit.outer.node, ast.ClassDef)
        name = unit.outer.name if unit.name == "__init__" and unit.outer is not None else unit.name
        for other, call in self._calls.get(name, ()):
            yield other, bound(unit.node, call.args, call.keywords, is_method=is_method)

    # Conditions

    def conditions(self, unit: CodeScope, node: ast.AST) -> Conditions:
        """Return the tests that hold where a node is evaluated, each with whether it does."""
        found = set[tuple[str, bool]]()
        for parent, part in unit.file.above(node, unit.node):
            if isinstance(parent, ast.If | ast.IfExp) and part is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                test, holds = parent.test, part in body
                while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                    test, holds = test.operand, not holds
                text = ast.dump(test)
                self._tests[text] = test
                found.add((text, holds))
        return frozenset(found)

    def may_hold(self, unit: CodeScope, conditions: Conditions) -> bool:
        """Return whether conditions can all hold at once, in some call of the function that they are in."""
        if any((test, not holds) in conditions for test, holds in conditions):
            return False
        if not isinstance(unit.node, Function):
            return True
        calls = [given for _, given in self.given(unit)]
        return not calls or any(self.meets(given, conditions) for given in calls)

    def meets(self, given: Mapping[str, ast.expr], conditions: Conditions) -> bool:
        """Return whether no condition is known to fail for what a function's parameters are."""
        return all(self.truth(test, given) is not (not holds) for test, holds in conditions)

    def truth(self, test: str, given: Mapping[str, ast.expr]) -> bool | None:
        """Return whether a test of `conditions` holds for what parameters are; None if that is not known."""
        node = self._tests[test]
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            left, right = given.get(spelled(node.left)), node.comparators[0]
            if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
                return (left.value == right.value) is isinstance(node.ops[0], ast.Eq)
            return None
        value = given.get(node.id) if isinstance(node, ast.Name) else None
        return bool(value.value) if isinstance(value, ast.Constant) else None


def _around(unit: CodeScope | None) -> Iterator[CodeScope]:
    while unit is not None:
        yield unit
        unit = unit.outer


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with its value; of what is unpacked the whole, if it has no parts."""
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) or node.value is None:
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Tuple | ast.List):
            values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else []
            whole = [node.value] * len(target.elts)
            yield from zip(target.elts, values if len(values) == len(target.elts) else whole, strict=True)
        else:
            yield target, node.value


def assigned_to(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yield what a statement assigns to a name."""
    return (value for target, value in assignments(node) if isinstance(target, ast.Name) and target.id == name)


def parameters(node: ast.AST) -> list[str]:
    """Return the names of a function's parameters; none for anything else."""
    if not isinstance(node, Function):
        return []
    return [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def bound(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    args: Sequence[ast.expr],
    keywords: Sequence[ast.keyword],
    *,
    is_method: bool,
) -> dict[str, ast.expr]:
    """Return what the parameters of a function are in a call, defaults included."""
    placed = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    defaults = dict(zip(reversed(placed), reversed(node.args.defaults), strict=False))
    defaults |= {
        one.arg: value for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value
    }
    given = (
        dict(zip(placed[is_method:], args, strict=False)) if not any(isinstance(a, ast.Starred) for a in args) else {}
    )
    return {**defaults, **given, **{one.arg: one.value for one in keywords if one.arg}}


def own(node: ast.AST) -> str:
    """Return the attribute of ``self`` that an expression is; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) and spelled(node.value) == "self" else ""
