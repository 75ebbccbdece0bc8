"""``autotune study list``: the studies of a storage."""

from pathlib import Path
from typing import Any

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_if_any_option, json_option, state_dir_option, storage_option
from autotune.records import SearchResult, Verdict
from autotune.study.travel import StudyFacts
from autotune.trial.termination import signals_held


@click.command(name="list")
@config_if_any_option
@json_option
@state_dir_option
@storage_option
@click.pass_obj
def command(call: Invocation, config: Path | None, as_json: bool, state_dir: Path | None, storage: str | None) -> int:
    """Shows each study of a storage: trials, best speed-up, last use and hardware."""
    with signals_held():
        from autotune.commands.printing import say_object
        from autotune.commands.study.opened import open_place
        from autotune.errors import StudyError
        from autotune.report.console import text_console
        from autotune.report.plain_text import plain
        from autotune.study.travel import StudyFacts, describe_study

    place = open_place(config, state_dir, storage)
    objective = place.problem.objective if place.problem else None
    found: list[tuple[str, StudyFacts | StudyError]] = []
    for name in place.names():
        try:
            found.append((name, describe_study(name, place.storage, objective=objective)))
        except StudyError as error:
            found.append((name, error))
    if as_json:
        studies = [
            {"study": name, "error": one.message} if isinstance(one, StudyError) else facts_object(one)
            for name, one in found
        ]
        call.answer(lambda: say_object({"storage": place.shown, "studies": studies}, indent=2))
        return 0
    console = text_console()
    if not found:
        console.print(f"There is no study in {plain(place.shown)}.", soft_wrap=True)
    for name, one in found:
        console.print(plain(name), soft_wrap=True)
        if isinstance(one, StudyError):
            console.print(f"  cannot be read: {plain(one.message)}", soft_wrap=True)
            continue
        console.print(f"  {one.trials} trials, last {one.last_utc or 'none'}; {gain_text(one.answer)}", soft_wrap=True)
        for hardware in one.hardware:
            console.print(f"  {plain(hardware)}", soft_wrap=True)
    return 0


# Words and objects for studies that are listed or shown.


def gain_text(result: SearchResult | None) -> str:
    """Return what an answer says, in a few words."""
    if result is None:
        return "no answer yet"
    if result.verdict is Verdict.BETTER and result.speedup is not None:
        ratio = result.speedup
        return f"better: {ratio.ratio:.2f}x (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
    return result.verdict.value.replace("_", " ")


def gain_object(result: SearchResult | None) -> dict[str, Any] | None:
    """Return an answer as scripts get it; None for none."""
    if result is None:
        return None
    ratio = result.speedup
    return {
        "verdict": result.verdict.value,
        "speedup": None if ratio is None else {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high},
    }


def facts_object(facts: StudyFacts) -> dict[str, Any]:
    """Return a study as scripts get it."""
    return {
        "study": facts.name,
        "trials": facts.trials,
        "endings": dict(facts.endings),
        "last_utc": facts.last_utc,
        "hosts": list(facts.hosts),
        "hardware": list(facts.hardware),
        "frameworks": list(facts.frameworks),
        "versions": list(facts.versions),
        "answer": gain_object(facts.answer),
        "searches": [
            {"search": one.name, "trials": one.trials, "ended_utc": one.ended_utc, "answer": gain_object(one.result)}
            for one in facts.searches
        ],
        "members": [
            {
                "host": one.host,
                "machine": one.machine,
                "role": one.role.value,
                "search": one.search,
                "phase": one.phase.value,
                "since_utc": one.since_utc.isoformat(timespec="seconds"),
                "renewed_utc": one.renewed_utc.isoformat(timespec="seconds"),
                "left_because": one.left_because,
            }
            for one in facts.members
        ],
    }
