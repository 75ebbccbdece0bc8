"""``autotune status``: what is known so far."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_option, json_option, state_dir_option
from autotune.commands.printing import say_object
from autotune.process.termination import signals_held

if TYPE_CHECKING:
    from autotune.records import Values
    from autotune.results import SearchResult
    from autotune.search.problem import Setup
    from autotune.study.record import Study


_SHOWN_RUNS = 20


@click.command(name="status")
@config_option
@json_option
@state_dir_option
@click.pass_obj
def command(call: Invocation, config: Path, as_json: bool, state_dir: Path | None) -> int:
    """Shows what the record of this config's study says: the same answer as the last search gave."""
    with signals_held():
        from autotune.commands.showing import show_remarks
        from autotune.events import RunEnded
        from autotune.report.answer import print_answer
        from autotune.report.console import text_console
        from autotune.report.json_answer import answer_document
        from autotune.report.lines import plain, run_line
        from autotune.results import Verdict
        from autotune.search.problem import open_setup

    setup = open_setup(config, command=None, state_dir=state_dir)
    show_remarks(setup.state)
    study, result = known_answer(setup)
    if as_json:
        paths = {"journal": str(study.path), "runs": str(setup.state.runs(study.name))}
        document = answer_document(result, elapsed_s=None, study=study.name, paths=paths)
        call.answer(lambda: say_object(document, indent=2))
    else:
        console = text_console()
        runs = study.records()
        shown = runs[-_SHOWN_RUNS:]
        today = result.baseline.values if result.baseline else {}
        console.print(f"Study {study.name}: {len(runs)} runs" + (f", the last {len(shown)}:" if shown != runs else ":"))
        for run in shown:
            changes = {path: value for path, value in run.values.items() if today.get(path) != value}
            console.print(run_line(RunEnded(run=run, changes=changes, speedup=None)), no_wrap=True, overflow="ellipsis")
        best = result.best.values if result.best and result.verdict is not Verdict.NO_CHANGE else None
        applied = best is not None and not _differing(setup, best)
        if not applied and (edits := _differing(setup, today)):
            console.print(
                f"\nEdited since that search: {plain('; '.join(edits))}. What follows is for the values of then.",
                soft_wrap=True,
            )
        print_answer(console, result, config=str(config), elapsed_s=None, applied=applied)
    return 0


def _differing(setup: "Setup", values: "Values") -> list[str]:
    """The keys that hold something else now, in words."""
    from autotune.report.lines import value_text
    from autotune.space.knob import same_scalar

    now = setup.space.today
    return [
        f"{path} is {value_text(now[path])}, it was {value_text(value)}"
        for path, value in values.items()
        if path in now and not same_scalar(now[path], value)
    ]


def known_answer(setup: "Setup") -> "tuple[Study, SearchResult]":
    """What the record says of a config.

    Raises:
        StudyError: There is no record, or no run in it gave numbers.
    """
    with signals_held():
        from autotune.errors import StudyError
        from autotune.study.identity import frameworks_text
        from autotune.study.record import Study
        from autotune.study.summary import latest_search, summarize

    remedy = f"Run: autotune search --config {setup.config_path} --budget 30m"
    known = setup.known_study()
    if known is None:
        why = "nothing is known about this config on this machine yet"
        if other := setup.study_of_other_frameworks():
            why += (
                f" with {frameworks_text(setup.conditions) or 'the frameworks as they are'}; study {other} is of others"
            )
        raise StudyError(why, where=str(setup.config_path), remedy=remedy)
    study = Study(known, setup.state.studies / f"{known}.journal")
    search = latest_search(study.records(), setup.objective)
    result = search and summarize(
        study.records(), search, setup.space, objective=setup.objective, why_no_gpu=setup.why_no_gpu
    )
    if not result:
        raise StudyError("no run of this config has given numbers yet", where=str(study.path), remedy=remedy)
    if not setup.command and (versions := frameworks_text(study.records()[-1].conditions)):
        unknown = f"Measured with {versions}; whether training uses that is not known, as the config has no command."
        result = replace(result, cautions=(*result.cautions, unknown))
    return study, result
