"""Steps of ``autotune search``: opening the problem, searching with a live display, and applying the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from autotune.clock import Clock, format_duration
from autotune.commands.apply_answer import apply_values, changes_to_offer
from autotune.commands.invocation import Invocation
from autotune.commands.printing import ask, forget_typed, is_attended, say_aside, say_object
from autotune.commands.showing import SearchRequest, failures, show_plan
from autotune.commands.watchdog import where_it_is
from autotune.config.typed import typed_tokens
from autotune.errors import AutotuneError, ToldToEnd, TrialError, how_it_ended
from autotune.records import ChangeSet, SearchResult
from autotune.report.answer import Failure, print_failures, print_next_step
from autotune.report.console import text_console
from autotune.report.json_answer import answer_document
from autotune.report.live import SearchDisplay
from autotune.report.race_notes import why_it_may_learn_more_slowly
from autotune.search.batch_limits import limited
from autotune.search.open import OpenSearch, SearchOptions, open_search
from autotune.search.problem import Problem, open_problem
from autotune.trial.search_child import Lifeline
from autotune.trial.termination import interrupted_by

if TYPE_CHECKING:
    from autotune.clock import Clock
    from autotune.report.answer import Failure
    from autotune.search.open import OpenSearch
    from autotune.search.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A search that came to its end.

    Attributes:
        result: The answer.
        changes: What the answer changes in the config; None if there is nothing to write.
        failures: Trials that gave no numbers, one for each kind of ending.
        ended_by: Error that ended it before its time; None if there was none.
    """

    result: SearchResult
    changes: ChangeSet | None
    failures: list[Failure]
    ended_by: AutotuneError | None


def open_requested(request: SearchRequest) -> Problem:
    """Open the problem that a request names.

    Raises:
        AutotuneError: It cannot be searched as it is.
    """
    command = typed_tokens(request.trainer, request.config, Path.cwd())
    problem = open_problem(
        request.config,
        command=command,
        state_dir=request.state_dir,
        storage=request.storage,
    )
    problem = limited(problem, same_training=request.same_training, batch=request.batch)
    problem.require_runnable()
    return problem


def search_with_display(
    problem: Problem, request: SearchRequest, answer: SearchAnswer, clock: Clock, *, started_s: float
) -> Finished:
    """Show what a search is about to do, and search, with a live display on stderr.

    Args:
        problem: What is tuned; runnable.
        request: Budget and the like.
        answer: Told of the search as soon as it has a record, so that whatever ends it early can answer from that.
        clock: The machine's clock.
        started_s: When the process started, on the clock's monotonic time; the budget counts from there.

    Raises:
        AutotuneError: The search cannot begin, or no trial gave numbers.
    """
    progress = text_console(stderr=True)
    show_plan(progress, problem, request)
    options = SearchOptions(
        budget_s=request.budget_s,
        started_s=started_s,
        seed=request.seed,
        fresh=request.fresh,
        warm_start=request.warm_start,
        allow_busy_gpu=request.allow_busy_gpu,
        sampler=request.sampler,
        validate_s=request.validate_s,
        race_s=request.asked_race_s,
        lifeline=Lifeline.of_environment(),
    )
    display = SearchDisplay(progress, clock, started_s=started_s, budget_s=request.budget_s)
    with open_search(problem, options, clock, display) as search:
        answer.begin(problem, search)
        answer.clear = display.close
        result = _result(search, display, progress)
    if problem.config_changed():
        progress.print(
            f"{request.config} was changed during the search; the answer is for the file as it was at the start.",
            soft_wrap=True,
        )
    tuner = search.tuner
    changes = changes_to_offer(problem, search.study.name, search.study.records(), result)
    return Finished(
        result=result, changes=changes, failures=failures(tuner.failures, result.outcomes), ended_by=tuner.ended_by
    )


def apply_if_better(
    problem: Problem, finished: Finished, *, must_be_validated: bool = False, is_accepted: bool = False
) -> None:
    """Write the best values of a search into the config, if they are better than the baseline.

    Args:
        problem: What was tuned.
        finished: The search.
        must_be_validated: Whether they have to have come through a validation trial.
        is_accepted: Whether somebody has said yes, who knows that they may learn more slowly.

    Raises:
        AutotuneError: They cannot be written, or the config was edited and nobody is there to ask.
    """
    result = finished.result
    if finished.changes is not None:
        if must_be_validated and result.validation is None:
            text_console(stderr=True).print("Not applied: the answer is not validated, see above.")
            return
        if result.may_learn_more_slowly and not is_accepted:
            why = why_it_may_learn_more_slowly(result)
            remedy = f"`{problem.typed.command('apply')}` asks; with --race in the search, it is known."
            text_console(stderr=True).print(f"Not applied. {why} {remedy}", soft_wrap=True)
            return
        apply_values(problem, finished.changes, text_console(stderr=True))


def _result(search: OpenSearch, display: SearchDisplay, console: Console) -> SearchResult:
    """Search; where that ends in an error, show the output of the trials that failed."""
    try:
        with display:
            return search.run()
    except AutotuneError:
        print_failures(console, failures(search.tuner.failures, search.tuner.outcomes))
        raise


