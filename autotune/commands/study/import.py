"""``autotune study import``: adds the trials of exported files to a study."""  # noqa: N999 -- the name of the command

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_if_any_option, json_option, state_dir_option, storage_option
from autotune.trial.termination import signals_held


@click.command(name="import")
@config_if_any_option
@json_option
@state_dir_option
@storage_option
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def command(
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
        from autotune.commands.study.import_target import target_study
        from autotune.commands.study.opened import open_place
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
