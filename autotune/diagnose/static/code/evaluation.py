"""Parts of sources that do not train: validation, testing, inference and debugging, as far as their names tell."""

import ast
import re
from collections.abc import Iterator

from autotune.diagnose.static.code.source_file import SourceFile, words_of

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
    """Return whether a part of a node does not train: a branch, an argument, what is assigned to ``val_data``.

    Args:
        file: The file of both.
        node: The node.
        part: What is directly in it.
    """
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
