"""Code of a trainer that runs in training: what its script reaches by name, evaluation left out, and where it steps.

Python decides at run time what a name means, so every function or class of a name that is used counts as reached. What
is never named, what only evaluation names, and what stands under ``if __name__ == "__main__"`` of an imported module
does not.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceFile:
    """Source file of a trainer.

    Attributes:
        name: Its path for people, relative where that is shorter.
        is_script: Whether it is what the command starts; else it is imported.
    """

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
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                first, _, rest = spelled(node.value).partition(".")
                if first in found:
                    found.setdefault(node.targets[0].id, f"{found[first]}.{rest}" if rest else found[first])
        return found

    def full_name(self, node: ast.AST) -> str:
        """Return the whole name of what an expression names, e.g. ``tensorflow.data.Dataset``; empty for other ones.

        A name that is not imported stands for itself.
        """
        first, _, rest = spelled(node).partition(".")
        return ".".join(filter(None, (self.imported.get(first, first), rest)))

    def imports(self, *packages: str) -> bool:
        return any(whole.partition(".")[0] in packages for whole in self.imported.values())

    def above(self, node: ast.AST, top: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield what a node is in, innermost first and up to `top`, each with the part of it that leads to the node."""
        while (parent := self.parents.get(node)) is not None and parent is not top:
            yield parent, node
            node = parent


