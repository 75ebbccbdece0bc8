"""``autotune study list`` and ``show``: the studies of a storage, and one of them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.parameters import (
    config_if_any_option,
    json_option,
    state_dir_option,
    storage_option,
    study_options,
)
from autotune.records import SearchResult, Verdict
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.study.members import Member
    from autotune.study.travel import StudyFacts


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
        from autotune.commands.study.place import open_place
        from autotune.errors import StudyError
        from autotune.report.console import text_console
        from autotune.report.plain_text import plain
        from autotune.study.travel import describe_study

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


@click.command(name="show")
@study_options
@click.pass_obj
def show_command(
    call: Invocation,
    /,
    *,
    config: Path | None,
    study: str | None,
    as_json: bool,
    state_dir: Path | None,
    storage: str | None,
) -> int:
    """Shows one study: machines and versions, searches with what they found, trials by ending, who works on it."""
    with signals_held():
        from autotune.commands.printing import say_object
        from autotune.commands.study.place import chosen_study, open_place
        from autotune.report.console import text_console
        from autotune.report.plain_text import plain
        from autotune.study.members import hosts_told_apart
        from autotune.study.travel import describe_study

    place = open_place(config, state_dir, storage)
    name = chosen_study(place, study)
    facts = describe_study(name, place.storage, objective=place.problem.objective if place.problem else None)
    if as_json:
        call.answer(lambda: say_object({**facts_object(facts), "where": place.storage.where(name)}, indent=2))
        return 0
    now = SystemClock().utc()
    names = hosts_told_apart((one.machine, one.host) for one in facts.members)
    going_on = {one.search for one in facts.members if one.seems_at_work(now)}
    endings = ", ".join(f"{count} {ending}" for ending, count in sorted(facts.endings.items()))
    lines = [
        f"Study {name} in {place.storage.where(name)}",
        f"{facts.trials} trials" + (f": {endings}" if endings else ""),
        *(f"Hardware: {one}" for one in facts.hardware),
        f"Hosts: {', '.join(facts.hosts) or 'none'}",
        *(f"Frameworks: {one}" for one in facts.frameworks),
        f"Made by autotune {', '.join(facts.versions) or '?'}",
        "",
        *(
            f"{one.ended_utc}  {one.name}: {one.trials} trials, "
            + ("it goes on" if one.name in going_on else gain_text(one.result))
            for one in facts.searches
        ),
        "",
        *(
            f"{one.role.value} on {names[one.machine]} since {one.since_utc:%Y-%m-%d %H:%M} UTC: {_state(one, now)}"
            for one in facts.members
        ),
    ]
    console = text_console()
    for line in lines:
        console.print(plain(line, longest=1000), soft_wrap=True)
    if not facts.members:
        console.print("Nobody is known to have worked on it from here.", soft_wrap=True)
    return 0


def _state(member: Member, now: datetime) -> str:
    if member.has_left or member.seems_at_work(now):
        return member.phase.value + (f" ({member.left_because})" if member.left_because else "")
    return f"no sign of life since {member.renewed_utc:%Y-%m-%d %H:%M} UTC"
