"""Checks of the framework beside the trainer's interpreter: its build, graph mode and XLA, and its own decoders.

A short-lived child of that interpreter is asked (`framework_child`).
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from autotune.config.command import resolve_executable
from autotune.diagnose.findings import CheckResult, Limit, Severity, counted, issue
from autotune.diagnose.subject import Subject, trainer_text
from autotune.errors import AutotuneError
from autotune.frameworks import FRAMEWORKS
from autotune.search.problem import Problem
from autotune.study.identity import framework_versions
from autotune.trial.children import run_short
from autotune.trial.python_command import python_command

_LIMIT_S = 25.0
_QUERIED = {row.module: row for row in FRAMEWORKS if row.gpu_build is not None}
_NO_ANSWER = "it gave no answer"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to one question, as the child writes it.

    Attributes:
        name: The question; see `framework_child`.
        value: What was said; None where it failed.
        error: The failure in one line; None where there was none.
    """

    name: str
    value: bool | int | float | str | None = None
    error: str | None = None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FrameworkAnswers:
    """Answers of a framework.

    Attributes:
        framework: ``tensorflow`` or ``torch``; empty where neither is known to be used.
        why_not: Reason for which it was not asked, or not answered; None where it was.
        answers: Answers by the name of the question.
        sample: File that it was to decode; None for none.
    """

    framework: str
    why_not: str | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    sample: Path | None = None

    @property
    def why_not_tensorflow(self) -> str | None:
        """Reason for which nothing is known of TensorFlow; None where it is loaded."""
        if self.framework == "torch":
            return "the trainer uses PyTorch"
        loaded = self.answers.get("import")
        if not self.framework or loaded is None or loaded.error is not None:
            return self.why_not or "TensorFlow cannot be imported"
        return None


def ask_framework(look: Subject) -> FrameworkAnswers:
    """Start the trainer's interpreter for a moment, and ask the framework that the trainer uses; at most 25 s.

    Without trials to come, and without a config, only the interpreter that runs autotune is started.
    """
    problem = look.problem
    interpreter = Path(sys.executable) if problem is None else _interpreter_of(problem)
    if interpreter is None:
        return FrameworkAnswers(framework="", why_not="the command starts no Python interpreter that is found")
    if not look.is_run and interpreter.absolute().parent != Path(sys.executable).parent:
        why_not = "without trials no program of the project is started, and its Python is one"
        return FrameworkAnswers(framework="", why_not=why_not)
    framework = _used_framework(problem, framework_versions(interpreter) if problem is None else problem.frameworks)
    if not framework:
        return FrameworkAnswers(framework="", why_not="neither TensorFlow nor PyTorch is installed beside it")
    sample = next((file for place in look.places or () for file in place.decodable), None)
    # A framework looks up programs of the system; where none of the project is to be started, the PATH may name some.
    own = {"PATH": os.defpath} if problem is None or not look.is_run else problem.settings.section.env
    with tempfile.TemporaryDirectory(prefix="autotune-diagnose-") as folder:
        file = Path(folder, "answers.jsonl")
        child = Path(__file__).with_name("framework_child.py").read_text()
        words = (str(interpreter.absolute()), "-c", child, framework, str(file), str(sample or ""))
        ended = run_short(words, _LIMIT_S, env={**os.environ, **own})
        answers = _read(file)
    why_silent: str | None = None
    if ended.status != 0:
        late = f"did not answer within {_LIMIT_S:.0f} s"
        how = f"ended with {ended.status}" if ended.status is not None else late
        asked = str(interpreter)
        why_silent = f"a child of {asked} that asked {framework} {how}"
    return FrameworkAnswers(framework=framework, why_not=why_silent, answers=answers, sample=sample)


def _interpreter_of(problem: Problem) -> Path | None:
    if not problem.command:
        return None
    if problem.command[0].startswith("{python}"):
        return Path(sys.executable)
    if python_command(problem.command, cwd=problem.settings.folder, search_path=os.environ.get("PATH")) is None:
        return None
    try:
        return resolve_executable(problem.command[0], problem.settings.folder)
    except AutotuneError:
        return None


def _used_framework(problem: Problem | None, versions: Mapping[str, str]) -> str:
    installed = [name for name, row in _QUERIED.items() if not versions.keys().isdisjoint(row.distributions)]
    if problem is not None and len(installed) > 1:
        text = trainer_text(problem)
        imported = [name for name in installed if re.search(rb"^\s*(?:import|from)\s+%s\b" % name.encode(), text, re.M)]
        installed = imported or installed
    return next(iter(installed), "")


