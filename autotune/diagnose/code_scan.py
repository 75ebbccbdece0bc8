"""Check of the trainer's sources, read with `ast` and never imported, for what is known to be slow."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config.code_source import Training, Unit
from autotune.config.command import own_words
from autotune.config.sources import read_sources, trainer_files, words_in
from autotune.diagnose import code_finders
from autotune.diagnose.findings import CheckResult, Issue, capitalized, issue
from autotune.diagnose.subject import Subject
from autotune.diagnose.tables import RULES, Rule
from autotune.space.catalog import known_knob

_PYTHON_IN_GRAPH = "python-in-graph"

# A source without any of these has nothing that a rule could find, and is not parsed: most of a library of models.
_TELLING = re.compile(
    rb"DataLoader|TrainingArguments|\bDataset\.|\.Dataset\b|tfds|_dataset_from_directory|\.prefetch\(|\.interleave\("
    rb"|backward\(|apply_gradients|train_on_batch|training_step|numpy_function|py_func|eagerly|enable_debug_mode"
    rb"|check_numerics|detect_anomaly|\.function\b|import function"
)


@dataclass(frozen=True, kw_only=True)
class TrainerMachine:
    """What rules need of where a trainer runs."""

    cores: int
    has_gpu: bool

    def has(self, need: str) -> bool:
        return {"cores": self.cores > 1, "gpu": self.has_gpu}[need]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Result of a scan.

    Attributes:
        found: Rules that found something, each with its places as file and line, in their order.
        files: How many sources were read.
        unread: Why others were not, for people.
    """

    found: tuple[tuple[Rule, tuple[str, ...]], ...]
    files: int
    unread: tuple[str, ...]


def check_code(look: Subject) -> CheckResult:
    """Look for slow code in the script that the command starts, and in the modules beside it."""
    problem = look.problem
    if problem is None or not problem.command:
        return CheckResult(check="code", why_not="it is not known how training is started")
    paths = trainer_files(problem.command, problem.settings.folder)
    if not paths:
        return CheckResult(check="code", why_not=_why_nothing_to_read(problem.command))
    named = words_in((*problem.settings.scalars.values(), *problem.command))
    machine = TrainerMachine(cores=problem.machine.cpu_cores, has_gpu=bool(problem.machine.gpus))
    done = scan(paths, problem.settings.folder, named, machine)
    if not done.files:
        return CheckResult(check="code", why_not="; ".join(done.unread))
    native = {
        path: value
        for path, value in problem.settings.scalars.items()
        if (row := known_knob(path, value)) is not None and row.kind == "native_loading"
    }
    switch = next((path for path, on in native.items() if on is False and path not in problem.settings.refused), None)
    issues = [
        _issue(rule, places, switch if rule.id == _PYTHON_IN_GRAPH else None)
        for rule, places in done.found
        if rule.id != _PYTHON_IN_GRAPH or True not in native.values()
    ]
    read = "1 source file read" if done.files == 1 else f"{done.files} source files read"
    return CheckResult(check="code", issues=tuple(issues), sentence="; ".join((read, *done.unread)))


def _why_nothing_to_read(command: Sequence[str]) -> str:
    script = own_words(command) - 1
    if script and command[script - 1] == "-m":
        return f"the module {command[script]} is not below this directory; installed packages are not read"
    return "the command starts no Python script that is found here"


def _issue(rule: Rule, places: Sequence[str], switch: str | None) -> Issue:
    """Return what a rule found as an issue.

    Args:
        switch: Key of the config that leaves it out of training; None without one.
    """
    shown, remedy = ", ".join(places[:4]), rule.remedy
    if switch:
        remedy = f"Set {switch} to true, which leaves Python out of loading; or: {remedy}"
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


def scan(paths: Sequence[Path], folder: Path, named: Iterable[str], machine: TrainerMachine) -> Scan:
    """Read sources and look for what the rules know.

    Args:
        paths: The sources, the script first.
        folder: Folder that their names are relative to, where they are in it.
        named: Words of the config, which may name classes and functions.
    """
    sources = read_sources(paths, folder, named, _TELLING)
    training = Training(sources.code)
    rules = [rule for rule in RULES if all(map(machine.has, rule.needs))]
    found = [(rule, places) for rule in rules if (places := _places(rule, training))]
    return Scan(found=tuple(found), files=sources.files, unread=sources.unread)


def _places(rule: Rule, training: Training) -> tuple[str, ...]:
    order = {file: place for place, file in enumerate(training.code.files)}
    found = sorted({(order[unit.file], _line(node), unit.file.name) for unit, node in _found(rule, training)})
    return tuple(f"{name}:{line}" for _, line, name in found)


def _found(rule: Rule, training: Training) -> Iterator[tuple[Unit, ast.AST]]:
    if rule.find:
        found: Iterator[tuple[Unit, ast.AST]] = getattr(code_finders, rule.find)(training)
        return found
    calls = set(training.code.calls(*rule.calls))
    if rule.where == "each step":
        return (one for one in training.each_step if one in calls)
    return ((unit, call) for unit, call in calls if rule.where == "anywhere" or not unit.is_conditional(call))


def _line(node: ast.AST) -> int:
    """Return the line of a node: of a call of a method its own, not that in which the object before it begins."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return int(getattr(node, "lineno", 1))
