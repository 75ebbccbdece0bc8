"""Plain lines, JSON objects and questions: what commands print without a console (`autotune.report.console`)."""

import json
import os
import sys
import termios
from collections.abc import Iterable, Mapping
from typing import Any

import click

from autotune.errors import ConfigError
from autotune.report.plain_text import safe_text


def say(text: str) -> None:
    """Prints a line on stdout."""
    print(safe_text(text), flush=True)


def say_aside(text: str) -> None:
    """Prints a line on stderr: an error, or how things go."""
    print(safe_text(text), file=sys.stderr, flush=True)


def say_document(text: str) -> None:
    """Prints a whole document on stdout, as it is."""
    print(text, end="", flush=True)


def say_object(document: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Prints a JSON object on stdout; what is not ASCII is escaped."""
    print(json.dumps(document, indent=indent), flush=True)


def say_remarks(remarks: Iterable[str]) -> None:
    """Prints remarks on stderr, such as where the state is kept if that is not the usual place."""
    for remark in remarks:
        say_aside(remark)


def kept_trials(count: int) -> str:
    """Return what is said of the finished trials when a command is interrupted."""
    return f"{count} finished {'trial is' if count == 1 else 'trials are'} kept"


def ask(question: str, *, must: bool = False) -> bool:
    """Asks for a yes on stderr.

    Raises:
        click.Abort: The answer is no, and it must be yes.
    """
    return click.confirm(safe_text(question), abort=must, err=True)


def ask_or_refuse(question: str, *, where: str, remedy: str) -> None:
    """Asks for a yes; without a terminal to ask on, says how to go on.

    Args:
        question: A statement, and a question behind it.

    Raises:
        ConfigError: There is nobody to ask.
        click.Abort: The answer is no.
    """
    if not can_ask():
        statement = question[: question.rstrip("?").rindex(". ")]
        raise ConfigError(statement[0].lower() + statement[1:], where=where, remedy=remedy)
    ask(question, must=True)


def can_ask() -> bool:
    """Returns whether there is a terminal to ask on."""
    return sys.stdin is not None and sys.stdin.isatty()


def is_attended() -> bool:
    """Returns whether somebody can see a question and answer it: on terminals all, and as their foreground job."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()  # a job in the background is stopped when it reads
    except OSError:  # not its own terminal
        return False


def forget_typed() -> None:
    """Discards what was typed on the terminal before a question was there to see."""
    try:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except termios.error:  # it went away; whoever reads from it will learn that
        return
