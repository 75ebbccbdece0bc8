"""Check of the trainer's sources, read with `ast` and never imported, for what is known to be slow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config.command import own_words
from autotune.diagnose import code_finders
from autotune.diagnose.code_finders import Rule, Surroundings
from autotune.diagnose.code_source import LiveCode, SourceFile, parse
from autotune.diagnose.code_training import Training
from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.look import Look
from autotune.files import read_beginning
from autotune.messages import Message, _, capitalized, listed, ngettext
from autotune.records import Values
from autotune.search.problem import Problem
from autotune.search.trainer_code import trainer_files
from autotune.space.catalog import known_knob

CODE = "code"
_PLACES_SHOWN = 4
_PYTHON_IN_GRAPH = "python-in-graph"


def check_code(look: Look) -> CheckResult:
    """Look for slow code in the script that the command starts, and in the modules beside it."""
    problem = look.problem
    if problem is None or not problem.command:
        return CheckResult(check=CODE, why_not=_("it is not known how training is started"))
    cwd = problem.settings.folder
    paths = trainer_files(problem.command, cwd)
    if not paths:
        return CheckResult(check=CODE, why_not=_why_nothing_to_read(problem.command))
    done = scan(paths, cwd, _words(problem), surroundings_of(problem))
    if not done.files:
        return CheckResult(check=CODE, why_not=listed("; ", done.unread))
    switch = _native_switch(problem)
    issues = [
        _issue(found, {switch: True} if switch and found.rule.id == _PYTHON_IN_GRAPH else {}) for found in done.found
    ]
    if _native_is_on(problem):
        issues = [issue for issue, found in zip(issues, done.found, strict=True) if found.rule.id != _PYTHON_IN_GRAPH]
    read = ngettext("{count} source file read", "{count} source files read", done.files)
    return CheckResult(check=CODE, issues=tuple(issues), sentence=listed("; ", (read, *done.unread)))


def _why_nothing_to_read(command: Sequence[str]) -> Message:
    script = own_words(command) - 1
    if script and command[script - 1] == "-m":
        return _(
            "the module {module} is not below this directory; installed packages are not read",
            module=command[script],
        )
    return _("the command starts no Python script that is found here")


def surroundings_of(problem: Problem) -> Surroundings:
    """Return what rules about sources depend on."""
    version = problem.frameworks.get("tensorflow") or problem.frameworks.get("tensorflow-cpu")
    return Surroundings(
        cores=problem.machine.cpu_cores, has_gpu=bool(problem.machine.gpus), tensorflow=_version(version)
    )


def _version(text: str | None) -> tuple[int, int] | None:
    parts = (text or "").split(".")
    if len(parts) < 2 or not parts[0].isdecimal() or not parts[1].isdecimal():
        return None
    return int(parts[0]), int(parts[1])


def _issue(found: Found, values: Values) -> Issue:
    shown_places = ", ".join(map(str, found.places[:_PLACES_SHOWN]))
    more = len(found.places) - _PLACES_SHOWN
    remedy = found.rule.remedy
    if values:
        remedy = _(
            "Set {key} to true, which leaves Python out of loading; or: {remedy}",
            key=next(iter(values)),
            remedy=remedy,
        )
    return Issue(
        check=CODE,
        severity=found.rule.severity,
        sentence=_("{clause}.", clause=capitalized(found.rule.sentence)),
        place=f"{shown_places} and {more} more" if more > 0 else shown_places,
        numbers={"places": float(len(found.places))},
        limit=found.rule.limit,
        recommendations=(Recommendation(sentence=remedy, values=values),),
        rule=found.rule.id,
    )


def _words(problem: Problem) -> Iterator[str]:
    """Yield the words of the config and of the command, which may name what Python finds at run time."""
    for text in (*problem.settings.scalars.values(), *problem.command):
        if isinstance(text, str):
            yield from text.replace("/", ".").replace("=", ".").split(".")


def _native_switch(problem: Problem) -> str | None:
    return next(
        (path for path, value in _native(problem) if value is False and path not in problem.settings.refused), None
    )


def _native_is_on(problem: Problem) -> bool:
    return any(value is True for _, value in _native(problem))


def _native(problem: Problem) -> Iterator[tuple[str, object]]:
    for path, value in problem.settings.scalars.items():
        row = known_knob(path, value)
        if row is not None and row.kind == "native_loading":
            yield path, value


_LARGEST_BYTES = 1 << 20  # of one file: what is larger was not written by hand
_MOST_BYTES = 2 << 20  # of all that are parsed: some seconds


# A source without any of these has nothing that a rule could find, and is not parsed: most of a library of models.
_TELLING = re.compile(
    rb"DataLoader|TrainingArguments|\bDataset\.|\.Dataset\b|tfds|_dataset_from_directory|\.prefetch\(|\.interleave\("
    rb"|backward\(|apply_gradients|train_on_batch|training_step|numpy_function|py_func|eagerly|enable_debug_mode"
    rb"|check_numerics|detect_anomaly|\.function\b|import function"
)
_FRAMEWORKS = frozenset(
    (name,) for name in ("keras", "tensorflow", "torch", "transformers", "accelerate", "lightning", "jax", "flax")
)
_OWN = ("autotune", "workloads")
_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]*(?:\([^)]*\)|[^\n]*)", re.MULTILINE)
_WORD = re.compile(rb"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """Places that a rule found, in order of file and line."""

    rule: Rule
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Result of a scan.

    Attributes:
        unread: Why others were not, for people.
    """

    found: tuple[Found, ...]
    files: int
    unread: tuple[str, ...]