_CLEARING_S = 0.3  # for a display that may hang as well


class SearchAnswer:
    """Answer of a search as it stands at any moment, and the way it is printed.

    Args:
        call: Of the command; answers once.
        config: The config as it was typed.
        budget_s: The whole budget.
        clock: The machine's clock.

    Attributes:
        clear: Takes the live display off the screen; does nothing where there is none.
    """

    def __init__(self, call: Invocation, config: Path, budget_s: float, clock: Clock) -> None:
        self._call = call
        self._config = config
        self._budget_s = budget_s
        self._clock = clock
        self._known: tuple[Problem, OpenSearch] | None = None
        self.clear: Callable[[], None] = lambda: None

    def begin(self, problem: Problem, search: OpenSearch) -> None:
        """Take note of the search whose trials the answer is made of.

        Args:
            problem: What is tuned.
            search: The search.
        """
        self._known = (problem, search)

    def give(
        self,
        result: SearchResult,
        failures: Sequence[Failure] = (),
        *,
        ended_by: AutotuneError | None = None,
        without_next: bool = False,
        interrupted: str | None = None,
    ) -> None:
        """Gives an answer, unless one was given already: an object, or the final screen.

        Args:
            result: The answer.
            failures: Trials that gave no numbers, one for each kind of ending; for people.
            ended_by: What ended the search before its time; None if nothing did.
            without_next: Whether to leave out the next command to type, because a question follows.
            interrupted: What interrupted the search, in words; None if nothing did.
        """
        assert self._known is not None, "what has a result has begun"
        from autotune.commands.apply_answer import changes_to_offer, diff_of
        from autotune.search.open import events_path

        problem, search = self._known
        if said := search.study.undelivered:
            result = replace(result, cautions=(*result.cautions, said))
        elapsed_s = self._clock.now_s() - self._call.started_s
        paths = {**problem.paths(problem.study), "events": str(events_path(problem, search.name))}

        changes = changes_to_offer(problem, search.study.name, search.study.records(), result)

        def say() -> None:
            if self._call.as_json:
                document = answer_document(
                    result,
                    elapsed_s=elapsed_s,
                    study=search.study.name,
                    paths=paths,
                    answer=changes,
                    diff=diff_of(problem, changes),
                    interrupted=interrupted,
                    ended_by=ended_by,
                )
                say_object(document, indent=2)
            else:
                from autotune.report.answer import print_answer
                from autotune.report.console import text_console

                print_answer(
                    text_console(),
                    result,
                    typed=problem.typed,
                    elapsed_s=elapsed_s,
                    failures=failures,
                    without_next=without_next,
                    answer=changes.id if changes and result.is_apart else None,
                )

        self._call.answer(say)

    def interrupted(self, interrupt: BaseException) -> int:
        """Ends the search in order, because of ^C or SIGTERM; scripts get the answer so far.

        Returns:
            The exit code.
        """
        word, code = how_it_ended(interrupt)
        result = self._so_far(f"The search was {word}; the answer is from the trials that had finished.")
        if result is None or not self._call.as_json:
            self._call.ended_early(f"{word}{self._kept()}")
        else:
            say_aside(f"autotune: {word}{self._kept()}")
            self.give(result, interrupted=word)
        return code

    def by_force(self) -> int:
        """Answers in the place of a search that does not end.

        Returns:
            The exit code.
        """
        self._clear()
        budget = format_duration(self._budget_s)
        result = self._so_far(
            f"The search did not end with its budget of {budget}, and was ended by force {where_it_is()}; the answer "
            "is from the trials that had finished."
        )
        if result is not None:
            self.give(result)
        else:
            self._call.fail(
                TrialError(
                    f"nothing was measured within the budget of {budget}, and the command was still at work "
                    f"{where_it_is()}: ended by force",
                    where=str(self._config),
                    remedy="It may be that the budget is too short for this machine, or that something does not answer "
                    "there, such as a disk.",
                )
            )
        interrupt = interrupted_by()
        return how_it_ended(interrupt)[1] if interrupt else int(result is None)

    def _so_far(self, caution: str) -> SearchResult | None:
        """The answer from the trials of this search that have finished; None if they gave no numbers."""
        if self._known is None:
            return None
        _, search = self._known
        try:
            result = search.tuner.answer_so_far(rates_changes=False)  # there is no time to fit a model
        except Exception:  # noqa: BLE001 -- the command has to end, and to say that it did, whatever is in the record
            return None
        return result and replace(result, cautions=(*result.cautions, caution))

    def _kept(self) -> str:
        if self._known is None:
            return ""
        _, search = self._known
        kept = sum(trial.search == search.search for trial in search.study.records())
        return f"; {kept} finished trials are kept, the same command goes on"

    def _clear(self) -> None:
        clearing = threading.Thread(target=self.clear, daemon=True)
        clearing.start()
        clearing.join(_CLEARING_S)


# Question at the end of a search on a terminal: whether its answer goes into the config.


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
