"""``autotune study``: studies in a storage, and their way to other machines."""

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
    state_dir_option,
    storage_option,
)
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.commands.studies import Studies

command = OrderedGroup(name="study", help="Manage the studies of a storage, and take them to other machines.")
_FILE = click.Path(path_type=Path, dir_okay=False)
_name_option = click.option(
    "--study", metavar="NAME", help="Name of the study (default: the config's, or the only one)."
)


def _verb(name: str, sentence: str, *, names_study: bool = True) -> Callable[[Callable[..., int]], click.Command]:
    """Return a decorator that makes a command of a function of the call, the opened studies, and the study's name."""

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
        options = (storage_option, state_dir_option, json_option, *([_name_option] if names_study else []))
        for option in (*options, config_if_any_option):
            made = option(made)
        return command.command(name, short_help=sentence)(made)

    return decorate


@_verb("list", "the studies of a storage", names_study=False)
def list_studies(call: Invocation, studies: Studies) -> int:
    """Shows each study of a storage: trials, best speed-up, last use and hardware."""
    return call.say(*studies.overview())


@_verb("show", "one study: its machines, searches and trials, and who works on it")
def show(call: Invocation, studies: Studies, name: str) -> int:
    """Shows one study: machines and versions, searches with what they found, trials by ending, who works on it."""
    return call.say(*studies.description(name))


@_verb("export", "write a study into a file that another machine imports")
@click.argument("file", type=_FILE)
def export(call: Invocation, studies: Studies, name: str, file: Path) -> int:
    """Writes the finished trials of a study into FILE, which `autotune study import` reads on another machine.

    FILE is an Optuna journal. Trials that were interrupted, or are running, are left out.
    """
    return call.say(*studies.export(name, file))


@_verb("import", "add the trials of exported files to a study", names_study=False)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
def import_files(call: Invocation, studies: Studies, files: tuple[Path, ...]) -> int:
    """Adds the trials of exported files to the study of a config, or to the study that the files name.

    Each trial is added once, in whichever order files come, and however often. All files are checked first: where
    one of them is refused, nothing is added. Nothing in a file is executed, or used as a path.
    """
    return call.say(*studies.import_files(files))


@_verb("delete", "move a study to the trash")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(call: Invocation, studies: Studies, name: str, yes: bool) -> int:
    """Moves a study and the folders of its trials to the trash folder in the state folder.

    Out of a database the study is exported into that folder first.
    """
    from autotune.clock import SystemClock

    if not yes:
        studies.require_yes(name, is_for_scripts=call.as_json)
    return call.say(*studies.delete(name, SystemClock()))
