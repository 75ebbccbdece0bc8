"""Plain lines, JSON objects and prompts of commands."""

import json
import os
import sys
import termios
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import click

from autotune.errors import ConfigError
from autotune.report.plain_text import safe_text


def say(text: str) -> None:
    """Print a line on stdout."""
    print(safe_text(text), flush=True)


def say_aside(text: str) -> None:
    """Print a line on stderr: an error, or progress."""
    print(safe_text(text), file=sys.stderr, flush=True)


def say_document(text: str) -> None:
    """Print a text on stdout as is."""
    print(text, end="", flush=True)


def say_object(document: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Print a JSON object on stdout, as ASCII."""
    print(json.dumps(document, indent=indent), flush=True)


def say_remarks(remarks: Iterable[str]) -> None:
    """Print remarks on stderr."""
    for remark in remarks:
        say_aside(remark)


def kept_trials(count: int) -> str:
    """Return a note on the finished trials of an interrupted command."""
    return f"{count} finished {'trial is' if count == 1 else 'trials are'} kept"


def ask(question: str, *, must: bool = False) -> bool:
    """Ask a yes/no question on stderr.

    Raises:
        click.Abort: The answer is no, with ``must``.
    """
    return click.confirm(safe_text(question), abort=must, err=True)


def ask_or_refuse(question: str, *, where: str, remedy: str) -> None:
    """Ask for a yes.

    Args:
        question: A statement and a question.

    Raises:
        ConfigError: There is no terminal; the message is the statement.
        click.Abort: The answer is no.
    """
    if not can_ask():
        statement = question[: question.rstrip("?").rindex(". ")]
        raise ConfigError(statement[0].lower() + statement[1:], where=where, remedy=remedy)
    ask(question, must=True)


def can_ask() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def is_attended() -> bool:
    """Return whether this is the foreground job of a terminal."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()  # a background job would be stopped when it reads
    except OSError:  # not the controlling terminal
        return False


def discard_typeahead() -> None:
    """Discard what was typed before a prompt."""
    with suppress(termios.error):  # the terminal is gone: reading from it reports that
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
