"""Other machines that work on the same study: what this one takes over from them, leaves to them, and when it leaves.

Nobody is sent a trial: each machine takes the next one by itself. It knows the others by the record and by how they
describe themselves, see `study.members`.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median

from autotune.records import Ending, TrialRecord
from autotune.sampler.observations import FAILURE_SCOPES, FailureScope
from autotune.search.confirm import Candidate
from autotune.search.parts import SearchParts
from autotune.search.state import SearchState
from autotune.study.members import Member, MemberPhase, Role, hosts_of, hosts_told_apart
from autotune.study.record import Members
from autotune.trial.process_identity import same_boot

CONFIRMING_MACHINES = 2
"""Most machines that confirm one point: a gain on two of a class is one of the class."""

BASELINE_EVERY = 12
"""Trials after which a machine measures today's config again, while others work on the study."""

_FAILURES_IN_A_ROW = 2  # after which today's config is tried again: is it the machine?
_SLOW = math.log(0.5)  # of the others' median: two of a class that differ by 20 %, and noise, come to 0.63
_TRIALS_OF_SLOW = 2  # of today's config, before a machine counts as slow
_MANY = 3  # trials of others under way: what they tell is worth waiting for
_LOOK_S = 2.0  # between looks at what others do


class LeftOut(Exception):  # noqa: N818 - it is no error: the others go on
    """This machine is no use to the study: it fails, or is slow, where others are not. The text says which."""


