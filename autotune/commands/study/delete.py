"""``autotune study delete``: moves a study to the trash."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.study.options import study_options
from autotune.process.termination import signals_held


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
        from autotune.commands.study.deleting import delete_study
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
