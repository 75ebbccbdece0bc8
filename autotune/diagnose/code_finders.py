"""Finders of slow TensorFlow and Keras code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.diagnose.code_source import Loop, SourceFile, Unit, is_evaluation, words_of
from autotune.diagnose.code_training import FUNCTION, Training, innermost_loop, is_conditional, last_part, loops_around
from autotune.diagnose.findings import Limit, Severity

_PYTHON_IN_GRAPH = ("numpy_function", "py_function", "py_func")
_OWN_KINDS = ("tensorflow.data.", "tensorflow_datasets.", "tensorflow.keras.utils.", "keras.utils.")
_MAKE_DATASETS = ("_dataset_from_directory", "tensorflow_datasets.load")
_TELL_DATASETS = frozenset(("prefetch", "interleave", "padded_batch", "with_options", "as_numpy_iterator"))
_CHAINED = (
    frozenset(
        (
            "map",
            "batch",
            "shuffle",
            "repeat",
            "cache",
            "take",
            "skip",
            "filter",
            "shard",
            "unbatch",
            "concatenate",
            "apply",
        )
    )
    | _TELL_DATASETS
)
_STATEFUL = frozenset((*_PYTHON_IN_GRAPH, "random"))
_OTHER_ROUNDS = frozenset(("fold", "model", "config", "cfg", "seed", "trial", "lr", "name", "device", "gpu", "split"))
_ON_THE_HOST = frozenset(("iterations", "step", "global_step", "epoch"))  # TensorFlow keeps whole numbers there
_PREPARING = frozenset(("tokenizer", "vocab", "vocabulary"))
_SESSIONS = ("tensorflow.Session", "tensorflow.disable_eager_execution", "tensorflow.disable_v2_behavior")


def python_functions(training: Training) -> Places:
    """Yield calls of ``tf.numpy_function`` and ``tf.py_function``."""
    return training.code.calls(*(f"tensorflow.{name}" for name in _PYTHON_IN_GRAPH))


def generators(training: Training) -> Places:
    """Yield calls of ``Dataset.from_generator``."""
    for unit in training.code.units:
        for call in unit.calls:
            name = unit.file.full_name(call.func) or ""
            if name.endswith("Dataset.from_generator") and name.startswith("tensorflow") and not _prepares_text(unit):
                yield unit, call


def eager_by_hand(training: Training) -> Places:
    """Yield what makes Keras or TensorFlow run op by op: ``run_eagerly=True``, ``run_functions_eagerly(True)``."""
    for unit in training.code.units:
        for node in unit.nodes:
            if _runs_eagerly(unit, node) and not is_conditional(unit, node, unit.node):
                yield unit, node.value if isinstance(node, ast.keyword) else node


def eager_steps(training: Training) -> Places:
    """Yield functions, or loops of a module, that update the weights op by op."""
    if _has_sessions(training):
        return
    for unit in training.code.units:
        if unit.node in training.compiled or not unit.file.imports("tensorflow") or _is_keras_step(unit):
            continue
        updates = [call for call in unit.calls if last_part(call.func) == "apply_gradients"]
        updates = [call for call in updates if training.is_each_step(unit, call)]
        if not updates or not _computes_gradients(training, unit) or _in_compiled(training, unit):
            continue
        if not unit.name or not training.handed_on(unit):
            yield unit, min(updates, key=lambda call: call.lineno)


def serial_maps(training: Training) -> Iterator[tuple[Unit, ast.Call]]:
    """Yield ``map`` of a dataset without ``num_parallel_calls``."""
    for unit, call in _dataset_calls(training, "map"):
        # Dataset.map(map_func, num_parallel_calls=None, ...)
        if len(call.args) <= 1 and not _has_keyword(call, "num_parallel_calls"):
            yield unit, call


def stateful_serial_maps(training: Training) -> Places:
    """Yield those of `serial_maps` whose function has a state, random numbers or Python, as far as can be seen."""
    for unit, call in serial_maps(training):
        if call.args and _is_stateful(training, unit, call.args[0], set()):
            yield unit, call


def unbuffered_pipelines(training: Training) -> Places:
    """Yield the first ``batch`` of a dataset where no dataset is ever prefetched."""
    if any(
        isinstance(node, ast.Attribute) and node.attr in ("prefetch", "prefetch_to_device")
        for file in training.code.files
        for node in ast.walk(file.tree)
    ):
        return
    yield from list(_dataset_calls(training, "batch", "padded_batch"))[:1]


def functions_made_in_loops(training: Training) -> Places:
    """Yield where ``tf.function`` is put on something again in each round of a loop."""
    for unit in training.code.units:
        for node in unit.nodes:
            made = isinstance(node, ast.Call) and unit.file.full_name(node.func) == FUNCTION
            decorated = isinstance(node, ast.FunctionDef) and any(
                unit.file.full_name(one.func if isinstance(one, ast.Call) else one) == FUNCTION
                for one in node.decorator_list
            )
            if not decorated and not (made and not _is_decorator(unit, node)):
                continue
            loops = list(loops_around(unit, node))
            if loops and not any(_goes_over_others(loop) for loop in loops):
                yield unit, node


def counters_as_arguments(training: Training) -> Places:
    """Yield calls of compiled functions with a Python number that is another one in each round."""
    for unit in training.code.units:
        for call in unit.calls:
            if last_part(call.func) not in training.scalar_sensitive:
                continue
            if not isinstance(call.func, ast.Name) and unit.file.full_name(call.func) is None:
                continue
            counters = {name for loop in loops_around(unit, call) for name in _counters(loop)}
            given = [*call.args, *(one.value for one in call.keywords)]
            if any(isinstance(one, ast.Name) and one.id in counters for one in given):
                yield unit, call


def numbers_fetched(training: Training) -> Places:
    """Yield ``.numpy()`` in each step of a TensorFlow loop."""
    for unit, node in training.each_step:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "numpy"
            and not node.args
            and unit.file.imports("tensorflow")
            and not unit.file.imports("torch")
            and last_part(node.func.value) not in _ON_THE_HOST
        ):
            yield unit, node


def checks_of_numbers(training: Training) -> Places:
    """Yield what checks every number: ``tf.debugging.enable_check_numerics()``."""
    return unconditional(training.code.calls("tensorflow.debugging.enable_check_numerics"))


def unconditional(calls: Iterator[tuple[Unit, ast.Call]]) -> Iterator[tuple[Unit, ast.Call]]:
    """Yield those calls that no switch can leave out: what the config says is no matter of the code."""
    return ((unit, call) for unit, call in calls if not is_conditional(unit, call, unit.node))


def is_true(node: ast.expr) -> bool:
    """Return whether an expression is the word ``True``."""
    return isinstance(node, ast.Constant) and node.value is True


def _dataset_calls(training: Training, *methods: str) -> Iterator[tuple[Unit, ast.Call]]:
    """Yield calls of these methods on datasets of tf.data, in the order of their files and lines."""
    for unit in sorted(training.code.units, key=lambda unit: (not unit.file.is_script, unit.file.name)):
        if not unit.file.imports("tensorflow") and not unit.file.imports("tensorflow_datasets"):
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
    known: set[str] = set()
    for node in unit.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TELL_DATASETS:
            known |= _roots(node.func.value)
    while True:
        new = set[str]()
        for node in unit.nodes:
            if isinstance(node, ast.Assign) and _is_dataset(unit.file, node.value, known):
                new |= {_spelled(target) for target in node.targets if _spelled(target)}
        if new <= known:
            return known
        known |= new


def _roots(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHAINED:
        node = node.func.value
    return {_spelled(node)} - {""}


def _is_dataset(file: SourceFile, node: ast.expr, known: set[str]) -> bool:
    if _spelled(node) in known:
        return True
    if not isinstance(node, ast.Call):
        return False
    whole = file.full_name(node.func) or ""
    if whole.startswith(_OWN_KINDS) and ("Dataset" in whole or whole.endswith(_MAKE_DATASETS)):
        return True
    chained = isinstance(node.func, ast.Attribute) and node.func.attr in _CHAINED
    return chained and isinstance(node.func, ast.Attribute) and _is_dataset(file, node.func.value, known)


def _spelled(node: ast.AST) -> str:
    """Return a plain name, or an attribute of one, as it is written; empty for anything else."""
    if isinstance(node, ast.Attribute):
        inner = _spelled(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def _is_stateful(training: Training, unit: Unit, node: ast.AST, seen: set[ast.AST]) -> bool:
    """Return whether a function that a dataset is mapped with draws random numbers, or calls Python."""
    names = {last_part(one) for one in ast.walk(node)}
    parts = {part for one in ast.walk(node) for part in (unit.file.full_name(one) or "").split(".")}
    if parts & _STATEFUL or any(part.startswith("random_") for part in parts):
        return True
    for name in names:
        for one in training.code.functions.get(name, ()):
            if one.node not in seen:
                seen.add(one.node)
                if any(_is_stateful(training, one, statement, seen) for statement in one.node.body):
                    return True
    return False


def _runs_eagerly(unit: Unit, node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "run_eagerly" and is_true(node.value) and _called_by(unit, node) == "compile"
    if isinstance(node, ast.Assign):
        return is_true(node.value) and any(last_part(one) == "run_eagerly" for one in node.targets)
    if isinstance(node, ast.Call) and node.args and is_true(node.args[0]):
        name = unit.file.full_name(node.func) or ""
        return name.startswith("tensorflow.") and name.endswith(("run_functions_eagerly", "enable_debug_mode"))
    return False


def _prepares_text(unit: Unit | None) -> bool:
    while unit is not None:
        if not _PREPARING.isdisjoint(words_of(unit.name)):
            return True
        unit = unit.outer
    return False


def _has_sessions(training: Training) -> bool:
    return any(
        (file.full_name(node) or "").startswith(_SESSIONS)
        for file in training.code.files
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Attribute)
    )


def _is_keras_step(unit: Unit) -> bool:
    is_method = unit.outer is not None and isinstance(unit.outer.node, ast.ClassDef) and bool(unit.outer.node.bases)
    return is_method and unit.name in ("train_step", "apply_gradients", "call", "minimize", "update_step")


def _computes_gradients(training: Training, unit: Unit) -> bool:
    called = [other for name in unit.names for other in training.code.functions.get(name, ())]
    return any("GradientTape" in one.names for one in (unit, *called))


def _in_compiled(training: Training, unit: Unit) -> bool:
    outer = unit.outer
    while outer is not None:
        if outer.node in training.compiled:
            return True
        outer = outer.outer
    return False


def _called_by(unit: Unit, keyword: ast.AST) -> str:
    parent = unit.file.parents.get(keyword)
    return last_part(parent.func) if isinstance(parent, ast.Call) else ""


def _has_keyword(call: ast.Call, name: str) -> bool:
    return any(one.arg in (name, None) for one in call.keywords)


def _is_decorator(unit: Unit, node: ast.AST) -> bool:
    parent = unit.file.parents.get(node)
    return isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and node in parent.decorator_list


def _goes_over_others(loop: ast.AST) -> bool:
    """Return whether a loop goes over things that each need a function of their own, such as models."""
    if not isinstance(loop, ast.For | ast.AsyncFor):
        return False
    words = {word for node in ast.walk(loop.target) if isinstance(node, ast.Name) for word in words_of(node.id)}
    return bool(words & _OTHER_ROUNDS)


def _counters(loop: ast.AST) -> Iterator[str]:
    """Yield the names of Python numbers that a loop counts."""
    assert isinstance(loop, Loop), "nothing else has rounds"
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
        called = last_part(loop.iter.func)
        if called == "range" and isinstance(loop.target, ast.Name):
            yield loop.target.id
        if called == "enumerate" and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
            yield loop.target.elts[0].id


# Finders of slow PyTorch code.


_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_WORKERS_ARGUMENT, _PINNING_ARGUMENT = 5, 7  # places in DataLoader(dataset, batch_size, shuffle, ...)
_FETCHING = frozenset(("item", "numpy", "cpu", "tolist"))


def loaders_without_workers(training: Training) -> Places:
    """Yield ``DataLoader`` whose ``num_workers`` is left out, or 0; those of tensors in memory are left out."""
    for unit, call in _loaders(training):
        workers = _argument(call, "num_workers", _WORKERS_ARGUMENT)
        if not _is_in_memory(unit, call) and (workers is None or _number(unit, workers) == 0):
            yield unit, call
    for unit, call in training.code.calls("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"):
        workers = _argument(call, "dataloader_num_workers", None)
        if not _has_unknown(call) and (workers is None or _number(unit, workers) == 0):
            yield unit, call


def loaders_without_pinning(training: Training) -> Places:
    """Yield ``DataLoader`` without ``pin_memory``, where something goes to a GPU."""
    if not any(
        isinstance(node, ast.Attribute) and node.attr in ("cuda", "to", "prepare")
        for file in training.code.files
        if file.imports("torch")
        for node in ast.walk(file.tree)
    ):
        return
    for unit, call in _loaders(training):
        pinning = _argument(call, "pin_memory", _PINNING_ARGUMENT)
        if pinning is None or (isinstance(pinning, ast.Constant) and pinning.value is False):
            yield unit, call


def loaders_restarted(training: Training) -> Places:
    """Yield ``next(iter(loader))`` in each round of a training loop."""
    for unit, node in training.each_step:
        if not (isinstance(node, ast.Call) and last_part(node.func) == "next" and node.args):
            continue
        inner = node.args[0]
        begins = isinstance(inner, ast.Call) and last_part(inner.func) == "iter" and bool(inner.args)
        if begins and isinstance(inner, ast.Call) and "loader" in last_part(inner.args[0]).lower():
            yield unit, node


def torch_numbers_fetched(training: Training) -> Places:
    """Yield what makes the host wait for the GPU in each step: ``.item()``, ``.cpu()`` and the like, a printed loss."""
    losses = _losses(training)
    for unit, node in training.each_step:
        if not isinstance(node, ast.Call) or not unit.file.imports("torch"):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in _FETCHING and not node.args:
            if not _is_numpy(unit, node.func.value) and not _is_inside_another(unit, node):
                yield unit, node
        elif last_part(node.func) in ("print", "float"):
            shown = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and not _is_read_from(unit, part)}
            if shown & losses.get(innermost_loop(unit, node) or unit.node, set()):
                yield unit, node


def memory_cleaned(training: Training) -> Places:
    """Yield ``torch.cuda.empty_cache()`` and ``gc.collect()`` in each step."""
    for unit, node in training.each_step:
        if isinstance(node, ast.Call) and unit.file.full_name(node.func) in ("torch.cuda.empty_cache", "gc.collect"):
            yield unit, node


def anomalies_detected(training: Training) -> Places:
    """Yield autograd's detection of anomalies, where it is on whatever the config says."""
    for unit, call in unconditional(training.code.calls("torch.autograd.set_detect_anomaly")):
        if call.args and is_true(call.args[0]):
            yield unit, call
    for unit, call in unconditional(training.code.calls("torch.autograd.detect_anomaly")):
        if isinstance(unit.file.parents.get(call), ast.withitem):
            yield unit, call


