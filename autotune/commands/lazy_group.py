"""Group of commands whose modules are loaded only when one of them is asked for, so that ``--help`` stays fast."""

import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from autotune.commands.output import say_aside
from autotune.limits import require_room
from autotune.trial.termination import signals_held


class LazyGroup(click.Group):
    """Group of commands, each ``command`` of a module that is named like it.

    Args:
        table: A sentence for each command, by sections of the help, in its order.
    """

    def __init__(self, *, package: str, table: Mapping[str, Mapping[str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._package = package
        self._table = table
        self.sentences = {name: sentence for section in table.values() for name, sentence in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(self.sentences)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.sentences:
            return None
        require_room()
        with signals_held():
            command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        say_warnings_aside()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table; no module is imported for it."""
        for title, section in self._table.items():
            with formatter.section(title):
                formatter.write_dl(list(section.items()))


class OrderedGroup(click.Group):
    """Group of commands of one module, which are listed in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the module."""
        return list(self.commands)


class _Aside(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say_aside(self.format(record))
        except (OSError, ValueError):  # nobody reads stderr any more
            return


def say_warnings_aside() -> None:
    """Has warnings of the log printed, from now on."""
    logging.lastResort = _Aside(logging.WARNING)
