"""Record of a study: its trials, kept as Optuna trials.

A trial is claimed with its parameters when it begins, and finished with its score, a few scalar attributes and the
whole `TrialRecord` as one JSON attribute. What was finished is never rewritten. Nothing that is read back is executed
or used as a path: a record holds knob values, metrics and names, each checked for its type.

A trial has a UUID besides its number. A write whose answer was lost is made again, and may be there twice: readers keep
one trial of each UUID.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.clock import Clock, SystemClock
from autotune.errors import StorageAway, StudyError
from autotune.metrics import values_of
from autotune.records import Scalar, TrialRecord, Values
from autotune.study.claims import CLAIM, RENEWAL_S, Claim, IsGone, LeaseWatch
from autotune.study.entry import attributes_of, record_of
from autotune.study.parameters import Distributions, PinningSampler, distribution_of, suggest, united
from autotune.study.pending import FinishedTrial, PendingTrials
from autotune.study.storage.members import SET_ASIDE, member_names, next_member
from autotune.study.storage.storage import Connection, Storage
from autotune.study.storage_thread import StorageThread

_T = TypeVar("_T")
_NAMED = 5
_RECORD = "record"
_FURTHER = 1_000_000
"""Distance between the first trial numbers of the Optuna studies of one study."""

_MOST_ASKS = 100  # each but the last gets a trial that somebody else has put into the queue
_OPENING_S = 30.0
_PATIENCE_S = 5.0  # for a server, in the middle of a search
_LEAST_PATIENCE_S = 0.5
_RETRY_S = 5.0  # between tries to reach a server that is away

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Owner of the claims of one process.

    Attributes:
        about: What its claims say of it.
        is_gone: Returns whether the owner of another claim is known to have ended.
        clock: Source of time.
        ends_s: Time after which it waits for nothing, on that clock.
    """

    about: Mapping[str, Scalar]
    is_gone: IsGone
    clock: Clock
    ends_s: float = math.inf


_NOBODY = Owner(about={}, is_gone=lambda _claim: False, clock=SystemClock())