def _loaders(training: Training) -> Iterator[tuple[Unit, ast.Call]]:
    """Yield the loaders of training whose arguments are all to be seen."""
    for unit, call in training.code.calls(*_LOADER):
        data = _argument(call, "dataset", 0)
        if not _has_unknown(call) and not (data is not None and is_evaluation(last_part(data))):
            yield unit, call


def _has_unknown(call: ast.Call) -> bool:
    return any(one.arg is None for one in call.keywords) or any(isinstance(one, ast.Starred) for one in call.args)


def _argument(call: ast.Call, name: str, place: int | None) -> ast.expr | None:
    named = next((one.value for one in call.keywords if one.arg == name), None)
    if named is not None or place is None:
        return named
    return call.args[place] if len(call.args) > place else None


def _number(unit: Unit, node: ast.expr) -> int | None:
    """Return the number that an expression is, also by a name that the module gives one number only."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if not isinstance(node, ast.Name):
        return None
    given = [
        one.value
        for one in ast.walk(unit.file.tree)
        if isinstance(one, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in one.targets)
    ]
    alone = given[0] if len(given) == 1 and given else None
    in_module = alone is not None and any(
        isinstance(one, ast.Assign) and one.value is alone for one in unit.file.tree.body
    )
    return _number(unit, alone) if alone is not None and in_module and isinstance(alone, ast.Constant) else None


def _is_in_memory(unit: Unit, call: ast.Call) -> bool:
    data = _argument(call, "dataset", 0)
    if data is None:
        return False
    names = {node.id for node in ast.walk(data) if isinstance(node, ast.Name)}
    for _ in range(3):  # TensorDataset -> random_split -> loader
        for node in ast.walk(unit.file.tree):
            if isinstance(node, ast.Assign):
                targets = {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
                if targets & names:
                    names |= {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
                    names |= {one.attr for one in ast.walk(node.value) if isinstance(one, ast.Attribute)}
    return "TensorDataset" in names | {last_part(node) for node in ast.walk(data)}


def _losses(training: Training) -> dict[ast.AST, set[str]]:
    """Return by loop, or by function that is a step, the names of tensors that gradients are computed of."""
    found: dict[ast.AST, set[str]] = {}
    for unit, node in training.each_step:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            at = innermost_loop(unit, node) or unit.node
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            found.setdefault(at, set()).update(name for name in names if "loss" in name.lower())
    return found


def _is_read_from(unit: Unit, name: ast.Name) -> bool:
    """Return whether something is got out of a name rather than the name itself: ``loss.item``, ``losses[0]``."""
    return isinstance(unit.file.parents.get(name), ast.Attribute | ast.Subscript)


def _is_numpy(unit: Unit, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return (unit.file.full_name(node.func) or "").startswith(("numpy.", "np."))
    return False


def _is_inside_another(unit: Unit, node: ast.Call) -> bool:
    parent = unit.file.parents.get(node)
    return isinstance(parent, ast.Attribute) and parent.attr in _FETCHING


Places = Iterator[tuple[Unit, ast.AST]]
"""Nodes with the functions or modules that they are in."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Surroundings of a trainer that a rule may depend on.

    Attributes:
        tensorflow: Version of TensorFlow; None where it is not known.
    """

    cores: int
    has_gpu: bool
    tensorflow: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule about sources.

    Attributes:
        id: Its id, lower-case words with hyphens.
        limit: Part of the training that it slows down; None for none in particular.
    """

    id: str
    sentence: str
    remedy: str
    find: Callable[[Training], Places]
    severity: Severity = Severity.WARNING
    limit: Limit | None = None
    applies: Callable[[Surroundings], bool] = lambda _surroundings: True
