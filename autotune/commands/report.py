"""``autotune report``: a study as one HTML file."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_option, state_dir_option, storage_option
from autotune.trial.termination import signals_held


@click.command(name="report")
@config_option
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="The file (default: in the folder of the config's state), or - for stdout; Markdown, for a pull request, "
    "where it ends in .md. What is no report is not replaced.",
)
@click.option(
    "--against",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="CONFIG|STUDY",
    help="Set this study beside another one: of a config, or of a name that `autotune study list` shows.",
)
@click.option(
    "--diagnosis",
    type=click.Path(path_type=Path, exists=True),
    help="What `autotune diagnose` found: its --json object in a file, or its --out folder.",
)
@state_dir_option
@storage_option
@click.pass_obj
def command(
    call: Invocation,
    config: Path,
    out: Path | None,
    against: tuple[Path, ...],
    diagnosis: Path | None,
    state_dir: Path | None,
    storage: str | None,
) -> int:
    """Writes what is known of a config's study into one HTML file: to keep, to print, to send to somebody.

    It needs no network and runs nothing. It can be made while a search goes on, and of one that failed.
    """
    with signals_held():
        from autotune.commands.output import say, say_document, say_remarks
        from autotune.commands.report_page import (
            STDOUT,
            contents_of,
            contents_of_other,
            read_diagnosis,
            report_path,
            report_text,
            write_report,
        )
        from autotune.search.problem import open_problem

    problem = open_problem(config, command=None, state_dir=state_dir, storage=storage)
    say_remarks(problem.state.remarks)
    clock = call.clock
    advice = read_diagnosis(diagnosis) if diagnosis is not None else None
    contents = [contents_of(problem, clock, advice), *(contents_of_other(other, problem, clock) for other in against)]
    text = report_text(contents, clock, out)
    if out == STDOUT:
        say_document(text)
    else:
        say(str(write_report(report_path(problem, out), text)))
    return 0