def scan(paths: Sequence[Path], folder: Path, named: Iterable[str], surroundings: Surroundings) -> Scan:
    """Read sources and look for what the rules know.

    Args:
        paths: The sources, the script first.
        folder: Folder that their names are relative to, where they are in it.
        named: Words of the config, which may name classes and functions.
    """
    files: list[SourceFile] = []
    unread: list[str] = []
    words = set(named)
    left, seen = _MOST_BYTES, 0
    for path in paths:
        parts = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
        if parts[:1] in _FRAMEWORKS or (parts[:1] == _OWN[:1] and parts[:2] != _OWN):
            continue  # somebody trains beside the sources of a framework, or of ours
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        content = read_beginning(path.resolve(), _LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            unread.append(
                _(
                    "{file} was not read: it is larger than {size} MiB",
                    file=name,
                    size=_LARGEST_BYTES >> 20,
                )
            )
        elif path != paths[0] and not _TELLING.search(content):
            words |= _words_of_code(content)
        elif len(content) > left:
            unread.append(
                _(
                    "{file} was not read: the sources are larger than {size} MiB together",
                    file=name,
                    size=_MOST_BYTES >> 20,
                )
            )
            words |= _words_of_code(content)
        elif isinstance(parsed := parse(path, name, content, is_script=path == paths[0]), SourceFile):
            files.append(parsed)
            left -= len(content)
        else:
            unread.append(parsed)
            words |= _words_of_code(content)
        seen += 1
    training = Training(LiveCode(files, words))
    found = [
        Found(rule=rule, places=places)
        for rule in RULES
        if rule.applies(surroundings) and (places := tuple(_places(rule, training)))
    ]
    return Scan(found=tuple(found), files=seen - len(unread), unread=tuple(unread))


def _words_of_code(content: bytes) -> set[str]:
    return {word.decode() for word in _WORD.findall(_IMPORT.sub(b"", content))}


def _places(rule: Rule, training: Training) -> Iterator[Place]:
    order = {file: place for place, file in enumerate(training.code.files)}
    found = {(order[unit.file], _line(node), unit.file.name) for unit, node in rule.find(training)}
    return (Place(file=name, line=line) for _, line, name in sorted(found))


def _line(node: ast.AST) -> int:
    """Return the line of a node: of a call of a method its own, not that in which the object before it begins."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return int(getattr(node, "lineno", 1))


# Table of the rules about sources, the ones that cost most first. A new rule is a row and its finder.


REWRITES_MAPS = (2, 13)
"""TensorFlow that makes maps without a state parallel, and puts a prefetch at the end, of its own accord: defaults of
``map_parallelization`` and ``inject_prefetch`` in the documentation of tf.data.experimental.OptimizationOptions; in
2.10 the second one was still off."""


def _is_older(surroundings: Surroundings) -> bool:
    return surroundings.tensorflow is None or surroundings.tensorflow < REWRITES_MAPS


def _is_newer(surroundings: Surroundings) -> bool:
    return not _is_older(surroundings)


def _has_cores(surroundings: Surroundings) -> bool:
    return surroundings.cores > 1


def _has_gpu(surroundings: Surroundings) -> bool:
    return surroundings.has_gpu


RULES: tuple[Rule, ...] = (
    Rule(
        id="eager-by-hand",
        sentence=_("the model runs op by op, which is for finding bugs"),
        remedy=_("Leave run_eagerly or run_functions_eagerly out."),
        find=code_finders.eager_by_hand,
        limit=Limit.HOST,
    ),
    Rule(
        id="eager-step",
        sentence=_("the weights are updated op by op: nothing puts tf.function on this step"),
        remedy=_("Put @tf.function on the function that computes and applies the gradients."),
        find=code_finders.eager_steps,
        limit=Limit.HOST,
    ),
    Rule(
        id="checks-every-number",
        sentence=_("every number of the step is checked, which is for finding bugs"),
        remedy=_("Leave enable_check_numerics out."),
        find=code_finders.checks_of_numbers,
        limit=Limit.STEP,
    ),
    Rule(
        id="anomalies-detected",
        sentence=_("autograd looks for anomalies in every step, which is for finding bugs"),
        remedy=_("Leave detect_anomaly out."),
        find=code_finders.anomalies_detected,
        limit=Limit.STEP,
    ),
    Rule(
        id="function-made-in-loop",
        sentence=_("tf.function is put on a function again in each round of a loop, which traces it again each time"),
        remedy=_("Make the compiled function once, before the loop."),
        find=code_finders.functions_made_in_loops,
        limit=Limit.HOST,
    ),
    Rule(
        id="counter-as-argument",
        sentence=_("a compiled function is given a Python number that changes, and is traced again for each one"),
        remedy=_("Give it tf.constant(number), or say input_signature."),
        find=code_finders.counters_as_arguments,
        limit=Limit.HOST,
    ),
    Rule(
        id="python-in-graph",
        sentence=_(
            "Python runs in the graph (numpy_function, py_function): however many workers, they take turns at it"
        ),
        remedy=_("Write this function in TensorFlow's own ops, e.g. tf.io and tf.signal."),
        find=code_finders.python_functions,
        limit=Limit.PREPARING,
    ),
    Rule(
        id="from-generator",
        sentence=_("samples come from a Python generator: one at a time, on one core"),
        remedy=_(
            "List the files in a dataset and load them with map(..., num_parallel_calls=tf.data.AUTOTUNE), "
            "or write them into TFRecord files once."
        ),
        find=code_finders.generators,
        limit=Limit.PREPARING,
    ),
    Rule(
        id="loader-without-workers",
        sentence=_("a loader has no workers: samples are prepared between the steps, by the process that trains"),
        remedy=_("Give it num_workers, e.g. from the config, so that it can be searched."),
        find=code_finders.loaders_without_workers,
        limit=Limit.PREPARING,
        applies=_has_cores,
    ),
    Rule(
        id="loader-restarted",
        sentence=_("the loader is begun anew in each step: its workers start again for every batch"),
        remedy=_("Make iter(loader) once, before the loop."),
        find=code_finders.loaders_restarted,
        limit=Limit.LOADING,
    ),
    Rule(
        id="serial-map",
        sentence=_("a dataset is mapped one sample at a time"),
        remedy=_("Say num_parallel_calls=tf.data.AUTOTUNE, or a number from the config."),
        find=code_finders.serial_maps,
        limit=Limit.PREPARING,
        applies=lambda around: _has_cores(around) and _is_older(around),
    ),
    Rule(
        id="serial-map",
        sentence=_("a dataset is mapped one sample at a time, and TensorFlow makes no map parallel that has a state"),
        remedy=_("Say num_parallel_calls=tf.data.AUTOTUNE, or a number from the config."),
        find=code_finders.stateful_serial_maps,
        limit=Limit.PREPARING,
        applies=lambda around: _has_cores(around) and _is_newer(around),
    ),
    Rule(
        id="no-prefetch",
        sentence=_("no dataset is prefetched: the next batch is made when the step asks for it"),
        remedy=_("End the pipeline with .prefetch(tf.data.AUTOTUNE)."),
        find=code_finders.unbuffered_pipelines,
        limit=Limit.LOADING,
        applies=_is_older,
    ),
    Rule(
        id="memory-cleaned",
        sentence=_("memory is given back, or garbage collected, in each step, which stops the step meanwhile"),
        remedy=_("Leave it out: the framework reuses its memory itself. At most do it once an epoch."),
        find=code_finders.memory_cleaned,
        limit=Limit.HOST,
    ),
    Rule(
        id="numbers-fetched",
        sentence=_("the host waits for the GPU in each step to read a number"),
        remedy=_("Add numbers up on the GPU (loss.detach()), and read them every so many steps."),
        find=code_finders.torch_numbers_fetched,
        severity=Severity.NOTE,
        limit=Limit.HOST,
        applies=_has_gpu,
    ),
    Rule(
        id="numbers-fetched",
        sentence=_("the host waits for the GPU in each step to read a number (.numpy())"),
        remedy=_("Add numbers up in a metric (tf.keras.metrics.Mean), and read it every so many steps."),
        find=code_finders.numbers_fetched,
        severity=Severity.NOTE,
        limit=Limit.HOST,
        applies=_has_gpu,
    ),
    Rule(
        id="loader-without-pinning",
        sentence=_("a loader gives batches in memory from which the GPU cannot copy by itself"),
        remedy=_("Say pin_memory=True, and copy with non_blocking=True."),
        find=code_finders.loaders_without_pinning,
        severity=Severity.NOTE,
        limit=Limit.LOADING,
        applies=_has_gpu,
    ),
)
"""The rules."""
