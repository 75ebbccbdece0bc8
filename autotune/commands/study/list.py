"""``autotune study list``: the studies of a storage."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_if_any_option, json_option, state_dir_option, storage_option
from autotune.process.termination import signals_held


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
        from autotune.commands.study.wording import facts_object, gain_text
        from autotune.errors import StudyError
        from autotune.report.console import text_console
        from autotune.report.plain_text import plain
        from autotune.study.travel.description import StudyFacts, describe_study

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
