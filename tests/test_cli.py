"""Edges of the command line: exit codes, which stream says what, and the report of a bug."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from autotune import __version__
from autotune.commands import status
from autotune.errors import ConfigError
from tests.command_line import CommandLine

CONFIG = "data:\n    batch_size: 8\n"
NAMED = ("--config", "config.yaml")

Raise = Callable[[BaseException], None]


@pytest.fixture
def commands(tmp_path: Path) -> CommandLine:
    """Folder with a config, where commands are typed."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    return CommandLine(folder)


@pytest.fixture
def status_raises(monkeypatch: pytest.MonkeyPatch) -> Raise:
    """Make the command ``status`` end in the given exception."""

    def replace(error: BaseException) -> None:
        @click.command(context_settings={"ignore_unknown_options": True})
        @click.argument("rest", nargs=-1)
        def failing(rest: tuple[str, ...]) -> None:
            raise error

        monkeypatch.setattr(status, "command", failing)

    return replace


def test_help_lists_every_command_and_the_options_that_most_people_want(commands: CommandLine) -> None:
    """Help was asked for: it is on stdout, exit 0; the other options come with ``--help-all``."""
    asked = {words: commands(*words.split()) for words in ("--help", "-h", "--version", "search --help")}
    assert all((done.returncode, done.stderr) == (0, "") for done in asked.values())
    for name in ("init", "search", "apply", "revert", "status", "run"):
        assert re.search(rf"^  {name}  +\w", asked["--help"].stdout, re.MULTILINE)
    assert asked["-h"] == asked["--help"]
    assert __version__ in asked["--version"].stdout
    short, whole = asked["search --help"].stdout, commands("search", "--help-all").stdout
    for option in ("--budget", "--help-all", "-h, --help"):
        assert option in short
    for option in ("--exhaust", "--storage"):
        assert option not in short
        assert option in whole


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serach"], "serach"),
        (["search"], "--config"),
        (["search", *NAMED, "--budget", "abc"], "abc"),
        (["search", *NAMED, "--budget", "0"], "'0'"),
        (["search", *NAMED, "--budget", "0s"], "0s"),
        (["search", *NAMED, "--budget", "-5m"], "-5m"),
        (["search", *NAMED, "--seed", "x"], "x"),
        (["status", *NAMED, "--colour"], "--colour"),
        (["monitor", "--pid", "x"], "x"),
    ],
)
def test_wrong_usage_is_two_and_an_object_for_scripts(commands: CommandLine, arguments: list[str], word: str) -> None:
    """The parser refuses before anything is read, and the message holds what was typed, on stderr in any case."""
    done, scripted = commands(*arguments), commands(*arguments, "--json")
    assert (done.returncode, done.stdout, scripted.returncode) == (2, "", 2)
    assert word in done.stderr
    assert (scripted.document["format"], scripted.document["error"]["kind"]) == (2, "usage")
    assert scripted.document["error"]["message"] in scripted.stderr
    assert [path.name for path in commands.folder.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    "arguments", [["--json"], ["--json", "status", *NAMED], ["search", *NAMED, "--dry-run", "--json"]]
)
def test_json_where_it_cannot_be_is_an_object_all_the_same(commands: CommandLine, arguments: list[str]) -> None:
    """Also before the command, and for one that has no such form."""
    done = commands(*arguments)
    assert (done.returncode, done.document["error"]["kind"]) == (2, "usage")


def test_an_expected_error_is_an_object_for_scripts(commands: CommandLine) -> None:
    """One object and nothing else is on stdout with --json, which of the trainer's is none; people have stderr."""
    done = commands("status", *NAMED, "--json")
    error = done.document["error"]
    assert (done.returncode, set(done.document), error["kind"]) == (1, {"format", "error"}, "study")
    assert set(error) == {"kind", "message", "where", "remedy"}
    assert "autotune search --config config.yaml" in error["remedy"]
    assert error["message"] in done.stderr
    trainers = commands("search", "--config", "absent.yaml", "--", "python", "t.py", "--json")
    assert (trainers.returncode, trainers.stdout) == (1, "")


def test_the_message_of_an_error_holds_place_and_remedy(commands: CommandLine, status_raises: Raise) -> None:
    """Each part has a line, in the words of the error."""
    status_raises(ConfigError("no such key: x", where="c.yaml:3", remedy="Did you mean y?"))
    done = commands("status")
    assert (done.returncode, done.stderr) == (1, "autotune: c.yaml:3: no such key: x\nDid you mean y?\n")


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("cannot log in with hunter2"), AssertionError(), RecursionError("deep")]
)
def test_a_bug_is_three_and_leaves_a_crash_log(
    commands: CommandLine, status_raises: Raise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The message names a file that holds what a report needs; its owner alone may read it, and no secret is in it."""
    logs = tmp_path / "tmp"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    status_raises(error)
    done = commands("status", "--json", "--", "python", "t.py", "--password=hunter2")
    (log,) = logs.iterdir()
    text = log.read_text()
    assert done.returncode == 3
    assert "this is a bug" in done.document["error"]["message"]
    assert str(log) in done.stderr
    assert "Traceback" not in done.stderr
    for part in (__version__, "'status', '--json'", "Traceback (most recent call last)", type(error).__name__):
        assert part in text
    assert "'--password=***'" in text
    assert "hunter2" not in text + done.stdout + done.stderr
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_usage_error_quotes_no_secret(commands: CommandLine) -> None:
    """Trainers' options reach the parser when -- was forgotten."""
    asked = [commands("status", *NAMED, *typed, "--token", "hunter2") for typed in ((), ("--",))]
    said = "".join(done.stdout + done.stderr for done in asked)
    assert [done.returncode for done in asked] == [2, 2]
    assert "***" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("arguments", [("--help",), ("status", *NAMED, "--json")])
def test_a_reader_that_goes_away_is_no_crash(
    commands: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """A pipe closed by `| head` gives neither a traceback nor a complaint of the interpreter."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (commands.folder / "config.yaml").write_text(f"{CONFIG}autotune: {{command: '{{python}} train.py {{config}}'}}\n")
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "autotune", *arguments]
    done = subprocess.run(words, cwd=commands.folder, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert "BrokenPipeError" not in done.stderr
    assert done.stderr == "" or arguments[0] == "status"
