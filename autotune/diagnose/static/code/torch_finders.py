"""Finders of slow PyTorch code."""

import ast
from collections.abc import Iterator

from autotune.diagnose.static.code.evaluation import is_evaluation
from autotune.diagnose.static.code.live_code import Unit
from autotune.diagnose.static.code.rule import Places
from autotune.diagnose.static.code.tensorflow_finders import is_true, unconditional
from autotune.diagnose.static.code.training import Training, innermost_loop, last_part

_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_WORKERS_ARGUMENT, _PINNING_ARGUMENT = 5, 7  # places in DataLoader(dataset, batch_size, shuffle, ...)
_IN_MEMORY = frozenset(("TensorDataset",))
_FETCHING = frozenset(("item", "numpy", "cpu", "tolist"))
_CLEANING = ("torch.cuda.empty_cache", "gc.collect")


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


def numbers_fetched(training: Training) -> Places:
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
        if isinstance(node, ast.Call) and unit.file.full_name(node.func) in _CLEANING:
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
    """Return whether a loader is one of tensors, which processes would only have to send about."""
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
    return bool((names | {last_part(node) for node in ast.walk(data)}) & _IN_MEMORY)


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
    """Return whether a call is the object of another one that fetches too, as in ``x.cpu().numpy()``."""
    parent = unit.file.parents.get(node)
    return isinstance(parent, ast.Attribute) and parent.attr in _FETCHING
