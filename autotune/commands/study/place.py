"""Place of studies: found by a config or without one; which study is meant, takes an import, or goes to the trash."""

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.commands.printing import say_aside, say_remarks
from autotune.errors import StudyBusy, StudyError
from autotune.files import make_private_folder
from autotune.records import Scalar
from autotune.search.problem import Problem, open_problem, this_machine
from autotune.study.claims import RENEWAL_S
from autotune.study.members import Member
from autotune.study.record import Study
from autotune.study.sole_search import sole_search
from autotune.study.storage.address import SaidAddress, address_of, said_by_environment
from autotune.study.storage.journal import JournalFolder, open_storage
from autotune.study.storage.storage import Storage
from autotune.study.travel import PortableFile, StudyName, export_study
from autotune.trial.owner import is_gone
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
        raise StudyError(f"there is no study {named!a}", where=place.shown, remedy=_names_text(names))
    if place.problem is not None:
        known = place.problem.known_study()
        if known is None:
            raise StudyError("nothing is known about this config yet", where=place.shown, remedy=_names_text(names))
        return known
    if len(names) != 1:
        what = "there is no study" if not names else f"there are {len(names)} studies"
        raise StudyError(what, where=place.shown, remedy=_names_text(names))
    return names[0]


def _names_text(names: list[str]) -> str:
    if not names:
        return "Name another place with --config, --state-dir or --storage."
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"Name one with --study: {', '.join(names[:_NAMED])}{more}."


_HARDWARE = ("gpus", "cpu_model", "cpu_cores", "memory_bytes")


def target_study(files: Sequence[PortableFile], place: Place) -> StudyName:
    """Return the study that takes the trials of all these files.

    Raises:
        StudyError: They are of several studies, or of another than the config's.
    """
    first = files[0]
    for file in files[1:]:
        if file.header.study != first.header.study:
            raise StudyError(
                f"this is of study {file.header.study.text}, and {first.path} of {first.header.study.text}",
                where=str(file.path),
                remedy="Import the files of one study at a time.",
            )
    if place.problem is None:
        return first.header.study
    return _of_config(first, place.problem)


def _of_config(file: PortableFile, problem: Problem) -> StudyName:
    theirs, ours = file.header.study, StudyName.of(problem.study)
    if ours is None:
        raise StudyError("the name of this config's study does not travel", where=problem.study, remedy="Rename it.")
    if theirs.training != ours.training:
        raise StudyError(
            f"it is of another study: {_what_differs(file, problem)}",
            where=str(file.path),
            remedy=f"Import it for the config that it is of; this one's study is {ours.text}. Without --config it goes "
            "into a study of its own.",
        )
    known = StudyName.of(problem.known_study())
    for name in (ours, known):
        if name is not None and (name.frameworks, name.command) == (theirs.frameworks, theirs.command):
            return name
    if not problem.command:  # neither the command nor its frameworks are known here
        text = f"{ours.stem}-{theirs.training}-{theirs.frameworks}-{theirs.command}"
        return StudyName.of(text) or theirs
    differing = []
    if theirs.frameworks != ours.frameworks:
        there = ", ".join(f"{name} {_listed(some)}" for name, some in file.header.frameworks.items()) or "none known"
        here = ", ".join(f"{name} {version}" for name, version in problem.frameworks.items()) or "none known"
        differing.append(f"its frameworks are {_shown(there)}, here {here}")
    if theirs.command != ours.command:
        differing.append("its trainer's command is another")
    raise StudyError(
        f"it is of a sibling of this config's study: {'; '.join(differing)}",
        where=str(file.path),
        remedy="Use the same versions and the same command on both machines, or import it without --config, into a "
        "study of its own.",
    )


def _what_differs(file: PortableFile, problem: Problem) -> str:
    here = problem.conditions
    there = file.header.hardware
    names = [name for name in _HARDWARE if there.get(name) and here.get(name) not in there[name]]
    said = [f"{name} {_shown(_listed(there[name]))}, here {here.get(name)}" for name in names]
    return "; ".join(said) or "its config holds other values besides the knobs, or has another objective"


def _listed(values: Sequence[Scalar]) -> str:
    return " or ".join(str(value) for value in values[:5])


def _shown(text: str) -> str:
    return ascii(text)[1:-1][:200]


# Deletion of a study: everything of it goes to the trash folder, never while somebody works on it.


_WATCHED_S = 2.0 * RENEWAL_S  # a sign of life may be late


def delete_study(place: Place, name: str, clock: Clock) -> tuple[Path, str]:
    """Move a study to the trash.

    Returns:
        The folder that it is in now, and the command that brings it back.

    Raises:
        StudyBusy: Somebody works on it.
        StudyError: It cannot be moved.
    """
    place.state.create()
    trash = place.state.path / "trash" / f"{clock.utc():%Y%m%dT%H%M%SZ}-{name}"
    machine = this_machine((), {}, {}).name
    with ExitStack() as stack:
        stack.enter_context(sole_search(place.state.search_lock(name, machine), name))
        _require_idle(place, name, clock)
        try:
            make_private_folder(trash.parent)
            make_private_folder(trash)
            if isinstance(place.storage, JournalFolder):
                back = (
                    f"mv {shlex.quote(str(trash / name))}.journal* {shlex.quote(str(place.storage.path(name).parent))}/"
                )
            else:
                exported = trash / f"{name}.jsonl"
                export_study(name, place.storage, exported, pending=place.state.pending(name))
                back = f"autotune study import {shlex.quote(str(exported))} --storage {shlex.quote(place.shown)}"
            place.storage.discard(name, trash)
            for beside, end in ((place.state.pending(name), ".pending"), (place.state.trials(name), ".trials")):
                if beside.exists() and not beside.is_symlink():
                    beside.rename(trash / f"{name}{end}")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise StudyError(
                f"it cannot be moved: {ascii(why)[1:-1]}",
                where=str(trash),
                remedy="Mend that; what was moved is in this folder.",
            ) from error
    return trash, back


def _require_idle(place: Place, name: str, clock: Clock) -> None:
    """Check that nobody else is at work on a study, on whichever machine.

    Raises:
        StudyBusy: Somebody is.
    """
    there = _members(place, name)
    working = [one for one in there if one.seems_at_work(clock.utc())]
    silent = {one.uuid: one.n for one in there if not one.has_left and not is_gone(one.about)}
    if silent and not working:  # by its clock, which may be an hour off: does it go on giving signs of life?
        say_aside(f"Members that have not left: {len(silent)}. Watched for {_WATCHED_S:.0f} s: is one at work? ...")
        clock.wait(_WATCHED_S)
        working = [one for one in _members(place, name) if silent.get(one.uuid, one.n) != one.n]
    if working:
        raise StudyBusy(
            f"study {name} is worked on by {len(working)} processes, one on {working[0].host!a}",
            where=place.shown,
            remedy="End them, or wait until they have ended for a minute and a half; then run the same command again.",
        )


def _members(place: Place, name: str) -> list[Member]:
    study = Study(name, place.storage, reads_only=True)
    try:
        return study.members()
    finally:
        study.close()
