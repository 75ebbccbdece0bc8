"""Edges of the command line: exit codes, which stream says what, and the report of a bug."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from autotune import __version__
from autotune.cli import run
from autotune.commands import status
from autotune.errors import ConfigError

CONFIG = "data:\n    batch_size: 8\n"

Raise = Callable[[BaseException], None]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Config in the folder where commands are typed."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def status_raises(config: Path, monkeypatch: pytest.MonkeyPatch) -> Raise:
    """Make the command ``status`` end in the given exception."""

    def replace(error: BaseException) -> None:
        @click.command(context_settings={"ignore_unknown_options": True})
        @click.argument("rest", nargs=-1)
        def failing(rest: tuple[str, ...]) -> None:
            raise error

        monkeypatch.setattr(status, "command", failing)

    return replace


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["search", "--help"], ["--version"]])
def test_help_is_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help was asked for: it is on stdout, exit 0."""
    assert run(arguments) == 0
    said = capsys.readouterr()
    assert said.out
    assert said.err == ""


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is there with its first sentence; the version can be asked for."""
    run(["--help"])
    listed = capsys.readouterr().out
    for name in ("init", "search", "apply", "revert", "status", "run"):
        assert re.search(rf"^  {name}  +\w", listed, re.MULTILINE)
    run(["--version"])
    assert __version__ in capsys.readouterr().out


def test_help_of_a_search_is_short_and_all_of_it_can_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    """The options that most people want; the others with ``--help-all``."""
    assert run(["search", "--help"]) == 0
    short = capsys.readouterr().out
    assert "--budget" in short
    assert "--help-all" in short
    assert "-h, --help" in short
    assert "--sampler" not in short
    assert run(["search", "--help-all"]) == 0
    whole = capsys.readouterr().out
    assert "--sampler" in whole
    assert "--storage" in whole


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serach"], "serach"),
        (["search"], "--config"),
        (["search", "--config", "config.yaml", "--budget", "abc"], "abc"),
        (["search", "--config", "config.yaml", "--budget", "0"], "'0'"),
        (["search", "--config", "config.yaml", "--budget", "0s"], "0s"),
        (["search", "--config", "config.yaml", "--budget", "-5m"], "-5m"),
        (["search", "--config", "config.yaml", "--seed", "x"], "x"),
        (["status", "--config", "config.yaml", "--colour"], "--colour"),
    ],
)
def test_wrong_usage_is_two(config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str) -> None:
    """The parser refuses before anything is read, and the message holds what was typed."""
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert word in said.err
    assert said.out == ""
    assert sorted(path.name for path in config.parent.iterdir()) == ["config.yaml"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json"],
        ["--json", "status", "--config", "config.yaml"],
        ["serach", "--json"],
        ["search", "--json"],
        ["search", "--config", "config.yaml", "--budget", "abc", "--json"],
        ["search", "--config", "config.yaml", "--dry-run", "--json"],
        ["status", "--json", "--config", "config.yaml", "--colour"],
        ["apply", "--json", "--config", "config.yaml"],
        ["monitor", "--json", "--pid", "x"],
    ],
)
def test_wrong_usage_is_an_object_for_scripts(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Stdout has the object, wherever --json stands; people still find the message on stderr."""
    assert run(arguments) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["format"] == 2
    assert document["error"]["kind"] == "usage"
    assert document["error"]["message"] in said.err


@pytest.mark.usefixtures("config")
def test_an_expected_error_is_an_object_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """One object and nothing else is on stdout with --json; people still find the message on stderr."""
    assert run(["status", "--config", "config.yaml", "--json"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert set(document) == {"format", "error"}
    assert set(document["error"]) == {"kind", "message", "where", "remedy"}
    assert document["error"]["kind"] == "study"
    assert "autotune search --config config.yaml" in document["error"]["remedy"]
    assert document["error"]["message"] in said.err


@pytest.mark.usefixtures("config")
def test_the_json_of_the_trainer_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything behind -- is the trainer's."""
    assert run(["search", "--config", "absent.yaml", "--", "python", "t.py", "--json"]) == 1
    assert capsys.readouterr().out == ""


def test_the_message_of_an_error_holds_place_and_remedy(
    status_raises: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part has a line, in the words of the error."""
    status_raises(ConfigError("no such key: x", where="c.yaml:3", remedy="Did you mean y?"))
    assert run(["status"]) == 1
    assert capsys.readouterr().err == "autotune: c.yaml:3: no such key: x\nDid you mean y?\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("by nought"), AssertionError(), RecursionError("deep")])
def test_a_bug_is_three_and_leaves_a_crash_log(
    status_raises: Raise, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:  # fmt: skip
    """The message names a file that holds what a report needs: version, arguments, traceback."""
    logs = tmp_path / "tmp"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    status_raises(error)
    assert run(["status", "--json"]) == 3
    said = capsys.readouterr()
    (log,) = logs.iterdir()
    assert "this is a bug" in json.loads(said.out)["error"]["message"]
    assert str(log) in said.err
    assert "this is a bug" in said.err
    assert "Traceback" not in said.err
    text = log.read_text()
    for part in (
        __version__,
        "['status', '--json']",
        "Traceback (most recent call last)",
        type(error).__name__,
    ):
        assert part in text


def test_a_crash_log_holds_no_secret(
    status_raises: Raise, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets are taken out of the arguments and of what an error quotes; only its owner may read it."""
    logs = tmp_path / "tmp"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    status_raises(ZeroDivisionError("cannot log in with hunter2"))
    assert run(["status", "--json", "--", "python", "t.py", "--password=hunter2"]) == 3
    said = capsys.readouterr()
    (log,) = logs.iterdir()
    assert "'--password=***'" in log.read_text()
    assert "cannot log in with ***" in said.err
    assert "hunter2" not in log.read_text() + said.out + said.err
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_usage_error_quotes_no_secret(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trainers' options reach the parser when -- was forgotten."""
    assert run(["status", "--config", str(config), "--token", "hunter2"]) == 2
    assert run(["status", "--config", str(config), "--", "--token", "hunter2"]) == 2
    said = capsys.readouterr()
    assert "***" in said.err
    assert "hunter2" not in said.out + said.err


def test_an_interrupt_is_130(status_raises: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    """^C is no bug."""
    status_raises(KeyboardInterrupt())
    assert run(["status"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["search", "--config", "config.yaml", "--dry-run"]])
def test_a_reader_that_goes_away_is_no_crash(
    config: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """A pipe closed by `| head` gives neither a traceback nor a complaint of the interpreter."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    config.write_text(CONFIG + "autotune: {command: '{python} train.py {config}'}\n")
    done = _without_reader(arguments)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


@pytest.mark.usefixtures("config")
def test_a_reader_that_goes_away_before_an_error_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object of an error goes into a closed pipe without a word."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done = _without_reader(["status", "--config", "config.yaml", "--json"])
    assert "BrokenPipeError" not in done.stderr
    assert done.returncode == 1


def _without_reader(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the command line with a stdout that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [sys.executable, "-m", "autotune", *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
