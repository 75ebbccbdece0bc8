"""``autotune study delete`` and ``repair``: a study goes to the trash, or is mended as far as that goes."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import study_options
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
        from autotune.commands.study.place import chosen_study, delete_study, open_place
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
        from autotune.commands.study.place import chosen_study, open_place
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