def _read(file: Path) -> dict[str, Answer]:
    """Return the answers in a file; a torn line is passed over, as is a file that is not there."""
    found: dict[str, Answer] = {}
    try:
        for line in file.read_bytes().splitlines():
            answer = msgspec.json.decode(line, type=Answer)
            found[answer.name] = answer
    except (OSError, ValueError):
        pass
    return found


def check_framework(look: Subject, asked: FrameworkAnswers) -> CheckResult:
    """See whether the framework loads, and sees the GPUs that are there."""
    if not asked.framework:
        return CheckResult(check="framework", why_not=asked.why_not or _NO_ANSWER)
    name = _QUERIED[asked.framework].name
    loaded, version, gpus = (asked.answers.get(question) for question in ("import", "version", "gpus"))
    if loaded is not None and loaded.error is not None:
        failed = f"{name} cannot be imported: {loaded.error}."
        found = issue("framework", failed, "Install it again.", severity=Severity.ERROR)
        return CheckResult(check="framework", issues=(found,))
    if version is None or gpus is None:
        return CheckResult(check="framework", why_not=asked.why_not or f"{name} gave no answer")
    issues = []
    if gpus.error is not None:
        reason = gpus.error
        blind = f"{name} {version.value} cannot look for GPUs: {reason}."
        issues.append(issue("framework", blind))
    elif gpus.value == 0 and look.gpus and (look.problem is None or look.problem.machine.gpus):
        built = asked.answers.get("built for GPUs")
        cpu_only = built is not None and built.value is False
        libraries = "it may be that its CUDA libraries do not load, or do not suit the driver"
        blind = (
            f"{name} {version.value} sees no GPU though {look.gpus[0].name} is there: "
            f"{'it is a build for CPUs alone' if cpu_only else libraries}."
        )
        remedy = f"Install a build for GPUs: {_QUERIED[asked.framework].gpu_build}."
        issues.append(issue("framework", blind, remedy, limit=Limit.STEP))
    seen = counted(gpus.value if isinstance(gpus.value, int) else 0, "GPU")
    took = f"; imported in {loaded.seconds:.1f} s" if loaded is not None else ""
    sentence = f"{name} {version.value}, which sees {seen}{took}"
    return CheckResult(check="framework", issues=tuple(issues), sentence=sentence)


def check_graph(asked: FrameworkAnswers) -> CheckResult:
    """See whether TensorFlow compiles a small function into a graph, and with XLA."""
    if why_not := asked.why_not_tensorflow:
        return CheckResult(check="graph-and-xla", why_not=why_not)
    issues, works = [], []
    for name, question in (("graph mode", "graph"), ("XLA", "xla")):
        answer = asked.answers.get(question)
        if answer is not None and answer.error is None:
            works.append(f"{name} works ({answer.seconds:.1f} s for a small function)")
            continue
        fails = f"{name} fails here: {_why(asked, answer)}."
        remedy = "Leave it off in the config, or mend the installation."
        issues.append(issue("graph-and-xla", fails, remedy))
    return CheckResult(check="graph-and-xla", issues=tuple(issues), sentence=" and ".join(works))


def check_native_loader(asked: FrameworkAnswers) -> CheckResult:
    """See whether TensorFlow's own ops decode a file of the dataset."""
    if why_not := asked.why_not_tensorflow:
        return CheckResult(check="native-loader", why_not=why_not)
    if asked.sample is None:
        why_not = "the config names no folder with .wav, .png, .jpg or .tfrecord files"
        return CheckResult(check="native-loader", why_not=why_not)
    answer = asked.answers.get("decode")
    if answer is not None and answer.error is None:
        sentence = f"{asked.sample.name} is {answer.value}"
        return CheckResult(check="native-loader", sentence=sentence)
    found = issue(
        "native-loader",
        f"TensorFlow's own ops do not decode this file: {_why(asked, answer)}.",
        "Convert the files once, e.g. to 16-bit PCM WAV or to TFRecord.",
        severity=Severity.NOTE,
        place=str(asked.sample),
        limit=Limit.PREPARING,
    )
    return CheckResult(check="native-loader", issues=(found,))


def _why(asked: FrameworkAnswers, answer: Answer | None) -> str:
    return str(answer.error) if answer is not None else asked.why_not or _NO_ANSWER
