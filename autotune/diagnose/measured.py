"""Measured diagnosis: which trials are made, in which order, and what is judged by each. Read `Diagnoser.run` first."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from autotune.diagnose import measured_machine, measured_steps, measured_switches
from autotune.diagnose.findings import Check, CheckResult
from autotune.diagnose.measured_machine import BusyReadings, judge_memory, judge_neighbours
from autotune.diagnose.measured_steps import (
    ReplayedSteps,
    judge_fixed_cost,
    judge_input,
    judge_outside_steps,
    judge_steadiness,
    retraced_function,
    timed_steps,
)
from autotune.diagnose.measured_switches import (
    Gain,
    Switch,
    SwitchPlan,
    gains,
    in_turn,
    judge_in_force,
    judge_switches,
    plan_switches,
    together,
)
from autotune.events import Event
from autotune.measure.phases import Bounds, PhasedTrial, bounds_of, phased_trial
from autotune.measure.window import WindowGoal
from autotune.messages import _
from autotune.records import Ending, Measurement, Purpose, TrialRecord, Values
from autotune.search.findings import Findings
from autotune.search.parts import Narrator, SearchParts
from autotune.search.problem import Problem
from autotune.search.state import SearchState
from autotune.search.trial_maker import Phases, PlannedTrial, TrialMaker
from autotune.space.catalog import known_knob
from autotune.space.knob import Knob
from autotune.trial.execution import Execution

_ROUNDS, _FEW_ROUNDS = 8, 5  # eight tell a bound of 2 % from the noise of rounds
_ENDING_S = 3.0  # kept for the answer
_LEAST_WINDOW_S, _LONGEST_WINDOW_S = 2.0, 6.0
_WELL = (Ending.STOPPED, Ending.COMPLETED, Ending.KILLED_BY_BUDGET)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Outcome of the measured checks.

    Attributes:
        results: One for each check, in the order of their table.
        bounds: What changes of the input, and of the step, can gain at most; None if that was not seen.
        why_not_seen: Reason for which no trial gave numbers; empty if one did.
    """

    results: tuple[CheckResult, ...]
    bounds: Bounds | None
    gains: tuple[Gain, ...] = ()
    why_not_seen: str = ""


@dataclass(kw_only=True)
class _Seen:
    """Trials made so far, and what was seen of each."""

    done: list[tuple[TrialRecord, Execution]] = field(default_factory=list)
    foreign_cores: list[float] = field(default_factory=list)

    @property
    def records(self) -> list[TrialRecord]:
        return [record for record, _ in self.done]


