"""``autotune search``: the search itself, and its answer, also where ^C or an error ends it early."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.clock import Clock, format_duration
from autotune.commands.invocation import Invocation, Watchdog, where_it_is
from autotune.commands.output import kept_trials, say_aside, say_object
from autotune.commands.parameters import (
    BATCH_LIMIT,
    DURATION,
    GPU_NUMBERS,
    ShortHelp,
    config_option,
    dry_run_option,
    json_option,
    seed_option,
    state_dir_option,
    storage_option,
    warm_start_option,
)
from autotune.errors import AutotuneError, StudyError, TrialError, how_it_ended
from autotune.options import SearchRequest
from autotune.trial.termination import end_by_force_with, interrupted_by, signals_held

if TYPE_CHECKING:
    from autotune.commands.search_run import Finished
    from autotune.records import SearchResult
    from autotune.search.open import OpenSearch
    from autotune.search.problem import Problem
    from autotune.search.trial_maker import Failed


@click.command(
    name="search",
    cls=ShortHelp,
    usual=("config", "budget_s", "apply", "same_training", "batch", "race_s", "report", "dry_run", "json"),
)
@config_option
@click.option("--budget", "budget_s", type=DURATION, default="30m", show_default=True, help="Wall for everything.")
@seed_option
@click.option("--fresh", is_flag=True, help="Start a new record, without a warm start; the old one is kept beside it.")
@warm_start_option
@click.option(
    "--apply/--no-apply",
    default=None,
    help="Write what leaves the training unchanged into the config if it is better, or do not. Default: ask, on a "
    "terminal.",
)
@click.option("--same-training", is_flag=True, help="Turn only knobs that leave the training itself unchanged.")
@click.option(
    "--batch",
    type=BATCH_LIMIT,
    metavar="[Nx|same|free]",
    help="Largest effective batch to try: N times today's (also smaller ones), free for any, same to leave the batch "
    "alone. Default: 4x, or the sizes that knobs: lists.",
)
@click.option("--exhaust", is_flag=True, help="Use the whole budget, also where the answer is sure before that.")
@click.option("--allow-busy-gpu", is_flag=True, help="Search although somebody else is on the GPU.")
@click.option(
    "--validate",
    "validate_s",
    type=DURATION,
    is_flag=False,
    flag_value="2m",
    metavar="[DURATION]",
    help="Train the winner for up to so long (2m) before calling it good: through an epoch's end, an evaluation and a "
    "checkpoint.",
)
@click.option(
    "--race",
    "race_s",
    type=DURATION,
    is_flag=False,
    flag_value="4m",
    metavar="[DURATION]",
    help="Train today's config and the winner in turn for so long in all (4m), and compare their losses: is what is "
    "faster also learning faster? Default: a fifth of a budget of 15m or more, if the batch or the precision changes.",
)
@click.option("--no-race", is_flag=True, help="Leave the race out.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write what was found as one HTML file at the end, as `autotune report` does.",
)
@click.option("--web", is_flag=True, help="Serve a page that shows the search, on this machine alone.")
@click.option(
    "--gpus",
    type=GPU_NUMBERS,
    metavar="[all|0,1,...]",
    help="Search on so many GPUs of this machine at once, each trial on one of them with its share of the cores.",
)
@dry_run_option
@json_option
@state_dir_option
@storage_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(call: Invocation, /, **options: Any) -> int:
    """Finds better values for the knobs of a config: short real trainings, measured, compared, confirmed.

    Starts a study of this config on this machine, or goes on with it. The config itself is not touched before you say
    so (see `autotune apply`). The trainer's command comes from the config's autotune: section, or after --.
    """
    if options.pop("no_race"):
        if options["race_s"] is not None:
            raise click.UsageError("--race and --no-race exclude each other.")
        options["race_s"] = 0.0
    request = SearchRequest(**options)
    if request.dry_run and call.as_json:
        raise click.UsageError("--dry-run is for people and has no JSON form; leave --json out.")
    if request.validate_s is not None or request.race_s:
        from autotune.search.schedule import why_no_time

        if lacking := why_no_time(request):
            raise click.UsageError(f"--{lacking[0]}: {lacking[1]}.")
    clock = call.clock
    answer = SearchAnswer(call, request)
    end_by_force_with(answer.interrupted)
    with Watchdog(request.ends_s(call.started_s), answer.by_force, clock) as watchdog:
        try:
            code = _search(call, request, answer, watchdog, clock)
        except KeyboardInterrupt as interrupt:
            return answer.interrupted(interrupt)
    return code


def _search(call: Invocation, request: SearchRequest, answer: "SearchAnswer", watchdog: Watchdog, clock: Clock) -> int:
    with signals_held():  # within the budget: what is imported here may lie on a disk that hangs
        from autotune.commands.search_plan import show_dry_run
        from autotune.commands.search_run import ask_to_apply, is_question, search_with_display, share_for_search
        from autotune.report.console import text_console
        from autotune.search.problem import open_requested

    along = nullcontext() if request.gpus is None else share_for_search(request, request.gpus, clock)
    problem = open_requested(request)
    if request.dry_run:
        show_dry_run(text_console(), problem, request, clock)
        return 0
    if request.report is not None:
        from autotune.report.html.page import require_report

        require_report(request.report)
    with _page(problem, request, watchdog, clock, started_s=call.started_s):
        try:
            finished = search_with_display(problem, request, call, answer.begin, along=along)
        except AutotuneError:
            _report(problem, request, watchdog, clock)
            raise
        if call.as_json:
            _apply(problem, finished, request, watchdog)  # first, so that a failure is the one object on stdout
        asks = not call.as_json and is_question(request, finished)
        answer.give(finished.result, finished.failures, ended_by=finished.ended_by, without_next=asks)
        if asks:
            watchdog.stand_down()  # the answer is given: from here on time does not count
            ask_to_apply(problem, finished)
        elif not call.as_json:
            _apply(problem, finished, request, watchdog)
        _report(problem, request, watchdog, clock)
        if finished.ended_by:
            call.say_error(finished.ended_by)
        return 1 if finished.ended_by else 0


@contextmanager
def _page(
    problem: "Problem", request: SearchRequest, watchdog: Watchdog, clock: Clock, *, started_s: float
) -> Iterator[None]:
    """Serve the page of the search, if that was asked for, for as long as a ``with`` block lasts."""
    if not request.web:
        yield
        return
    from autotune.commands.daemon import web_module

    page = web_module("server").SearchPage(
        problem.state, problem.config_path, clock, budget_s=request.budget_s, started_s=started_s
    )
    say_aside(f"Page: {page.address}\n      (the address works once, within two minutes, and signs that browser in)")
    with page:
        yield
        watchdog.stand_down()  # the answer is given; pages that are open get it, too


def _report(problem: "Problem", request: SearchRequest, watchdog: Watchdog, clock: Clock) -> None:
    """Write the report, if that was asked for and there is a trial to report; the answer is given by then."""
    if request.report is None:
        return
    from autotune.commands.report_page import contents_of
    from autotune.report.html.page import report_text, write_report

    watchdog.stand_down()
    try:
        contents = contents_of(problem, clock)
    except StudyError:  # nothing was tried at all, which the command says itself
        return
    text = report_text(contents, clock.utc(), request.report)
    say_aside(f"Report: {write_report(request.report, text)}")


def _apply(problem: "Problem", finished: "Finished", request: SearchRequest, watchdog: Watchdog) -> None:
    """Write the answer into the config, if that was asked for and it is better; from here on time does not count."""
    from autotune.commands.search_run import apply_if_better

    watchdog.stand_down()  # somebody may be asked
    if request.apply:
        apply_if_better(problem, finished, must_be_validated=request.validate_s is not None)


class SearchAnswer:
    """Answer of a search as it stands at any moment, and the way it is printed."""

    def __init__(self, call: Invocation, request: SearchRequest) -> None:
        self._call = call
        self._request = request
        self._known: tuple[Problem, OpenSearch] | None = None
        self._clear: Callable[[], None] = lambda: None

    def begin(self, problem: "Problem", search: "OpenSearch", clear: Callable[[], None]) -> None:
        """Take note of the search whose trials the answer is made of, and of what takes its display off the screen."""
        self._known, self._clear = (problem, search), clear

    def give(
        self,
        result: "SearchResult",
        failures: "Sequence[Failed]" = (),
        *,
        ended_by: AutotuneError | None = None,
        without_next: bool = False,
        interrupted: str | None = None,
    ) -> None:
        """Gives an answer, unless one was given already: an object, or the final screen.

        Args:
            failures: Trials that gave no numbers, one for each kind of ending; for people.
            ended_by: What ended the search before its time; None if nothing did.
            without_next: Whether to leave out the next command to type, because a question follows.
            interrupted: What interrupted the search, in words; None if nothing did.
        """
        assert self._known is not None, "what has a result has begun"
        from autotune.commands.apply_answer import changes_to_offer, diff_of
        from autotune.report.json_answer import answer_document
        from autotune.search.open import events_path

        problem, search = self._known
        if said := search.study.calls.undelivered:
            result = replace(result, cautions=(*result.cautions, said))
        elapsed_s = self._call.clock.now_s() - self._call.started_s
        paths = {**problem.place.paths(problem.study), "events": str(events_path(problem, search.name))}

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
        clearing = threading.Thread(target=self._clear, daemon=True)
        clearing.start()
        clearing.join(0.3)  # for a display that may hang as well
        budget = format_duration(self._request.budget_s)
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
                    where=str(self._request.config),
                    remedy="It may be that the budget is too short for this machine, or that something does not answer "
                    "there, such as a disk.",
                )
            )
        interrupt = interrupted_by()
        return how_it_ended(interrupt)[1] if interrupt else int(result is None)

    def _so_far(self, caution: str) -> "SearchResult | None":
        if self._known is None:
            return None
        _, search = self._known
        try:
            result = search.tuner.answer_so_far()
        except Exception:  # noqa: BLE001 -- the command has to end, and to say that it did, whatever is in the record
            return None
        return result and replace(result, cautions=(*result.cautions, caution))

    def _kept(self) -> str:
        if self._known is None:
            return ""
        _, search = self._known
        kept = sum(trial.search == search.search for trial in search.study.records())
        return f"; {kept_trials(kept)}, the same command goes on"
