"""Searches beside other machines on the same study, in virtual time: what is left to them, and when one leaves."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from autotune.clock import VirtualClock
from autotune.events import Event, TrialEnded
from autotune.records import Conditions, Purpose, TrialRecord, Values, Verdict
from autotune.search.problem import Problem
from autotune.study.claims import Claim, Owner
from autotune.study.members import Member, MemberPhase, Role
from autotune.study.record import StudyRecord
from scripts.bench.simulated_runner import Training
from tests.runs import MakeTrial
from tests.search.simulated import Search, plain

BEST = {"data.batch_size": 32, "data.num_workers": 2, "data.cache": "none"}
HERE = "z-here"
GOOD = {"data.batch_size": 32, "data.num_workers": 1, "data.cache": "none"}


def member(problem: Problem, clock: VirtualClock, name: str, role: Role) -> Member:
    """Return a member on the machine of that name, whose config holds the same values."""
    now = clock.utc()
    return Member(
        uuid=name,
        role=role,
        search="joint",
        machine=problem.machine.name if name == HERE else name,
        baseline=problem.space.name(problem.space.baseline),
        about={"host": name},
        since_utc=now,
        renewed_utc=now,
    )


class Other:
    """Another machine on the study, which does what the test says."""

    def __init__(self, name: str, make_trial: MakeTrial) -> None:
        self.name = name
        self._make_trial = make_trial
        self.study: StudyRecord
        self.problem: Problem

    def joins(self, problem: Problem, clock: VirtualClock, budget_s: float) -> None:
        """Join the study, for so long."""
        ends_s = clock.now_s() + budget_s
        owner = Owner(about={"host": self.name}, is_gone=lambda _about: False, clock=clock, ends_s=ends_s)
        self.problem = problem
        self.study = StudyRecord(problem.study, problem.storage, owner=owner)
        self.study.join(member(problem, clock, self.name, Role.SEARCH))

    def begins(self, values: Values) -> Claim:
        """Begin a trial."""
        return self.study.begin(values, self.problem.space.choices, purpose="explore", machine=self.name)

    def has_measured(self, values: Values, samples_per_s: float, purpose: Purpose = Purpose.EXPLORE) -> None:
        """Finish a trial."""
        record = self._make_trial(
            values,
            samples_per_s,
            search="joint",
            point=self.problem.space.name(values),
            purpose=purpose,
            conditions=Conditions(machine=self.name, host=self.name),
        )
        self.study.finish(self.begins(values), record)

    def has_measured_today(self, samples_per_s: float) -> None:
        """Finish a trial of today's config."""
        self.has_measured(self.problem.space.baseline, samples_per_s, Purpose.BASELINE)


def joining(
    *others: Other, role: Role = Role.SEARCH, budget_s: float = 9e9, first: Callable[[], object] = lambda: None
) -> Callable[[StudyRecord, Problem, VirtualClock], None]:
    """Let others join first, and do something, and then the search itself."""

    def joins(study: StudyRecord, problem: Problem, clock: VirtualClock) -> None:
        for other in others:
            other.joins(problem, clock, budget_s)
        first()
        clock.wait(1.0)
        assert study.join(member(problem, clock, HERE, role)).search == "joint"

    return joins


def crashing(_config: Mapping[str, Any]) -> Training:
    """Crash before the first step."""
    return Training(steps=0, exit_code=1, stderr="OSError: /data is not mounted here")


def after(trials: int, act: Callable[[], None]) -> Callable[[Event], None]:
    """Act once, when so many trials have ended."""
    ended: list[TrialRecord] = []

    def told(event: Event) -> None:
        if isinstance(event, TrialEnded):
            ended.append(event.trial)
            if len(ended) == trials:
                act()

    return told


def test_points_that_others_measure_are_left_to_them(search: Search, make_trial: MakeTrial) -> None:
    """As long as somebody else is at a point, it is not tried here; the others are."""
    other = Other("a", make_trial)
    searched = search(plain, budget_s=110, joins=joining(other, first=lambda: other.begins(GOOD)))
    tried = [trial.values for trial in searched.of(Purpose.EXPLORE)]
    assert len(tried) >= 4
    assert GOOD not in tried
    assert all(trial.search == "joint" for trial in searched.trials)


def test_what_others_have_measured_is_not_tried_again(search: Search, make_trial: MakeTrial) -> None:
    """Their trials count as if they had been made here, on the scale of this machine."""
    other = Other("a", make_trial)

    def measured() -> None:
        other.has_measured_today(1.2 * 285.0)
        other.has_measured(GOOD, 1.2 * 615.0)
        other.has_measured(BEST, 1.2 * 677.0)

    searched = search(plain, budget_s=300, joins=joining(other, first=measured))
    assert searched.answer.best is not None, searched.answer.why
    assert {**searched.answer.best.values, "data.cache": "none"} == BEST  # the cache does nothing
    assert BEST not in [trial.values for trial in searched.of(Purpose.EXPLORE)]
    assert 2.0 < searched.answer.speedup.ratio < 2.8  # by pairs of this machine alone


