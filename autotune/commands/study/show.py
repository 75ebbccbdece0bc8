"""``autotune study show``: one study, from its record."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.study.opened import study_options
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.study.members import Member


@click.command(name="show")
@study_options
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
) -> int:
    """Shows one study: machines and versions, searches with what they found, trials by ending, who works on it."""
    with signals_held():
        from autotune.commands.printing import say_object
        from autotune.commands.study.list import facts_object, gain_text
        from autotune.commands.study.opened import chosen_study, open_place
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


def _state(member: "Member", now: datetime) -> str:
    """Return what a member does, or what became of it."""
    if member.has_left or member.seems_at_work(now):
        return member.phase.value + (f" ({member.left_because})" if member.left_because else "")
    return f"no sign of life since {member.renewed_utc:%Y-%m-%d %H:%M} UTC"