class Study:
    """All trials of one identity, in the order in which they ended.

    Where its storage is a server, a trial goes on while that cannot be reached: what has finished is kept in a file of
    this machine, and written when it answers again.

    Args:
        name: The study's name.
        storage: Where it is kept; it is created there if it does not exist.
        pending: File for what a server has not taken yet; None to raise `StorageAway` instead.
        owner: Who claims trials here.

    Attributes:
        name: The study's name.
        where: Place of the study, in words.
        torn_bytes: Bytes of a torn last entry that were cut off at opening.
        remarks: What the user should know of the storage, not told yet.

    Raises:
        StudyError: The storage cannot be read or written.
    """

    def __init__(self, name: str, storage: Storage, *, pending: Path | None = None, owner: Owner = _NOBODY) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name = name
        self.where = storage.where(name)
        self.remarks: deque[str] = deque()
        self._owner = owner
        self._leases = LeaseWatch(owner.clock, owner.is_gone)
        self._claims: dict[str, Claim] = {}
        self._pin = PinningSampler()
        self._thread = StorageThread(f"storage of {name}", self._renew, RENEWAL_S)
        self._away_until_s: float | None = None
        try:
            self._connection, trials = self._thread.call(partial(self._open, storage), _OPENING_S)
        except TimeoutError:
            raise _silent(self.where) from None
        self.torn_bytes = self._connection.torn_bytes
        self._pending = PendingTrials(pending, self.where) if pending and self._connection.is_remote else None
        waiting = self._pending.trials if self._pending else []
        read = _read(trials, waiting, self.where)
        self._records = [record for _, record in read]
        self._missed = {trial.uuid for trial in waiting}
        self._waiting = {uuid: record for uuid, record in read if uuid in self._missed}

    def records(self) -> list[TrialRecord]:
        """All trials, oldest first."""
        return list(self._records)

    def begin(self, values: Values, choices: Mapping[str, Sequence[Scalar]], **about: Scalar) -> Claim:
        """Claim the next trial; it is in the storage when this returns, unless that is away.

        Args:
            values: The point.
            choices: What each knob may be.
            about: What else the claim says.

        Raises:
            StudyError: The storage could not be written.
        """
        self.write_pending()
        claim = Claim(
            number=max((record.number for record in self._records), default=-1) + 1,
            values=values,
            distributions={path: distribution_of(some) for path, some in choices.items()},
            about={**self._owner.about, **about},
        )
        self._claims[claim.uuid] = claim
        try:
            self._call(partial(self._make, claim))
        except StorageAway:
            if self._pending is None:
                raise
        return claim

    def finish(
        self, claim: Claim, record: TrialRecord, *, score: float | None = None, speeds: Sequence[float] = ()
    ) -> TrialRecord:
        """Finish a claimed trial; it is on disk when this returns.

        Args:
            claim: Its claim.
            record: The trial.
            score: Its score over the baseline's, 1.0 for the baseline itself; None if it gave no comparable numbers.
            speeds: Its speed over time, in samples per second, at even intervals of its window.

        Returns:
            The record with its number.

        Raises:
            StudyError: It could not be written. `records` has the trial all the same.
        """
        written = replace(record, number=claim.number)
        self._records.append(written)  # it was measured: answers from this process include it
        ended = datetime.now()
        finished = FinishedTrial(
            uuid=claim.uuid,
            values=claim.values,
            distributions=claim.distributions,
            attributes={CLAIM: claim.attribute(), **_scalars(record), _RECORD: attributes_of(record)},
            score=score,
            speeds=tuple(speeds),
            started=claim.started,
            ended=ended,
        )
        if self._pending is None:
            number = self._call(partial(self._tell, claim, finished))
            self._claims.pop(claim.uuid, None)
            return self._renumbered(written, number)
        self._waiting[claim.uuid] = written
        self._pending.add(finished)  # first: it is kept, whatever becomes of the server and of this process
        self.write_pending()
        return self._records[-1]

    def abandon(self, claim: Claim) -> None:
        """Give up a claim on a trial that was interrupted, as far as that can be written."""
        self._claims.pop(claim.uuid, None)
        with suppress(StudyError):
            self._call(partial(self._give_up, claim))

    def renew(self) -> None:
        """Give a sign of life for each claim; done by itself every few seconds."""
        self._thread.call(self._renew)

    def close_abandoned(self) -> int:
        """Close the trials of others that nobody makes any more: they were interrupted.

        Those whose process is known to be gone are closed at once, others when they gave no sign of life for a minute:
        each `begin` looks again.

        Returns:
            Their number.

        Raises:
            StudyError: The storage could not be written.
        """
        return self._call(self._close_lapsed)

    def append(self, record: TrialRecord) -> TrialRecord:
        """Append a trial that was not claimed here; it is in the storage when this returns.

        Returns:
            The record with its number.

        Raises:
            StudyError: It could not be written. `records` has the trial all the same.
        """
        self._records.append(record)
        now = datetime.now()
        measured = record.comparable and record.measurement
        finished = FinishedTrial(
            uuid=Claim(number=-1, values={}, distributions={}, about={}).uuid,
            values={},
            distributions={},
            attributes={_RECORD: attributes_of(record)},
            score=measured.samples_per_s if measured else None,
            speeds=(),
            started=now,
            ended=now,
        )
        return self._renumbered(record, self._call(partial(self._add, finished)))

    def write_pending(self) -> None:
        """Write what waits for the storage, as long as that answers; each `begin` does it first.

        Raises:
            StudyError: The storage cannot be used.
        """
        if self._pending is None:
            return
        missed = 0
        for finished in list(self._pending.trials):
            try:
                number = self._call(partial(self._tell, self._claims.get(finished.uuid), finished))
            except StorageAway:
                break
            self._pending.remove(finished)
            self._claims.pop(finished.uuid, None)
            self._renumbered(self._waiting.pop(finished.uuid), number)
            missed += finished.uuid in self._missed
            self._missed.discard(finished.uuid)
        self._missed.update(self._waiting)
        if missed:
            self.remarks.append(f"Trials that the storage had missed are written: {missed}.")

    def close(self) -> None:
        """Give up all claims, write what waits for the storage as far as there is time, and close the storage."""
        for claim in list(self._claims.values()):
            if claim.uuid not in self._waiting:
                self.abandon(claim)
        with suppress(StudyError):
            self.write_pending()
        with suppress(StudyError):
            self._call(self._connection.close)

    # Calls to the storage, in the caller's thread

    def _call(self, function: Callable[[], _T]) -> _T:
        """Make a call in the storage's thread; a server has a few seconds to answer.

        Raises:
            StorageAway: A server does not answer.
            StudyError: The storage cannot be used.
        """
        expecting = partial(self._expecting, function)
        if not self._connection.is_remote:
            return self._thread.call(expecting)
        now_s = self._owner.clock.now_s()
        if self._thread.is_stuck or (self._away_until_s is not None and now_s < self._away_until_s):
            raise _silent(self.where)
        patience_s = max(_LEAST_PATIENCE_S, min(_PATIENCE_S, self._owner.ends_s - now_s))
        try:
            result = self._thread.call(expecting, patience_s)
        except TimeoutError:
            away = _silent(self.where)
        except StorageAway as error:
            away = error
        else:
            if self._away_until_s is not None:
                self._away_until_s = None
                self.remarks.append("The storage answers again.")
            return result
        if self._away_until_s is None:
            self.remarks.append(
                f"{away.where}: {away.message}. Finished trials are kept here, and written when it is back."
            )
        self._away_until_s = self._owner.clock.now_s() + _RETRY_S
        raise away

    def _renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        """Return a record of `records` with the number that the storage gave it."""
        if number == record.number:
            return record
        renumbered = replace(record, number=number)
        self._records[self._records.index(record)] = renumbered
        return renumbered

    # In the storage's thread

    def _open(self, storage: Storage) -> tuple[Connection, list[tuple[int, FrozenTrial]]]:
        connection = storage.connect(self.name)
        with connection.expected():
            self._storage: BaseStorage = connection.storage
            names = [study.study_name for study in self._storage.get_all_studies()]
            members = member_names(self.name, names) or [self.name]
            self._studies = [_load(member, self._storage, self._pin) for member in members]
            self._first = max(
                (place for place, one in enumerate(self._studies) if SET_ASIDE in one.user_attrs), default=0
            )
            trials = [study.get_trials(deepcopy=False) for study in self._studies]
            self._known = [_distributions(some) for some in trials]
        return connection, [
            (place * _FURTHER + trial.number, trial)
            for place, some in enumerate(trials)
            if place >= self._first
            for trial in some
        ]

    def _expecting(self, function: Callable[[], _T]) -> _T:
        with self._connection.expected():
            return function()

    def _make(self, claim: Claim) -> None:
        """Ask for a trial, claim it, and let it take its parameters."""
        self._close_lapsed()
        place, distributions = self._place_for(claim.distributions)
        study, self._pin.values = self._studies[place], claim.values
        for _ in range(_MOST_ASKS):
            trial = study.ask()
            trial.set_user_attr(CLAIM, claim.attribute())
            taken = suggest(trial, distributions)
            if all(taken[path] == value for path, value in claim.values.items()):
                break
            study.tell(trial, state=TrialState.FAIL)  # it stood in the queue, with values of its own
        else:
            raise ValueError(f"{claim.values} is not what was taken: {taken}")
        self._known[place] = {**self._known[place], **distributions}
        claim.number = place * _FURTHER + trial.number
        claim.study, claim.trial = study, trial

    def _tell(self, claim: Claim | None, finished: FinishedTrial) -> int:
        """Write a finished trial; return its number."""
        if claim is None or claim.trial is None or claim.study is None:
            return self._settle(finished)
        try:
            for name, value in finished.attributes.items():
                if name != CLAIM:
                    claim.trial.set_user_attr(name, value)
            for step, speed in enumerate(finished.speeds[claim.reported :], start=claim.reported):
                claim.trial.report(speed, step)
                claim.reported = step + 1
            claim.study.tell(claim.trial, finished.score, state=finished.state)
        except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
            return self._settle(finished)  # somebody took it for interrupted
        return claim.number

    def _settle(self, finished: FinishedTrial) -> int:
        """Write a finished trial of which it is not known how much the storage has; return its number."""
        there = self._trials_of(finished.uuid)
        for number, _, trial in there:
            if _RECORD in trial.user_attrs and trial.state.is_finished():
                return number
        for _, study, trial in there:
            if not trial.state.is_finished():
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        claim = {**finished.attributes[CLAIM], "late_of": there[0][0] if there else None}
        return self._add(replace(finished, attributes={**finished.attributes, CLAIM: claim}))

    def _add(self, finished: FinishedTrial) -> int:
        """Add a finished trial; return its number."""
        place, distributions = self._place_for(finished.distributions)
        self._studies[place].add_trial(replace(finished, distributions=distributions).frozen())
        self._known[place] = {**self._known[place], **distributions}
        if CLAIM in finished.attributes:
            return self._trials_of(finished.uuid)[-1][0]
        return place * _FURTHER + len(self._studies[place].get_trials(deepcopy=False)) - 1

    def _trials_of(self, uuid: str) -> list[tuple[int, optuna.Study, FrozenTrial]]:
        """Return the trials of a UUID with their numbers and Optuna studies."""
        return [
            (place * _FURTHER + trial.number, study, trial)
            for place, study in enumerate(self._studies)
            for trial in study.get_trials(deepcopy=False)
            if _uuid(trial) == uuid
        ]

    def _give_up(self, claim: Claim) -> None:
        if claim.study is not None and claim.trial is not None:
            claim.study.tell(claim.trial, state=TrialState.FAIL, skip_if_finished=True)

    def _close_lapsed(self) -> int:
        own = {claim.uuid for claim in self._claims.values()}
        lapsed = [
            (study, trial.number)
            for study in self._studies
            for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            if _uuid(trial) not in own
            and self._leases.has_lapsed(study.study_name, trial.number, trial.user_attrs.get(CLAIM))
        ]
        for study, number in lapsed:
            study.tell(number, state=TrialState.FAIL, skip_if_finished=True)  # somebody may have been quicker
        return len(lapsed)

    def _renew(self) -> bool:
        """Give a sign of life for each claim; return whether there is any."""
        for claim in list(self._claims.values()):
            claim.renewals += 1
            if claim.trial is not None:
                with suppress(StudyError), self._connection.expected():
                    claim.trial.set_user_attr(CLAIM, claim.attribute())
        return bool(self._claims)

    def _place_for(self, wanted: Distributions) -> tuple[int, Distributions]:
        """Return the Optuna study that takes trials with such parameters, the newest that does, else a new one."""
        for place in reversed(range(self._first, len(self._studies))):
            distributions = united(self._known[place], wanted)
            if distributions is not None:
                return place, distributions
        name = next_member(self.name, [study.study_name for study in self._studies])
        self._studies.append(_load(name, self._storage, self._pin))
        self._known.append({})
        return len(self._studies) - 1, wanted


