"""Training loops, steps and compiled functions in the code of a trainer."""

import ast
from collections.abc import Iterator
from functools import cached_property

from autotune.diagnose.code_source import LiveCode, Loop, SourceFile, Unit

FUNCTION = "tensorflow.function"
_STEPPING = frozenset(("backward", "manual_backward", "apply_gradients", "train_on_batch"))
_ANY_OBJECTS = frozenset(("step", "update", "run", "forward", "fit", "call", "train", "main", "apply", "backward"))
_LIGHTNING_STEP = "training_step"
_RUNNING = frozenset(("run", "experimental_run_v2"))  # of a distribution strategy


class Training:
    """Training loops and steps of a trainer."""

    def __init__(self, code: LiveCode) -> None:
        self.code = code

    @cached_property
    def steps(self) -> dict[ast.AST, Unit]:
        """Functions that make one step, also by calling such a function: what they do is done in each step."""
        found: dict[ast.AST, Unit] = {unit.node: unit for unit in self._all_functions() if self._makes_a_step(unit)}
        while new := [
            unit
            for unit in self._all_functions()
            if unit.node not in found and any(self._calls(unit, call, found) for call in _outside_loops(unit))
        ]:
            found.update((unit.node, unit) for unit in new)
        return found

    @cached_property
    def loops(self) -> dict[ast.AST, Unit]:
        """Innermost loops that make a step in each round, with the function or module that they are in."""
        found: dict[ast.AST, Unit] = {}
        for unit in self.code.units:
            for node in unit.nodes:
                if _is_step(node) or (isinstance(node, ast.Call) and self._calls(unit, node, self.steps)):
                    loop = innermost_loop(unit, node)
                    if loop is not None:
                        found[loop] = unit
        return found

    @cached_property
    def each_step(self) -> tuple[tuple[Unit, ast.AST], ...]:
        """Nodes that are evaluated in each step, whatever happens: those under a condition are left out."""
        inside = {node: unit for node, unit in self.steps.items() if self._is_called_in_a_loop(unit)}
        found = []
        for unit in self.code.units:
            if unit.node not in inside and unit not in self.loops.values():
                continue
            for node in unit.nodes:
                loop = innermost_loop(unit, node)
                at = loop if loop is not None else unit.node
                if (loop in self.loops if loop is not None else at in inside) and not is_conditional(unit, node, at):
                    found.append((unit, node))
        return tuple(found)

    @cached_property
    def compiled_names(self) -> frozenset[str]:
        """Names of functions that become graphs by ``tf.function`` themselves."""
        return frozenset(name for name, _ in self._made_into_graphs())

    @cached_property
    def compiled(self) -> frozenset[ast.AST]:
        """Functions that run in a graph: by ``tf.function``, or because such a function names them."""
        names = set(self.compiled_names)
        found = set[ast.AST]()
        while new := [unit for unit in self._all_functions() if unit.name in names and unit.node not in found]:
            found |= {unit.node for unit in new}
            names = set[str]().union(*(unit.names for unit in new))
            for unit in new:
                names |= {one.name for one in unit.nodes if isinstance(one, ast.FunctionDef)}
        return frozenset(found)

    @cached_property
    def _makers(self) -> dict[SourceFile, frozenset[str]]:
        return {file: _makers(file) for file in self.code.files if file.imports("tensorflow")}

    @cached_property
    def scalar_sensitive(self) -> frozenset[str]:
        """Names of functions that are traced anew for each new Python number that they are given."""
        return frozenset(name for name, call in self._made_into_graphs() if not _says_signature(call))

    def is_each_step(self, unit: Unit, node: ast.AST) -> bool:
        """Return whether a node is in a loop of training, or in a function that such a loop calls."""
        return innermost_loop(unit, node) is not None or (unit.node in self.steps and self._is_called_in_a_loop(unit))

    def handed_on(self, unit: Unit) -> bool:
        """Return whether a function is given to something that may compile it, such as a wrapper of the trainer's."""
        for other in self.code.units:
            for call in other.calls:
                given = [*call.args, *(one.value for one in call.keywords)]
                named = any(last_part(one) == unit.name for one in given if isinstance(one, ast.Name | ast.Attribute))
                if named and last_part(call.func) not in _RUNNING:
                    return True
        return False

    def _made_into_graphs(self) -> Iterator[tuple[str, ast.expr]]:
        for unit in self.code.units:
            if unit.file not in self._makers:
                continue
            makers = self._makers[unit.file]
            for node in unit.nodes:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    for one in node.decorator_list:
                        if any(self._is_maker(unit, part, makers) for part in ast.walk(one)):
                            yield node.name, one
                elif isinstance(node, ast.Call) and self._is_maker(unit, node.func, makers):
                    given = node.args[:1] or [one.value for one in node.keywords if one.arg in ("func", "fun")]
                    for one in given:
                        yield from ((name, node) for name in {last_part(one), *_assigned(unit, node)} if name)

    def _is_maker(self, unit: Unit, node: ast.AST, makers: frozenset[str]) -> bool:
        whole = unit.file.full_name(node)
        return whole == FUNCTION or (whole is not None and whole in makers)

    def _all_functions(self) -> Iterator[Unit]:
        return (unit for units in self.code.functions.values() for unit in units)

    def _makes_a_step(self, unit: Unit) -> bool:
        if unit.name == _LIGHTNING_STEP and unit.outer is not None and isinstance(unit.outer.node, ast.ClassDef):
            return True
        return any(_is_step(node) and innermost_loop(unit, node) is None for node in unit.nodes)

    def _calls(self, unit: Unit, call: ast.Call, among: dict[ast.AST, Unit]) -> bool:
        """Return whether a call is of one of these functions, as far as names tell."""
        name = last_part(call.func)
        if name in _RUNNING and call.args:
            name = last_part(call.args[0])  # strategy.run(step, args=...)
        if not name:
            return False
        known = self.code.functions.get(name, ())
        if not any(one.node in among for one in known):
            return False
        plain = isinstance(call.func, ast.Name) or _is_own(call.func)
        if plain:
            same = [one for one in known if one.file is unit.file]
            return any(one.node in among for one in same or known)
        return len(known) == 1 and name not in _ANY_OBJECTS

    def _is_called_in_a_loop(self, step: Unit) -> bool:
        if step.name == _LIGHTNING_STEP or step.name == "train_step":
            return True
        return any(
            last_part(node) == step.name and innermost_loop(unit, node) is not None
            for unit in self.code.units
            for node in unit.nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )


def innermost_loop(unit: Unit, node: ast.AST) -> ast.AST | None:
    """Return the innermost loop of a unit whose rounds a node is in; None if it is in none."""
    for parent, part in unit.file.above(node):
        if parent is unit.node:
            return None
        if isinstance(parent, Loop) and part in parent.body:
            return parent
    return None


def loops_around(unit: Unit, node: ast.AST) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    """Yield the loops of a unit whose rounds a node is in, innermost first."""
    for parent, part in unit.file.above(node):
        if parent is unit.node:
            return
        if isinstance(parent, Loop) and part in parent.body:
            yield parent


def _is_step(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STEPPING


def _outside_loops(unit: Unit) -> Iterator[ast.Call]:
    return (call for call in unit.calls if innermost_loop(unit, call) is None)


def is_conditional(unit: Unit, node: ast.AST, top: ast.AST) -> bool:
    """Return whether a node is evaluated in some steps only."""
    for parent, part in unit.file.above(node):
        if parent is top:
            return False
        if isinstance(parent, ast.If | ast.IfExp) and part is not parent.test:
            return True
        if isinstance(parent, ast.ExceptHandler | ast.Lambda):
            return True
        if isinstance(parent, ast.BoolOp) and part is not parent.values[0]:
            return True
    return False


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def last_part(node: ast.AST) -> str:
    """Return the last part of a name; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _makers(file: SourceFile) -> frozenset[str]:
    """Return names that stand for ``tf.function``, perhaps only if the config says so."""
    return frozenset(
        target.id
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Assign) and any(file.full_name(one) == FUNCTION for one in _uncalled(node))
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _uncalled(assigned: ast.Assign) -> Iterator[ast.AST]:
    """Yield the parts of an assigned value that are not called there."""
    called = {id(node.func) for node in ast.walk(assigned.value) if isinstance(node, ast.Call)}
    return (node for node in ast.walk(assigned.value) if id(node) not in called)


def _assigned(unit: Unit, node: ast.AST) -> list[str]:
    """Return the names that the value of an expression is assigned to."""
    parent = unit.file.parents.get(node)
    return [last_part(target) for target in parent.targets] if isinstance(parent, ast.Assign) else []


def _says_signature(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and any(one.arg in ("input_signature", None) for one in node.keywords)
