"""Diagnosis from its first check to its verdict."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from autotune.clock import Clock
from autotune.diagnose.code_checks import check_code
from autotune.diagnose.config_checks import check_configuration
from autotune.diagnose.findings import (
    CheckResult,
    Diagnosis,
    DiagnosisVerdict,
    GainBasis,
    Issue,
    Limit,
    Severity,
    counted,
    ratio_text,
)
from autotune.diagnose.machine_checks import (
    ask_framework,
    check_framework,
    check_graph,
    check_hardware,
    check_memory,
    check_native_loader,
    check_storage,
)
from autotune.diagnose.measured_checks import (
    BusyReadings,
    Gain,
    ReplayedSteps,
    Switch,
    SwitchPlan,
    SwitchTrials,
    explained,
    judge_costs,
    judge_fixed_cost,
    judge_in_force,
    judge_input,
    judge_memory,
    judge_neighbours,
    judge_outside_steps,
    judge_steadiness,
    judge_switches,
    plan_switches,
    timed_steps,
    together,
)
from autotune.diagnose.subject import Subject
from autotune.diagnose.tables import MEASURED_CHECKS, STATIC_CHECKS
from autotune.events import Event
from autotune.measure.host import BusyCpu
from autotune.measure.phases import Bounds, phased_trial
from autotune.measure.score import THROUGHPUT
from autotune.measure.window import WindowGoal
from autotune.options import SearchOptions
from autotune.records import Ending, Measurement, Purpose, TrialRecord, Values
from autotune.sampler.observations import Observations, of_space
from autotune.search.open import Session, open_parts
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem
from autotune.search.state import SearchState
from autotune.search.trial_maker import TrialMaker
from autotune.space.catalog import knobs_with, known_knob
from autotune.space.knob import Knob
from autotune.study.members import on_one_scale
from autotune.trial.execution import Execution, PhasePlan, TrialSpec
from autotune.trial.instruments import Simulator


def diagnose_static(problem: Problem | None, clock: Clock) -> Diagnosis:
    """Diagnose without a single trial: this machine and its installation, and where there is one, the config.

    Args:
        problem: The config and the command; None for the machine alone.
    """
    results = static_checks(problem, clock)
    return Diagnosis(verdict=static_verdict(results), results=results)


def diagnose(
    problem: Problem,
    clock: Clock,
    on_event: Callable[[Event], None],
    *,
    budget_s: float,
    started_s: float,
    allow_busy_gpu: bool = False,
    verifies: bool = False,
    simulator: Simulator | None = None,
) -> Diagnosis:
    """Diagnose a training: static checks, then short trials of it.

    Args:
        problem: The config and the command; runnable.
        on_event: Told everything that happens.
        budget_s: The wall for everything, in seconds.
        started_s: When the process started, on the monotonic clock; the budget counts from there.
        allow_busy_gpu: Whether to make trials although somebody else is on the GPU.
        verifies: Whether to look only whether the step is what the config says: traced once, compiled, in its
            precision, on its device.
        simulator: Runs the trials in virtual time; None for processes.

    Raises:
        AutotuneError: Trials cannot be made: the record is held by a search, a GPU is busy, and the like.
    """
    cpu = BusyCpu()
    search = SearchOptions(budget_s=budget_s, allow_busy_gpu=allow_busy_gpu, warm_start=False)
    with open_parts(problem, search, Session(started_s=started_s), clock, on_event, simulator=simulator) as (parts, _):
        diagnoser = Diagnoser(parts, busy_s=cpu.busy_s, cores=cpu.cores)
        if verifies:
            return _verification(check_code(Subject(problem=problem, clock=clock)), diagnoser.verify())
        static = static_checks(problem, clock, is_run=True)
        measured = diagnoser.run()
    results = (*static, *measured.results)
    return Diagnosis(verdict=verdict_of(measured.results, measured.why_not_seen, static), results=results)


def _verification(code: CheckResult, measured: Measured) -> Diagnosis:
    """Return what was seen of the step alone: of the code that which makes a step slow whatever its data."""
    about_steps = tuple(one for one in code.issues if one.limit is Limit.HOST and one.severity is not Severity.NOTE)
    results = (replace(code, issues=about_steps), *measured.results)
    wrong = [one for result in results for one in result.issues if one.severity is not Severity.NOTE]
    unseen = measured.why_not_seen or next((one.why_not for one in measured.results if one.why_not), "")
    if wrong:
        sentence = f"Not as the config says: {wrong[0].sentence}"
    elif unseen:
        sentence = f"Not seen: {unseen}"
    else:
        sentence = "The step is what the config says, as far as the framework tells."
    limit = (wrong[0].limit or Limit.STEP) if wrong else Limit.NOT_SEEN if unseen else None
    return Diagnosis(verdict=DiagnosisVerdict(sentence=sentence, limit=limit), results=results)


def static_checks(problem: Problem | None, clock: Clock, *, is_run: bool = False) -> tuple[CheckResult, ...]:
    """Return the results of all static checks, in the order of their table; no training is started.

    It takes 10 s where TensorFlow is imported for it, and at most half a minute.

    Args:
        problem: What is diagnosed; None for this machine and this installation alone.
        is_run: Whether trials are made next, so that programs that the config names may be started.
    """
    look = Subject(problem=problem, clock=clock, is_run=is_run)
    answers = ask_framework(look)
    return (
        check_hardware(look),
        check_framework(look, answers),
        check_memory(look),
        check_storage(look),
        check_configuration(look),
        check_code(look),
        check_graph(answers),
        check_native_loader(answers),
    )


# Measured checks: which trials are made, in which order, and what is judged by each. Read `Diagnoser.run` first.


_ENDING_S = 3.0  # kept for the answer
_WELL = (Ending.STOPPED, Ending.COMPLETED, Ending.KILLED_BY_BUDGET)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Outcome of the measured checks.

    Attributes:
        results: One for each check, in the order of their table.
        why_not_seen: Reason for which no trial gave numbers; empty if one did.
    """

    results: tuple[CheckResult, ...]
    why_not_seen: str = ""


