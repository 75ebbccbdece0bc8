"""Python command lines that a zygote can carry out, and their parts."""

import sys
import zipfile
from pathlib import Path

import pytest

from autotune.trial.python_command import PythonCommand, python_command

PYTHON = sys.executable


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Folder with a script, and with files that are none."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train").write_text("")
    (tmp_path / "train.pyc").write_text("")
    (tmp_path / "package").mkdir()
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("__main__.py", "")
    (tmp_path / "python").symlink_to(PYTHON)
    (tmp_path / "torchrun").symlink_to("/bin/sh")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "options", "script", "module", "arguments"),
    [
        (("train.py",), (), "train.py", None, ()),
        (("./train", "-c", "x"), (), "./train", None, ("-c", "x")),
        (("-m", "train", "-m"), (), None, "train", ("-m",)),
        (("-mtrain",), (), None, "train", ()),
        (("-um", "train"), ("-u",), None, "train", ()),
        (("-OOuB", "-I", "train.py"), ("-OOuB", "-I"), "train.py", None, ()),
        (("-W", "a", "-Xdev", "-uWerror", "train.py"), ("-Wa", "-Xdev", "-u", "-Werror"), "train.py", None, ()),
        (("--check-hash-based-pycs", "never", "train.py"), ("--check-hash-based-pycs", "never"), "train.py", None, ()),
    ],
    ids=str,
)
def test_reads_a_command_line_as_python_does(
    words: tuple[str, ...],
    options: tuple[str, ...],
    script: str,
    module: str,
    arguments: tuple[str, ...],
    project: Path,
) -> None:
    """The interpreter's own options are told from the script and from the trainer's arguments."""
    assert python_command((PYTHON, *words), cwd=project, search_path=None) == PythonCommand(
        interpreter=PYTHON, options=options, script=script, module=module, arguments=arguments
    )


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), ()),
        (("-OOuB",), ()),
        (("-I",), ("-I",)),
        (("-uEs",), ("-E",)),
        (("-S", "-IB"), ("-I", "-S")),
        (("-W", "IES", "-XIES", "--check-hash-based-pycs", "IES"), ()),
    ],
    ids=str,
)
def test_says_what_keeps_the_observer_out(words: tuple[str, ...], options: tuple[str, ...], project: Path) -> None:
    """In any spelling, and not for the same letters in other options or behind the script."""
    command = python_command((PYTHON, *words, "train.py", "-I"), cwd=project, search_path=None)
    assert command.isolating_options == options


OTHERS = (
    "PYTHON",
    "PYTHON -",
    "PYTHON -c print()",
    "PYTHON -i train.py",
    "PYTHON -x train.py",
    "PYTHON -V",
    "PYTHON -m",
    "PYTHON -X",
    "PYTHON -X importtime train.py",
    "PYTHON -- train.py",
    "PYTHON absent.py",
    "PYTHON train.pyc",
    "PYTHON package",
    "PYTHON archive",
    "./torchrun train.py",
    "./train.py",
    "/no/such/python train.py",
    "/bin/sh train.py",
    "",
)


@pytest.mark.parametrize("command", OTHERS)
def test_leaves_everything_else_to_a_process(command: str, project: Path) -> None:
    """A command that is not understood completely is not forked."""
    argv = command.replace("PYTHON", PYTHON).split()
    assert python_command(argv, cwd=project, search_path=None) is None


@pytest.mark.parametrize(
    ("line", "interpreter"),
    [
        (f"#!{PYTHON}", PYTHON),
        ("#!/usr/bin/env python", "python"),
        (f"#!{PYTHON} -c", None),
        ("#!/bin/sh", None),
        ("", None),
        ("#!", None),
    ],
)
def test_a_program_that_a_package_installs_is_a_script(line: str, interpreter: str | None, project: Path) -> None:
    """Its first line names the interpreter, as the kernel reads it; also where it is found on the path."""
    program = project / "yolo"
    program.write_text(f"{line}\nfrom ultralytics import entrypoint\n")
    program.chmod(0o755)
    for word in (str(program), "yolo"):
        found = python_command((word, "train", "-x"), cwd=project, search_path=str(project))
        wanted = None
        if interpreter:
            wanted = PythonCommand(interpreter=interpreter, options=(), script=str(program), arguments=("train", "-x"))
        assert found == wanted