class OtherMachines:
    """Other machines at work on the study of a search."""

    def __init__(self, parts: SearchParts, state: SearchState) -> None:
        self._parts = parts
        self._events = parts.events
        self._study = parts.study
        self._members = parts.study.members
        self._state = state
        self._joint = JointSearch(parts.study.members, parts.search)
        self._known = {one.uuid: one for one in self._joint.others()}

    def take_in(self) -> None:
        """Take in what others have measured, and what they measure now.

        Raises:
            StudyError: The storage cannot be read.
        """
        if self._members.own is not None:
            self._state.model.take_in_others()
            self._joint.look()
            self._tell_who_came_and_went()

    def why_exploring_ends(self) -> str:
        """Return the reason for which others make further trials needless; empty if they do not."""
        if confirming := self._joint.confirming_in_time(self._parts.budget.left_s()):
            return f"the best point is being confirmed on {', '.join(sorted({*map(self._joint.name_of, confirming)}))}"
        if self._joint.has_lost_its_search:
            return "the search that this machine works for has ended"
        return ""

    def is_time_for_baseline(self) -> bool:
        """Return whether to measure today's config again: now and then, and where trials fail in a row."""
        if self._members.own is None or not self._elsewhere():
            return False
        trials, baseline = self._state.trials.own, self._state.trials.baseline_point
        last = max((place for place, one in enumerate(trials) if one.point == baseline), default=-1)
        since = trials[last + 1 :]
        failing = since[-_FAILURES_IN_A_ROW:]
        all_fail = len(failing) == _FAILURES_IN_A_ROW and not any(trial.measurement for trial in failing)
        seems_slow = self._baseline_trials < _TRIALS_OF_SLOW and self._ln_behind() < _SLOW
        return all_fail or seems_slow or (len(since) >= BASELINE_EVERY and bool(self._members.others()))

    def require_that_today_works(self, record: TrialRecord) -> None:
        """Check this machine by a trial of today's config.

        Raises:
            LeftOut: It failed, or was slow, and ran better elsewhere.
        """
        elsewhere = self._baseline_elsewhere()
        if not elsewhere:
            return
        names = hosts_of(trial for trial in self._study.records() if trial.search == self._parts.search)
        named = ", ".join(sorted({names[trial.machine] for trial in elsewhere}))
        is_its_own = record.ending is Ending.GPU_LOST or FAILURE_SCOPES[record.ending] is not FailureScope.NOTHING
        if record.measurement is None and is_its_own:
            detail = f": {record.detail}" if record.detail else ""
            raise LeftOut(f"today's config gives no numbers here ({record.ending.value}{detail}), and did on {named}")
        behind = self._ln_behind()
        if self._baseline_trials >= _TRIALS_OF_SLOW and behind < _SLOW:
            raise LeftOut(f"today's config runs at {math.exp(behind):.0%} of its speed on {named}")

    def wait_for_their_trials(self, most_s: float) -> None:
        """Wait for the trials that many others have under way, so that who confirms first has not seen the least.

        Args:
            most_s: Time that there is for it.
        """
        clock, over_s = self._parts.clock, self._parts.clock.now_s() + most_s
        under_way, known = len(self._members.trials_elsewhere), len(self._study.records())
        if under_way < _MANY or self._joint.confirming_in_time(self._parts.budget.left_s()):
            return
        while clock.now_s() < over_s and len(self._study.records()) < known + under_way:
            clock.wait(min(_LOOK_S, max(0.0, over_s - clock.now_s())))
            self._study.refresh()
        self.take_in()

    def to_be_confirmed(self, better: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the points that this machine may confirm: the one that another confirms, where there is one.

        Args:
            better: Points that are believed to be better than today's, best first.

        Returns:
            None of them where others are enough.
        """
        if self._joint.has_lost_its_search:
            return []
        confirming = self._joint.confirming_in_time(self._parts.budget.left_s())
        if not confirming:
            return better
        if self.take_turns and any(same_boot(one.about) for one in confirming):
            return []  # by turns it would take both of them twice the time
        point = confirming[0].point
        machines = {one.machine for one in confirming if one.point == point}
        if len(machines) >= CONFIRMING_MACHINES:
            return []
        return [candidate for candidate in better if candidate.observation.name == point]

    @property
    def take_turns(self) -> bool:
        """Whether pairs are run while the others on this machine wait."""
        return bool(self._parts.neighbours)

    @contextmanager
    def confirming(self, point: str) -> Iterator[None]:
        """Tell the others that this machine confirms a point, for as long as a ``with`` block lasts."""
        self._members.describe(phase=MemberPhase.CONFIRMING, point=point)
        try:
            yield
        finally:
            self._members.describe(phase=MemberPhase.EXPLORING)

    def wait_for_their_confirmations(self) -> None:
        """Wait until others have confirmed what they confirm, so that the answer has it; a worker gives no answer."""
        if self._members.own is None or self._joint.is_worker:
            return
        self._study.refresh()
        while self._joint.confirming() and self._parts.budget.left_s() > _LOOK_S:
            self._parts.clock.wait(_LOOK_S)
            self._study.refresh()

    @property
    def _baseline_trials(self) -> int:
        return len(self._state.trials.good_baseline())

    def _baseline_elsewhere(self) -> list[TrialRecord]:
        return [trial for trial in self._elsewhere() if trial.point == self._state.trials.baseline_point]

    def _ln_behind(self) -> float:
        speeds: dict[str, list[float]] = {}
        for trial in self._baseline_elsewhere():
            if measured := trial.comparable:
                speeds.setdefault(trial.machine, []).append(math.log(measured.speed))
        own = [math.log(one.comparable.speed) for one in self._state.trials.good_baseline() if one.comparable]
        return fmean(own) - median(fmean(some) for some in speeds.values()) if own and speeds else 0.0

    def _tell_who_came_and_went(self) -> None:
        together = {one.uuid: one for one in self._joint.others()}
        for uuid, one in together.items():
            if uuid not in self._known:
                self._events.remark(f"{self._joint.name_of(one)} ({one.role.value}) works on this search from now on.")
        gone = self._known.keys() - together.keys()
        for one in self._members.seen if gone else ():
            if one.uuid in gone:
                why = one.left_because or ("" if one.has_left else "it gives no sign of life")
                if (
                    not one.has_left
                    and self._joint.is_worker
                    and one.role is Role.SEARCH
                    and not self._joint.searches()
                ):
                    why += "; this worker goes on by itself"
                self._events.remark(f"{self._joint.name_of(one)} ({one.role.value}) has left{why and f': {why}'}.")
        self._known = together

    def _elsewhere(self) -> list[TrialRecord]:
        own = self._members.own.machine if self._members.own else ""
        return [
            trial
            for trial in self._study.records()
            if trial.comparable and trial.machine != own and trial.search == self._parts.search
        ]


class JointSearch:
    """Members that make one search together, as this one sees them."""

    def __init__(self, members: Members, search: str) -> None:
        self._members = members
        self._search = search
        self._has_worked_for_a_search = False

    def look(self) -> None:
        """Note whether there is a search that this machine works for."""
        self._has_worked_for_a_search = self._has_worked_for_a_search or bool(self.searches())

    @property
    def is_worker(self) -> bool:
        """Whether this machine gives no answer."""
        return self._members.own is not None and self._members.own.role is Role.WORKER

    @property
    def has_lost_its_search(self) -> bool:
        """Whether a search has ended in order: one that was killed has left its time, and its answer, to workers."""
        ours = [one for one in self._members.seen if one.search == self._search]
        has_left = any(one.role is Role.SEARCH and one.has_left for one in ours)
        return self.is_worker and self._has_worked_for_a_search and has_left and not self.searches()

    def others(self) -> list[Member]:
        """Return the other members that are at work."""
        return [one for one in self._members.others() if one.search == self._search]

    def searches(self) -> list[Member]:
        """Return those of them that give an answer."""
        return [one for one in self.others() if one.role is Role.SEARCH]

    def confirming(self) -> list[Member]:
        """Return those that confirm a point."""
        return [one for one in self.others() if one.phase is MemberPhase.CONFIRMING and one.point]

    def confirming_in_time(self, left_s: float) -> list[Member]:
        """Return those that confirm, unless this machine has so much more time left that it explores meanwhile."""
        return [one for one in self.confirming() if left_s <= 2.0 * one.left_s]

    def name_of(self, member: Member) -> str:
        """Return the name of a member's host, in which no two of them are alike."""
        alike = (one for one in self._members.seen if one.search == self._search)
        return hosts_told_apart((one.machine, one.host) for one in (*alike, member))[member.machine]
