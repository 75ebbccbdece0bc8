"""Study that takes the trials of exported files: that of the config, or the one that the files name."""

from collections.abc import Sequence

from autotune.commands.study.opened import Place
from autotune.errors import StudyError
from autotune.records import Scalar
from autotune.search.problem import Problem
from autotune.study.portable import PortableFile, StudyName

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
    """Return in what two trainings, or their machines, differ, as far as the file says it."""
    here = problem.conditions
    there = file.header.hardware
    names = [name for name in _HARDWARE if there.get(name) and here.get(name) not in there[name]]
    said = [f"{name} {_shown(_listed(there[name]))}, here {here.get(name)}" for name in names]
    return "; ".join(said) or "its config holds other values besides the knobs, or has another objective"


def _listed(values: Sequence[Scalar]) -> str:
    return " or ".join(str(value) for value in values[:5])


def _shown(text: str) -> str:
    return ascii(text)[1:-1][:200]
