"""The question at the end of a search on a terminal: a real one, and what is typed on it; the search is simulated."""

import select
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from autotune.commands import search_run
from autotune.commands.invocation import Watchdog
from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG, CommandLine, toy
from tests.commands.conftest import on_terminal
from tests.until import DEADLINE_S

SEARCH = ("search", "--config", "config.yaml", "--budget", "1m")
QUESTION = b"Apply the changes that leave the training unchanged to config.yaml? [y/N]"
NEXT = "Next:  autotune apply --config config.yaml"


def is_applied(commands: CommandLine) -> bool:
    """Return whether the config holds the answer now."""
    text = (commands.folder / "config.yaml").read_text()
    assert text in (CONFIG, CONFIG.replace("num_workers: 1 ", "num_workers: 2 "))
    return text != CONFIG


def test_a_yes_writes_the_values_and_the_way_back_is_said(recorded: CommandLine) -> None:
    """Of two answers it is about the one that leaves the training as it is."""
    code, screen = on_terminal(recorded, {QUESTION: b"y\n"}, *SEARCH)
    assert code == 0, screen
    assert is_applied(recorded)
    assert screen.index("Better:") < screen.index(QUESTION.decode()) < screen.index("Written to config.yaml")
    assert "To undo:  autotune revert --config config.yaml" in screen
    assert "autotune apply" not in screen


@pytest.mark.parametrize(
    ("typed", "code"),
    [(b"\n", 0), (b"\x03", 0), (b"\x04", 0), (signal.SIGTERM, 143)],
    ids=["return", "^C", "end of input", "SIGTERM"],
)
def test_all_but_a_yes_is_a_no(recorded: CommandLine, typed: bytes | signal.Signals, code: int) -> None:
    """Nothing is written, and the command that would write is said; the search itself has ended well."""
    ended, screen = on_terminal(recorded, {QUESTION: typed}, *SEARCH, at_rest=True)
    assert ended == code, screen
    assert not is_applied(recorded)
    assert screen.count(NEXT) == 1
    assert "interrupted" not in screen


def test_what_was_typed_during_the_search_is_no_answer(recorded: CommandLine) -> None:
    """A key pressed before the question was there to see has not answered it."""

    def waits_for_a_key(config: Mapping[str, Any]) -> Training:
        select.select([0], [], [], DEADLINE_S)
        return toy(config)

    recorded.trainer = waits_for_a_key
    _, screen = on_terminal(recorded, {b"earlier trials found": b"y\n", QUESTION: b"\n"}, *SEARCH)
    assert QUESTION.decode() in screen
    assert not is_applied(recorded)


def test_a_job_in_the_background_is_not_asked(recorded: CommandLine) -> None:
    """It would be stopped when it reads."""
    code, screen = on_terminal(recorded, {b"[y/N]": b"y\n"}, *SEARCH, in_background=True)
    assert (code, "[y/N]" in screen, is_applied(recorded)) == (0, False, False)
    assert NEXT in screen


@pytest.mark.parametrize("options", [("--no-apply",), ("--apply",), ("--json",), ()])
def test_nobody_is_asked_in_vain(recorded: CommandLine, options: tuple[str, ...]) -> None:
    """Not after --no-apply or --apply, and not for scripts, also where there is no terminal."""
    done = recorded(*SEARCH, *options, answers="y\n" if options else None).well()
    assert "[y/N]" not in done.stdout + done.stderr
    assert is_applied(recorded) is ("--apply" in options)


def test_the_budget_does_not_run_while_the_question_waits(
    recorded: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends a search that hangs has stood down before somebody is asked."""
    order: list[str] = []
    monkeypatch.setattr(Watchdog, "stand_down", lambda _watchdog: order.append("stands down"))
    monkeypatch.setattr(search_run, "ask", lambda _question: not order.append("asks"))
    assert recorded(*SEARCH, answers="").returncode == 0
    assert order[:2] == ["stands down", "asks"]
    assert is_applied(recorded)