class Diagnoser:
    """Maker of the trials of one diagnosis.

    Args:
        busy_s: Returns the CPU time of all processes; None where that is not known.
    """

    def __init__(self, parts: SearchParts, *, busy_s: Callable[[], float | None], cores: float) -> None:
        self._parts = parts
        self._events = parts.events
        self._problem = parts.problem
        self._cores = cores
        self._readings = BusyReadings(parts.clock.now_s, busy_s)
        parts.events.subscribe(self._readings)
        self._state = SearchState(parts)
        self._trials = TrialMaker(parts, self._state)
        self._records: list[TrialRecord] = []
        self._foreign_cores: list[float] = []  # that others kept busy during each trial, as far as it is known

    def run(self) -> Measured:
        """Make the trials, and judge them.

        Raises:
            AutotuneError: A trial could not be made at all.
        """
        watched, record = self._watch()
        if record.measurement is None:
            return _nothing_seen(record)
        # eight rounds tell a bound of 2 % from the noise of rounds
        rounds = 8 if self._parts.budget.budget_s >= 120.0 else 5
        phased, phased_record = self._take_through_phases(self._problem.space.baseline, rounds)
        trial = phased_trial(phased.events)
        assert phased.bounds is not None, "it was taken through phases"
        bounds = phased.bounds
        if phased_record.ending not in _WELL:
            why = f"in phases the trainer {_ended(phased_record)}"
            bounds = replace(bounds, why_not=(*bounds.why_not, why))
        today = None if bounds.batch is None else ReplayedSteps(batch=bounds.batch, step_s=trial.replay_step_s)
        costs = self._judge_costs(watched, phased)
        steadiness = judge_steadiness(timed_steps(watched.events), watched.events, str(self._problem.settings.folder))
        # slow steps that do not wait for data are no matter of the input either
        slow = [one for one in steadiness.issues if one.numbers.get("waiting_fraction", 1.0) < 0.7]
        anew = [one for one in (*costs.issues, *slow) if one.bound and one.limit is not Limit.HOST]
        made_anew = max((one.bound for one in anew if one.bound), default=None, key=lambda bound: bound.ratio)
        # where that takes a third of the time, a change that may mend it is tried with the time
        larger, larger_record = (None, None) if made_anew and made_anew.low > 1.5 else self._larger_batch(bounds)
        plan, measured = self._try_switches(
            bounds,
            saw_a_pass=watched.saw_a_pass,
            is_compiling=any(one.limit is Limit.COMPILING for one in anew),
            is_unsteady=bool(steadiness.issues),
        )
        why_no_switch = "no time was left for it" if plan.not_tried else ""
        if not self._problem.can_vary:
            why_no_switch = "this config has no knob that may vary"
        own_cores = watched.measurement.cpu_cores if watched.measurement else None
        machine = self._problem.machine
        batches = self._batches(record, larger_record)
        results = (
            judge_in_force(phased.events, self._problem.space, machine),
            judge_neighbours(self._foreign_cores, self._cores, own_cores, self._records),
            judge_input(bounds, machine.cpu_cores, loads_ahead=_loads_ahead(self._problem), made_anew=made_anew),
            costs,
            judge_fixed_cost(today, larger, bounds),
            explained(steadiness, measured),
            judge_outside_steps(watched.events),
            judge_memory(machine, record.measurement, watched.memory, batches),
            judge_switches(plan, measured, bounds, why_not=why_no_switch),
        )
        return Measured(results=results)

    def verify(self) -> Measured:
        """Make the trials that show whether the step is what the config says, and judge them by that alone.

        Raises:
            AutotuneError: A trial could not be made at all.
        """
        watched, record = self._watch()
        if record.measurement is None:
            return _nothing_seen(record)
        phased, _record = self._take_through_phases(self._problem.space.baseline, 1)
        in_force = judge_in_force(phased.events, self._problem.space, self._problem.machine)
        return Measured(results=(in_force, self._judge_costs(watched, phased)))

    def _judge_costs(self, watched: Execution, phased: Execution) -> CheckResult:
        return judge_costs(watched.events, str(self._problem.settings.folder), phased.events)

    # Trials

    def _watch(self) -> tuple[Execution, TrialRecord]:
        """Make a longer trial of today's config, through an evaluation and a checkpoint where it comes to these."""
        self._events.change_phase("diagnosing", "today's config, through what it does besides steps")
        # of the budget, for the trial that goes through evaluations and checkpoints
        longest_s = min(40.0, max(20.0, 0.15 * self._parts.budget.budget_s))
        values = self._problem.space.baseline
        return self._make(TrialSpec(values=values, purpose=Purpose.DIAGNOSE, validate_s=longest_s))

    def _take_through_phases(self, values: Values, rounds: int) -> tuple[Execution, TrialRecord]:
        phases = PhasePlan(rounds=rounds, phase_s=0.75)
        return self._make(TrialSpec(values=values, purpose=Purpose.DIAGNOSE, phases=phases, limit_s=45.0))

    def _larger_batch(self, bounds: Bounds) -> tuple[ReplayedSteps | None, TrialRecord | None]:
        """Make a trial of a larger batch in phases, for what a step takes whatever its batch.

        Only where the step matters, and the batch is a key that may grow.
        """
        knob = next(iter(knobs_with(self._problem.space.knobs, counts="samples")), None)
        if knob is None or not bounds.may_gain(on_step=True) or bounds.batch is None:
            return None, None
        larger = _twice(knob)
        if larger is None:
            return None, None
        self._events.change_phase("diagnosing", f"{knob.path}: {larger}, for what a step takes whatever its batch")
        values = self._problem.space.with_heuristic(self._problem.space.baseline, knob.path, larger)
        done, record = self._take_through_phases(values, 3)
        trial = phased_trial(done.events)
        factor = float(larger) / float(knob.baseline)  # type: ignore[arg-type]
        steps = ReplayedSteps(batch=bounds.batch * factor, step_s=trial.replay_step_s)
        return steps, record

    def _try_switches(
        self, bounds: Bounds, *, saw_a_pass: bool, is_compiling: bool, is_unsteady: bool
    ) -> tuple[SwitchPlan, list[Gain]]:
        least_s, longest_s = 2.0, 6.0  # of the part of a trial that is measured
        measured = [record.measurement for record in self._records if record.measurement]
        start_s = median([one.first_step_s for one in measured] or [5.0])
        most = min(6, int((self._left_s() / (start_s + least_s) - 3) / 2))
        known = bounds if bounds.speeds else None
        plan = plan_switches(
            self._problem.space,
            known,
            may_settle=saw_a_pass,
            is_compiling=is_compiling,
            is_unsteady=is_unsteady,
        )
        earlier = self._known([*plan.tried, *plan.not_tried])
        plan = plan.without([one.switch for one in earlier], most=max(0, most))
        trials = SwitchTrials(plan.tried)
        order = trials.in_turn()
        if not order:
            return plan, earlier
        window_s = min(longest_s, max(least_s, self._left_s() / len(order) - start_s))
        changes = "; ".join(knob.path for switch in plan.tried for knob in switch.knobs)
        self._events.change_phase("diagnosing", f"changes of one knob each, in turn with today's config: {changes}")
        for place in order:
            self._try(trials, place, window_s, start_s)
        both = together(self._problem.space, trials.gains())
        if both is not None and self._left_s() > 3.0 * (start_s + window_s):
            trials.switches.append(both)
            for one in (len(plan.tried), None, len(plan.tried)):
                self._try(trials, one, window_s, start_s)
        return plan, [*earlier, *trials.gains()]

    def _known(self, switches: Sequence[Switch]) -> list[Gain]:
        """Return what earlier trials of this study have shown of switches on this machine."""
        space = self._problem.space
        earlier = [one for one in of_space(self._state.trials.of_study(), space) if one.machine == self._parts.machine]
        observations = Observations(space, THROUGHPUT, on_one_scale(earlier))
        trials = SwitchTrials(switches)
        for place, values in [(None, space.baseline), *((place, one.values) for place, one in enumerate(switches))]:
            known = observations.get(space.name(values))
            trials.speeds[place] = list(known.ln_speeds) if known else []
        return [one for one in trials.gains() if one.gain is not None]

    def _try(self, trials: SwitchTrials, place: int | None, window_s: float, start_s: float) -> None:
        """Make a trial of today's config, or of a switch, where there is time and the last of it gave numbers.

        It is one as a search makes them, so that the next search starts from it.
        """
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
        assert done is not None, "it was made just now"
        self._records.append(record)
        if done.window is not None and done.measurement is not None:
            foreign = self._readings.foreign_cores(done.window.t0_s, done.window.t1_s, done.measurement.cpu_cores)
            self._foreign_cores += [foreign] if foreign is not None else []
        return done, record

    def _left_s(self) -> float:
        return self._parts.budget.left_s() - _ENDING_S

    def _batches(self, *records: TrialRecord | None) -> list[tuple[float, Measurement]]:
        return [
            (size, one.measurement)
            for one in records
            if one and one.measurement and (size := self._problem.batch_size(one.values))
        ]


