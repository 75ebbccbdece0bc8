"""The question at the end of a search on a terminal: a real one, and what is typed on it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import answered

FOUND_BETTER = (str(Path(__file__).with_name("found_better.py")),)
SEARCH = ("search", "--config", "config.yaml", "--budget", "1m")
QUESTION = "Apply these values to config.yaml? [y/N]"
NEXT = "Next:  autotune apply --config config.yaml"


def batch_size(project: Path) -> str:
    """Return the batch size of the project's config as its file has it."""
    lines = (project / "config.yaml").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.lstrip().startswith("batch_size:"))


def found(project: Path, typed: bytes | signal.Signals, *options: str, hesitation_s: float = 0.0) -> tuple[int, str]:
    """Run a search that finds something better on a terminal, and type an answer to its question."""
    answers = {QUESTION.encode(): typed}
    return answered(project, answers, *SEARCH, *options, program=FOUND_BETTER, hesitation_s=hesitation_s, at_rest=True)


@pytest.mark.usefixtures("searched")
def test_a_search_on_a_terminal_ends_with_the_question(project: Path) -> None:
    """A real search: after a yes the values are in the file, with a backup, and the way back is said.

    Of two answers it is about the one that leaves the training as it is.
    """
    asked = "Apply what leaves the training itself unchanged to config.yaml? [y/N]"
    code, screen = answered(project, {asked.encode(): b"y\n"}, *SEARCH, "--budget", "8s")
    assert code == 0, screen
    assert "num_workers: 2" in (project / "config.yaml").read_text()
    assert batch_size(project) == "4"
    assert screen.index("Better:") < screen.index(asked) < screen.index("Written to config.yaml")
    assert "To take them back:  autotune revert --config config.yaml" in screen
    assert "autotune apply" not in screen


@pytest.mark.parametrize("typed", [b"\n", b"\x03", b"\x04"], ids=["return", "^C", "end of input"])
def test_all_but_a_yes_is_a_no(project: Path, typed: bytes) -> None:
    """Nothing is written, and the command that would write is said; the search itself has ended well."""
    before = (project / "config.yaml").read_bytes()
    code, screen = found(project, typed)
    assert code == 0
    assert (project / "config.yaml").read_bytes() == before
    assert screen.rstrip().endswith(NEXT)
    assert screen.count(NEXT) == 1
    assert "interrupted" not in screen


def test_the_budget_does_not_run_while_the_question_waits(project: Path) -> None:
    """Long after the moment at which a search that hangs is ended by force, a yes still counts."""
    code, screen = found(project, b"y\n", "--budget", "3s", hesitation_s=8.0)
    assert code == 0, screen
    assert batch_size(project) == "64"


def test_what_was_typed_during_the_search_is_no_answer(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key pressed before the question was there to see has not answered it."""
    monkeypatch.setenv("FOUND_BETTER", "typed")
    answers = {b"searching": b"y\n", QUESTION.encode(): b"\n"}
    _, screen = answered(project, answers, *SEARCH, program=FOUND_BETTER)
    assert QUESTION in screen
    assert batch_size(project) == "4"


@pytest.mark.parametrize(
    ("mode", "options"),
    [("", ["--no-apply"]), ("background", []), ("no change", []), ("", ["--validate", "20s", "--budget", "10m"])],
)
def test_nobody_is_asked_in_vain(project: Path, monkeypatch: pytest.MonkeyPatch, mode: str, options: list[str]) -> None:
    """Not after --no-apply, in the background, without a gain, or where an answer that was to be validated is not."""
    monkeypatch.setenv("FOUND_BETTER", mode)
    code, screen = found(project, b"y\n", *options)
    assert code == 0, screen
    assert "[y/N]" not in screen
    assert (NEXT in screen) is (mode != "no change")
    assert batch_size(project) == "4"


def test_without_a_terminal_nobody_is_asked(project: Path) -> None:
    """Output in a file or a pipe, or input from one: scripts go on as they did."""
    done = subprocess.run(
        [sys.executable, *FOUND_BETTER, *SEARCH],
        cwd=project,
        input="y\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[y/N]" not in done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(NEXT)
    assert batch_size(project) == "4"


def test_sigterm_at_the_question(project: Path) -> None:
    """Nothing is written, the next command is said, and the exit code is that of SIGTERM."""
    code, screen = found(project, signal.SIGTERM)
    assert code == 143
    assert NEXT in screen
    assert batch_size(project) == "4"


def test_apply_writes_without_asking(project: Path) -> None:
    """As it did before there was a question."""
    code, screen = found(project, b"n\n", "--apply")
    assert code == 0, screen
    assert "[y/N]" not in screen
    assert batch_size(project) == "64"
