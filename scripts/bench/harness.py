"""Harness: a simulated machine for one method, the two ways in which the peers measure on it, and what comes of it.

What comes of it is an anytime curve: the answers of the method over time, judged by the true speeds.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median
from typing import Protocol

from autotune.clock import VirtualClock
from autotune.errors import TrialError
from autotune.events import Event, EventBus, IncumbentChanged
from autotune.measure.statistics import TYPICAL_CV, optimal_window_s
from autotune.measure.window import WindowGoal, steady_window
from autotune.options import SearchOptions
from autotune.records import Ending, Machine, Purpose, SearchResult, Stop, TraineeEvent, Validity, Values
from autotune.sampler.config_sampler import SamplerChoice
from autotune.search.gpus import complete
from autotune.search.parts import SearchParts
from autotune.search.problem import open_problem
from autotune.search.schedule import MOST_OF_THE_REST, SLOWER_THAN_USUAL, Budget
from autotune.search.tuner import Tuner
from autotune.search.warm_start import WarmStart
from autotune.study.record import StudyRecord
from autotune.trial.execution import TrialSpec, execute, plan_trial
from autotune.trial.instruments import Instruments
from autotune.trial.outcome import ending_of
from autotune.trial.stop_rule import StopLimits
from scripts.bench.peers import Proposals
from scripts.bench.simulated_runner import SimulatedRunner

OURS = "autotune"
"""Name of our search among the methods."""

ORACLE = "oracle"
"""Name of the method that knows the best points and only has to compare them."""

CLOSE = 0.05
"""Regret up to which a config counts as found."""


class Setting(StrEnum):
    """Kind of trials that the other methods make."""

    SHIPPED = "as shipped"  # a fresh process and a minute for each trial
    SAME_RUNNER = "same runner"  # warm processes, and trials as long as ours: only the search differs
    SAME_SEARCH = "everything equal but the sampler"  # feasibility, repeats and confirmation are ours, too


@dataclass(frozen=True, kw_only=True)
class AnytimeCurve:
    """Answers that a method would have given at any time.

    The regret of a config is the fraction of the best possible speed that it leaves unused, by the true speeds: ``1 -
    speed / best speed``, in 0..1.

    Attributes:
        setting: Kind of its trials; None where that makes no difference.
        regrets: (time, regret of the answer from then on), the first at 0 s: the baseline.
    """

    method: str
    setting: Setting | None
    budget_s: float
    used_s: float
    trials: int
    regrets: Sequence[tuple[float, float]]
    answer: Values

    def regret_at(self, time_s: float) -> float:
        """Return the regret of the answer at that time."""
        return next(regret for since_s, regret in reversed(self.regrets) if since_s <= time_s)

    def close_s(self) -> float | None:
        """Time from which its answer is within `CLOSE` of the best for good; None if the final one is not."""
        found_s: float | None = None
        for since_s, regret in self.regrets:
            if regret > CLOSE:
                found_s = None
            elif found_s is None:
                found_s = since_s
        return found_s


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Final statement of one of our searches, with the truth.

    Attributes:
        better: True if it said so.
        low: Lower end of the 95 % interval of the speedup over the baseline.
        true_ratio: True speedup.
    """

    better: bool
    low: float
    high: float
    true_ratio: float

    @property
    def holds(self) -> bool:
        """True if the interval holds the truth."""
        return self.low <= self.true_ratio <= self.high


@dataclass(frozen=True, kw_only=True)
class HeadToHead:
    """Results of all methods on one scenario.

    Attributes:
        curves: One for each method, setting and (for our search) budget.
    """

    seed: int
    family: str
    machine: str
    best: Values
    curves: Sequence[AnytimeCurve]
    confirmations: Sequence[Confirmation]

    @property
    def baseline_is_close(self) -> bool:
        """True if there is nothing to find: the baseline is within `CLOSE` of the best."""
        return self.curves[0].regrets[0][1] <= CLOSE


@dataclass(frozen=True, kw_only=True)
class NullTrial:
    """Search in a scenario whose knobs have no effect.

    Attributes:
        confirmation: Its statement; None if it confirmed nothing.
    """

    seed: int
    confirmation: Confirmation | None


FIXED_RUN_S = 60.0
"""Length of a trial as users of other tuners configure it, start included."""


class SimulatedTrainer(Protocol):
    """Simulated trainer with its config and machine, and the truth about it; a `Scenario` is one."""

    @property
    def seed(self) -> int:
        """Seed of the noise."""

    @property
    def machine(self) -> Machine:
        """Conditions that a search knows of."""

    @property
    def config_text(self) -> str:
        """Text of the config, with the domains of its knobs."""

    def speed(self, values: Values) -> float:
        """Return the true samples per second of a point; 0.0 if it cannot run."""

    def best(self) -> tuple[Values, float]:
        """Return the fastest point and its speed."""

    def runner(self, clock: VirtualClock, *, seed: int, fresh_processes: bool) -> SimulatedRunner:
        """Return a runner of this trainer's trials."""

    def instruments(self, runner: SimulatedRunner) -> Instruments:
        """Return the instruments of one trial of that runner."""