def _nothing_seen(record: TrialRecord) -> Measured:
    nothing = "no steps were measured"
    results = tuple(CheckResult(check=check.id, why_not=nothing) for check in MEASURED_CHECKS)
    return Measured(results=results, why_not_seen=f"today's config {_ended(record)}")


def _ended(record: TrialRecord) -> str:
    if not record.detail:
        return record.ending.value
    return f"{record.ending.value} ({record.detail})"


def _loads_ahead(problem: Problem) -> bool | None:
    scalars: Values = {**problem.settings.scalars, **problem.space.baseline}
    rows = [(known_knob(path, value), value) for path, value in scalars.items()]
    said = [bool(value) for row, value in rows if row is not None and row.loads_ahead]
    return any(said) if said else None


def _twice(knob: Knob) -> int | None:
    if not isinstance(knob.baseline, int):
        return None
    larger = [value for value in knob.choices if isinstance(value, int) and value > knob.baseline]
    return next((value for value in larger if value >= 2 * knob.baseline), max(larger, default=None))


# Verdict: one sentence that says what limits a training, and what to do first. Pure.


_SPOILS_ALL = (Limit.THROTTLING, Limit.NEIGHBOUR)  # they make all other numbers doubtful, and come first
_INPUT = frozenset((Limit.READING, Limit.PREPARING, Limit.OVERLAP, Limit.LOADING))
_SIDES = (_INPUT, frozenset((Limit.HOST, Limit.STEP)))  # which the same place in the code may be the reason for
_NAMES = {
    **dict.fromkeys(_INPUT, "Input-bound"),
    Limit.HOST: "Bound by the fixed cost of a step",
    Limit.STEP: "Bound by the step",
    Limit.OUTSIDE: "Much time passes outside of steps",
    Limit.COMPILING: "Compiled again and again",
    Limit.STALLS: "Stalls",
    Limit.DRIFT: "Slower and slower",
    Limit.NEIGHBOUR: "Somebody else is on the machine",
    Limit.THROTTLING: "The GPU is held down",
    Limit.MEMORY: "Memory is nearly full",
}


