"""Other machines in the same study, known from the record and their own status."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median

from autotune.records import Ending, TrialRecord
from autotune.sampler.observations import EXTERNAL
from autotune.search.confirm import Candidate
from autotune.search.parts import SearchParts
from autotune.search.state import SearchState
from autotune.study.members import Member, MemberPhase, Role, distinct_hosts, hosts_of
from autotune.trial.process_identity import same_boot

CONFIRMING_MACHINES = 2
"""Most machines that confirm one point; two of a class show a gain for the class."""

BASELINE_EVERY = 12
"""Trials between baseline trials of a machine while others are active."""

_FAILURES_IN_A_ROW = 2  # after which the baseline shows whether the machine is to blame
_SLOW = math.log(0.5)  # of the others' median; a difference of 20 % within a class, and noise, amount to 0.63
_TRIALS_OF_SLOW = 2  # of the baseline, before a machine counts as slow
_MANY = 3  # running trials of others that are worth waiting for
_POLL_S = 2.0  # between polls of the others' state


class LeftOut(Exception):  # noqa: N818 - not an error: the others continue
    """This machine fails or is slow, unlike the others, and is excluded; the text says why."""


class OtherMachines:
    """Other active machines in the study of a search."""

    def __init__(self, parts: SearchParts, state: SearchState) -> None:
        self._parts = parts
        self._events = parts.events
        self._study = parts.study
        self._members = parts.study.members
        self._state = state
        self._has_worked_for_a_search = False
        self._known = {one.uuid: one for one in self._others()}

    def update(self) -> None:
        """Update with other machines' finished and running trials.

        Raises:
            StudyError: The storage cannot be read.
        """
        if self._members.own is not None:
            self._state.model.update_from_others()
            self._has_worked_for_a_search = self._has_worked_for_a_search or bool(self._searches())
            self._report_membership()

    def why_exploring_ends(self) -> str:
        """Return why other machines make further trials needless."""
        if confirming := self._confirming_in_time():
            return f"the best point is being confirmed on {', '.join(sorted({*map(self._name_of, confirming)}))}"
        if self._has_lost_its_search:
            return "the search that this machine works for has ended"
        return ""

    def is_time_for_baseline(self) -> bool:
        """Return whether to re-measure the baseline: periodically, and after consecutive failures."""
        if self._members.own is None or not self._elsewhere():
            return False
        trials, baseline = self._state.trials.own, self._state.trials.baseline_point
        last = max((place for place, one in enumerate(trials) if one.point == baseline), default=-1)
        since = trials[last + 1 :]
        failing = since[-_FAILURES_IN_A_ROW:]
        all_fail = len(failing) == _FAILURES_IN_A_ROW and not any(trial.measurement for trial in failing)
        measured = len(self._state.trials.good_baseline())
        seems_slow = measured < _TRIALS_OF_SLOW and self._ln_relative_speed() < _SLOW
        return all_fail or seems_slow or (len(since) >= BASELINE_EVERY and bool(self._members.others()))

    def check_baseline(self, record: TrialRecord) -> None:
        """Check this machine by a baseline trial.

        Raises:
            LeftOut: It failed or was slow, unlike elsewhere.
        """
        elsewhere = self._baseline_elsewhere()
        if not elsewhere:
            return
        names = hosts_of(trial for trial in self._study.records() if trial.search == self._parts.search)
        named = ", ".join(sorted({names[trial.machine] for trial in elsewhere}))
        may_be_machine = record.ending is Ending.GPU_LOST or record.ending not in EXTERNAL
        if record.measurement is None and may_be_machine:
            detail = f": {record.detail}" if record.detail else ""
            raise LeftOut(f"today's config failed here ({record.ending.value}{detail}), but not on {named}")
        relative, measured = self._ln_relative_speed(), len(self._state.trials.good_baseline())
        if measured >= _TRIALS_OF_SLOW and relative < _SLOW:
            raise LeftOut(f"today's config runs at {100 * math.exp(relative):.0f} % of its speed on {named}")

    def wait_for_their_trials(self, most_s: float) -> None:
        """Wait up to `most_s` for many running trials, which may show a better point to confirm."""
        clock, over_s = self._parts.clock, self._parts.clock.now_s() + most_s
        under_way, known = len(self._members.trials_elsewhere), len(self._study.records())
        if under_way < _MANY or self._confirming_in_time():
            return
        while clock.now_s() < over_s and len(self._study.records()) < known + under_way:
            clock.wait(min(_POLL_S, max(0.0, over_s - clock.now_s())))
            self._study.refresh()
        self.update()

    def confirmable(self, better: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates that this machine may confirm: the point that another confirms, none if enough do."""
        if self._has_lost_its_search:
            return []
        confirming = self._confirming_in_time()
        if not confirming:
            return better
        if self.runs_pairs_alone and any(same_boot(one.about) for one in confirming):
            return []  # alternating would take both of them twice the time
        point = confirming[0].point
        machines = {one.machine for one in confirming if one.point == point}
        if len(machines) >= CONFIRMING_MACHINES:
            return []
        return [candidate for candidate in better if candidate.observation.name == point]

    @property
    def runs_pairs_alone(self) -> bool:
        """Whether the others on this machine wait during pairs."""
        return bool(self._parts.neighbours)

    @contextmanager
    def confirming(self, point: str) -> Iterator[None]:
        self._members.describe(phase=MemberPhase.CONFIRMING, point=point)
        try:
            yield
        finally:
            self._members.describe(phase=MemberPhase.EXPLORING)

    def wait_for_their_confirmations(self) -> None:
        """Wait for running confirmations, which the answer includes; workers give no answer."""
        if self._members.own is None or self._is_worker:
            return
        self._study.refresh()
        while self._confirming() and self._parts.budget.left_s() > _POLL_S:
            self._parts.clock.wait(_POLL_S)
            self._study.refresh()

    def _baseline_elsewhere(self) -> list[TrialRecord]:
        return [trial for trial in self._elsewhere() if trial.point == self._state.trials.baseline_point]

    def _ln_relative_speed(self) -> float:
        speeds: dict[str, list[float]] = {}
        for trial in self._baseline_elsewhere():
            if measured := trial.comparable:
                speeds.setdefault(trial.machine, []).append(math.log(measured.speed))
        own = [math.log(one.comparable.speed) for one in self._state.trials.good_baseline() if one.comparable]
        return fmean(own) - median(fmean(some) for some in speeds.values()) if own and speeds else 0.0

    def _report_membership(self) -> None:
        current = {one.uuid: one for one in self._others()}
        for uuid, one in current.items():
            if uuid not in self._known:
                self._events.remark(f"{self._name_of(one)} ({one.role.value}) has joined this search.")
        gone = self._known.keys() - current.keys()
        for one in self._members.seen if gone else ():
            if one.uuid in gone:
                why = one.left_because or ("" if one.has_left else "no heartbeat")
                is_killed_search = one.role is Role.SEARCH and not one.has_left
                if is_killed_search and self._is_worker and not self._searches():
                    why += "; this worker continues alone"
                self._events.remark(f"{self._name_of(one)} ({one.role.value}) has left{why and f': {why}'}.")
        self._known = current

    def _elsewhere(self) -> list[TrialRecord]:
        own = self._members.own.machine if self._members.own else ""
        of_search = (trial for trial in self._study.records() if trial.search == self._parts.search)
        return [trial for trial in of_search if trial.comparable and trial.machine != own]

    # Members of the joint search

    @property
    def _is_worker(self) -> bool:
        return self._members.own is not None and self._members.own.role is Role.WORKER

    @property
    def _has_lost_its_search(self) -> bool:
        """Whether its search ended regularly; a killed one leaves its time and answer to the workers."""
        ours = [one for one in self._members.seen if one.search == self._parts.search]
        has_left = any(one.role is Role.SEARCH and one.has_left for one in ours)
        return self._is_worker and self._has_worked_for_a_search and has_left and not self._searches()

    def _others(self) -> list[Member]:
        return [one for one in self._members.others() if one.search == self._parts.search]

    def _searches(self) -> list[Member]:
        return [one for one in self._others() if one.role is Role.SEARCH]

    def _confirming(self) -> list[Member]:
        return [one for one in self._others() if one.phase is MemberPhase.CONFIRMING and one.point]

    def _confirming_in_time(self) -> list[Member]:
        """Return the confirming members, unless this machine has time to explore meanwhile."""
        left_s = self._parts.budget.left_s()
        return [one for one in self._confirming() if left_s <= 2.0 * one.left_s]

    def _name_of(self, member: Member) -> str:
        """Return the unique name of a member's host."""
        members = (one for one in self._members.seen if one.search == self._parts.search)
        return distinct_hosts((one.machine, one.host) for one in (*members, member))[member.machine]
