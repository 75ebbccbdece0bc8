"""Plain lines, JSON objects and questions: what commands print without a console (`autotune.report.console`)."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from autotune.report.safe_text import safe_text


def say(text: str) -> None:
    """Prints a line on stdout."""
    print(safe_text(text), flush=True)


def say_aside(text: str) -> None:
    """Prints a line on stderr: an error, or how things go."""
    print(safe_text(text), file=sys.stderr, flush=True)


def say_object(document: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Prints a JSON object on stdout; what is not ASCII is escaped."""
    print(json.dumps(document, indent=indent), flush=True)


def ask(question: str, *, must: bool = False) -> bool:
    """Asks for a yes on stderr.

    Args:
        question: What to ask.
        must: Whether a no ends the command.

    Raises:
        click.Abort: The answer is no, and it must be yes.
    """
    return click.confirm(safe_text(question), abort=must, err=True)
