"""``autotune study export``: writes a study into a file that another machine imports."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.study.opened import study_options
from autotune.trial.termination import signals_held


@click.command(name="export")
@study_options
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
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
    file: Path,
) -> int:
    """Writes the finished trials of a study into FILE, which `autotune study import` reads on another machine.

    Trials that were interrupted, or go on, stay behind. The same study gives the same file.
    """
    with signals_held():
        from autotune.commands.printing import say, say_object
        from autotune.commands.study.opened import chosen_study, open_place
        from autotune.study.travel import export_study

    place = open_place(config, state_dir, storage)
    name = chosen_study(place, study)
    contents = export_study(name, place.storage, file, pending=place.state.pending(name))
    if as_json:
        counts = {
            "trials": len(contents.trials),
            "interrupted": contents.interrupted,
            "unread": len(contents.unread),
        }
        call.answer(lambda: say_object({"study": name, "file": str(file), **counts}, indent=2))
        return 0
    say(f"{len(contents.trials)} trials of study {name} are in {file}.")
    if contents.interrupted:
        say(f"Left out: {contents.interrupted} trials without a result, which were interrupted or go on.")
    if contents.unread:
        say(f"Left out: {len(contents.unread)} trials that cannot be read; `autotune study repair` lists them.")
    return 0