def verdict_of(
    results: Sequence[CheckResult], why_not_seen: str = "", static: Sequence[CheckResult] = ()
) -> DiagnosisVerdict:
    """Return the verdict that follows from the results of the measured checks.

    Args:
        why_not_seen: Reason for which no trial gave numbers; empty if one did.
        static: Results of the static checks, for the place in the code that the limit may come from.
    """
    issues = [issue for result in results for issue in result.issues]
    if why_not_seen:
        return DiagnosisVerdict(sentence=f"Not seen: {why_not_seen}", limit=Limit.NOT_SEEN)
    main = _main(issues)
    if main is None or main.limit is None:
        why_no_input = next((one.why_not for one in results if one.check == "input" and one.why_not), "")
        if why_no_input:
            sentence = f"No limit was found, and the input was not seen: {why_no_input}."
            return DiagnosisVerdict(sentence=sentence, limit=Limit.NOT_SEEN)
        sentence = "Nothing worth doing was found: the step itself is the limit, and no change that was tried helps."
        return DiagnosisVerdict(sentence=sentence, limit=Limit.STEP)
    sentence = f"{_NAMES[main.limit]}: {main.sentence}"
    counted = [result for result in results if result.check == "recurring-costs"]
    if (place := _place(main.limit, (*static, *counted))) is not None and place is not main:
        sentence = f"{sentence} Look at {place.place}: {place.sentence[:1].lower()}{place.sentence[1:]}"
    measured = [
        (one.gain, one)
        for issue in issues
        for one in issue.recommendations
        if one.evidence is GainBasis.MEASURED and one.gain
    ]
    gain, best = max(measured, key=lambda one: one[0].low, default=(None, None))
    if gain is not None and best is not None and best not in main.recommendations:
        sentence = f"{sentence} Measured: {best.sentence}, {ratio_text(gain)}."
    return DiagnosisVerdict(sentence=sentence, limit=main.limit, bound=main.bound)


