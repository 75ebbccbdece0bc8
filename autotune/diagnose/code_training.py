"""Training loops, steps and compiled functions in the code of a trainer."""

import ast
from collections.abc import Iterator
from functools import cached_property

from autotune.diagnose.code_source import Function, LiveCode, SourceFile, Unit, last_part

FUNCTION = "tensorflow.function"
_STEPPING = frozenset(("backward", "manual_backward", "apply_gradients", "train_on_batch"))
_ANY_OBJECTS = frozenset(("step", "update", "run", "forward", "fit", "call", "train", "main", "apply", "backward"))
_RUNNING = frozenset(("run", "experimental_run_v2"))  # of a distribution strategy


class Training:
    """Training loops and steps of a trainer."""

    def __init__(self, code: LiveCode) -> None:
        self.code = code
        self._functions = [unit for units in code.functions.values() for unit in units]

    @cached_property
    def steps(self) -> dict[ast.AST, Unit]:
        """Functions that make one step, also by calling such a function: what they do is done in each step."""
        found: dict[ast.AST, Unit] = {}

        def makes_one(unit: Unit) -> bool:
            if unit.name == "training_step" and unit.outer is not None and isinstance(unit.outer.node, ast.ClassDef):
                return True  # of a LightningModule
            outside = (call for call in unit.calls if unit.innermost_loop(call) is None)
            return any(_is_step(call) or self._calls(unit, call, found) for call in outside)

        while new := [unit for unit in self._functions if unit.node not in found and makes_one(unit)]:
            found.update((unit.node, unit) for unit in new)
        return found

    @cached_property
    def each_step(self) -> tuple[tuple[Unit, ast.AST], ...]:
        """Nodes that are evaluated in each step, whatever happens: those under a condition are left out."""
        tops = {node for node, unit in self.steps.items() if self._is_called_in_a_loop(unit)}
        for unit in self.code.units:
            stepping = (call for call in unit.calls if _is_step(call) or self._calls(unit, call, self.steps))
            tops.update(loop for call in stepping if (loop := unit.innermost_loop(call)) is not None)
        found = []
        for unit, node in self.code.nodes():
            top = unit.innermost_loop(node) or unit.node
            if top in tops and not unit.is_conditional(node, top):
                found.append((unit, node))
        return tuple(found)

    @cached_property
    def compiled(self) -> frozenset[ast.AST]:
        """Functions that run in a graph: by ``tf.function``, or because such a function names or defines them."""
        names = {name for name, _ in self._made_into_graphs}
        found = set[ast.AST]()
        while new := [unit for unit in self._functions if unit.name in names and unit.node not in found]:
            found |= {unit.node for unit in new}
            names = set[str]().union(*(unit.names for unit in new))
            names |= {node.name for unit in new for node in unit.nodes if isinstance(node, ast.FunctionDef)}
        return frozenset(found)

    @cached_property
    def scalar_sensitive(self) -> frozenset[str]:
        """Names of functions that are traced anew for each new Python number that they are given."""
        return frozenset(
            name
            for name, made in self._made_into_graphs
            if not (isinstance(made, ast.Call) and any(one.arg in ("input_signature", None) for one in made.keywords))
        )

    def is_each_step(self, unit: Unit, node: ast.AST) -> bool:
        """Return whether a node is in a loop of training, or in a function that such a loop calls."""
        in_step = unit.node in self.steps and self._is_called_in_a_loop(unit)
        return in_step or unit.innermost_loop(node) is not None

    def handed_on(self, unit: Unit) -> bool:
        """Return whether a function is given to something that may compile it, such as a wrapper of the trainer's."""
        return any(
            last_part(given) == unit.name and last_part(call.func) not in _RUNNING
            for other in self.code.units
            for call in other.calls
            for given in (*call.args, *(one.value for one in call.keywords))
        )

    @cached_property
    def _made_into_graphs(self) -> list[tuple[str, ast.expr]]:
        """Names of functions, each with the expression that puts ``tf.function`` on it."""
        found: list[tuple[str, ast.expr]] = []
        makers = {file: _makers(file) for file in self.code.files}
        for unit, node in self.code.nodes():
            file = unit.file
            if isinstance(node, Function):
                made = [
                    one
                    for one in node.decorator_list
                    if any(file.full_name(part) in makers[file] for part in ast.walk(one))
                ]
                found += [(node.name, one) for one in made]
            elif isinstance(node, ast.Call) and file.full_name(node.func) in makers[file]:
                parent = file.parents.get(node)
                assigned = parent.targets if isinstance(parent, ast.Assign) else []
                found += [(name, node) for name in map(last_part, (*node.args[:1], *assigned)) if name]
        return found

    def _calls(self, unit: Unit, call: ast.Call, among: dict[ast.AST, Unit]) -> bool:
        """Return whether a call is of one of these functions, as far as names tell."""
        name = last_part(call.func)
        if name in _RUNNING and call.args:
            name = last_part(call.args[0])  # strategy.run(step, args=...)
        known = self.code.functions.get(name, ())
        if not any(one.node in among for one in known):
            return False
        is_own = isinstance(call.func, ast.Attribute) and last_part(call.func.value) == "self"
        if isinstance(call.func, ast.Name) or is_own:
            same = [one for one in known if one.file is unit.file]
            return any(one.node in among for one in same or known)
        return len(known) == 1 and name not in _ANY_OBJECTS

    def _is_called_in_a_loop(self, step: Unit) -> bool:
        return step.name in ("training_step", "train_step") or any(
            last_part(node) == step.name and unit.innermost_loop(node) is not None for unit, node in self.code.nodes()
        )


def _is_step(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STEPPING


def _makers(file: SourceFile) -> set[str]:
    """Return names that stand for ``tf.function`` in a file, perhaps only if the config says so."""
    found = {FUNCTION}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Assign):
            parts = list(ast.walk(node.value))
            called = {id(one.func) for one in parts if isinstance(one, ast.Call)}
            if any(file.full_name(one) == FUNCTION and id(one) not in called for one in parts):
                found |= {last_part(target) for target in node.targets if isinstance(target, ast.Name)}
    return found


def loop_counters(loop: ast.AST) -> Iterator[str]:
    """Yield the names of Python numbers that a loop counts."""
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
        called, target = last_part(loop.iter.func), loop.target
        first = target.elts[0] if called == "enumerate" and isinstance(target, ast.Tuple) else target
        if called in ("range", "enumerate") and isinstance(first, ast.Name):
            yield first.id
