"""``autotune study delete`` and ``repair``: a study goes to the trash, or is mended as far as that goes."""

import shlex
from contextlib import ExitStack
from pathlib import Path

import click

from autotune.clock import Clock
from autotune.commands.invocation import Invocation
from autotune.commands.printing import say_aside
from autotune.commands.study.opened import Place, study_options
from autotune.errors import StudyBusy, StudyError
from autotune.files import make_private_folder
from autotune.search.problem import this_machine
from autotune.study.claims import RENEWAL_S
from autotune.study.members import Member
from autotune.study.record import Study
from autotune.study.sole_search import sole_search
from autotune.study.storage.journal import JournalFolder
from autotune.study.travel import export_study, members_of
from autotune.trial.owner import is_gone
from autotune.trial.termination import signals_held


@click.command(name="delete")
@study_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def command(
    call: Invocation,
    /,
    *,
    config: Path | None,
    study: str | None,
    as_json: bool,
    state_dir: Path | None,
    storage: str | None,
    yes: bool,
) -> int:
    """Moves a study and the folders of its trials to the trash folder in the state folder.

    Out of a database the study is exported into that folder first.
    """
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.commands.printing import ask, is_attended, say, say_object
        from autotune.commands.study.opened import chosen_study, open_place
        from autotune.errors import StudyError

    place = open_place(config, state_dir, storage)
    name = chosen_study(place, study)
    if not yes:
        if not is_attended() or as_json:
            raise StudyError(
                f"study {name} is not deleted without a yes", where=place.shown, remedy="Say it with --yes."
            )
        ask(f"Move study {name} in {place.shown} to the trash?", must=True)
    trash, again = delete_study(place, name, SystemClock())
    if as_json:
        call.answer(lambda: say_object({"study": name, "trash": str(trash), "to_get_it_back": again}, indent=2))
    else:
        say(f"Study {name} is in {trash}. To get it back:\n  {again}")
    return 0


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
        return members_of(study)
    finally:
        study.close()


_NAMED = 20


@click.command(name="repair")
@study_options
@click.pass_obj
def repair_command(
    call: Invocation,
    /,
    *,
    config: Path | None,
    study: str | None,
    as_json: bool,
    state_dir: Path | None,
    storage: str | None,
) -> int:
    """Cuts a torn end off, closes trials that nobody makes any more, and counts what cannot be read.

    A trial of another machine is closed after a minute without a sign of life. Nothing that was measured is changed.
    """
    with signals_held():
        from dataclasses import asdict

        from autotune.clock import SystemClock
        from autotune.commands.printing import say, say_aside, say_object
        from autotune.commands.study.opened import chosen_study, open_place
        from autotune.study.travel import repair_study
        from autotune.trial.owner import is_gone

    place = open_place(config, state_dir, storage)
    name = chosen_study(place, study)
    done = repair_study(
        name,
        place.storage,
        clock=SystemClock(),
        is_gone=is_gone,
        watching=lambda number: say_aside(
            f"Trials that are claimed: {number}. Watched for a minute: is somebody at work on them? ..."
        ),
    )
    if as_json:
        unread = {str(number): why for number, why in done.unread.items()}
        call.answer(lambda: say_object({"study": name, **asdict(done), "unread": unread}, indent=2))
        return 0
    say(f"Study {name}: trials that can be read: {done.trials}, without a result: {done.interrupted}.")
    if done.torn_bytes:
        say(f"Cut off: {done.torn_bytes} bytes of a torn last entry, which are kept beside the journal.")
    if done.closed:
        say(f"Closed: {done.closed} trials that nobody makes any more.")
    if done.going_on:
        say(f"{done.going_on} trials go on.")
    if done.doubles:
        say(f"{done.doubles} trials were written twice; one of each counts.")
    for number, why in list(done.unread.items())[:_NAMED]:
        say(f"Trial {number} cannot be read: {why}")
    if len(done.unread) > _NAMED:
        say(f"... and {len(done.unread) - _NAMED} more that cannot be read")
    return 0
