"""Question at the end of a search on a terminal: whether its answer goes into the config."""

import click

from autotune.commands.printing import ask, forget_typed, is_attended
from autotune.commands.search_request import SearchRequest
from autotune.commands.searching import Finished, apply_if_better
from autotune.errors import ToldToEnd
from autotune.problem.problem import Problem
from autotune.process.termination import interrupted_by
from autotune.report.answer import print_next_step
from autotune.report.console import text_console
from autotune.report.race_notes import why_it_may_learn_more_slowly


def is_question(request: SearchRequest, finished: Finished) -> bool:
    """Return whether to ask: the answer is better, and validated if it had to be, and somebody is there to be asked."""
    if request.apply is not None or request.as_json or finished.ended_by is not None:
        return False
    result = finished.result
    lacks_validation = request.validate_s is not None and result.validation is None
    return finished.changes is not None and not lacks_validation and is_attended()


def ask_to_apply(problem: Problem, finished: Finished) -> None:
    """Ask, write the best values into the config after a yes, and print the next command to type.

    ^C and the end of the input mean no.

    Raises:
        AutotuneError: The values cannot be written.
        ToldToEnd: SIGTERM came instead of an answer.
    """
    config, result, is_applied = problem.config_path, finished.result, False
    try:
        forget_typed()
        why = f"{why_it_may_learn_more_slowly(result)} " if result.may_learn_more_slowly else ""
        if ask(f"{why}Apply these values to {config}?"):
            apply_if_better(problem, finished, is_accepted=True)
            is_applied = True
    except (click.Abort, KeyboardInterrupt):
        text_console(stderr=True).print()  # the line of the question has not ended
    text_console().print()
    named = finished.changes.id if finished.changes and result.is_apart else None
    print_next_step(text_console(), result, typed=problem.typed, applied=is_applied, answer=named)
    if isinstance(interrupt := interrupted_by(), ToldToEnd):
        raise interrupt