def _place(limit: Limit, static: Sequence[CheckResult]) -> Issue | None:
    side = next((side for side in _SIDES if limit in side), frozenset({limit}))
    return next((one for result in static for one in result.issues if one.limit in side and one.place), None)


def static_verdict(results: Sequence[CheckResult]) -> DiagnosisVerdict:
    """Return the verdict of checks that made no trial."""
    by_weight: dict[Severity, list[Issue]] = {severity: [] for severity in Severity}
    for result in results:
        for issue in result.issues:
            by_weight[issue.severity].append(issue)
    if errors := by_weight[Severity.ERROR]:
        return DiagnosisVerdict(sentence=f"{counted(len(errors), 'error')}, the first: {_with_place(errors[0])}")
    if warnings := by_weight[Severity.WARNING]:
        return DiagnosisVerdict(
            sentence=f"No error; {counted(len(warnings), 'warning')}, the first: {_with_place(warnings[0])}"
        )
    return DiagnosisVerdict(sentence="Nothing was found that is wrong; what limits the speed is seen only by trials.")


def _with_place(issue: Issue) -> str:
    is_said = not issue.place or issue.place in issue.sentence
    return issue.sentence if is_said else f"{issue.sentence} ({issue.place})"


def _main(issues: Sequence[Issue]) -> Issue | None:
    """Return the issue that the verdict is about: what spoils all numbers, else what costs most; None if nothing does.

    A limit comes before a measured change, which is one way around it. Memory that is full, or fills, does not slow
    training down, and may end it: that is the verdict where nothing slows it down.
    """
    telling = [issue for issue in issues if issue.limit is not None and issue.severity is not Severity.NOTE]
    spoiling = [issue for issue in telling if issue.limit in _SPOILS_ALL]
    if spoiling:
        return min(spoiling, key=lambda issue: _SPOILS_ALL.index(issue.limit or Limit.NEIGHBOUR))
    # 5 % for certain are worth doing something for
    worth = [issue for issue in telling if issue.bound is not None and issue.bound.low > 1.05]
    limits = [issue for issue in worth if not any(one.evidence is GainBasis.MEASURED for one in issue.recommendations)]
    memory = [issue for issue in telling if issue.limit is Limit.MEMORY]
    return max(limits or memory or worth, key=lambda issue: issue.bound.ratio if issue.bound else 0.0, default=None)


