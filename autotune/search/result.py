"""Result of a search: what its own trials say, and the answer that the study gives with them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from autotune.clock import format_duration
from autotune.errors import StudyError
from autotune.events import SearchEnded
from autotune.measure.score import LEAST_PAIRS
from autotune.records import CONFIRMED, SearchResult, Verdict
from autotune.search.answer import answer_of_search, answer_of_study
from autotune.search.finalists import Finalists
from autotune.search.parts import SearchParts
from autotune.search.schedule import CAUTION, MOST_FOR_CONFIRMING
from autotune.search.state import SearchState
from autotune.search.worth import rate, rate_knobs


class Results:
    """Results of one search, worked out from the record each time."""

    def __init__(self, parts: SearchParts, state: SearchState) -> None:
        self._parts = parts
        self._events = parts.events
        self._problem = parts.problem
        self._state = state

    def of_search(self) -> SearchResult | None:
        """Return the answer that this search's own trials give; None without numbers."""
        records, space = self._state.trials.of_study(), self._state.model.space
        return answer_of_search(self._problem, records, self._parts.search, self._parts.study.ratings, space=space)

    def of_study(self) -> SearchResult | None:
        """Return the current answer of the study."""
        return answer_of_study(self._problem, self._state.trials.of_study(), self._parts.study.ratings)

    def confirmed(self) -> SearchResult | None:
        """Return the answer of this search's own trials; None unless it is confirmed."""
        result = self.of_search()
        return result if result is not None and result.verdict in CONFIRMED else None

    def so_far(self) -> SearchResult | None:
        """Return the answer of the study with what this search has measured so far; None without numbers of it.

        The gain from each change is in it where it is known, see `rate`.
        """
        own = self.of_search()
        is_alone = own is None or own.verdict is Verdict.NO_BASELINE or self._state.answer.left_out
        result = own if is_alone else self.of_study()
        if result is None or own is None or result.search == own.search:
            return result
        why, then = f"{result.why}; nothing that this search tried takes its place", result.baseline
        cautions = own.cautions
        if then is not None and then.point != self._state.trials.baseline_point:
            held = ", ".join(f"{path}: {value}" for path, value in then.values.items())
            cautions += (f"It was confirmed against other values than the config holds now: {held}.",)
        return replace(result, why=why, trials=own.trials, outcomes=own.outcomes, cautions=cautions)

    def at_end(self, finalists: Finalists, *, why_not_raced: str, cautions: Sequence[str]) -> SearchResult | None:
        """Return the answer at the end, with what only the search knows, and tell it; None without numbers of it.

        Args:
            why_not_raced: Reason for which an answer that calls for a race was not raced; empty for that of the record.
            cautions: Sentences that its reader should know besides.
        """
        result = self.so_far()
        if result and result.verdict in CONFIRMED and result.best and not self._state.answer.left_out:
            trials_of_all = self._state.trials.of_study()
            if said := self._parts.warm_start.of_answer(result.best.values, trials_of_all, self._problem.space):
                self._events.remark(said)
        elapsed_s = self._parts.budget.elapsed_s()
        changes = {change.path: change.new for change in result.changes} if result else {}
        self._events.publish(
            SearchEnded(
                verdict=result.verdict if result else None,
                trials=len(self._state.trials.own),
                elapsed_s=elapsed_s,
                speedup=result.speedup.ratio if result and result.speedup else None,
                changes=changes,
            )
        )
        return result and replace(
            result,
            gain_of_ten_minutes=self._state.model.gain_of_ten_minutes(),
            budget_enough_s=self._budget_enough_s(result, finalists),
            why_not_raced=result.why_not_raced and (why_not_raced or result.why_not_raced),
            cautions=(*result.cautions, *cautions),
        )

    def _budget_enough_s(self, result: SearchResult, finalists: Finalists) -> float | None:
        """Return the budget of which the shortest full confirmation of the best point takes the share that it may.

        Where pairs did not tell, it is twice as long as today's; None where more time would not tell more.
        """
        budget_s = self._parts.budget.budget_s
        if result.verdict is not Verdict.NO_CHANGE or not (result.candidate or finalists.lacks_time):
            return None
        if (better := self._state.model.better()) and result.speedup is None:
            needed_s = CAUTION * LEAST_PAIRS * finalists.basis().pair_s(better[0]) / MOST_FOR_CONFIRMING
            return max(needed_s, 1.5 * budget_s)
        return 2.0 * budget_s

    def rate(self) -> None:
        """Find the gain from each change, and keep it with the study: nobody else fits a model for it."""
        own = self.of_search()
        known = self._state.trials.of_study(), self._problem.space, self._problem.objective
        rating = own and rate(own, *known)
        if own and rating:
            with suppress(StudyError):  # then others do not see it
                self._parts.study.keep_rating(own.search, rating)
        if own and (knobs := rate_knobs(own, *known)):
            self._events.publish(knobs)

    def tell_when_sure(self) -> None:
        """Tell how long it took to be sure, where exploring has ended early."""
        used, budget = (format_duration(one) for one in (self._parts.budget.elapsed_s(), self._parts.budget.budget_s))
        self._events.remark(f"Sure after {used} of {budget}; --exhaust uses the rest to look for more.")