def _silent(where: str) -> StorageAway:
    return StorageAway(
        "the storage does not answer", where=where, remedy="Check that it runs, then run the same command again."
    )


def _uuid(trial: FrozenTrial) -> str | None:
    claim = trial.user_attrs.get(CLAIM) if isinstance(trial.user_attrs, Mapping) else None
    found = claim.get("uuid") if isinstance(claim, Mapping) else None
    return found if isinstance(found, str) else None


def _distributions(trials: Sequence[FrozenTrial]) -> Distributions:
    """Return the distributions that a study has fixed with its trials."""
    found: dict[str, BaseDistribution] = {}
    for trial in trials:
        for path, distribution in trial.distributions.items():
            found.setdefault(path, distribution)
    return found


def _scalars(record: TrialRecord) -> dict[str, Any]:
    """Return the attributes that tables of trials show."""
    metrics = values_of(record.measurement) if record.measurement else {}
    return {
        "purpose": record.purpose.value,
        "ending": record.ending.value,
        "validity": record.validity.value,
        "samples_per_s": metrics.get("samples_per_s"),
        "gpu_utilization": metrics.get("gpu_utilization"),
        "cv": metrics.get("cv"),
    }


def _load(name: str, storage: BaseStorage, sampler: PinningSampler) -> optuna.Study:
    """Load an Optuna study, which is created if it does not exist; that may happen on several machines at once."""
    try:
        return optuna.load_study(study_name=name, storage=storage, sampler=sampler)  # it writes nothing
    except KeyError:
        return optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
        )