class Diagnoser:
    """Maker of the trials of one diagnosis.

    Args:
        consumers: Told everything that happens.
        busy_s: Returns the CPU time of all processes; None where that is not known.
    """

    def __init__(
        self,
        parts: SearchParts,
        consumers: Iterable[Callable[[Event], None]],
        *,
        busy_s: Callable[[], float | None],
        cores: float,
    ) -> None:
        self._parts = parts
        self._problem = parts.problem
        self._cores = cores
        self._readings = BusyReadings(parts.clock.now_s, busy_s)
        findings = Findings(parts.problem, parts.clock)
        self._state = SearchState(parts.problem, parts.study, findings, sampler=parts.sampler, seed=parts.seed)
        self._narrator = Narrator((*consumers, self._readings), findings.remarks)
        self._trials = TrialMaker(parts, self._state, findings, self._narrator)
        self._seen = _Seen()

    def run(self) -> Measured:
        """Make the trials, and judge them.

        Raises:
            AutotuneError: A trial could not be made at all.
        """
        watched, record = self._watch()
        if record.measurement is None:
            return self._not_seen(record)
        phased, phased_record = self._take_through_phases(self._problem.space.baseline, self._rounds)
        trial = phased_trial(phased.events)
        bounds = bounds_of(trial, phased.cpu_cores)
        if phased_record.ending not in _WELL:
            why = _("in phases the trainer {ending}", ending=_ended(phased_record))
            bounds = replace(bounds, why_not=(*bounds.why_not, why))
        larger, larger_record = self._larger_batch(bounds)
        plan, measured = self._try_switches(bounds, saw_a_pass=watched.saw_a_pass)
        retraced = retraced_function(watched.folder.stderr_beginning())
        results = (
            judge_in_force(phased.events, self._problem.space, self._problem.machine),
            judge_neighbours(self._seen.foreign_cores, self._cores, self._own_cores(watched), self._seen.records),
            judge_input(bounds, self._problem.machine.cpu_cores, loads_ahead=_loads_ahead(self._problem)),
            judge_fixed_cost(_steps(trial, bounds), larger, bounds, retraced=retraced),
            judge_steadiness(timed_steps(watched.events), retraced=retraced),
            judge_outside_steps(watched.events),
            judge_memory(
                self._problem.machine, record.measurement, watched.memory, self._by_batch(record, larger_record)
            ),
            judge_switches(plan, measured, bounds, why_not=self._why_no_switch(plan)),
        )
        return Measured(results=results, bounds=bounds, gains=tuple(measured))

    # Trials

    def _watch(self) -> tuple[Execution, TrialRecord]:
        """Make a longer trial of today's config, through an evaluation and a checkpoint where it comes to these."""
        self._narrator.tell_phase("diagnosing", "today's config, through what it does besides steps")
        # of the budget, for the trial that goes through evaluations and checkpoints
        longest_s = min(40.0, max(20.0, 0.15 * self._parts.budget.budget_s))
        return self._make(
            PlannedTrial(
                values=self._problem.space.baseline,
                purpose=Purpose.DIAGNOSE,
                validate_s=longest_s,
            )
        )

    def _take_through_phases(self, values: Values, rounds: int) -> tuple[Execution, TrialRecord]:
        return self._make(
            PlannedTrial(
                values=values,
                purpose=Purpose.DIAGNOSE,
                phases=Phases(rounds=rounds, phase_s=0.75),
                limit_s=45.0,
            )
        )

    def _larger_batch(self, bounds: Bounds) -> tuple[ReplayedSteps | None, TrialRecord | None]:
        """Make a trial of a larger batch in phases, for what a step takes whatever its batch.

        Only where the step matters, and the batch is a key that may grow.
        """
        knob = next((knob for knob in self._problem.space.knobs if knob.kind == "batch_size"), None)
        if knob is None or not bounds.may_gain(on_step=True) or bounds.batch is None:
            return None, None
        larger = _twice(knob)
        if larger is None:
            return None, None
        self._narrator.tell_phase("diagnosing", f"{knob.path}: {larger}, for what a step takes whatever its batch")
        values = self._problem.space.with_heuristic(self._problem.space.baseline, knob.path, larger)
        done, record = self._take_through_phases(values, 3)
        trial = phased_trial(done.events)
        factor = float(larger) / float(knob.baseline)  # type: ignore[arg-type]
        steps = ReplayedSteps(batch=bounds.batch * factor, step_s=trial.replay_step_s)
        return steps, record

    def _try_switches(self, bounds: Bounds, *, saw_a_pass: bool) -> tuple[SwitchPlan, list[Gain]]:
        known = bounds if bounds.speeds else None
        start_s = median(
            [record.measurement.first_step_s for record in self._seen.records if record.measurement] or [5.0]
        )
        trial_s = start_s + _LEAST_WINDOW_S
        most = min(6, int((self._left_s() / trial_s - 3) / 2))
        plan = plan_switches(self._problem.space, known, most=max(0, most), may_settle=saw_a_pass)
        order = in_turn(len(plan.tried))
        if not order:
            return plan, []
        window_s = min(_LONGEST_WINDOW_S, max(_LEAST_WINDOW_S, self._left_s() / len(order) - start_s))
        changes = "; ".join(knob.path for switch in plan.tried for knob in switch.knobs)
        self._narrator.tell_phase("diagnosing", f"changes of one knob each, in turn with today's config: {changes}")
        tried = _Tried(plan.tried)
        for place in order:
            self._try(tried, place, window_s, start_s)
        both = together(self._problem.space, tried.gains())
        if both is not None and self._left_s() > 3.0 * (start_s + window_s):
            tried.add(both)
            for place in (len(plan.tried), None, len(plan.tried)):
                self._try(tried, place, window_s, start_s)
        return plan, tried.gains()

    def _try(self, tried: "_Tried", place: int | None, window_s: float, start_s: float) -> None:
        """Make a trial of today's config, or of a switch, where there is time and the last of it gave numbers."""
        if place in tried.endings or self._left_s() < start_s + window_s:
            return
        values = self._problem.space.baseline if place is None else tried.switches[place].values
        record = self._plain(values, window_s, is_baseline=place is None)
        if record.comparable:
            tried.speeds.setdefault(place, []).append(math.log(record.comparable.speed))
        else:
            tried.endings[place] = record.detail or record.ending.value

    def _plain(self, values: Values, window_s: float, *, is_baseline: bool) -> TrialRecord:
        """Make a trial of today's config, or of a switch: one as a search makes them, which starts the next search."""
        limits = self._problem.limits
        name = self._problem.space.name(values)
        is_first = all(record.point != name for record in self._seen.records)
        return self._make(
            PlannedTrial(
                values=values,
                purpose=Purpose.BASELINE if is_baseline else Purpose.EXPLORE if is_first else Purpose.REPEAT,
                goal=WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=window_s),
                ends_s=self._parts.budget.wall_s - _ENDING_S,
            )
        )[1]

    def _make(self, trial: PlannedTrial) -> tuple[Execution, TrialRecord]:
        seen: list[Execution] = []

        def note(done: Execution) -> None:
            seen.append(done)

        record = self._trials.make_once(replace(trial, judge=note))
        done = seen[0]
        self._seen.done.append((record, done))
        if done.window is not None:
            foreign = self._readings.foreign_cores(done.window.t0_s, done.window.t1_s, done.cpu_cores)
            if foreign is not None:
                self._seen.foreign_cores.append(foreign)
        return done, record

    # What they show

    @property
    def _rounds(self) -> int:
        return _ROUNDS if self._parts.budget.budget_s >= 120.0 else _FEW_ROUNDS  # below which there are few

    def _left_s(self) -> float:
        return self._parts.budget.left_s() - _ENDING_S

    def _own_cores(self, done: Execution) -> float | None:
        return done.cpu_cores(done.window.t0_s, done.window.t1_s) if done.window else None

    def _by_batch(self, record: TrialRecord, larger: TrialRecord | None) -> list[tuple[float, Measurement]]:
        found = []
        for one in (record, larger):
            size = self._problem.batch_size(one.values) if one else None
            if one and one.measurement and size:
                found.append((size, one.measurement))
        return found

    def _why_no_switch(self, plan: SwitchPlan) -> str:
        if not self._problem.can_vary:
            return _("this config has no knob that may vary")
        return _("no time was left for it") if plan.not_tried else ""

    def _not_seen(self, record: TrialRecord) -> Measured:
        why = _("today's config {ending}", ending=_ended(record))
        nothing = _("no steps were measured")
        results = tuple(CheckResult(check=check.id, why_not=nothing) for check in MEASURED_CHECKS)
        return Measured(results=results, bounds=None, why_not_seen=why)


