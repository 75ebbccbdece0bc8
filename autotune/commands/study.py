"""``autotune study``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import (
    OrderedGroup,
    config_if_any_option,
    json_option,
    place_options,
)
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.commands.studies import Studies

command = OrderedGroup(name="study", help="Manage the studies of a storage, and move them between machines.")
_FILE = click.Path(path_type=Path, dir_okay=False)
_name_option = click.option(
    "--study", metavar="NAME", help="Name of the study (default: the config's, or the only one)."
)


def _verb(name: str, sentence: str, *, names_study: bool = True) -> Callable[[Callable[..., int]], click.Command]:
    """Return a decorator that makes a command of a function of call, studies and name."""

    def decorate(function: Callable[..., int]) -> click.Command:
        @functools.wraps(function)
        def opened(
            call: Invocation, /, *, config: Path | None, state_dir: Path | None, storage: str | None, **more: Any
        ) -> int:
            with signals_held():
                from autotune.commands.studies import open_studies

            studies = open_studies(config, state_dir, storage)
            if names_study:
                more["name"] = studies.chosen(more.pop("study"))
            return function(call, studies, **more)

        made: Callable[..., Any] = click.pass_obj(opened)
        options = (place_options, json_option, *([_name_option] if names_study else []))
        for option in (*options, config_if_any_option):
            made = option(made)
        return command.command(name, short_help=sentence)(made)

    return decorate


@_verb("list", "list the studies of a storage", names_study=False)
def list_studies(call: Invocation, studies: Studies) -> int:
    """List studies: trials, best speedup, last use and hardware."""
    return call.say(*studies.overview())


@_verb("show", "show one study: machines, searches, trials, members")
def show(call: Invocation, studies: Studies, name: str) -> int:
    """Show a study: machines, versions, searches with answers, trials by ending, active processes."""
    return call.say(*studies.description(name))


@_verb("export", "export a study into a file")
@click.argument("file", type=_FILE)
def export(call: Invocation, studies: Studies, name: str, file: Path) -> int:
    """Export finished trials into FILE, an Optuna journal for `autotune study import`.

    Omits interrupted and running trials.
    """
    return call.say(*studies.export(name, file))


@_verb("import", "import exported files into a study", names_study=False)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
def import_files(call: Invocation, studies: Studies, files: tuple[Path, ...]) -> int:
    """Import exported files into the config's study, or into the one that they name.

    Adds each trial once. If any file is rejected, adds nothing. Never executes anything from a file or uses it as a
    path.
    """
    return call.say(*studies.import_files(files))


@_verb("delete", "move a study to the trash")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(call: Invocation, studies: Studies, name: str, yes: bool) -> int:
    """Move a study and its trial folders to the trash in the state folder.

    A study in a database is exported there first.
    """
    from autotune.clock import SystemClock

    if not yes:
        studies.require_yes(name, is_for_scripts=call.as_json)
    return call.say(*studies.delete(name, SystemClock()))