CHECKS = (*STATIC_CHECKS, *MEASURED_CHECKS)
"""All checks, in the order in which they are shown."""


# Condition under which a diagnosis fails, for continuous integration.


_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq,
}  # fmt: skip
_QUANTITIES = ("gain", "bound", "errors", "warnings")


@dataclass(frozen=True, kw_only=True)
class FailOn:
    """Condition on one quantity of a diagnosis."""

    text: str
    quantity: str
    comparison: str
    limit: float

    def holds(self, diagnosis: Diagnosis) -> bool:
        """Return whether the condition holds; never where the quantity is not known."""
        known = self._values(diagnosis)[self.quantity]
        return known is not None and _OPERATORS[self.comparison](known, self.limit)

    def _values(self, diagnosis: Diagnosis) -> dict[str, float | None]:
        measured = [one.gain for one in diagnosis.recommendations if one.evidence is GainBasis.MEASURED and one.gain]
        weights = [issue.severity for issue in diagnosis.issues]
        return {
            "gain": max((gain.ratio for gain in measured), default=None),
            "bound": diagnosis.verdict.bound.ratio if diagnosis.verdict.bound else None,
            "errors": weights.count(Severity.ERROR),
            "warnings": weights.count(Severity.WARNING),
        }


def parse_fail_on(text: str) -> FailOn:
    """Parse a condition, e.g. ``gain>=1.2``.

    Raises:
        ValueError: It is none.
    """
    match = re.fullmatch(r"\s*([a-z]+)\s*(>=|<=|==|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*", text)
    if match is None or match[1] not in _QUANTITIES:
        names = ", ".join(_QUANTITIES)
        raise ValueError(f"{text!r} is no condition: a name ({names}), one of >= > <= < ==, and a number")
    return FailOn(text=text, quantity=match[1], comparison=match[2], limit=float(match[3]))
