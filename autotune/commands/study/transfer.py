"""``autotune study export`` and ``import``: a study in a file, for another machine."""

from collections.abc import Sequence
from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_if_any_option, json_option, state_dir_option, storage_option
from autotune.commands.study.opened import Place, study_options
from autotune.errors import StudyError
from autotune.records import Scalar
from autotune.search.problem import Problem
from autotune.study.portable import PortableFile, StudyName
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


# Study that takes the trials of exported files: that of the config, or the one that the files name.


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
