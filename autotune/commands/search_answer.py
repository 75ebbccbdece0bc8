"""The answer of a search: given at its end, or before that by what ends it, ^C or the watchdog."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.clock import format_duration
from autotune.commands.invocation import Invocation, where_it_is
from autotune.commands.output import kept_trials, say_aside, say_object
from autotune.errors import AutotuneError, TrialError, how_it_ended
from autotune.records import SearchResult
from autotune.report.json_answer import answer_document
from autotune.trial.termination import interrupted_by

if TYPE_CHECKING:
    from autotune.clock import Clock
    from autotune.report.answer import Failure
    from autotune.search.open import OpenSearch
    from autotune.search.problem import Problem


class SearchAnswer:
    """Answer of a search as it stands at any moment, and the way it is printed.

    Attributes:
        clear: Takes the live display off the screen; does nothing where there is none.
    """

    def __init__(self, call: Invocation, config: Path, budget_s: float, clock: "Clock") -> None:
        self._call = call
        self._config = config
        self._budget_s = budget_s
        self._clock = clock
        self._known: tuple[Problem, OpenSearch] | None = None
        self.clear: Callable[[], None] = lambda: None

    def begin(self, problem: "Problem", search: "OpenSearch") -> None:
        """Take note of the search whose trials the answer is made of."""
        self._known = (problem, search)

    def give(
        self,
        result: SearchResult,
        failures: "Sequence[Failure]" = (),
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
        from autotune.search.open import events_path

        problem, search = self._known
        if said := search.study.calls.undelivered:
            result = replace(result, cautions=(*result.cautions, said))
        elapsed_s = self._clock.now_s() - self._call.started_s
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

    def _clear(self) -> None:
        clearing = threading.Thread(target=self.clear, daemon=True)
        clearing.start()
        clearing.join(0.3)  # for a display that may hang as well
