"""Checks of the framework in the trainer's interpreter: real children, some of them of made-up interpreters."""

import json
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.diagnose import machine_checks
from autotune.diagnose.diagnosis import static_checks
from autotune.diagnose.machine_checks import (
    Answer,
    FrameworkAnswers,
    check_framework,
    check_graph,
    check_native_loader,
    query_framework,
)
from autotune.diagnose.subject import Subject
from autotune.diagnose.tables import STATIC_CHECKS
from autotune.measure.gpu.driver import GpuFacts
from tests.diagnose.static.problems import problem_of

H100 = GpuFacts(name="NVIDIA H100", uuid="GPU-1", memory_bytes=80 << 30)


LOOK = Subject(problem=None, clock=SystemClock())
LOOK.__dict__["gpus"] = (H100,)


def answered(framework: str = "tensorflow", why_not: str | None = None, **answers: object) -> FrameworkAnswers:
    """Return answers of a framework; an exception is a failure."""
    made = {
        name.replace("_", " "): Answer(name=name, error=str(value), seconds=1.0)
        if isinstance(value, Exception)
        else Answer(name=name, value=value, seconds=1.0)  # type: ignore[arg-type]
        for name, value in answers.items()
    }
    return FrameworkAnswers(framework=framework, why_not=why_not, answers=made)


def test_a_trainer_without_a_framework_is_asked_for_none(tmp_path: Path) -> None:
    """It imports none, and nothing that might."""
    for text, framework in (
        ("import sys\nimport numpy as np\nimport yaml\n", ""),
        ("import transformers\n", "tensorflow"),
        ("import jax, optax\nfrom my_layers import Net\n", ""),
        ("import os, tensorflow.keras as k\n", "tensorflow"),
        ("import sys\nfrom .model import Net\n", "tensorflow"),
    ):
        problem = problem_of(tmp_path, "a: 1", trainer=text)
        assert machine_checks._used_framework(problem, {"tensorflow": "2.21.0"}) == framework


def test_a_build_without_gpus_is_named_where_there_is_one() -> None:
    """A build for CPUs, and libraries that do not load; one that sees it is fine."""
    facts = {"import": None, "version": "2.21.0", "gpus": 0}
    (issue,) = check_framework(LOOK, answered(**facts, built_for_GPUs=False)).issues
    assert issue.sentence == "TensorFlow 2.21.0 sees no GPU although NVIDIA H100 is present: it is a CPU-only build."
    (issue,) = check_framework(LOOK, answered("torch", **facts, built_for_GPUs=True)).issues
    assert "its CUDA libraries may fail to load" in issue.sentence
    fine = check_framework(LOOK, answered(**{**facts, "gpus": 1}))
    assert (fine.issues, fine.sentence) == ((), "TensorFlow 2.21.0, which sees 1 GPU; imported in 1.0 s")


def test_failures_are_told_in_one_line() -> None:
    """An import that fails, an error of XLA, or a child that did not answer in time."""
    broken = answered(**{"import": Exception("ImportError: libcudart.so.12: cannot open")})
    (issue,) = check_framework(LOOK, broken).issues
    assert (str(issue.severity), "libcudart" in issue.sentence) == ("error", True)
    assert check_graph(broken).why_not == check_native_loader(broken).why_not == "TensorFlow cannot be imported"
    (issue,) = check_graph(answered(**{"import": None}, graph=5.0, xla=Exception("InternalError: no ptxas"))).issues
    assert issue.sentence == "XLA fails here: InternalError: no ptxas."
    late = answered(why_not="a child did not answer within 25 s", **{"import": None}, graph=5.0)
    (issue,) = check_graph(late).issues
    assert issue.sentence == "XLA fails here: a child did not answer within 25 s."
    assert check_graph(answered("torch", **{"import": None})).why_not == "the trainer uses PyTorch"


def interpreter(folder: Path, child: str) -> Path:
    """Return an interpreter that has TensorFlow, as it seems, and that runs a script of ours instead of the child."""
    (folder / "venv/bin").mkdir(parents=True)
    packages = folder / "venv/lib/python3.11/site-packages/tensorflow-2.9.0.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.9.0\n")
    program = folder / "venv/bin/python3"
    program.write_text(f"#!/bin/sh\n{child}\n")
    program.chmod(0o755)
    return program


