"""Narrator of a search: tells its consumers the events, the remarks on the trainer, and which point is best."""

from collections import deque
from collections.abc import Callable, Iterable

from autotune.events import Event, IncumbentChanged, PhaseChanged, Remark
from autotune.records import Values
from autotune.score import Objective
from autotune.search.state import SearchState


class Narrator:
    """Narrator of one search.

    Args:
        consumers: Told every event, one after the other.
        remarks: Sentences for the user that come up meanwhile; taken off, and told after the next event.
    """

    def __init__(self, consumers: Iterable[Callable[[Event], None]], remarks: deque[str]) -> None:
        self._consumers = tuple(consumers)
        self._remarks = remarks
        self._best_name: str | None = None
        self._least = 1.0

    def tell(self, event: Event) -> None:
        """Tell an event, and the remarks that have come up."""
        for consumer in self._consumers:
            consumer(event)
        while self._remarks:
            self.tell(Remark(text=self._remarks.popleft()))

    def tell_phase(self, phase: str, why: str) -> None:
        """Tell that a phase begins, or something of it changes, with the reason."""
        self.tell(PhaseChanged(phase=phase, why=why))

    def tell_standing(self, values: Values, changes: Values, speedup: float, name: str) -> None:
        """Tell the answer that the study stands by, as it was confirmed; a point is best from now on if it is faster.

        Args:
            values: Its values.
            changes: Those that differ from today's.
            speedup: Its confirmed speed over today's.
            name: Name of the point.
        """
        self._best_name, self._least = name, max(1.0, speedup)
        self.tell(IncumbentChanged(values=values, changes=changes, speedup=speedup))

    def tell_incumbent(self, state: SearchState, objective: Objective) -> None:
        """Tell which point is best, if that is another one than the last that was told.

        Args:
            state: What the search knows.
            objective: What makes a point better.
        """
        better = state.better()
        if not better or better[0].observation.name == self._best_name:
            return
        best = better[0].observation
        speedup = state.speedup([trial for trial in state.trials if trial.point == best.name])
        # The model may still believe in a point whose own trials were slow: no news for the user.
        if speedup is not None and (speedup > self._least or objective.by_utilization):
            self._best_name, self._least = best.name, 1.0
            self.tell(IncumbentChanged(values=best.values, changes=state.space.changes(best.values), speedup=speedup))
