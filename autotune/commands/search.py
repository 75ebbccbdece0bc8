"""``autotune search``: the search and its answer, also after an interrupt."""

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
    place_options,
    seed_option,
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
@click.option("--budget", "budget_s", type=DURATION, default="30m", show_default=True, help="Total time limit.")
@seed_option
@click.option("--fresh", is_flag=True, help="Start a new record without warm start; archive the old one.")
@warm_start_option
@click.option(
    "--apply/--no-apply",
    default=None,
    help="Write a better answer that leaves the training unchanged (default: ask, on a terminal).",
)
@click.option("--same-training", is_flag=True, help="Tune only knobs that leave the training unchanged.")
@click.option(
    "--batch",
    type=BATCH_LIMIT,
    metavar="[Nx|same|free]",
    help="Largest effective batch: N times today's, free, or same (default: 4x, or the sizes in knobs:).",
)
@click.option("--exhaust", is_flag=True, help="Use the whole budget, even after the answer is confirmed.")
@click.option("--allow-busy-gpu", is_flag=True, help="Search although the GPU is busy.")
@click.option(
    "--validate",
    "validate_s",
    type=DURATION,
    is_flag=False,
    flag_value="2m",
    metavar="[DURATION]",
    help="Validate the winner in a longer training (2m).",
)
@click.option(
    "--race",
    "race_s",
    type=DURATION,
    is_flag=False,
    flag_value="4m",
    metavar="[DURATION]",
    help="Race today's config and the winner on the loss (4m; default: a fifth of a budget of 15m or more).",
)
@click.option("--no-race", is_flag=True, help="Skip the race.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write an HTML report at the end, as `autotune report` does.",
)
@click.option("--web", is_flag=True, help="Serve a web page of the search, on localhost only.")
@click.option(
    "--gpus",
    type=GPU_NUMBERS,
    metavar="[all|0,1,...]",
    help="Run trials on these GPUs in parallel, dividing the cores.",
)
@dry_run_option
@json_option
@place_options
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(call: Invocation, /, **options: Any) -> int:
    """Find better values for a config in short trials of its trainer, and confirm them.

    Starts or resumes the config's study. Edits the config only with your consent. The trainer's command is that of the
    config's autotune: section, or follows --.
    """
    if options.pop("no_race"):
        if options["race_s"] is not None:
            raise click.UsageError("--race conflicts with --no-race.")
        options["race_s"] = 0.0
    request = SearchRequest(**options)
    if request.dry_run and call.as_json:
        raise click.UsageError("--dry-run conflicts with --json.")
    if request.validate_s is not None or request.race_s:
        from autotune.search.schedule import why_no_time

        if lacking := why_no_time(request):
            raise click.UsageError(f"--{lacking[0]}: {lacking[1]}.")
    answer = SearchAnswer(call, request)
    end_by_force_with(answer.interrupted)
    with Watchdog(request.ends_s(call.started_s), answer.by_force, call.clock) as watchdog:
        try:
            return _search(call, request, answer, watchdog)
        except KeyboardInterrupt as interrupt:
            return answer.interrupted(interrupt)


def _search(call: Invocation, request: SearchRequest, answer: "SearchAnswer", watchdog: Watchdog) -> int:
    with signals_held():  # within the watchdog: imports may hang on a network disk
        from autotune.commands.search_plan import show_dry_run
        from autotune.commands.search_run import ask_to_apply, is_question, search_with_display, share_for_search
        from autotune.report.console import text_console
        from autotune.search.problem import open_requested

    workers = nullcontext() if request.gpus is None else share_for_search(request, request.gpus, call.clock)
    problem = open_requested(request)
    if request.dry_run:
        show_dry_run(text_console(), problem, request, call.clock)
        return 0
    if request.report is not None:
        from autotune.report.html.page import require_report

        require_report(request.report)
    with _page(problem, request, call, watchdog):
        try:
            finished = search_with_display(problem, request, call, answer.begin, workers=workers)
        except AutotuneError:
            _report(problem, request, watchdog, call.clock)
            raise
        if call.as_json:
            _apply(problem, finished, request, watchdog)  # first, so that a failure is the one object on stdout
        asks = not call.as_json and is_question(request, finished)
        answer.give(finished.result, finished.failures, ended_by=finished.ended_by, without_next=asks)
        if asks:
            watchdog.stand_down()  # the answer is given: the time limit no longer applies
            ask_to_apply(problem, finished)
        elif not call.as_json:
            _apply(problem, finished, request, watchdog)
        _report(problem, request, watchdog, call.clock)
        if finished.ended_by:
            call.say_error(finished.ended_by)
        return 1 if finished.ended_by else 0


