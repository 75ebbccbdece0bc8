"""Contract suite of `Runner`, for the real runners and their fakes.

The suite is a class of tests; a test module subclasses it as ``Test...`` and supplies the runner and its plans::

    class TestProcessRunner(RunnerContract):
        def opened(self): ...
        def plan(self, behaviour, folder): ...
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path

from autotune.clock import Clock
from autotune.records import Stop, TraineeEvent, TrialPlan
from autotune.trial.launch import Runner


class Behaviour(StrEnum):
    """Behaviour of a trainer that a `Runner` is tested with."""

    ENDS_WELL = "ends well"  # reports 5 steps, then ends with status 0
    FAILS = "fails"  # reports 5 steps, then ends with status 3
    TRAINS_ON = "trains on"  # reports steps until it is stopped
    IS_SILENT = "is silent"  # reports nothing, and goes on until it is stopped


class RunnerContract:
    """Contract of every `Runner`; times are those of its clock, and bounds leave room for a busy machine."""

    clock: Clock
    """The clock of the runner."""

    def opened(self) -> AbstractContextManager[Runner]:
        raise NotImplementedError

    def plan(self, behaviour: Behaviour, folder: Path) -> TrialPlan:
        raise NotImplementedError

    def test_an_end_of_its_own_is_reported_with_all_events(self, tmp_path: Path) -> None:
        """A trainer that ends by itself has its exit status, and not one of its events is lost."""
        seen: list[TraineeEvent] = []
        with self.opened() as runner:
            exit_ = runner.run(self.plan(Behaviour.ENDS_WELL, tmp_path), seen.extend, self._in(60.0))
        assert (exit_.exit_code, exit_.stop, exit_.left_pids) == (0, None, ())
        steps = [event for event in seen if event.kind == "step"]
        assert len(steps) == 5
        assert all(exit_.started_s <= step.t_s <= exit_.ended_s for step in steps)

    def test_a_failure_keeps_its_exit_status(self, tmp_path: Path) -> None:
        """The trainer's own status is passed on."""
        with self.opened() as runner:
            exit_ = runner.run(self.plan(Behaviour.FAILS, tmp_path), lambda _: None, self._in(60.0))
        assert (exit_.exit_code, exit_.stop) == (3, None)

    def test_the_watch_stops_a_run(self, tmp_path: Path) -> None:
        """The answer of the watch ends the trial, and is the reason of its end."""
        seen: list[TraineeEvent] = []

        def watch(events: Sequence[TraineeEvent]) -> Stop | None:
            seen.extend(events)
            return Stop.ENOUGH if len(seen) >= 3 else None

        with self.opened() as runner:
            exit_ = runner.run(self.plan(Behaviour.TRAINS_ON, tmp_path), watch, self._in(60.0))
        assert exit_.stop is Stop.ENOUGH
        assert exit_.left_pids == ()

    def test_the_watch_is_called_when_nothing_happens(self, tmp_path: Path) -> None:
        """A silent run can be stopped too: the watch is called without events, but for the word that it has begun."""
        calls: list[int] = []

        def watch(events: Sequence[TraineeEvent]) -> Stop | None:
            calls.append(sum(event.kind not in ("launched", "start") for event in events))
            return Stop.NEVER_STARTED if len(calls) == 5 else None

        with self.opened() as runner:
            exit_ = runner.run(self.plan(Behaviour.IS_SILENT, tmp_path), watch, self._in(60.0))
        assert exit_.stop is Stop.NEVER_STARTED
        assert not any(calls)

    def test_the_deadline_ends_a_run(self, tmp_path: Path) -> None:
        """At the deadline the trial ends by itself, not before it and not long after."""
        deadline_s = self._in(1.5)
        with self.opened() as runner:
            exit_ = runner.run(self.plan(Behaviour.TRAINS_ON, tmp_path), lambda _: None, deadline_s)
        assert exit_.stop is Stop.DEADLINE
        assert deadline_s <= exit_.ended_s <= deadline_s + 5.0

    def test_a_past_deadline_starts_nothing(self, tmp_path: Path) -> None:
        """No trainer starts once the deadline has passed."""
        seen: list[TraineeEvent] = []
        with self.opened() as runner:
            exit_ = runner.run(self.plan(Behaviour.ENDS_WELL, tmp_path), seen.extend, self.clock.now_s())
        assert (exit_.stop, exit_.exit_code, seen) == (Stop.DEADLINE, None, [])

    def test_an_exception_of_the_watch_ends_the_run_and_goes_on(self, tmp_path: Path) -> None:
        """^C comes out of `run`, and the runner can make another trial after it."""

        def watch(events: Sequence[TraineeEvent]) -> Stop | None:
            if events:
                raise KeyboardInterrupt
            return None

        with self.opened() as runner:
            try:
                runner.run(self.plan(Behaviour.TRAINS_ON, tmp_path / "first"), watch, self._in(60.0))
            except KeyboardInterrupt:
                interrupted = True
            else:
                interrupted = False
            exit_ = runner.run(self.plan(Behaviour.ENDS_WELL, tmp_path / "second"), lambda _: None, self._in(60.0))
        assert interrupted
        assert exit_.exit_code == 0

    def _in(self, seconds: float) -> float:
        return self.clock.now_s() + seconds
