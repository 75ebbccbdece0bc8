"""The place of studies as the commands need it: a state folder and a storage, found by a config or without one."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autotune.commands.parameters import config_if_any_option, json_option, state_dir_option, storage_option
from autotune.commands.printing import say_remarks
from autotune.errors import StudyError
from autotune.search.problem import Problem, open_problem
from autotune.study.portable import StudyName
from autotune.study.storage.address import SaidAddress, address_of, said_by_environment
from autotune.study.storage.journal import open_storage
from autotune.study.storage.storage import Storage
from autotune.trial.state_folder import StateFolder

_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of studies.

    Attributes:
        problem: The config's; None without a config.
    """

    state: StateFolder
    storage: Storage
    shown: str
    problem: Problem | None = None

    def names(self) -> list[str]:
        """Return the names of the studies of configs; others may keep Optuna studies of their own in a database."""
        return [name for name in self.storage.names() if StudyName.of(name)]


def open_place(config: Path | None, state_dir: Path | None, storage: str | None) -> Place:
    """Open the place that a config says, or the one of the working directory.

    Raises:
        AutotuneError: The config, the folder or the address cannot be used.
    """
    if config is not None:
        problem = open_problem(config, command=None, state_dir=state_dir, storage=storage)
        say_remarks(problem.state.remarks)
        shown = problem.address.shown if problem.address else str(problem.state.studies)
        return Place(state=problem.state, storage=problem.storage, shown=shown, problem=problem)
    here = Path.cwd()
    state = StateFolder.locate(here / "config.yaml", explicit=state_dir, environ=os.environ)
    say_remarks(state.remarks)
    typed = SaidAddress(text=storage, where="--storage", folder=here) if storage else None
    address = address_of(typed, said_by_environment(os.environ, here))
    return Place(
        state=state,
        storage=open_storage(address, state.studies),
        shown=address.shown if address else str(state.studies),
    )


def chosen_study(place: Place, named: str | None) -> str:
    """Return the study that was named; else that of the config, else the only one that there is.

    Raises:
        StudyError: There is none, or there are several.
    """
    names = place.names()
    if named is not None:
        if named in names:
            return named
        raise StudyError(f"there is no study {named!a}", where=place.shown, remedy=_listed(names))
    if place.problem is not None:
        known = place.problem.known_study()
        if known is None:
            raise StudyError("nothing is known about this config yet", where=place.shown, remedy=_listed(names))
        return known
    if len(names) != 1:
        what = "there is no study" if not names else f"there are {len(names)} studies"
        raise StudyError(what, where=place.shown, remedy=_listed(names))
    return names[0]


def _listed(names: list[str]) -> str:
    if not names:
        return "Name another place with --config, --state-dir or --storage."
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"Name one with --study: {', '.join(names[:_NAMED])}{more}."


# Options that say which study is meant; light, since ``--help`` needs them.


def study_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which study is meant, and how it is shown."""
    name = click.option("--study", metavar="NAME", help="Name of the study (default: the config's, or the only one).")
    for option in (storage_option, state_dir_option, json_option, name, config_if_any_option):
        function = option(function)
    return function