class _Tried:
    """Switches that are tried, and what their trials have shown so far."""

    def __init__(self, switches: Sequence[Switch]) -> None:
        self.switches = list(switches)
        self.speeds: dict[int | None, list[float]] = {}
        self.endings: dict[int | None, str] = {}

    def add(self, switch: Switch) -> None:
        self.switches.append(switch)

    def gains(self) -> list[Gain]:
        return gains(
            self.speeds.get(None, []),
            [
                (switch, self.speeds.get(place, []), self.endings.get(place, ""))
                for place, switch in enumerate(self.switches)
            ],
        )


def _steps(trial: PhasedTrial, bounds: Bounds) -> ReplayedSteps | None:
    return None if bounds.batch is None else ReplayedSteps(batch=bounds.batch, step_s=trial.replay_step_s)


def _ended(record: TrialRecord) -> str:
    if not record.detail:
        return record.ending.value
    return _("{ending} ({detail})", ending=record.ending.value, detail=record.detail)


def _loads_ahead(problem: Problem) -> bool | None:
    scalars: Values = {**problem.settings.scalars, **problem.space.baseline}
    rows = [(known_knob(path, value), value) for path, value in scalars.items()]
    said = [bool(value) for row, value in rows if row is not None and row.kind in ("prefetch", "prefetch_switch")]
    return any(said) if said else None


def _twice(knob: Knob) -> int | None:
    """Return the batch twice as large, or the next of the domain; None if the domain ends with today's."""
    if not isinstance(knob.baseline, int):
        return None
    larger = [value for value in knob.choices if isinstance(value, int) and value > knob.baseline]
    return next((value for value in larger if value >= 2 * knob.baseline), max(larger, default=None))


# Table of the measured checks, in the order in which they are shown.


MEASURED_CHECKS: tuple[Check, ...] = (
    Check(
        id=measured_switches.IN_FORCE,
        question=_("Is in force what the config says?"),
        how="the frameworks in the trainer's process are asked during training: precision, threads, eager mode, GPUs",
        threshold="any difference to a known knob, and a GPU that is there and not seen",
    ),
    Check(
        id=measured_machine.NEIGHBOURS,
        question=_("Does anybody else use the machine, or does heat hold it back?"),
        how="the CPU time of all processes against the trainer's; what the driver says of other kernels and of clocks",
        threshold="25 % of the cores; 5 % of the GPU's time, where two kernels in turn cost both more than noise",
    ),
    Check(
        id=measured_steps.INPUT_LIMIT,
        question=_("Is the input the limit, and what of it?"),
        how="one trial in turn trains, trains on the same few batches again and again, and only loads",
        threshold="5 % to be gained for certain: rounds of one trial differ by 3 %",
    ),
    Check(
        id=measured_steps.FIXED_COST,
        question=_("How much of a step is taken whatever the batch?"),
        how="steps with free data at two sizes of the batch: t = a + b * batch",
        threshold="60 % of the step, and 5 % to be gained, for certain",
    ),
    Check(
        id=measured_steps.STEADINESS,
        question=_("Do slow steps recur?"),
        how="steps of more than three times the median, what they add up to, and their distances",
        threshold="5 % of the time, in three steps at least",
    ),
    Check(
        id=measured_steps.OUTSIDE_STEPS,
        question=_("How much time passes outside of steps?"),
        how="evaluations and checkpoints of a longer trial",
        threshold="5 % of the time",
    ),
    Check(
        id=measured_machine.MEMORY_ROOM,
        question=_("How much room does the memory leave?"),
        how="the most that was in use, its growth, and a line through two sizes of the batch",
        threshold="92 %, which an odd batch goes beyond; full within a day",
    ),
    Check(
        id=measured_switches.SWITCHES,
        question=_("Which single change helps?"),
        how="trials of today's config and of each change in turn, in an order that a steady drift cancels out of",
        threshold="2 % to be gained for certain: points that differ by less cannot be told apart",
    ),
)