def test_a_point_that_another_confirms_is_confirmed_here_too(search: Search, make_trial: MakeTrial) -> None:
    """So the winner is shown on two machines, though this one would have chosen another."""
    other = Other("a", make_trial)

    def confirms() -> None:
        other.has_measured_today(285.0)
        other.has_measured(GOOD, 615.0)
        other.study.members.describe(phase=MemberPhase.CONFIRMING, point=other.problem.space.name(GOOD))

    searched = search(plain, budget_s=300, joins=joining(other), told=after(6, confirms))
    confirmed = [trial.values for trial in searched.of(Purpose.CONFIRM)]
    assert GOOD in confirmed
    assert BEST not in confirmed


def test_who_confirms_first_waits_for_what_many_others_have_under_way(search: Search, make_trial: MakeTrial) -> None:
    """A trial's length at most: others that do not come back keep nobody."""
    others = [Other(name, make_trial) for name in "abc"]

    def begin() -> None:
        for workers, other in enumerate(others):
            other.begins({"data.batch_size": 8, "data.num_workers": workers, "data.cache": "memory"})

    searched = search(plain, budget_s=300, joins=joining(*others), told=after(9, begin))
    trials = searched.trials
    first = next(place for place, trial in enumerate(trials) if trial.purpose in (Purpose.TAKE_BACK, Purpose.CONFIRM))
    before, ended = (datetime.fromisoformat(trial.ended_utc) for trial in trials[first - 1 : first + 1])
    waited_s = (ended - before).total_seconds() - trials[first].duration_s
    assert 1.0 < waited_s < 30.0, (first, len(trials), waited_s)
    assert searched.answer.verdict is Verdict.BETTER, searched.answer.why


def test_a_third_machine_does_not_confirm(search: Search, make_trial: MakeTrial) -> None:
    """Two are enough for a point; a worker leaves then."""
    others = Other("a", make_trial), Other("b", make_trial)

    def confirm() -> None:
        for other in others:
            other.has_measured(GOOD, 615.0)
            other.study.members.describe(phase=MemberPhase.CONFIRMING, point=other.problem.space.name(GOOD))

    searched = search(plain, budget_s=300, joins=joining(*others, role=Role.WORKER), told=after(4, confirm))
    assert len(searched.trials) == 4
    assert "being confirmed on a, b" in searched.said()


def test_a_worker_leaves_with_the_search_that_it_works_for(search: Search, make_trial: MakeTrial) -> None:
    """Nobody would use what it measures from then on."""
    other = Other("a", make_trial)
    searched = search(
        plain, budget_s=300, joins=joining(other, role=Role.WORKER), told=after(3, lambda: other.study.close())
    )
    assert len(searched.trials) == 3
    assert "has ended" in searched.said()


def test_a_machine_on_which_nothing_works_leaves_and_says_so(search: Search, make_trial: MakeTrial) -> None:
    """Where today's config runs elsewhere, it is this machine that is named, and no point is blamed."""
    other = Other("a", make_trial)
    searched = search(crashing, budget_s=300, joins=joining(other, first=lambda: other.has_measured_today(285.0)))
    assert "is not mounted here" in searched.tuner.left_because
    assert "but not on a" in searched.tuner.left_because
    assert len(searched.trials) <= 3
    assert {trial.purpose for trial in searched.trials} == {Purpose.BASELINE}


def test_a_machine_that_breaks_later_leaves_after_a_few_trials(search: Search, make_trial: MakeTrial) -> None:
    """Two failures in a row, and today's config is tried again: it is the machine."""
    other, broken = Other("a", make_trial), []
    searched = search(
        lambda config: crashing(config) if broken else plain(config),
        budget_s=600,
        joins=joining(other, first=lambda: other.has_measured_today(285.0)),
        told=after(4, lambda: broken.append(True)),
    )
    assert "but not on a" in searched.tuner.left_because
    assert len(searched.trials) <= 8


def test_a_slow_machine_leaves_and_says_how_slow(search: Search, make_trial: MakeTrial) -> None:
    """Twenty percent are as usual; half the speed is not."""
    other = Other("a", make_trial)

    def measured() -> None:
        for _ in range(2):
            other.has_measured_today(2.2 * 285.0)

    searched = search(plain, budget_s=600, joins=joining(other, first=measured))
    assert "of its speed on a" in searched.tuner.left_because
