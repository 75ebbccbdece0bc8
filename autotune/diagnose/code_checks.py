"""Check of the trainer's sources for slow code and traps; parses them and never imports them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from autotune.config.keys import counted
from autotune.config.sources import (
    DATA_LOADERS,
    TRAINING_ARGUMENTS,
    CodeScope,
    Function,
    LiveCode,
    SourceFile,
    dataset_calls,
    has_unpacking,
    is_evaluation,
    last_part,
    line_of,
    own_words,
    read_sources,
    spelled,
    trainer_files,
    words_in,
    words_of,
)
from autotune.diagnose.findings import CheckResult, Issue, capitalized, issue
from autotune.diagnose.subject import Subject
from autotune.diagnose.tables import RULES, Rule
from autotune.space.catalog import known_knob

_PYTHON_IN_GRAPH = "python-in-graph"

# Sources without any of these match no rule and are not parsed.
TELLING = re.compile(
    rb"DataLoader|TrainingArguments|\bDataset\.|\.Dataset\b|tfds|_dataset_from_directory|\.prefetch\(|\.interleave\("
    rb"|backward\(|apply_gradients|train_on_batch|training_step|numpy_function|py_func|eagerly|enable_debug_mode"
    rb"|check_numerics|detect_anomaly|\.function\b|import function"
)


def check_code(subject: Subject) -> CheckResult:
    """Check the script that the command starts, and the modules next to it."""
    problem = subject.problem
    if problem is None or not problem.command:
        return CheckResult(check="code", why_not="the training command is unknown")
    paths = trainer_files(problem.command, problem.settings.folder)
    if not paths:
        return CheckResult(check="code", why_not=_why_nothing_to_read(problem.command))
    named = words_in((*problem.settings.scalars.values(), *problem.command))
    sources = read_sources(paths, problem.settings.folder, named, TELLING)
    if not sources.files:
        return CheckResult(check="code", why_not="; ".join(sources.unread))
    native = {
        path: value
        for path, value in problem.settings.scalars.items()
        if (row := known_knob(path, value)) is not None and row.kind == "native_loading"
    }
    switch = next((path for path, on in native.items() if on is False and path not in problem.settings.refused), None)
    issues = [
        issue("code", f"{capitalized(found.sentence)}.", trap.remedy, place=found.place, label="", rule=trap.id)
        for found in problem.traps
        for trap in (found.trap,)
    ]
    has = {"cores": problem.machine.cpu_cores > 1, "gpu": bool(problem.machine.gpus)}
    issues += [
        _issue(rule, places, switch if rule.id == _PYTHON_IN_GRAPH else None)
        for rule, places in matches(sources.code, has)
        if rule.id != _PYTHON_IN_GRAPH or True not in native.values()
    ]
    read = f"{counted(sources.files, 'source file')} read"
    return CheckResult(check="code", issues=tuple(issues), sentence="; ".join((read, *sources.unread)))


def _why_nothing_to_read(command: Sequence[str]) -> str:
    script = own_words(command) - 1
    if script and command[script - 1] == "-m":
        return f"the module {command[script]} is not in this directory; installed packages are not read"
    return "the command starts no Python script that exists here"


def _issue(rule: Rule, places: Sequence[str], switch: str | None) -> Issue:
    """Return the issue of a rule; `switch` is the key that removes the slow code from training, if any."""
    shown, remedy = ", ".join(places[:4]), rule.remedy
    if switch:
        remedy = f"Set {switch} to true, which loads without Python; or: {remedy}"
    return issue(
        "code",
        f"{capitalized(rule.sentence)}.",
        remedy,
        severity=rule.severity,
        place=f"{shown} and {len(places) - 4} more" if len(places) > 4 else shown,
        numbers={"places": float(len(places))},
        limit=rule.limit,
        values={switch: True} if switch else {},
        rule=rule.id,
    )


def matches(code: LiveCode, has: Mapping[str, bool]) -> list[tuple[Rule, tuple[str, ...]]]:
    """Return the matching rules whose needs the machine meets, each with its places as ``file:line``."""
    training = Training(code)
    rules = [rule for rule in RULES if all(has[need] for need in rule.needs)]
    return [(rule, places) for rule in rules if (places := _places(rule, training))]


def _places(rule: Rule, training: Training) -> tuple[str, ...]:
    order = {file: place for place, file in enumerate(training.code.files)}
    found = sorted({(order[unit.file], line_of(node), unit.file.name) for unit, node in _found(rule, training)})
    return tuple(f"{name}:{line}" for _, line, name in found)


def _found(rule: Rule, training: Training) -> Iterator[tuple[CodeScope, ast.AST]]:
    if rule.find:
        found: Places = globals()[rule.find](training)
        return found
    calls = set(training.code.calls(*rule.calls))
    if rule.where == "each step":
        return (one for one in training.each_step if one in calls)
    return ((unit, call) for unit, call in calls if rule.where == "anywhere" or not unit.is_conditional(call))


# Finders of slow code, named by the rules of ``tables.toml``.


Places = Iterator[tuple[CodeScope, ast.AST]]
"""Nodes, each with its function or module."""

_OTHER_ROUNDS = frozenset(("fold", "model", "config", "cfg", "seed", "trial", "lr", "name", "device", "gpu", "split"))
_FETCHING = frozenset(("item", "numpy", "cpu", "tolist"))


def generators(training: Training) -> Places:
    """Yield calls of ``Dataset.from_generator``."""
    for unit in training.code.units:
        for call in unit.calls:
            if re.fullmatch(r"tensorflow.*Dataset\.from_generator", unit.file.full_name(call.func)):
                yield unit, call


def eager_by_hand(training: Training) -> Places:
    """Yield ``run_eagerly=True``, ``run_functions_eagerly(True)``."""
    for unit, node in training.code.nodes():
        if _runs_eagerly(unit, node) and not unit.is_conditional(node):
            yield unit, node.value if isinstance(node, ast.keyword) else node


def eager_steps(training: Training) -> Places:
    """Yield functions or module-level loops that update the weights op by op."""
    for unit in training.code.units:
        if unit.node in training.compiled or not unit.file.imports("tensorflow") or _is_keras_step(unit):
            continue
        updates = [call for call in unit.calls if last_part(call.func) == "apply_gradients"]
        updates = [call for call in updates if training.is_each_step(unit, call)]
        called = [other for name in unit.names for other in training.code.functions.get(name, ())]
        computes = any("GradientTape" in one.names for one in (unit, *called))
        is_compiled = _is_in_compiled(training, unit) or (unit.name and training.is_passed_on(unit))
        if updates and computes and not is_compiled:
            yield unit, min(updates, key=lambda call: call.lineno)


def serial_maps(training: Training) -> Places:
    """Yield serial ``map`` calls with a stateful function: random numbers or Python."""
    for unit, call in dataset_calls(training.code, "map"):
        # Dataset.map(map_func, num_parallel_calls=None, ...)
        is_serial = len(call.args) == 1 and not any(one.arg in ("num_parallel_calls", None) for one in call.keywords)
        if is_serial and _is_stateful(training, unit, call.args[0], set()):
            yield unit, call


def shuffles_after_maps(training: Training) -> Places:
    """Yield ``shuffle`` calls after ``map``."""
    for unit, call in dataset_calls(training.code, "shuffle"):
        mapped: set[str] = set()
        assigned = [one for one in unit.nodes if isinstance(one, ast.Assign) and one.lineno < call.lineno]
        for one in sorted(assigned, key=lambda one: one.lineno):
            methods, name = _chain(one.value)
            names = {spelled(to) for to in one.targets} - {""}
            mapped = mapped | names if "map" in methods or name in mapped else mapped - names
        methods, name = _chain(call)
        if "map" in methods or name in mapped:
            yield unit, call


def _chain(node: ast.expr) -> tuple[list[str], str]:
    """Return the methods of a call chain, last first, and the name at its start."""
    methods = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods.append(node.func.attr)
        node = node.func.value
    return methods, spelled(node)


def functions_made_in_loops(training: Training) -> Places:
    """Yield uses of ``tf.function`` in a loop."""
    for unit, node in training.code.nodes():
        parent = unit.file.parents.get(node)
        is_decorator = isinstance(parent, ast.FunctionDef) and node in parent.decorator_list
        made = node.func if isinstance(node, ast.Call) else node if is_decorator else None
        if made is not None and unit.file.full_name(made) == FUNCTION:
            loops = list(unit.loops_around(node))
            if loops and not any(_goes_over_others(loop) for loop in loops):
                yield unit, node


def counters_as_arguments(training: Training) -> Places:
    """Yield calls of compiled functions with a Python loop counter."""
    for unit, call in training.code.nodes():
        if not isinstance(call, ast.Call) or last_part(call.func) not in training.scalar_sensitive:
            continue
        counters = {name for loop in unit.loops_around(call) for name in loop_counters(loop)}
        given = [*call.args, *(one.value for one in call.keywords)]
        if any(isinstance(one, ast.Name) and one.id in counters for one in given):
            yield unit, call


def numbers_fetched(training: Training) -> Places:
    """Yield ``.numpy()`` in each step of a TensorFlow loop."""
    on_the_host = ("iterations", "step", "global_step", "epoch")  # integers that TensorFlow keeps on the host
    for unit, node in training.each_step:
        if not unit.file.imports("tensorflow") or unit.file.imports("torch") or not isinstance(node, ast.Call):
            continue
        is_fetched = isinstance(node.func, ast.Attribute) and node.func.attr == "numpy" and not node.args
        if is_fetched and isinstance(node.func, ast.Attribute) and last_part(node.func.value) not in on_the_host:
            yield unit, node


def _mentions(training: Training, *attributes: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in attributes
        for file in training.code.files
        if file.imports("tensorflow", "tensorflow_datasets", "torch")
        for node in ast.walk(file.tree)
    )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_stateful(training: Training, unit: CodeScope, node: ast.AST, seen: set[ast.AST]) -> bool:
    parts = {part for one in ast.walk(node) for part in unit.file.full_name(one).split(".")}
    if parts & {"numpy_function", "py_function", "py_func", "random"} or any(p.startswith("random_") for p in parts):
        return True
    called = [one for part in parts for one in training.code.functions.get(part, ()) if one.node not in seen]
    seen.update(one.node for one in called)
    return any(_is_stateful(training, one, statement, seen) for one in called for statement in one.node.body)


def _runs_eagerly(unit: CodeScope, node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        call = unit.file.parents.get(node)
        is_compile = isinstance(call, ast.Call) and last_part(call.func) == "compile"
        return node.arg == "run_eagerly" and _is_true(node.value) and is_compile
    if isinstance(node, ast.Assign):
        return _is_true(node.value) and any(last_part(one) == "run_eagerly" for one in node.targets)
    if isinstance(node, ast.Call) and node.args and _is_true(node.args[0]):
        name = unit.file.full_name(node.func)
        return name.startswith("tensorflow.") and name.endswith(("run_functions_eagerly", "enable_debug_mode"))
    return False


def _is_keras_step(unit: CodeScope) -> bool:
    is_method = unit.outer is not None and isinstance(unit.outer.node, ast.ClassDef) and bool(unit.outer.node.bases)
    return is_method and unit.name in ("train_step", "apply_gradients", "call", "minimize", "update_step")


def _is_in_compiled(training: Training, unit: CodeScope | None) -> bool:
    return unit is not None and (unit.node in training.compiled or _is_in_compiled(training, unit.outer))


def _goes_over_others(loop: ast.AST) -> bool:
    """Return whether a loop is over items that need separate functions, such as models."""
    target = loop.target if isinstance(loop, ast.For) else None
    names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)] if target is not None else []
    return bool(words_of(*names) & _OTHER_ROUNDS)


# Finders of slow PyTorch code.


def loaders_without_workers(training: Training) -> Places:
    """Yield each ``DataLoader`` without workers, except for tensors in memory."""
    for unit, call in _loaders(training):
        if not _is_in_memory(unit, call) and _is_zero(unit, _argument(call, "num_workers", 5)):
            yield unit, call
    for unit, call in training.code.calls(*TRAINING_ARGUMENTS):
        if not has_unpacking(call) and _is_zero(unit, _argument(call, "dataloader_num_workers")):
            yield unit, call


def loaders_without_pinning(training: Training) -> Places:
    """Yield each ``DataLoader`` without ``pin_memory``, if the trainer uses a GPU."""
    if not _mentions(training, "cuda", "to", "prepare"):
        return
    for unit, call in _loaders(training):
        pinning = _argument(call, "pin_memory", 7)
        if pinning is None or (isinstance(pinning, ast.Constant) and pinning.value is False):
            yield unit, call


def loaders_restarted(training: Training) -> Places:
    """Yield ``next(iter(loader))`` in each step."""
    for unit, node in training.each_step:
        if isinstance(node, ast.Call) and last_part(node.func) == "next" and node.args:
            inner = node.args[0]
            begun = inner.args[:1] if isinstance(inner, ast.Call) and last_part(inner.func) == "iter" else []
            if any("loader" in last_part(one).lower() for one in begun):
                yield unit, node


def torch_numbers_fetched(training: Training) -> Places:
    """Yield ``.item()``, ``.cpu()`` and a printed loss in each step, which wait for the GPU."""
    losses = _losses(training)
    for unit, node in training.each_step:
        if not isinstance(node, ast.Call) or not unit.file.imports("torch"):
            continue
        parents = unit.file.parents
        if isinstance(node.func, ast.Attribute) and node.func.attr in _FETCHING and not node.args:
            of = node.func.value
            is_numpy = isinstance(of, ast.Call) and unit.file.full_name(of.func).startswith("numpy.")
            if not is_numpy and last_part(parents[node]) not in _FETCHING:  # x.cpu().numpy() is one
                yield unit, node
        elif last_part(node.func) in ("print", "float"):
            names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
            shown = {one.id for one in names if not isinstance(parents.get(one), ast.Attribute | ast.Subscript)}
            if shown & losses.get(unit.innermost_loop(node) or unit.node, set()):
                yield unit, node


def anomalies_detected(training: Training) -> Places:
    """Yield unconditional anomaly detection of autograd."""
    names = ("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly")
    for unit, call in training.code.calls(*names):
        is_begun = unit.file.full_name(call.func) == names[1] and isinstance(unit.file.parents.get(call), ast.withitem)
        if (is_begun or (call.args and _is_true(call.args[0]))) and not unit.is_conditional(call):
            yield unit, call


def _loaders(training: Training) -> Iterator[tuple[CodeScope, ast.Call]]:
    for unit, call in training.code.calls(*DATA_LOADERS):
        data = _argument(call, "dataset", 0)
        if not has_unpacking(call) and not (data is not None and is_evaluation(last_part(data))):
            yield unit, call


def _argument(call: ast.Call, name: str, place: int = 99) -> ast.expr | None:
    named = next((one.value for one in call.keywords if one.arg == name), None)
    return named or next(iter(call.args[place:]), None)


def _is_zero(unit: CodeScope, node: ast.expr | None) -> bool:
    """Return whether a number is missing or 0, also by a name that is assigned once."""
    if isinstance(node, ast.Name):
        assigned = [one for one in ast.walk(unit.file.tree) if isinstance(one, ast.Assign)]
        given = [one.value for one in assigned if node.id in map(last_part, one.targets)]
        return len(given) == 1 and _is_zero(unit, given[0]) and not isinstance(given[0], ast.Name)
    return node is None or (isinstance(node, ast.Constant) and node.value == 0)


def _is_in_memory(unit: CodeScope, call: ast.Call) -> bool:
    names = {last_part(node) for node in ast.walk(_argument(call, "dataset", 0) or call.func)}
    assigned = [node for node in ast.walk(unit.file.tree) if isinstance(node, ast.Assign)]
    for _ in range(3):  # TensorDataset -> random_split -> loader
        for node in assigned:
            if {last_part(one) for target in node.targets for one in ast.walk(target)} & names - {""}:
                names |= {last_part(one) for one in ast.walk(node.value)}
    return "TensorDataset" in names


def _losses(training: Training) -> dict[ast.AST, set[str]]:
    """Return the names of losses, by loop or step function."""
    found: dict[ast.AST, set[str]] = {}
    for unit, node in training.each_step:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and "loss" in one.id.lower()}
            found.setdefault(unit.innermost_loop(node) or unit.node, set()).update(names)
    return found


# Training loops and steps.


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
    def steps(self) -> dict[ast.AST, CodeScope]:
        """Functions that run one step."""
        found: dict[ast.AST, CodeScope] = {}

        def makes_one(unit: CodeScope) -> bool:
            if unit.name == "training_step" and unit.outer is not None and isinstance(unit.outer.node, ast.ClassDef):
                return True  # of a LightningModule
            outside = (call for call in unit.calls if unit.innermost_loop(call) is None)
            return any(_is_step(call) or self._calls(unit, call, found) for call in outside)

        while new := [unit for unit in self._functions if unit.node not in found and makes_one(unit)]:
            found.update((unit.node, unit) for unit in new)
        return found

    @cached_property
    def each_step(self) -> tuple[tuple[CodeScope, ast.AST], ...]:
        """Nodes that are evaluated unconditionally in each step."""
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
        """Functions that run in a graph: made by ``tf.function``, or used in one."""
        names = {name for name, _ in self._made_into_graphs}
        found = set[ast.AST]()
        while new := [unit for unit in self._functions if unit.name in names and unit.node not in found]:
            found |= {unit.node for unit in new}
            names = set[str]().union(*(unit.names for unit in new))
            names |= {node.name for unit in new for node in unit.nodes if isinstance(node, ast.FunctionDef)}
        return frozenset(found)

    @cached_property
    def scalar_sensitive(self) -> frozenset[str]:
        """Names of functions that are traced again for each new Python number."""
        return frozenset(
            name
            for name, made in self._made_into_graphs
            if not (isinstance(made, ast.Call) and any(one.arg in ("input_signature", None) for one in made.keywords))
        )

    def is_each_step(self, unit: CodeScope, node: ast.AST) -> bool:
        in_step = unit.node in self.steps and self._is_called_in_a_loop(unit)
        return in_step or unit.innermost_loop(node) is not None

    def is_passed_on(self, unit: CodeScope) -> bool:
        """Return whether a function is passed to a call, which may compile it."""
        return any(
            last_part(given) == unit.name and last_part(call.func) not in _RUNNING
            for other in self.code.units
            for call in other.calls
            for given in (*call.args, *(one.value for one in call.keywords))
        )

    @cached_property
    def _made_into_graphs(self) -> list[tuple[str, ast.expr]]:
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

    def _calls(self, unit: CodeScope, call: ast.Call, among: dict[ast.AST, CodeScope]) -> bool:
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

    def _is_called_in_a_loop(self, step: CodeScope) -> bool:
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
    """Yield the names of a loop's counters."""
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
        called, target = last_part(loop.iter.func), loop.target
        first = target.elts[0] if called == "enumerate" and isinstance(target, ast.Tuple) else target
        if called in ("range", "enumerate") and isinstance(first, ast.Name):
            yield first.id
