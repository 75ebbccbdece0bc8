"""Trials of a study in Optuna's storage; used in one thread.

A study is a group of Optuna studies: Optuna fixes each list of categories, so trials that don't fit go into another
one. A write without a confirmed result is repeated and may be there twice. Readers keep one trial per UUID, under the
first number, which the user saw.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import StorageAway
from autotune.records import Values
from autotune.study.claims import CLAIM, Claim, Distributions, LeaseWatch, united, uuid_of
from autotune.study.entry import RECORD
from autotune.study.storage.storage import MEMBER_NUMBERS, Storage, first_kept, member_names, next_member

_T = TypeVar("_T")

_GONE = (KeyError, ValueError, optuna.exceptions.UpdateFinishedTrialError)
"""Errors of writes to a trial that another process has closed or deleted."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """Changes in a study by other processes: finished trials by number, and values of running ones."""

    ended: Sequence[tuple[int, FrozenTrial]]
    pending: Sequence[Values]
    attributes: Mapping[str, Any]


class OptunaTrials:
    """Trials of a study in its storage, which is created if missing.

    Attributes:
        last: Largest known number, or -1.

    Raises:
        StudyError: The storage cannot be read or written; from every method.
    """

    def __init__(self, name: str, storage: Storage, leases: LeaseWatch, *, reads_only: bool = False) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._name = name
        self._leases = leases
        self.last = -1
        self.connection = storage.connect(name, reads_only=reads_only)
        with self.connection.expected():
            self._storage: BaseStorage = self.connection.storage
            members = member_names(name, self.connection.names()) or [name]
            self._studies = [_load(member, self._storage) for member in members]
            self._first = first_kept([study.user_attrs for study in self._studies])
            self._known: list[dict[str, BaseDistribution]] = [{} for _ in self._studies]
            self._read: set[int] = set()
            for number, _, trial in self._trials():
                self._add_known(number // MEMBER_NUMBERS, trial.distributions)
                if trial.state.is_finished():
                    self._read.add(number)

    def found(self) -> list[tuple[int, FrozenTrial]]:
        return [(number, trial) for number, _, trial in self._trials() if number >= self._first * MEMBER_NUMBERS]

    def expecting(self, function: Callable[[], _T]) -> _T:
        """Call a function, and again if the connection was lost; the first call may have written anything."""
        with suppress(StorageAway), self.connection.expected():
            return function()
        with self.connection.expected():
            return function()

    def attributes(self) -> Mapping[str, Any]:
        return self._studies[self._first].user_attrs

    def note(self, name: str, value: object) -> None:
        self._studies[self._first].set_user_attr(name, value)

    def create(self, claim: Claim, own: Collection[str | None]) -> None:
        """Write a claimed trial with its claim, atomically, and close abandoned ones that aren't `own` UUIDs."""
        if self._lapsed(own):
            self.close_lapsed(own)
        there = [] if claim.is_written is None else self._trials_of(claim.uuid)
        claim.is_written = False
        claim.number = there[0][0] if there else self.add(claim.running_trial())
        claim.is_written = True

    def add(self, trial: FrozenTrial) -> int:
        """Write a trial into the latest Optuna study that can store it; return its number."""
        place, distributions = self._place_for(trial.distributions)
        trial.distributions = dict(distributions)
        study_id = self._storage.get_study_id_from_name(self._studies[place].study_name)
        trial_id = self._storage.create_new_trial(study_id, trial)
        self._add_known(place, distributions)
        number = place * MEMBER_NUMBERS + self._storage.get_trial_number_from_id(trial_id)
        self.last = max(self.last, number)
        return number

    def is_taken(self, claim: Claim) -> bool:
        """Return whether another process runs the same point, with a lower number."""
        return any(
            self._first * MEMBER_NUMBERS <= number < claim.number
            and dict(trial.params) == dict(claim.values)
            and uuid_of(trial) != claim.uuid
            for number, _, trial in self._trials(TrialState.RUNNING)
        )

    def updates(self, own: Collection[str | None]) -> Updates:
        """Return other processes' changes since the last call."""
        self.connection.pull()
        with suppress(KeyError):  # no further one yet
            further = next_member(self._name, [study.study_name for study in self._studies])
            self._storage.get_study_id_from_name(further)
            self._add_study(further)
        found = self.found()
        ended = [(number, trial) for number, trial in found if trial.state.is_finished() and number not in self._read]
        pending = [
            dict(trial.params) for _, trial in found if trial.state is TrialState.RUNNING and uuid_of(trial) not in own
        ]
        updates = Updates(ended=ended, pending=pending, attributes=self.attributes())
        self._read.update(number for number, _ in ended)  # last: the storage may fail before
        return updates

    def finish(self, finished: FrozenTrial) -> int:
        """Write the missing parts of a finished trial; return its number."""
        there = self._trials_of(uuid_of(finished))
        if any(RECORD in trial.user_attrs and trial.state.is_finished() for _, _, trial in there):
            return there[0][0]
        for _, study, trial in there:
            if not trial.state.is_finished():
                if self._complete(study, trial, finished):
                    return there[0][0]
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        late_of = there[0][0] if there else None
        finished.user_attrs = {**finished.user_attrs, CLAIM: {**finished.user_attrs[CLAIM], "late_of": late_of}}
        self.add(finished)
        return self._trials_of(uuid_of(finished))[0][0]

    def _complete(self, study: optuna.Study, trial: FrozenTrial, finished: FrozenTrial) -> bool:
        """Finish a running trial, unless another process closed or deleted it."""
        try:
            trial_id = self._trial_id(study, trial.number)
            for name, value in finished.user_attrs.items():
                if name != CLAIM:
                    self._storage.set_trial_user_attr(trial_id, name, value)
            for step, speed in finished.intermediate_values.items():
                self._storage.set_trial_intermediate_value(trial_id, step, speed)
            score = None if finished.value is None else [finished.value]
            self._storage.set_trial_state_values(trial_id, finished.state, score)
        except _GONE:
            return False
        return True

    def _trial_id(self, study: optuna.Study, number: int) -> int:
        study_id = self._storage.get_study_id_from_name(study.study_name)
        return self._storage.get_trial_id_from_study_id_trial_number(study_id, number)

    def _trials(self, *states: TrialState) -> Iterator[tuple[int, optuna.Study, FrozenTrial]]:
        """Yield all trials, archived ones too, with number and Optuna study."""
        for place, study in enumerate(self._studies):
            for trial in study.get_trials(deepcopy=False, states=states or None):
                number = place * MEMBER_NUMBERS + trial.number
                self.last = max(self.last, number)
                yield number, study, trial

    def _trials_of(self, uuid: str | None) -> list[tuple[int, optuna.Study, FrozenTrial]]:
        return [found for found in self._trials() if uuid_of(found[2]) == uuid]

    def give_up(self, claim: Claim) -> None:
        """Close an interrupted trial."""
        for _, study, trial in self._trials_of(claim.uuid):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def close_lapsed(self, own: Collection[str | None]) -> int:
        """Close abandoned trials; return their number."""
        self.connection.pull()
        lapsed = self._lapsed(own)
        for study, number in lapsed:
            with suppress(*_GONE):  # closed by another process
                study.tell(number, state=TrialState.FAIL, skip_if_finished=True)
        return len(lapsed)

    def _lapsed(self, own: Collection[str | None]) -> list[tuple[optuna.Study, int]]:
        return [
            (study, trial.number)
            for _, study, trial in self._trials(TrialState.RUNNING)
            if uuid_of(trial) not in own
            and self._leases.has_lapsed(study.study_name, trial.number, trial.user_attrs.get(CLAIM))
        ]

    def renew(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            claim.renewals += 1
            with suppress(*_GONE):
                for _, study, trial in self._trials_of(claim.uuid) if claim.is_written else ():
                    trial_id = self._trial_id(study, trial.number)
                    self._storage.set_trial_user_attr(trial_id, CLAIM, claim.attribute())

    def _place_for(self, wanted: Distributions) -> tuple[int, Distributions]:
        """Return the latest Optuna study that can store these, or a new one, and its distributions."""
        for place in reversed(range(self._first, len(self._studies))):
            distributions = united(self._known_in(place), wanted)
            if distributions is not None:
                return place, distributions
        while True:
            self._add_study(next_member(self._name, [study.study_name for study in self._studies]))
            distributions = united(self._known_in(len(self._studies) - 1), wanted)
            if distributions is not None:
                return len(self._studies) - 1, distributions

    def _add_study(self, name: str) -> None:
        self._studies.append(_load(name, self._storage))
        self._known.append({})

    def _known_in(self, place: int) -> Distributions:
        if not self._known[place]:  # another process may have started it
            self.connection.pull()
            for trial in self._studies[place].get_trials(deepcopy=False):
                self._add_known(place, trial.distributions)
        return self._known[place]

    def _add_known(self, place: int, distributions: Distributions) -> None:
        for path, distribution in distributions.items():
            self._known[place].setdefault(path, distribution)


def _load(name: str, storage: BaseStorage) -> optuna.Study:
    sampler = optuna.samplers.RandomSampler()  # unused: proposals come from the search
    try:
        return optuna.load_study(study_name=name, storage=storage, sampler=sampler)  # writes nothing
    except KeyError:
        return optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
        )
