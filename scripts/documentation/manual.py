"""The manual page, made from the commands as click knows them; it is written when a wheel is built."""

from collections.abc import Iterator

import click

from autotune.cli import command_line
from scripts.documentation.commands_page import every_command, help_paragraphs, option_rows

_TAIL = """\
.SH EXIT STATUS
.TP
0
done; also "no change"
.TP
1
an expected error: what it is, where, and what to do
.TP
2
wrong usage
.TP
3
a bug, of which a crash log is written
.TP
130, 143
interrupted, ended by SIGTERM
.SH ENVIRONMENT
.TP
AUTOTUNE_DIR
where studies and trials are kept, in place of .autotune beside .git
.TP
AUTOTUNE_STORAGE
where studies are kept: an address, which may be that of a database
.TP
AUTOTUNE_LANG
language of what diagnose says: en or fa
.TP
NO_COLOR
no colours
"""


def manual_page(version: str) -> str:
    """Return the manual page in the format of man(7).

    Args:
        version: Version of autotune.
    """
    contexts = list(every_command(command_line, "autotune"))
    lines = [
        f'.TH AUTOTUNE 1 "" "autotune {version}" "User Commands"',
        ".SH NAME",
        "autotune \\- find the training settings that keep a GPU busy",
        ".SH SYNOPSIS",
        ".B autotune",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        *_paragraphs(contexts[0].command),
        ".SH COMMANDS",
    ]
    for context in contexts[1:]:
        lines += _command(context)
    return "\n".join(lines) + "\n" + _TAIL


def _command(context: click.Context) -> Iterator[str]:
    usage = " ".join(context.command.get_usage(context).removeprefix("Usage: ").split())
    yield f".SS {_safe(usage)}"
    yield from _paragraphs(context.command)
    for option, text in option_rows(context):
        yield ".TP"
        yield f".B {_safe(option)}"
        yield _safe(" ".join(text.split()))


def _paragraphs(command: click.Command) -> Iterator[str]:
    for as_it_is, paragraph in help_paragraphs(command):
        yield ".PP"
        if as_it_is:
            yield from (".nf", *map(_safe, paragraph.splitlines()), ".fi")
        else:
            yield _safe(" ".join(paragraph.split()))


def _safe(text: str) -> str:
    """Return a text in which nothing is a request of man(7); hyphens can be copied into a shell."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
