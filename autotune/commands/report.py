"""``autotune report``."""

from pathlib import Path
from typing import Any

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_option, place_options
from autotune.trial.termination import signals_held


@click.command(name="report")
@config_option
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Output file (default: in the state folder); - is stdout, *.md is Markdown.",
)
@click.option(
    "--diagnosis",
    type=click.Path(path_type=Path, exists=True),
    help="Diagnosis to include: file of `diagnose --json`, or its --out folder.",
)
@place_options
@click.pass_obj
def command(call: Invocation, /, *, out: Path | None, diagnosis: Path | None, **study: Any) -> int:
    """Write an HTML report of a config's study, with plots.

    Works offline, during a search, and after a failed one. Replaces only reports.
    """
    with signals_held():
        from autotune.commands.output import say, say_document, say_remarks
        from autotune.commands.report_page import contents_of, read_diagnosis
        from autotune.report.html.page import STDOUT, report_text, write_report
        from autotune.search.problem import open_problem

    problem = open_problem(command=None, **study)
    say_remarks(problem.state.remarks)
    diagnosed = read_diagnosis(diagnosis) if diagnosis is not None else None
    text = report_text(contents_of(problem, call.clock, diagnosed), call.clock.utc(), out)
    if out == STDOUT:
        say_document(text)
    else:
        place = out if out is not None else problem.state.path / f"{problem.config_path.stem}-report.html"
        say(str(write_report(place, text)))
    return 0
