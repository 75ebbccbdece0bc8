"""Measured part of a diagnosis: runs and judges its trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from autotune.diagnose.findings import CheckResult, Limit
from autotune.diagnose.phased_checks import ReplayedSteps, judge_fixed_cost, judge_input
from autotune.diagnose.place_checks import judge_own_loading, judge_start, without_loading
from autotune.diagnose.shares import by_waiting, of_phases, without_input
from autotune.diagnose.step_checks import (
    judge_costs,
    judge_outside_steps,
    judge_steadiness,
    slow_steps,
    timed_steps,
)
from autotune.diagnose.surroundings import BusyReadings, judge_in_force, judge_memory, judge_neighbours, judge_ranks
from autotune.diagnose.switches import (
    Gain,
    Switch,
    SwitchPlan,
    SwitchTrials,
    explained,
    judge_switches,
    most_switches,
    plan_switches,
    switch_to,
    together,
)
from autotune.diagnose.tables import MEASURED_CHECKS
from autotune.measure.phases import Bounds, phased_trial
from autotune.measure.score import THROUGHPUT
from autotune.measure.window import WindowGoal
from autotune.records import DataFinding, Ending, Measurement, Purpose, TrialRecord, Values
from autotune.sampler.observations import Observations, of_space
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem
from autotune.search.state import SearchState
from autotune.search.trial_maker import TrialMaker
from autotune.space.catalog import knobs_with, known_knob
from autotune.space.knob import Knob
from autotune.study.data_effects import finding_of
from autotune.study.members import on_one_scale
from autotune.trial.execution import Execution, PhasePlan, TrialSpec

_ENDING_S = 3.0  # reserved for the answer
_CONFIRMED_TRIALS = 3  # fewest trials of a confirmed point
_WELL = (Ending.STOPPED, Ending.COMPLETED, Ending.KILLED_BY_BUDGET)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Outcome of the measured checks; `why_not_seen` is the reason that no trial has a measurement, else empty."""

    results: tuple[CheckResult, ...]
    bounds: Bounds | None = None
    why_not_seen: str = ""


