"""Check of the trainer's sources, read with `ast` and never imported, for what is known to be slow."""

from collections.abc import Iterator, Sequence

from autotune.diagnose.findings import CheckResult, Issue, Recommendation
from autotune.diagnose.messages.message import Message, capitalized, listed, said
from autotune.diagnose.static.code.rule import Surroundings
from autotune.diagnose.static.code.scan import Found, scan
from autotune.diagnose.static.look import Look
from autotune.problem.problem import Problem
from autotune.problem.trainer_code import trainer_files
from autotune.records import Values
from autotune.settings.script import own_words
from autotune.space.catalog import known_knob

CODE = "code"
_PLACES_SHOWN = 4
_PYTHON_IN_GRAPH = "python-in-graph"
_NATIVE = "native_loading"  # kind of `space.catalog`


def check_code(look: Look) -> CheckResult:
    """Look for slow code in the script that the command starts, and in the modules beside it.

    Args:
        look: What is diagnosed.
    """
    problem = look.problem
    if problem is None or not problem.command:
        return CheckResult(check=CODE, why_not=said("code.no-command", "it is not known how training is started"))
    cwd = problem.settings.folder
    paths = trainer_files(problem.command, cwd)
    if not paths:
        return CheckResult(check=CODE, why_not=_why_nothing_to_read(problem.command))
    done = scan(paths, cwd, _words(problem), surroundings_of(problem))
    if not done.files:
        return CheckResult(check=CODE, why_not=listed("; ", done.unread))
    switch = _native_switch(problem)
    issues = [
        _issue(found, {switch: True} if switch and found.rule.id == _PYTHON_IN_GRAPH else {}) for found in done.found
    ]
    if _native_is_on(problem):
        issues = [issue for issue, found in zip(issues, done.found, strict=True) if found.rule.id != _PYTHON_IN_GRAPH]
    read = said("code.read", "{files} source file{s} read", files=done.files, s="s" * (done.files != 1))
    return CheckResult(check=CODE, issues=tuple(issues), sentence=listed("; ", (read, *done.unread)))


def _why_nothing_to_read(command: Sequence[str]) -> Message:
    script = own_words(command) - 1
    if script and command[script - 1] == "-m":
        return said(
            "code.module",
            "the module {module} is not below this directory; installed packages are not read",
            module=command[script],
        )
    return said("code.no-script", "the command starts no Python script that is found here")


def surroundings_of(problem: Problem) -> Surroundings:
    """Return what rules about sources depend on."""
    version = problem.frameworks.get("tensorflow") or problem.frameworks.get("tensorflow-cpu")
    return Surroundings(
        cores=problem.machine.cpu_cores, has_gpu=bool(problem.machine.gpus), tensorflow=_version(version)
    )


def _version(text: str | None) -> tuple[int, int] | None:
    parts = (text or "").split(".")
    if len(parts) < 2 or not parts[0].isdecimal() or not parts[1].isdecimal():
        return None
    return int(parts[0]), int(parts[1])


def _issue(found: Found, values: Values) -> Issue:
    shown_places = ", ".join(map(str, found.places[:_PLACES_SHOWN]))
    more = len(found.places) - _PLACES_SHOWN
    rule = found.rule.message_id
    remedy = Message(found.rule.remedy, f"{rule}.remedy")
    if values:
        remedy = said(
            "code.native",
            "Set {key} to true, which leaves Python out of loading; or: {remedy}",
            key=next(iter(values)),
            remedy=remedy,
        )
    return Issue(
        check=CODE,
        severity=found.rule.severity,
        sentence=said("sentence", "{clause}.", clause=capitalized(Message(found.rule.sentence, rule))),
        place=f"{shown_places} and {more} more" if more > 0 else shown_places,
        numbers={"places": float(len(found.places))},
        limit=found.rule.limit,
        recommendations=(Recommendation(sentence=remedy, values=values),),
        rule=found.rule.id,
    )


def _words(problem: Problem) -> Iterator[str]:
    """Yield the words of the config and of the command, which may name what Python finds at run time."""
    for text in (*problem.settings.scalars.values(), *problem.command):
        if isinstance(text, str):
            yield from text.replace("/", ".").replace("=", ".").split(".")


def _native_switch(problem: Problem) -> str | None:
    """Return the switch of native loading that is off; None if there is none."""
    return next(
        (path for path, value in _native(problem) if value is False and path not in problem.settings.refused), None
    )


def _native_is_on(problem: Problem) -> bool:
    return any(value is True for _, value in _native(problem))


def _native(problem: Problem) -> Iterator[tuple[str, object]]:
    for path, value in problem.settings.scalars.items():
        row = known_knob(path, value)
        if row is not None and row.kind == _NATIVE:
            yield path, value