@contextmanager
def _page(problem: "Problem", request: SearchRequest, call: Invocation, watchdog: Watchdog) -> Iterator[None]:
    """Serve the web page during a ``with`` block."""
    if not request.web:
        yield
        return
    from autotune.commands.daemon import web_module

    page = web_module("server").SearchPage(
        problem.state, problem.config_path, call.clock, budget_s=request.budget_s, started_s=call.started_s
    )
    say_aside(f"Page: {page.address}\n      (works once, within two minutes, and logs that browser in)")
    with page:
        yield
        watchdog.stand_down()  # the answer is given; open pages receive it as well


def _report(problem: "Problem", request: SearchRequest, watchdog: Watchdog, clock: Clock) -> None:
    """Write the report, after the answer, if there is a trial."""
    if request.report is None:
        return
    from autotune.commands.report_page import contents_of
    from autotune.report.html.page import report_text, write_report

    watchdog.stand_down()
    try:
        contents = contents_of(problem, clock)
    except StudyError:  # no trial ran; the command reports that
        return
    text = report_text(contents, clock.utc(), request.report)
    say_aside(f"Report: {write_report(request.report, text)}")


def _apply(problem: "Problem", finished: "Finished", request: SearchRequest, watchdog: Watchdog) -> None:
    """Write a better answer into the config, without time limit."""
    from autotune.commands.search_run import apply_if_better

    watchdog.stand_down()  # a question may wait for the user
    if request.apply:
        apply_if_better(problem, finished, must_be_validated=request.validate_s is not None)


class SearchAnswer:
    """Printer of a search's answer, also unfinished."""

    def __init__(self, call: Invocation, request: SearchRequest) -> None:
        self._call = call
        self._request = request
        self._known: tuple[Problem, OpenSearch] | None = None
        self._clear: Callable[[], None] = lambda: None

    def begin(self, problem: "Problem", search: "OpenSearch", clear: Callable[[], None]) -> None:
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
        """Print an answer, unless there was one; without the next command if a question follows.

        Args:
            failures: One failed trial per kind of ending.
        """
        assert self._known is not None, "begin comes first"
        from autotune.commands.apply_answer import changes_to_offer, diff_of, name_to_apply
        from autotune.report.json_answer import answer_document
        from autotune.search.open import events_path

        problem, search = self._known
        if caution := search.study.calls.undelivered:
            result = replace(result, cautions=(*result.cautions, caution))
        elapsed_s = self._call.clock.now_s() - self._call.started_s
        paths = {**problem.place.paths(problem.study), "events": str(events_path(problem, search.name))}

        changes = changes_to_offer(problem, search.study.name, search.study.records(), result)

        def show() -> None:
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
                    answer=name_to_apply(problem, search.study, result),
                )

        self._call.answer(show)

    def interrupted(self, interrupt: BaseException) -> int:
        """End the search after ^C or SIGTERM; return the exit code."""
        word, code = how_it_ended(interrupt)
        result = self._so_far(f"The search was {word}; the answer is from its finished trials.")
        if result is None or not self._call.as_json:
            self._call.ended_early(f"{word}{self._kept()}")
        else:
            say_aside(f"autotune: {word}{self._kept()}")
            self.give(result, interrupted=word)
        return code

    def by_force(self) -> int:
        """Answer for a search that exceeded its budget; return the exit code."""
        clearing = threading.Thread(target=self._clear, daemon=True)
        clearing.start()
        clearing.join(0.3)  # the display may hang as well
        budget = format_duration(self._request.budget_s)
        result = self._so_far(
            f"The search exceeded its budget of {budget}, and was killed {where_it_is()}; the answer is from its "
            "finished trials."
        )
        if result is not None:
            self.give(result)
        else:
            self._call.fail(
                TrialError(
                    f"killed at the end of the budget of {budget}, without a measurement; it was still running "
                    f"{where_it_is()}",
                    where=str(self._request.config),
                    remedy="The budget may be too short for this machine, or something, such as a disk, may hang.",
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
        except Exception:  # noqa: BLE001 -- the command must end with a message, even if the record is damaged
            return None
        return result and replace(result, cautions=(*result.cautions, caution))

    def _kept(self) -> str:
        if self._known is None:
            return ""
        _, search = self._known
        kept = sum(trial.search == search.search for trial in search.study.records())
        return f"; {kept_trials(kept)}, the same command resumes"