def asked(folder: Path, program: str) -> FrameworkAnswers:
    """Return the answers of a trainer that a program starts."""
    (folder / "train.py").write_text("import tensorflow\n")
    command = f"'{program} {folder}/train.py --config {{config}}'"
    problem = problem_of(folder, f"autotune:\n  command: {command}\nlr: 1\n")
    return query_framework(Subject(problem=problem, clock=SystemClock(), is_run=True))


def test_a_launcher_s_interpreter_is_asked(tmp_path: Path) -> None:
    """A launcher is a script with a ``#!`` line; it would take the question for its own arguments."""
    python = interpreter(tmp_path, "exit 7")
    launcher = python.with_name("torchrun")
    launcher.write_text(f"#!{python}\n")
    launcher.chmod(0o755)
    answers = asked(tmp_path, launcher)
    assert answers.why_not == f"the query of tensorflow with {python} exited with 7"


@pytest.mark.parametrize(
    ("child", "said"),
    [
        ("exit 7", "exited with 7"),
        ("kill -SEGV $$", "exited with -11"),
        ("sleep 60", "did not answer within 0 s"),
        ('echo "{torn" > "$4"; exit 0', None),
    ],
)
def test_a_child_that_fails_is_told_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, said: str | None
) -> None:
    """It ends with an error, crashes, hangs, or writes what is no answer."""
    monkeypatch.setattr(machine_checks, "_CHILD_LIMIT_S", 0.1 if "sleep" in child else 60.0)
    answers = asked(tmp_path, str(interpreter(tmp_path, child)))
    assert (answers.framework, answers.answers) == ("tensorflow", {})
    assert said is None if answers.why_not is None else said in answers.why_not
    assert check_framework(LOOK, answers).why_not


def test_what_came_before_a_crash_is_known(tmp_path: Path) -> None:
    """Each answer is in its file at once."""
    line = json.dumps({"name": "version", "value": "2.9.0", "seconds": 0.1})
    program = interpreter(tmp_path, f"echo '{line}' > \"$4\"; kill -SEGV $$")
    assert asked(tmp_path, str(program)).answers["version"].value == "2.9.0"


def test_a_command_without_an_interpreter_is_not_asked(tmp_path: Path) -> None:
    """A shell script starts whatever it likes."""
    assert asked(tmp_path, "bash").why_not == "the command starts no known Python interpreter"


@pytest.mark.services
def test_all_checks_are_made_on_a_real_trainer(tmp_path: Path) -> None:
    """Every row of the table has its result: TensorFlow's own child compiles, and decodes a file of the dataset."""
    pytest.importorskip("tensorflow", reason="the framework is asked in a child that needs it")
    wave = b"RIFF" + (36 + 8).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    wave += b"\1\0\1\0" + (8000).to_bytes(4, "little") + (16000).to_bytes(4, "little") + b"\2\0\x10\0"
    wave += b"data" + (8).to_bytes(4, "little") + bytes(8)
    (tmp_path / "wavs").mkdir()
    (tmp_path / "wavs" / "1.wav").write_bytes(wave)
    (tmp_path / "train.py").write_text("import tensorflow as tf\ntf.numpy_function(f, [], tf.float32)\n")
    command = f"'{{python}} {tmp_path}/train.py --config {{config}}'"
    problem = problem_of(tmp_path, f"autotune:\n  command: {command}\ndata_dir: {tmp_path}/wavs\nbatch_sze: 8\n")
    results = {result.check: result for result in static_checks(problem, SystemClock())}
    assert list(results) == [check.id for check in STATIC_CHECKS]
    assert results["graph-and-xla"].sentence.startswith("graph mode works")
    assert results["native-loader"].sentence == "1.wav is 4 samples of 1 channel(s) at 8000 Hz"
    assert "TensorFlow" in results["framework"].sentence
    assert len(results["code"].issues) == len(results["configuration"].issues) == 1
    assert all(issue.check == name for name, result in results.items() for issue in result.issues)


def test_without_a_config_this_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs one says so; nothing raises, also where no framework is installed."""
    monkeypatch.setattr(machine_checks, "framework_versions", lambda _executable: {})
    results = {result.check: result for result in static_checks(None, SystemClock())}
    assert {name for name, result in results.items() if result.why_not} == {
        "framework",
        "storage",
        "configuration",
        "code",
        "graph-and-xla",
        "native-loader",
    }
