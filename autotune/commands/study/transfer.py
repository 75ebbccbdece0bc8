"""``autotune study export`` and ``import``: a study in a file, for another machine."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import (
    config_if_any_option,
    json_option,
    state_dir_option,
    storage_option,
    study_options,
)
from autotune.trial.termination import signals_held


@click.command(name="export")
@study_options
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def export_command(
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
        from autotune.commands.study.place import chosen_study, open_place
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


@click.command(name="import")
@config_if_any_option
@json_option
@state_dir_option
@storage_option
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def import_command(
    call: Invocation,
    /,
    *,
    config: Path | None,
    as_json: bool,
    state_dir: Path | None,
    storage: str | None,
    files: tuple[Path, ...],
) -> int:
    """Adds the trials of exported files to the study of a config, or to the study that the files name.

    Each trial is added once, in whichever order files come, and however often. All files are checked first: where
    one of them is refused, nothing is added. Nothing in a file is executed, or used as a path.
    """
    with signals_held():
        from autotune.commands.printing import say, say_object
        from autotune.commands.study.place import open_place, target_study
        from autotune.study.travel import import_files

    place = open_place(config, state_dir, storage)
    done = import_files(files, lambda opened: target_study(opened, place), place.storage, prepare=place.state.create)
    if as_json:
        counts = {"added": done.added, "known": done.known, "differing": done.differing}
        call.answer(lambda: say_object({"study": done.study, "storage": place.shown, **counts}, indent=2))
        return 0
    say(f"Study {done.study} in {place.shown}: {done.added} trials added, {done.known} were there already.")
    if done.differing:
        say(f"{done.differing} trials hold something else in two places; what was here stays.")
    return 0
