"""Answers of the framework in the trainer's interpreter, asked in a short-lived child of it."""

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.config.command import resolve_executable
from autotune.diagnose.config_keys import trainer_text
from autotune.errors import AutotuneError
from autotune.messages import _
from autotune.search.problem import Problem
from autotune.study.identity import framework_versions
from autotune.trial.python_command import python_command
from autotune.trial.search_child import run_short

_CHILD = Path(__file__).with_name("framework_child.py")
_LIMIT_S = 25.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to one question.

    Attributes:
        value: What was said; None where it failed.
        error: The failure in one line; None where there was none.
    """

    value: object
    error: str | None
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class FrameworkAnswers:
    """Answers of a framework.

    Attributes:
        framework: ``tensorflow`` or ``torch``; empty where neither is known to be used.
        why_not: Reason for which it was not asked, or not answered; None where it was.
        answers: Answers by the name of the question; see `framework_child`.
        sample: File that it was to decode; None for none.
    """

    framework: str
    why_not: str | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    sample: Path | None = None


def ask_framework(problem: Problem | None, sample: Path | None, *, is_run: bool) -> FrameworkAnswers:
    """Start the trainer's interpreter for a moment, and ask the framework that the trainer uses; at most 25 s.

    Args:
        problem: What is diagnosed; None asks the interpreter that runs autotune.
        sample: File for TensorFlow to decode.
        is_run: Whether to start what the config names, with the environment that it gives; else only the interpreter
            that runs autotune is asked.
    """
    interpreter = Path(sys.executable) if problem is None else interpreter_of(problem)
    if interpreter is None:
        return FrameworkAnswers(framework="", why_not=_("the command starts no Python interpreter that is found"))
    if not is_run and interpreter.absolute().parent != Path(sys.executable).parent:
        return FrameworkAnswers(
            framework="",
            why_not=_("without trials no program of the project is started, and its Python is one"),
        )
    versions = framework_versions(interpreter) if problem is None else problem.frameworks
    framework = used_framework(problem, versions)
    if not framework:
        return FrameworkAnswers(framework="", why_not=_("neither TensorFlow nor PyTorch is installed beside it"))
    # A framework looks up programs of the system; where none of the project is to be started, the PATH may name some.
    own = {"PATH": os.defpath} if problem is None or not is_run else problem.settings.section.env
    with tempfile.TemporaryDirectory(prefix="autotune-diagnose-") as folder:
        file = Path(folder, "answers.jsonl")
        words = (str(interpreter.absolute()), "-c", _CHILD.read_text(), framework, str(file), str(sample or ""))
        ended = run_short(words, _LIMIT_S, env={**os.environ, **own})
        answers = _read(file)
    why_not = None
    if ended.status != 0:
        late = _("did not answer within {limit:.0f} s", limit=_LIMIT_S)
        how = _("ended with {status}", status=ended.status) if ended.status is not None else late
        why_not = _(
            "a child of {interpreter} that asked {framework} {how}",
            interpreter=str(interpreter),
            framework=framework,
            how=how,
        )
    return FrameworkAnswers(framework=framework, why_not=why_not, answers=answers, sample=sample)


def interpreter_of(problem: Problem) -> Path | None:
    """Return the trainer's interpreter; None where its command starts none."""
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


def used_framework(problem: Problem | None, versions: Mapping[str, str]) -> str:
    """Return the framework that the trainer's sources import, as far as it is installed; empty for none."""
    has_tensorflow = "tensorflow" in versions or "tensorflow-cpu" in versions
    has_torch = "torch" in versions
    if problem is not None and has_tensorflow and has_torch:
        text = trainer_text(problem)
        imported = {
            name: re.search(rb"^\s*(?:import|from)\s+%s\b" % name.encode(), text, re.M)
            for name in ("torch", "tensorflow")
        }
        if any(imported.values()):
            has_torch, has_tensorflow = bool(imported["torch"]), bool(imported["tensorflow"])
    return "tensorflow" if has_tensorflow else "torch" if has_torch else ""


def _read(file: Path) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            said = json.loads(line)
            found[str(said["name"])] = Answer(
                value=said.get("value"),
                error=None if said.get("error") is None else str(said["error"]),
                duration_s=float(said["seconds"]),
            )
        except (ValueError, KeyError, TypeError):
            continue  # a torn line
    return found
