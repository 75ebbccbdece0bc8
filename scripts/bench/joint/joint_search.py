"""Whole searches of several simulated machines on one study: a tuner each, in virtual time, over one storage."""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.events import Event, IncumbentChanged, TrialEnded
from autotune.records import MACHINE, Purpose, Scalar, SearchResult, TrialRecord, Values, Verdict
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem, open_problem
from autotune.search.schedule import Budget
from autotune.search.tuner import Tuner
from autotune.study.claims import RENEWAL_S, Owner
from autotune.study.members import Member, Phase, Role
from autotune.study.record import Study
from autotune.testing.simulated_runner import SimulatedRunner
from scripts.bench.joint.shared_memory import SharedMemory
from scripts.bench.joint.simulated_site import SiteMachine
from scripts.bench.joint.virtual_time import MachineClock, SharedTime
from scripts.bench.peers.anytime_curve import CLOSE, OURS
from scripts.bench.simulation.scenarios import Scenario


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part of one machine in a search.

    Attributes:
        machine: The machine.
        trials: (time at its end, trial) of each trial that it made.
        answers: (time, best point known to it from then on).
        result: Its answer; None if it has none.
        why_left: Reason why it left before its time; None if it did not.
        ended_s: Time at which it ended.
    """

    machine: SiteMachine
    trials: Sequence[tuple[float, TrialRecord]]
    answers: Sequence[tuple[float, Values]]
    result: SearchResult | None
    why_left: str | None
    ended_s: float


@dataclass(frozen=True, kw_only=True)
class JointSearch:
    """Search of several machines that has ended; all times are since its beginning.

    Attributes:
        one: The scenario.
        parts: Part of each machine.
    """

    one: Scenario
    parts: Sequence[Part]

    @property
    def trials(self) -> list[tuple[float, TrialRecord]]:
        """Trials of all machines, by the time of their ends."""
        return sorted((trial for part in self.parts for trial in part.trials), key=lambda trial: trial[0])

    @property
    def says_better(self) -> bool:
        """Whether the answer of any machine is that there are better values."""
        return any(part.result and part.result.verdict is Verdict.BETTER for part in self.parts)

    @property
    def baseline_is_close(self) -> bool:
        """Whether the baseline is within `CLOSE` of the best: then there is nothing to find."""
        return self._is_close({})

    @property
    def doubles(self) -> int:
        """Number of exploring trials of a point that had been explored before, or was at that time."""
        points = Counter(trial.point for _, trial in self.trials if trial.purpose is Purpose.EXPLORE)
        return sum(points.values()) - len(points)

    def baseline_s(self) -> float | None:
        """Return when the first trial of the baseline that can be compared with ended; None if none did."""
        ends_s = (ended_s for ended_s, one in self.trials if one.comparable and one.purpose is Purpose.BASELINE)
        return next(ends_s, None)

    def found_s(self) -> float | None:
        """Return when a trial of a point within `CLOSE` of the best first ended; None if none did."""
        ends_s = (ended_s for ended_s, trial in self.trials if trial.comparable and self._is_close(trial.values))
        return next(ends_s, None)

    def answered_s(self) -> float | None:
        """Return from when on the latest answer of any machine was within `CLOSE` for good; None if never."""
        since_s: float | None = None
        answers = sorted((answer for part in self.parts for answer in part.answers), key=lambda answer: answer[0])
        for told_s, values in answers:
            if not self._is_close(values):
                since_s = None
            elif since_s is None:
                since_s = told_s
        return since_s

    def _is_close(self, values: Values) -> bool:
        return self.one.speed(values) >= (1.0 - CLOSE) * self.one.best()[1]


def search_together(one: Scenario, machines: Sequence[SiteMachine], budget_s: float, folder: Path) -> JointSearch:
    """Search with several machines at the same time.

    Args:
        one: The scenario.
        machines: The machines, at least one.
        budget_s: Budget of each.
        folder: Folder for all files; must not exist yet.
    """
    time = SharedTime(len(machines))
    shared: SharedMemory | None = None
    searches = []
    for machine, clock in zip(machines, time.clocks, strict=True):
        storage = shared = SharedMemory(partial(time.turn, clock), shared)
        member = _Member(one, machine, clock, storage, budget_s, folder / machine.name)
        searches.append(partial(_in_its_turn, time, member))
    with ThreadPoolExecutor(len(machines)) as pool:
        parts = [search.result() for search in [pool.submit(search) for search in searches]]
    return JointSearch(one=one, parts=parts)


def _in_its_turn(time: SharedTime, member: "_Member") -> Part:
    try:
        time.turn(member.clock)
        return member.search()
    finally:
        time.leave(member.clock)


class _Member:
    """One machine with its tuner.

    Args:
        one: The scenario.
        machine: The machine.
        clock: Its clock.
        storage: The storage as it uses it.
        budget_s: Its budget.
        folder: Its folder; must not exist yet.
    """

    def __init__(
        self,
        one: Scenario,
        machine: SiteMachine,
        clock: MachineClock,
        storage: SharedMemory,
        budget_s: float,
        folder: Path,
    ) -> None:
        self._one = one
        self._machine = machine
        self.clock = clock
        self._storage = storage
        self._budget = Budget(clock, started_s=clock.now_s(), budget_s=budget_s)
        self._folder = folder
        self._trials: list[tuple[float, TrialRecord]] = []
        self._answers: list[tuple[float, Values]] = []

    def search(self) -> Part:
        """Search as the command does, on this machine's clock."""
        problem = self._problem()
        owner = Owner(about=self._about, is_gone=lambda _claim: False, clock=self.clock, ends_s=self._budget.wall_s)
        study = Study(problem.study, self._storage, owner=owner)
        self.clock.do_every(RENEWAL_S, study.renew)  # by virtual time, so that its claims do not lapse
        try:
            study.join(self._member(problem))
            tuner = Tuner(self._parts(problem, study), [self._note])
            result, error = None, None
            try:
                result = tuner.run()
            except AutotuneError as raised:
                error = raised
            error = tuner.ended_by or error
            why_left = tuner.left_because or (error.message if error else None)
            study.describe(phase=Phase.LEFT, left_because=tuner.left_because)
            return Part(
                machine=self._machine,
                trials=self._trials,
                answers=self._answers,
                result=result,
                why_left=why_left,
                ended_s=self._budget.elapsed_s(),
            )
        finally:
            study.close()

    @property
    def _about(self) -> dict[str, Scalar]:
        return {"host": f"host-{self._machine.number}", MACHINE: self._machine.name}

    def _member(self, problem: Problem) -> Member:
        """Return how it describes itself: each machine was told to search, and gives an answer."""
        return Member(
            uuid=self._machine.name,
            role=Role.SEARCH,
            search=OURS,
            machine=self._machine.name,
            baseline=problem.space.name(problem.space.baseline),
            about=self._about,
            since_utc=self.clock.utc(),
            renewed_utc=self.clock.utc(),
        )

    def _problem(self) -> Problem:
        self._folder.mkdir(parents=True)
        config = self._folder / "config.yaml"
        config.write_text(self._one.config_text, encoding="utf-8")
        machine = replace(self._one.machine, name=self._machine.name)
        problem = open_problem(config, command=None, state_dir=self._folder / "state", machine=machine)
        problem = replace(problem, space=self._one.advised(problem.space))
        # In the place of the host that this runs on: machines are told apart by their hosts for people.
        vars(problem)["conditions"] = {**problem.conditions, **self._about}
        problem.state.create()
        return problem

    def _parts(self, problem: Problem, study: Study) -> SearchParts:
        one, seed = self._one, self._one.seed
        noise = random.Random(f"{seed} machine {self._machine.number}").getrandbits(32)
        trainer = self._machine.trainer(one, self.clock)
        runner = SimulatedRunner(self.clock, trainer, seed=noise, drift=one.training.drift)
        return SearchParts(
            name=OURS,
            seed=seed + 1000 * self._machine.number,  # two that drew the same would try the same
            problem=problem,
            study=study,
            runner=runner,
            budget=self._budget,
            clock=self.clock,
            instruments=lambda: one.instruments(runner),
        )

    def _note(self, event: Event) -> None:
        now_s = self._budget.elapsed_s()
        if isinstance(event, TrialEnded):
            self._trials.append((now_s, event.trial))
        elif isinstance(event, IncumbentChanged):
            self._answers.append((now_s, event.values))