class Harness:
    """Simulated machine of a scenario, its clock, and the answers of a method over time.

    Methods read only steps, exits and probes from the simulator; the true speeds judge the answers afterwards.

    Args:
        one: The scenario, or another simulated trainer.
        folder: Folder for all files; must not exist yet.
        method: Name of the method; each gets noise of its own.
        fresh_processes: True if each trial starts a process of its own, instead of a fork of a warm one.
        clock: Its clock, where others share its time.

    Attributes:
        clock: Virtual clock, advanced by the trials only.
        problem: The scenario's config, read as the command reads it.
        trials: Number of trials; the measuring methods count.
        answers: (trials before it, answer from then on), the first one the baseline.
    """

    def __init__(
        self,
        one: SimulatedTrainer,
        budget_s: float,
        folder: Path,
        *,
        method: str,
        fresh_processes: bool = False,
        clock: VirtualClock | None = None,
    ) -> None:
        self._one = one
        self._budget_s = budget_s
        self._method = method
        folder.mkdir(parents=True)
        config = folder / "config.yaml"
        config.write_text(one.config_text, encoding="utf-8")
        self.clock = clock or VirtualClock()
        self._started_s = self.clock.now_s()
        self._wall_s = self._started_s + budget_s
        noise = random.Random(f"{one.seed} {method}").getrandbits(32)
        self.runner = one.runner(self.clock, seed=noise, fresh_processes=fresh_processes)
        self.problem = open_problem(config, command=None, state_dir=folder / "state", machine=one.machine)
        self.problem.state.create()
        self.trials = 0
        self.answers: list[tuple[int, Values]] = [(0, self.problem.space.baseline)]
        self._answered_s: list[float] = [0.0]
        self._durations_s: list[float] = []
        self._starts_s: list[float] = []
        self._variances_s: list[float] = []

    def instruments(self) -> Instruments:
        """Return the instruments of the next trial."""
        return self._one.instruments(self.runner)

    def answer(self, values: Values) -> None:
        """Record the answer that the method would give from now on."""
        self.answers.append((len(self.runner.plans), values))
        self._answered_s.append(self.clock.now_s() - self._started_s)

    def note(self, event: Event) -> None:
        """Record the best point so far, as the answer that our tuner would give; a consumer of its events."""
        if isinstance(event, IncumbentChanged):
            self.answer(event.values)

    def answer_after(self, trials: int) -> Values:
        """Return the answer after so many trials."""
        return [values for since, values in self.answers if since <= trials][-1]

    def budget(self) -> Budget:
        """Return the method's budget, from now on, as our tuner takes it."""
        return Budget(self.clock, started_s=self.clock.now_s(), budget_s=self._budget_s)

    def curve(self, setting: Setting | None) -> AnytimeCurve:
        """Return the method's anytime curve so far, judged by the true speeds."""
        best = self._one.best()[1]
        return AnytimeCurve(
            method=self._method,
            setting=setting,
            budget_s=self._budget_s,
            used_s=self.clock.now_s() - self._started_s,
            trials=self.trials,
            regrets=[
                (since_s, max(0.0, 1.0 - self._one.speed(values) / best))
                for since_s, (_, values) in zip(self._answered_s, self.answers, strict=True)
            ],
            answer=self.answers[-1][1],
        )

    @contextmanager
    def tuner(
        self,
        budget: Budget,
        consumers: Iterable[Callable[[Event], None]],
        *,
        sampler: SamplerChoice = None,
        exhaust: bool = False,
        confirms: bool = True,
    ) -> Iterator[Tuner]:
        """Give our tuner on this machine, assembled as the command does it.

        Args:
            sampler: Its sampler, as in `SearchParts`.
            exhaust: As in `SearchParts`.
            confirms: As in `SearchParts`.
        """
        study = StudyRecord(self.problem.study, self.problem.storage)
        try:
            parts = SearchParts(
                name=OURS,
                options=SearchOptions(seed=self._one.seed, sampler=sampler, exhaust=exhaust, race_s=0.0),
                problem=self.problem,
                study=study,
                runner=self.runner,
                budget=budget,
                clock=self.clock,
                events=EventBus(consumers),
                instruments=self.instruments,
                confirms=confirms,
                warm_start=WarmStart(),
            )
            yield Tuner(parts)
        finally:
            study.close()

    def search(
        self,
        budget: Budget,
        consumers: Iterable[Callable[[Event], None]] = (),
        *,
        sampler: SamplerChoice = None,
        only_confirmed: bool = True,
        only_explores: bool = False,
    ) -> SearchResult | None:
        """Run our tuner; its answers are those of the harness.

        Args:
            sampler: Its sampler, as in `SearchParts`.
            only_confirmed: True if its last answer is what it confirmed, else the baseline: what was not confirmed is
                not recommended, however good it looked.
            only_explores: Whether it uses the whole budget to explore, and confirms nothing.

        Returns:
            Its result; None if no trial gave numbers.

        Raises:
            AutotuneError: What ended it before its time.
        """
        baseline = self.problem.space.baseline
        with self.tuner(
            budget, [*consumers, self.note], sampler=sampler, exhaust=only_explores, confirms=not only_explores
        ) as tuner:
            try:
                result = tuner.run()
            except TrialError:
                self.answer(baseline)
                return None
            finally:
                self.trials = sum(tuner.outcomes.values())
            if tuner.ended_by is not None:
                raise tuner.ended_by
        if only_confirmed:
            self.answer(result.best.values if result.best else baseline)
        return result

    def follow(
        self, proposals: Proposals, measure: Callable[[Values], float | None], *, most_trials: float = math.inf
    ) -> None:
        """Run the proposals of a peer until it or the budget ends; its answer is its best single measurement.

        Args:
            measure: Measures a point once: its samples per second, None if that gave no number.
        """
        best = 0.0
        speed: float | None = None
        while self.clock.now_s() < self._wall_s and self.trials < most_trials:
            try:
                values = next(proposals) if self.trials == 0 else proposals.send(speed)
            except StopIteration:
                return
            self.trials += 1
            speed = measure(values)
            if speed is not None and speed > best:
                best = speed
                self.answer(values)

    def tell_apart(self, points: Sequence[Values]) -> None:
        """Run the oracle: it knows the best few points, and spends the whole budget on comparing them.

        It measures them in turn, again and again, by the rules of our search. The answer is the one with the best mean
        of ln speed; its regret comes from noise alone.
        """
        logs: list[list[float]] = [[] for _ in points]
        leader: int | None = None
        while self.clock.now_s() < self._wall_s:
            turn = self.trials % len(points)
            self.trials += 1
            speed = self.measure_as_ours(points[turn])
            if speed is None:
                continue
            logs[turn].append(math.log(speed))
            ahead = max(range(len(points)), key=lambda index: fmean(logs[index]) if logs[index] else -math.inf)
            if ahead != leader:
                leader = ahead
                self.answer(points[ahead])

    def measure_for_a_minute(self, values: Values) -> float | None:
        """Measure a trial of fixed length, without its first step and its warm-up."""
        problem, clock = self.problem, self.clock
        ends_s = clock.now_s() + FIXED_RUN_S
        events: list[TraineeEvent] = []

        def watch(new: Sequence[TraineeEvent]) -> Stop | None:
            events.extend(new)
            return Stop.ENOUGH if clock.now_s() >= ends_s else None

        done = self.runner.run(
            plan_trial(problem.trainer, problem.space.keys(values), trial="minute"), watch, self._wall_s
        )
        ending, _ = ending_of(done, events)
        window = steady_window(events) if ending in (Ending.COMPLETED, Ending.STOPPED) else None
        return window.samples_per_s(problem.batch_size(values)) if window else None

    def measure_as_ours(self, values: Values) -> float | None:
        """Measure a trial by the rules of our search: length, validity, time limits, waiting for caches.

        No trial is stopped early as hopeless: that is the decision of a search, and the peers make none.
        """
        problem, now_s = self.problem, self.clock.now_s()
        give_up_s = math.inf
        if self._durations_s:
            left_s = self._wall_s - now_s
            give_up_s = now_s + max(SLOWER_THAN_USUAL * median(self._durations_s), MOST_OF_THE_REST * left_s)
        done = execute(
            problem.trainer,
            complete(
                problem,
                TrialSpec(values=values, purpose=Purpose.EXPLORE),
                name="same",
                limits=StopLimits(
                    goal=self._goal(),
                    settles=problem.space.settles(values),
                    deadline_s=self._wall_s,
                    give_up_s=give_up_s,
                ),
            ),
            runner=self.runner,
            instruments=self.instruments(),
            clock=self.clock,
        )
        if done.validity is not Validity.GOOD or done.measurement is None or done.window is None:
            return None
        self._durations_s.append(done.duration_s)
        self._starts_s.append(done.measurement.first_step_s)
        self._variances_s.append(done.window.within_variance_s())
        return done.measurement.samples_per_s

    def _goal(self) -> WindowGoal:
        """Return the measuring window of our search at its prior spread between trials."""
        limits = self.problem.limits
        target_s = limits.min_s
        if self._variances_s:
            target_s = optimal_window_s(
                median(self._starts_s), median(self._variances_s), TYPICAL_CV**2, min_s=limits.min_s, max_s=limits.max_s
            )
        return WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=target_s)