def parse(name: str, content: bytes, *, is_script: bool) -> SourceFile | str:
    """Parse a source file, or return the reason, for people, for which that is not possible."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of the trainer's, which are none of ours to tell
            return SourceFile(name=name, tree=ast.parse(content), is_script=is_script)
    except SyntaxError as error:
        place = f"{name}:{error.lineno or 1}"
        return f"{place} is no Python that this version reads: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{name} is no Python that can be read: {error}"


def spelled(node: ast.AST) -> str:
    """Return a plain name, or an attribute of one, as it is written; empty for anything else."""
    if isinstance(node, ast.Attribute):
        inner = spelled(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def last_part(node: ast.AST) -> str:
    """Return the last part of a name; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


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
        """Its nodes, without those of functions and classes inside it, and without what belongs to evaluation.

        What an inner function is decorated with, and its defaults, belong to the outer one.
        """
        waiting: list[ast.AST] = list(self.node.body)
        found = []
        while waiting:
            node = waiting.pop()
            found.append(node)
            inner = node.body if isinstance(node, Definition) else ()
            parts = (part for part in ast.iter_child_nodes(node) if part not in inner)
            waiting += (part for part in parts if not _is_evaluation_part(self.file, node, part))
        return tuple(found)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that it uses: variables, attributes, and texts that may be names of something."""
        found = set[str]()
        for node in self.nodes:
            if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
                found.add(last_part(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.ImportFrom):
                found |= {one.name for one in node.names if one.asname}
        return frozenset(found)

    @property
    def calls(self) -> Iterator[ast.Call]:
        return (node for node in self.nodes if isinstance(node, ast.Call))

    def loops_around(self, node: ast.AST) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
        """Yield the loops of this unit whose rounds a node is in, innermost first."""
        for parent, part in self.file.above(node, self.node):
            if isinstance(parent, Loop) and part in parent.body:
                yield parent

    def innermost_loop(self, node: ast.AST) -> ast.AST | None:
        return next(self.loops_around(node), None)

    def is_conditional(self, node: ast.AST, top: ast.AST | None = None) -> bool:
        """Return whether a node is evaluated in some rounds of `top` only, which is a loop or this unit itself."""
        return any(
            isinstance(parent, ast.ExceptHandler | ast.Lambda)
            or (isinstance(parent, ast.If | ast.IfExp) and part is not parent.test)
            or (isinstance(parent, ast.BoolOp) and part is not parent.values[0])
            for parent, part in self.file.above(node, top or self.node)
        )


class LiveCode:
    """Code that runs in training.

    Args:
        named: Names that something else uses, such as a config that names a class.

    Attributes:
        units: Modules, functions and classes that are reached.
        functions: Functions that are reached, by name.
    """

    def __init__(self, files: Sequence[SourceFile], named: Iterable[str] = ()) -> None:
        self.files = tuple(files)
        reached = [Unit(file=file, node=file.tree) for file in self.files]
        waiting = [inner for unit in reached for inner in _definitions(unit)]
        names = set(named).union(*(unit.names for unit in reached))
        while new := [unit for unit in waiting if _is_reached(unit, names)]:
            waiting = [unit for unit in waiting if unit not in new]
            waiting += [inner for unit in new for inner in _definitions(unit)]
            names = names.union(*(unit.names for unit in new))
            reached += new
        overridden = _overridden(reached)
        self.units = tuple(unit for unit in reached if unit not in overridden)
        self.functions: dict[str, list[Unit]] = {}
        for unit in self.units:
            if isinstance(unit.node, Function):
                self.functions.setdefault(unit.name, []).append(unit)

    def calls(self, *names: str) -> Iterator[tuple[Unit, ast.Call]]:
        """Yield the calls of what has one of these whole names."""
        for unit in self.units:
            yield from ((unit, call) for call in unit.calls if unit.file.full_name(call.func) in names)

    def nodes(self) -> Iterator[tuple[Unit, ast.AST]]:
        """Yield all nodes that are reached."""
        return ((unit, node) for unit in self.units for node in unit.nodes)


def _definitions(unit: Unit) -> list[Unit]:
    return [Unit(file=unit.file, node=node, outer=unit) for node in unit.nodes if isinstance(node, Definition)]


def _is_reached(unit: Unit, names: set[str]) -> bool:
    """Return whether a definition in code that is reached is so too, given the names that are used."""
    node, outer = unit.node, unit.outer
    assert not isinstance(node, ast.Module), "modules are reached from the beginning"
    decorators = {_called(unit.file, one) for one in node.decorator_list}
    if is_evaluation(node.name) or decorators & _GRADIENTS_OFF:
        return False
    if node.name in names or (node.name.startswith("__") and node.name.endswith("__")):
        return True
    if decorators - {"property", "staticmethod", "classmethod", "tensorflow.function", "abstractmethod"}:
        return True  # it may be a registry
    # A method of a class that stands on another one may be what that one calls.
    return outer is not None and isinstance(outer.node, ast.ClassDef) and bool(outer.node.bases)


def _overridden(reached: Sequence[Unit]) -> set[Unit]:
    """Return the methods of classes that nothing makes an object of, which all subclasses have of their own."""
    below: dict[str, list[set[str]]] = {}
    for unit in reached:
        methods = {node.name for node in unit.nodes if isinstance(node, Definition)}
        for base in unit.node.bases if isinstance(unit.node, ast.ClassDef) else ():
            below.setdefault(last_part(base), []).append(methods)
    made = {last_part(call.func) for unit in reached for call in unit.calls}
    called_above = set[str]().union(*(unit.names for unit in reached if "super" in unit.names))
    return {
        unit
        for unit in reached
        if unit.outer is not None
        and (subclasses := below.get(unit.outer.name))
        and unit.outer.name not in made
        and unit.name not in called_above
        and all(unit.name in names for names in subclasses)
    }


def _called(file: SourceFile, node: ast.expr) -> str:
    return file.full_name(node.func if isinstance(node, ast.Call) else node)


# Parts of sources that do not train: validation, testing, inference and debugging, as far as their names tell.


_EVALUATION = re.compile(
    r"(?:val|valid|validat\w*|eval|evaluat\w*|tests?|testing|infer|inference|predict|predictor|demo|export|visuali[sz]e"
    r"|plot|dev)|(?:val|valid|validation|eval|test|dev)(?:set|loader|data|dataset|dataloader|ds|dl|iter|step|gen)s?"
)
_GRADIENTS_OFF = frozenset(("torch.no_grad", "torch.inference_mode"))


def words_of(*names: str) -> set[str]:
    """Return the words of names in lower case: those of ``valLoader_2`` are val, loader and 2."""
    spaced = (re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name) for name in names)
    return {word for name in spaced for word in re.split(r"[\W_]+", name.lower()) if word}


def is_evaluation(*names: str) -> bool:
    """Return whether names say that something is for evaluation, and not for training too."""
    words = words_of(*names)
    trains = any(word == "fit" or word.startswith("train") for word in words)
    return not trains and any(_EVALUATION.fullmatch(word) for word in words)


def _is_evaluation_part(file: SourceFile, node: ast.AST, part: ast.AST) -> bool:
    """Return whether a part of a node does not train: a branch, an argument, what is assigned to ``val_data``."""
    if isinstance(node, ast.If) and "__name__" in _names(node.test):
        return part in node.body and not file.is_script
    if isinstance(node, ast.If | ast.IfExp):
        return _is_evaluation_branch(node, part)
    if isinstance(node, ast.Assign):
        return part is node.value and is_evaluation(*(name for target in node.targets for name in _names(target)))
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return part is node.value and is_evaluation(*_names(node.target))
    if isinstance(node, ast.Call):  # evaluate(x), val_loaders.append(x)
        return part is not node.func and is_evaluation(*spelled(node.func).split("."))
    if isinstance(node, ast.keyword):
        return is_evaluation(node.arg or "")
    if isinstance(node, ast.Dict):
        keys = [key for key, value in zip(node.keys, node.values, strict=True) if value is part]
        return is_evaluation(*(str(key.value) for key in keys if isinstance(key, ast.Constant)))
    if isinstance(node, ast.With | ast.AsyncWith):
        return part in node.body and any(_called(file, item.context_expr) in _GRADIENTS_OFF for item in node.items)
    return False


def _is_evaluation_branch(node: ast.If | ast.IfExp, part: ast.AST) -> bool:
    """Return whether a branch is taken where nothing is trained, or for finding bugs."""
    if part is node.test:
        return False
    in_body = part in node.body if isinstance(node.body, list) else part is node.body
    is_negated = any(isinstance(one, ast.Not | ast.NotEq | ast.NotIn) for one in ast.walk(node.test))
    names = _names(node.test)
    words = words_of(*names)
    if in_body is is_negated:  # where what the test names does not hold
        mode = {"is", "train", "training", "self", "mode", "split", "phase", "stage", "args", "cfg", "config"}
        return bool(words & {"train", "training"}) and words <= mode
    # What the config says of debugging is no matter of the code.
    return is_evaluation(*names) or (in_body and bool(words & {"debug", "debugging", "eager"}))


def _names(node: ast.AST) -> list[str]:
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [*texts, *filter(None, (last_part(one) for one in ast.walk(node)))]


# Datasets of tf.data.


_TELL_DATASETS = frozenset(("prefetch", "interleave", "padded_batch", "with_options", "as_numpy_iterator"))
_CHAINING = (
    *("map", "flat_map", "batch", "shuffle", "repeat", "cache", "take", "skip", "filter", "shard", "unbatch"),
    "concatenate",
)
_CHAINED = _TELL_DATASETS.union(_CHAINING, ("apply",))


def dataset_calls(code: LiveCode, *methods: str) -> Iterator[tuple[Unit, ast.Call]]:
    """Yield calls of these methods on datasets of tf.data, in the order of their files and lines."""
    for unit in sorted(code.units, key=lambda unit: (not unit.file.is_script, unit.file.name)):
        if not unit.file.imports("tensorflow", "tensorflow_datasets"):
            continue
        known = _dataset_names(unit)
        found = [
            call
            for call in unit.calls
            if isinstance(call.func, ast.Attribute)
            and call.func.attr in methods
            and _is_dataset(unit.file, call.func.value, known)
        ]
        yield from ((unit, call) for call in sorted(found, key=lambda call: (call.lineno, call.col_offset)))


def _dataset_names(unit: Unit) -> set[str]:
    """Return names of datasets: what only datasets have is called on them, or a dataset is assigned to them."""
    known: set[str] = set()
    for node in unit.calls:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TELL_DATASETS:
            root = node.func.value
            while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and root.func.attr in _CHAINED:
                root = root.func.value
            known.add(spelled(root))
    assigned = [node for node in unit.nodes if isinstance(node, ast.Assign)]
    for _round in range(3):  # assigned on from one to the next
        known |= {spelled(to) for one in assigned if _is_dataset(unit.file, one.value, known) for to in one.targets}
    return known - {""}


def _is_dataset(file: SourceFile, node: ast.expr, known: set[str]) -> bool:
    if spelled(node) in known:
        return True
    if not isinstance(node, ast.Call):
        return False
    whole = file.full_name(node.func)
    makers = r"(?:tensorflow\.data|tensorflow_datasets|(?:tensorflow\.)?keras\.utils)\."
    if re.match(makers + r"(?:.*Dataset|load$|.*_dataset_from_directory$)", whole):
        return True
    is_chained = isinstance(node.func, ast.Attribute) and node.func.attr in _CHAINED
    return is_chained and isinstance(node.func, ast.Attribute) and _is_dataset(file, node.func.value, known)


# Training loops, steps and compiled functions.


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