class Diagnoser:
    """Runs the trials of one diagnosis, if `is_brief` in less than the budget for a trainer that starts quickly."""

    def __init__(
        self, parts: SearchParts, *, busy_s: Callable[[], float | None], cores: float, is_brief: bool = False
    ) -> None:
        self._parts = parts
        self._is_brief = is_brief
        self._events = parts.events
        self._problem = parts.problem
        self._folder = str(parts.problem.settings.folder)  # prefix dropped from places
        self._cores = cores
        self._readings = BusyReadings(parts.clock.now_s, busy_s)
        parts.events.subscribe(self._readings)
        self._state = SearchState(parts)
        self._trials = TrialMaker(parts, self._state)
        self._records: list[TrialRecord] = []
        self._foreign_cores: list[float] = []  # cores used by other processes, for each trial where known

    def run(self) -> Measured:
        """Run the trials, and judge them; raise an AutotuneError if one cannot be started."""
        watched, record = self._watch()
        if record.measurement is None:
            return _nothing_seen(record)
        is_short = self._planned_s() < 120.0
        rounds = 5 if is_short else 8  # eight rounds detect a bound of 2 %
        phased, phased_record = self._take_through_phases(self._problem.space.baseline, rounds)
        trial = phased_trial(phased.events)
        assert phased.bounds is not None, "a trial in phases has bounds"
        bounds = phased.bounds
        if phased_record.ending not in _WELL:
            bounds = replace(bounds, why_not=(*bounds.why_not, f"in phases the trainer {_ended(phased_record)}"))
        today = None if bounds.batch is None else ReplayedSteps(batch=bounds.batch, step_s=trial.replay_step_s)
        costs, outside = self._judge_costs(watched, phased), judge_outside_steps(watched.events)
        steps = timed_steps(watched.events)
        steadiness = judge_steadiness(steps, watched.events, self._folder)
        if bounds.free_data is None:
            slow = [(step.end_s - step.duration_s, step.end_s) for step in slow_steps(steps)]
            steadiness = without_loading(steadiness, watched.events, slow)
        else:
            steadiness = without_input(steadiness, trial, steps)
        ranks = judge_ranks(record.measurement)
        bounds = by_waiting(of_phases(bounds, trial, steps, outside, costs, steadiness, ranks), steps)
        compiles = sum(one.numbers["time_fraction"] for one in costs.issues if one.limit is Limit.COMPILING)
        # With drift, trials of different length are not comparable. If a third of the time compiles, or in a short
        # diagnosis half of it waits for data, the cause is known, and the time is better spent on trying its remedy.
        is_clear = compiles > 0.33 or any(one.limit is Limit.DRIFT for one in steadiness.issues)
        is_clear |= is_short and bounds.free_data is not None and bounds.free_data.low > 2.0
        machine = self._problem.machine
        own_cores = watched.measurement.cpu_cores if watched.measurement else None
        loading = judge_own_loading(watched.events, steadiness, self._folder) if bounds.free_data is None else None
        if loading is None:
            loading = judge_input(bounds, machine.cpu_cores, own_cores, loads_ahead=_loads_ahead(self._problem))
        larger, larger_record = (None, None) if is_clear else self._larger_batch(bounds)
        plan = plan_switches(
            self._problem.space,
            bounds if bounds.speeds else None,
            may_settle=watched.saw_a_pass,
            is_compiling=compiles > 0.0,
            is_restarting=any(one.limit is Limit.STALLS for one in costs.issues),
            is_unsteady=bool(steadiness.issues),
            is_reading=any(one.limit is Limit.READING for one in loading.issues),
        )
        plan, gains = self._try_switches(plan)
        measured = [replace(one, data=self._data_of(one.switch)) for one in gains]
        why_no_switch = "no time was left" if plan.not_tried else ""
        if not self._problem.can_vary:
            why_no_switch = "this config has no knob to vary"
        batches = self._batches(record, larger_record)
        results = (
            judge_in_force(phased.events, self._problem.space, machine),
            judge_neighbours(self._foreign_cores, self._cores, own_cores, self._records),
            ranks,
            loading,
            costs,
            judge_fixed_cost(today, larger, bounds),
            judge_start(watched.events, record.measurement.first_step_s, self._folder),
            explained(steadiness, measured),
            outside,
            judge_memory(machine, record.measurement, watched.memory, batches),
            judge_switches(plan, measured, bounds, why_not=why_no_switch),
        )
        return Measured(results=results, bounds=bounds)

    def verify(self) -> Measured:
        """Run the trials that show whether the step follows the config, and judge only that."""
        watched, record = self._watch()
        if record.measurement is None:
            return _nothing_seen(record)
        phased, _record = self._take_through_phases(self._problem.space.baseline, 1)
        in_force = judge_in_force(phased.events, self._problem.space, self._problem.machine)
        return Measured(results=(in_force, self._judge_costs(watched, phased)))

    def _judge_costs(self, watched: Execution, phased: Execution) -> CheckResult:
        return judge_costs(watched.events, self._folder, phased.events)

    # Trials

    def _watch(self) -> tuple[Execution, TrialRecord]:
        """Run a longer trial of today's config, to reach an evaluation and a checkpoint."""
        self._events.change_phase("diagnosing", "today's config, including evaluations and checkpoints")
        # 15 % of the time, between 20 s and 40 s
        longest_s = min(40.0, max(20.0, 0.15 * self._planned_s()))
        values = self._problem.space.baseline
        return self._make(TrialSpec(values=values, purpose=Purpose.DIAGNOSE, validate_s=longest_s))

    def _take_through_phases(self, values: Values, rounds: int) -> tuple[Execution, TrialRecord]:
        phases = PhasePlan(rounds=rounds, phase_s=0.75)
        return self._make(TrialSpec(values=values, purpose=Purpose.DIAGNOSE, phases=phases, limit_s=45.0))

    def _larger_batch(self, bounds: Bounds) -> tuple[ReplayedSteps | None, TrialRecord | None]:
        """Run a larger batch in phases, unless the step or the key cannot matter."""
        knob = next(iter(knobs_with(self._problem.space.knobs, counts="samples")), None)
        if knob is None or not bounds.may_gain(on_step=True) or bounds.batch is None:
            return None, None
        larger = _twice(knob)
        if larger is None:
            return None, None
        self._events.change_phase("diagnosing", f"{knob.path}: {larger}, for the fixed cost of a step")
        values = self._problem.space.with_heuristic(self._problem.space.baseline, knob.path, larger)
        done, record = self._take_through_phases(values, 3)
        trial = phased_trial(done.events)
        factor = float(larger) / float(knob.baseline)  # type: ignore[arg-type]
        steps = ReplayedSteps(batch=bounds.batch * factor, step_s=trial.replay_step_s)
        return steps, record

    def _try_switches(self, plan: SwitchPlan) -> tuple[SwitchPlan, list[Gain]]:
        """Try the switches whose gains are unknown, while there is time; return the plan, and all gains."""
        least_s, longest_s = 2.0, 6.0  # length of the measured window
        measured = [record.measurement for record in self._records if record.measurement]
        start_s = median([one.first_step_s for one in measured] or [5.0])
        most_trials = int(self._left_s() / (start_s + least_s))
        earlier = self._known([*plan.tried, *plan.not_tried])
        plan = plan.without([one.switch for one in earlier], most=min(6, most_switches(most_trials)))
        trials = SwitchTrials(plan.tried)
        order = trials.interleaved(most_trials)
        if not order:
            return plan, earlier
        window_s = min(longest_s, max(least_s, self._left_s() / len(order) - start_s))
        changes = "; ".join(knob.path for switch in plan.tried for knob in switch.knobs)
        self._events.change_phase("diagnosing", f"changes of one knob each, interleaved with today's config: {changes}")
        for place in order:
            self._try(trials, place, window_s, start_s)
        both = together(self._problem.space, trials.gains())
        if both is not None and self._left_s() > 3.0 * (start_s + window_s):
            trials.switches.append(both)
            for one in (len(plan.tried), None, len(plan.tried)):
                self._try(trials, one, window_s, start_s)
        return plan, [*earlier, *trials.gains()]

    def _data_of(self, switch: Switch) -> DataFinding | None:
        return finding_of(self._state.trials.of_study(), self._problem.space.name(switch.values))

    def _known(self, switches: Sequence[Switch]) -> list[Gain]:
        """Return the gains of switches and confirmed points from earlier trials on this machine."""
        space = self._problem.space
        earlier = [one for one in of_space(self._state.trials.of_study(), space) if one.machine == self._parts.machine]
        observations = Observations(space, THROUGHPUT, on_one_scale(earlier))
        singly = {space.name(one.values) for one in switches}
        confirmed = [
            switch_to(space, one.values)
            for name, one in observations.items()
            if len(one.ln_speeds) >= _CONFIRMED_TRIALS and name not in singly and name != space.name(space.baseline)
        ]
        trials = SwitchTrials([*switches, *confirmed])
        for place, values in [(None, space.baseline), *enumerate(one.values for one in trials.switches)]:
            known = observations.get(space.name(values))
            trials.speeds[place] = list(known.ln_speeds) if known else []
        return [one for one in trials.gains() if one.gain is not None]

    def _try(self, trials: SwitchTrials, place: int | None, window_s: float, start_s: float) -> None:
        """Run a trial of today's config or of a switch, if there is time and the last one did not fail."""
        if place in trials.endings or self._left_s() < start_s + window_s:
            return
        space, limits = self._problem.space, self._problem.limits
        values = space.baseline if place is None else trials.switches[place].values
        is_first = all(record.point != space.name(values) for record in self._records)
        _, record = self._make(
            TrialSpec(
                values=values,
                purpose=Purpose.BASELINE if place is None else Purpose.EXPLORE if is_first else Purpose.REPEAT,
                goal=WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=window_s),
                ends_s=self._parts.budget.wall_s - _ENDING_S,
            )
        )
        trials.note(place, record)

    def _make(self, trial: TrialSpec) -> tuple[Execution, TrialRecord]:
        record = self._trials.make_once(trial)
        done = self._trials.latest
        assert done is not None, "the trial has just run"
        self._records.append(record)
        if done.window is not None and done.measurement is not None:
            foreign = self._readings.foreign_cores(done.window.t0_s, done.window.t1_s, done.measurement.cpu_cores)
            self._foreign_cores += [foreign] if foreign is not None else []
        return done, record

    def _planned_s(self) -> float:
        """Return the time for all trials in s; in brief mode it grows with the trainer's start time."""
        wall_s = self._parts.budget.budget_s
        starts_s = [record.measurement.first_step_s for record in self._records if record.measurement]
        return min(wall_s, max(60.0, 20.0 * median(starts_s or [0.0]))) if self._is_brief else wall_s

    def _left_s(self) -> float:
        budget = self._parts.budget
        return budget.left_s() - (budget.budget_s - self._planned_s()) - _ENDING_S

    def _batches(self, *records: TrialRecord | None) -> list[tuple[float, Measurement]]:
        return [
            (size, one.measurement)
            for one in records
            if one and one.measurement and (size := self._problem.batch_size(one.values))
        ]


def _nothing_seen(record: TrialRecord) -> Measured:
    results = tuple(CheckResult(check=check.id, why_not="no steps were measured") for check in MEASURED_CHECKS)
    return Measured(results=results, why_not_seen=f"today's config {_ended(record)}")


def _ended(record: TrialRecord) -> str:
    return f"{record.ending.value} ({record.detail})" if record.detail else record.ending.value


def _loads_ahead(problem: Problem) -> bool | None:
    scalars: Values = {**problem.settings.scalars, **problem.space.baseline}
    rows = [(known_knob(path, value), value) for path, value in scalars.items()]
    settings = [bool(value) for row, value in rows if row is not None and row.loads_ahead]
    return any(settings) if settings else None


def _twice(knob: Knob) -> int | None:
    if not isinstance(knob.baseline, int):
        return None
    larger = [value for value in knob.choices if isinstance(value, int) and value > knob.baseline]
    return next((value for value in larger if value >= 2 * knob.baseline), max(larger, default=None))