def _read(
    trials: Sequence[tuple[int, FrozenTrial]], waiting: Sequence[FinishedTrial], where: str
) -> list[tuple[str | None, TrialRecord]]:
    """Return the records among the Optuna trials, and those that wait for the storage, with UUIDs, oldest first.

    Foreign ones and later formats are left out, which is logged; so are trials that were interrupted, or go on, and
    the second of two that are one.
    """
    records: list[tuple[str | None, TrialRecord]] = []
    unread: list[str] = []
    seen: set[str] = set()
    last = max((number for number, _ in trials), default=-1)
    entries: list[tuple[int, Any, str | None]] = [(number, trial.user_attrs, _uuid(trial)) for number, trial in trials]
    entries += [(last + place, trial.attributes, trial.uuid) for place, trial in enumerate(waiting, start=1)]
    for number, attributes, uuid in entries:
        try:
            if not isinstance(attributes, Mapping):
                raise ValueError("no attributes")
            record = attributes.get(_RECORD)
            if record is None and CLAIM in attributes:
                continue
            record = attributes if record is None else record
            if not isinstance(record, Mapping):
                raise ValueError("no attributes")
            if uuid is not None and uuid in seen:
                continue
            records.append((uuid, record_of(number, record)))
            if uuid is not None:
                seen.add(uuid)
        except ValueError as error:
            unread.append(f"{number} ({error})")
    if unread:
        named = ", ".join(unread[:_NAMED]) + (f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else "")
        _log.warning("trials that cannot be read are left out of the record %s: %s", where, named)
    if last >= _FURTHER:
        records.sort(key=lambda entry: entry[1].ended_utc)  # stable: within an Optuna study the order is known
    return records
