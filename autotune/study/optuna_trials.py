"""Trials of a study as Optuna keeps them: how they are asked for, written, found and closed. Used in one thread.

A study is a group of Optuna studies, for Optuna keeps a list of categories as it is: what does not fit into one goes
into a further one. A trial has a UUID besides its number. A write whose answer was lost is made again, and may be
there twice: readers keep one trial of each UUID, under the number of the first. So a trial that somebody took for
interrupted, and that had to be added again, keeps the number under which its user knows it.
"""

import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC
from typing import Any, TypeVar

import msgspec
import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import StorageAway, StudyError
from autotune.measure.phases import FREE_DATA, FREE_STEP, HIGH
from autotune.records import (
    ALLOWED,
    CHANGES,
    LEFT_OUT,
    OUTSIDE,
    PAIRS_PLANNED,
    VALIDATION_ASKED,
    GpuMeasurement,
    Purpose,
    TrialRecord,
    Values,
)
from autotune.stage_times import PipelineTimes
from autotune.study.claims import CLAIM, Claim, Distributions, LeaseWatch, united
from autotune.study.members import ATTRIBUTE, Member, members_among
from autotune.study.pending import FinishedTrial
from autotune.study.storage.storage import SET_ASIDE, Storage, member_names, next_member
from autotune.study.summary import Rating, rating_of

DISTURBED_BY = "disturbed_by"
"""Attribute of an interrupted trial that says who came, for people."""

IMPORTED = "imported"
"""Attribute of a trial that came out of a file: what of it no storage keeps as it was, its times in UTC among it."""

RECORD = "record"
"""Attribute that holds a whole `TrialRecord`."""

RATING = "worth of changes:"
"""Beginning of the attributes of a study that hold a search's `Rating`; the search's name follows."""

_T = TypeVar("_T")
_NAMED = 5
_FURTHER = 1_000_000
"""Distance between the first trial numbers of the Optuna studies of one study."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """Trial that somebody else makes now.

    Attributes:
        purpose: Reason for which it is made, as its claim says; empty where it does not.
        machine: Name of the machine that makes it; empty where it is not said.
    """

    values: Values
    purpose: str = ""
    machine: str = ""

    @classmethod
    def of(cls, params: Mapping[str, Any], claim: object) -> "Claimed":
        """Return what the parameters and the claim of a trial tell."""
        said = claim if isinstance(claim, Mapping) else {}
        texts = {name: text for name in ("purpose", "machine") if isinstance(text := said.get(name), str)}
        return cls(values=dict(params), **texts)


@dataclass(frozen=True, kw_only=True)
class News:
    """Writings of others in a study.

    Attributes:
        ended: Trials that have ended, with their numbers, oldest first.
    """

    ended: Sequence[tuple[int, FrozenTrial]]
    pending: Sequence[Claimed]
    members: Sequence[Member]


class OptunaTrials:
    """Trials of a study in its storage.

    Args:
        name: The study's name; it is created if it does not exist.

    Attributes:
        last: Largest number of a trial that is known to be there; -1 for none.
        ratings: What searches have kept of the worth of each change of their answers, by search, as of the opening.

    Raises:
        StudyError: The storage cannot be read or written; from every method.
    """

    def __init__(self, name: str, storage: Storage, leases: LeaseWatch, *, reads_only: bool = False) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._name = name
        self._leases = leases
        self.connection = storage.connect(name, reads_only=reads_only)
        with self.connection.expected():
            self._storage: BaseStorage = self.connection.storage
            names = [study.study_name for study in self._storage.get_all_studies()]
            members = member_names(name, names) or [name]
            self._studies = [_load(member, self._storage) for member in members]
            attributes = [study.user_attrs for study in self._studies]
            self._first = max((place for place, some in enumerate(attributes) if SET_ASIDE in some), default=0)
            self.ratings = _ratings_among(attributes[self._first])
            trials = [study.get_trials(deepcopy=False) for study in self._studies]
            self._known = [_distributions(some) for some in trials]
            self._found = [
                (place * _FURTHER + trial.number, trial)
                for place, some in enumerate(trials)
                if place >= self._first
                for trial in some
            ]
            self.last = max((number for number, _ in self._found), default=-1)
            self._read = {number for number, trial in self._found if trial.state.is_finished()}

    def found(self) -> list[tuple[int, FrozenTrial]]:
        """Return the trials that were there at opening, with their numbers; once, since they take memory."""
        found, self._found = self._found, []
        return found

    def expecting(self, function: Callable[[], _T]) -> _T:
        """Call a function that uses the storage; once more, on a new connection, where that was lost on the way.

        So each of them may be made again that did not end, whatever of it the storage has.
        """
        with suppress(StorageAway), self.connection.expected():
            return function()
        with self.connection.expected():
            return function()

    def note(self, name: str, value: object) -> None:
        """Set an attribute of the study."""
        self._studies[self._first].set_user_attr(name, value)

    def make(self, claim: Claim, own: Collection[str]) -> None:
        """Make a trial that is claimed; close those that nobody makes any more.

        It appears with its parameters and its claim in one step, so that others see either all of it or nothing. What
        somebody has put into Optuna's queue of waiting trials stays there.

        Args:
            own: UUIDs of the claims of this process.
        """
        self.close_lapsed(own)
        there = self._trials_of(claim.uuid) if claim.asked else []
        claim.asked = True
        if there:
            claim.number, claim.study, _ = there[0]
            claim.trial_id = self._trial_id(claim.study, claim.number % _FURTHER)
            return
        place, distributions = self._place_for(claim.distributions)
        study = self._studies[place]
        made = FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=claim.started,
            datetime_complete=None,
            params=dict(claim.values),
            distributions=dict(distributions),
            user_attrs={CLAIM: claim.attribute()},
            system_attrs={},
            intermediate_values={},
        )
        study_id = self._storage.get_study_id_from_name(study.study_name)
        trial_id = self._storage.create_new_trial(study_id, made)
        self._known[place] = {**self._known[place], **distributions}
        claim.number = place * _FURTHER + self._storage.get_trial_number_from_id(trial_id)
        self.last = max(self.last, claim.number)
        claim.study, claim.trial_id = study, trial_id

    def is_taken(self, claim: Claim) -> bool:
        """Return whether somebody else had begun a trial of the same point when a trial was made, and makes it still.

        Of two that were made at the same time, the one with the lower number goes on.
        """
        return any(
            number < claim.number and dict(trial.params) == dict(claim.values) and _uuid(trial) != claim.uuid
            for number, trial in self._running()
        )

    def _running(self) -> list[tuple[int, FrozenTrial]]:
        """Return the trials that go on, with their numbers."""
        return [
            (place * _FURTHER + trial.number, trial)
            for place, study in enumerate(self._studies)
            if place >= self._first
            for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        ]

    def news(self, own: Collection[str]) -> News:
        """Return what others have written since the last call, or since opening."""
        with suppress(KeyError):  # unless somebody has begun a further one
            further = next_member(self._name, [study.study_name for study in self._studies])
            self._storage.get_study_id_from_name(further)
            self._studies.append(_load(further, self._storage))
            self._known.append({})
        ended: list[tuple[int, FrozenTrial]] = []
        pending: list[Claimed] = []
        for place, study in enumerate(self._studies):
            if place < self._first:
                continue
            for trial in study.get_trials(deepcopy=False):
                number, uuid = place * _FURTHER + trial.number, _uuid(trial)
                self.last = max(self.last, number)
                if trial.state.is_finished():
                    if number not in self._read:
                        ended.append((number, trial))
                elif uuid not in own and trial.state is TrialState.RUNNING:
                    pending.append(Claimed.of(trial.params, trial.user_attrs.get(CLAIM)))
        news = News(ended=ended, pending=pending, members=members_among(self._attributes()))
        self._read.update(number for number, _ in ended)  # last: the storage may not answer on the way
        return news

    def _attributes(self) -> Mapping[str, Any]:
        """Return the attributes of the study, those of its members among them."""
        return self._studies[self._first].user_attrs

    def members(self) -> list[Member]:
        """Return all members of the study that are on record, who joined first in front."""
        return members_among(self._attributes())

    def present(self, member: Member) -> None:
        """Write how a member describes itself."""
        self._studies[self._first].set_user_attr(ATTRIBUTE + member.uuid, member.attribute())

    def finish(self, claim: Claim | None, finished: FinishedTrial) -> int:
        """Write a finished trial; return its number."""
        if claim is None or claim.trial_id is None or claim.study is None:
            return self._settle(finished)
        try:
            for name, value in finished.attributes.items():
                if name != CLAIM:
                    self._storage.set_trial_user_attr(claim.trial_id, name, value)
            for step, speed in enumerate(finished.speeds[claim.reported :], start=claim.reported):
                self._storage.set_trial_intermediate_value(claim.trial_id, step, speed)
                claim.reported = step + 1
            claim.study.tell(claim.number % _FURTHER, finished.score, state=finished.state)
        except (KeyError, ValueError, optuna.exceptions.UpdateFinishedTrialError):
            return self._settle(finished)  # somebody took it for interrupted, or away
        return claim.number

    def _settle(self, finished: FinishedTrial) -> int:
        """Write a finished trial of which it is not known how much the storage has; return its number."""
        there = self._trials_of(finished.uuid)
        if any(RECORD in trial.user_attrs and trial.state.is_finished() for _, _, trial in there):
            return there[0][0]
        for _, study, trial in there:
            if not trial.state.is_finished():
                if self._complete(study, trial, finished):
                    return there[0][0]
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        claim = {**finished.attributes[CLAIM], "late_of": there[0][0] if there else None}
        return self.add(replace(finished, attributes={**finished.attributes, CLAIM: claim}))

    def _complete(self, study: optuna.Study, trial: FrozenTrial, finished: FinishedTrial) -> bool:
        """Finish a RUNNING trial, which another process may have begun; return False if that cannot be done."""
        if any(trial.params.get(path) != value for path, value in finished.values.items()):
            return False  # what made it did not get far
        try:
            trial_id = self._trial_id(study, trial.number)
            for name, value in finished.attributes.items():
                self._storage.set_trial_user_attr(trial_id, name, value)
            for step, speed in enumerate(finished.speeds):
                self._storage.set_trial_intermediate_value(trial_id, step, speed)
            study.tell(trial.number, finished.score, state=finished.state)
        except (KeyError, ValueError, optuna.exceptions.UpdateFinishedTrialError):
            return False  # somebody took it for interrupted
        return True

    def _trial_id(self, study: optuna.Study, number: int) -> int:
        study_id = self._storage.get_study_id_from_name(study.study_name)
        return self._storage.get_trial_id_from_study_id_trial_number(study_id, number)

    def add(self, finished: FinishedTrial) -> int:
        place, distributions = self._place_for(finished.distributions)
        self._studies[place].add_trial(replace(finished, distributions=distributions).frozen())
        self._known[place] = {**self._known[place], **distributions}
        added = place * _FURTHER + len(self._studies[place].get_trials(deepcopy=False)) - 1
        self.last = max(self.last, added)
        return self._trials_of(finished.uuid)[0][0] if CLAIM in finished.attributes else added

    def add_imported(self, finished: FinishedTrial) -> None:
        place, distributions = self._place_for(finished.distributions)
        self._studies[place].add_trial(replace(finished, distributions=distributions).frozen())
        self._known[place] = {**self._known[place], **distributions}

    def running(self) -> list[tuple[int, FrozenTrial]]:
        """Return the trials that go on, with their numbers."""
        return self._running()

    def _trials_of(self, uuid: str) -> list[tuple[int, optuna.Study, FrozenTrial]]:
        return [
            (place * _FURTHER + trial.number, study, trial)
            for place, study in enumerate(self._studies)
            for trial in study.get_trials(deepcopy=False)
            if _uuid(trial) == uuid
        ]

    def give_up(self, claim: Claim, why: str) -> None:
        """Close a trial that was interrupted, with what was in its way."""
        if claim.study is not None and claim.trial_id is not None:
            if why:
                self._storage.set_trial_user_attr(claim.trial_id, DISTURBED_BY, why)
            claim.study.tell(claim.number % _FURTHER, state=TrialState.FAIL, skip_if_finished=True)

    def close_lapsed(self, own: Collection[str]) -> int:
        """Close the trials of others that nobody makes any more; return their number."""
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

    def renew(self, claims: Iterable[Claim]) -> None:
        """Give a sign of life for each claim, as far as that can be written."""
        for claim in claims:
            claim.renewals += 1
            if claim.trial_id is not None:
                # Somebody may have taken it for interrupted, and have finished it.
                gone = (KeyError, optuna.exceptions.UpdateFinishedTrialError)
                with suppress(StudyError), self.connection.expected(), suppress(*gone):
                    self._storage.set_trial_user_attr(claim.trial_id, CLAIM, claim.attribute())

    def _place_for(self, wanted: Distributions) -> tuple[int, Distributions]:
        for place in reversed(range(self._first, len(self._studies))):
            distributions = united(self._known_in(place), wanted)
            if distributions is not None:
                return place, distributions
        while True:
            name = next_member(self._name, [study.study_name for study in self._studies])
            self._studies.append(_load(name, self._storage))
            self._known.append({})
            distributions = united(self._known_in(len(self._studies) - 1), wanted)
            if distributions is not None:
                return len(self._studies) - 1, distributions

    def _known_in(self, place: int) -> Distributions:
        if not self._known[place]:
            self._known[place] = _distributions(self._studies[place].get_trials(deepcopy=False))
        return self._known[place]


def _ratings_among(attributes: Mapping[str, Any]) -> dict[str, Rating]:
    found = {name.removeprefix(RATING): value for name, value in attributes.items() if name.startswith(RATING)}
    return {search: rating for search, value in found.items() if (rating := rating_of(value)) is not None}


def _uuid(trial: FrozenTrial) -> str | None:
    claim = trial.user_attrs.get(CLAIM) if isinstance(trial.user_attrs, Mapping) else None
    found = claim.get("uuid") if isinstance(claim, Mapping) else None
    return found if isinstance(found, str) else None


def _distributions(trials: Sequence[FrozenTrial]) -> Distributions:
    found: dict[str, BaseDistribution] = {}
    for trial in trials:
        for path, distribution in trial.distributions.items():
            found.setdefault(path, distribution)
    return found


def _load(name: str, storage: BaseStorage) -> optuna.Study:
    """Load an Optuna study, which is created if it does not exist; that may happen on several machines at once."""
    sampler = optuna.samplers.RandomSampler()  # asked for nothing: trials are decided on before they are made
    try:
        return optuna.load_study(study_name=name, storage=storage, sampler=sampler)  # it writes nothing
    except KeyError:
        return optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
        )


def starts_of(trials: Sequence[tuple[int, FrozenTrial]], *, always: bool = False) -> dict[int, tuple[str, str]]:
    """Return what orders the trials of a study in which some were imported: their starts in UTC, then their UUIDs.

    Numbers tell in which order they were imported, and that shall not matter to a reader.

    Args:
        trials: Optuna trials with their numbers.
        always: Whether some were imported earlier.

    Returns:
        The keys by number, that of the first trial of a UUID; nothing where none was imported: then numbers do.
    """
    if not always and not any(isinstance(trial.user_attrs.get(IMPORTED), Mapping) for _, trial in trials):
        return {}
    found: dict[int, tuple[str, str]] = {}
    first: dict[str, int] = {}
    for number, trial in trials:
        uuid = _uuid(trial) or ""
        place = first.setdefault(uuid, number) if uuid else number
        marker = trial.user_attrs.get(IMPORTED)
        said = marker.get("started") if isinstance(marker, Mapping) else None
        if not isinstance(said, str):
            start = trial.datetime_start
            said = start.astimezone(UTC).isoformat(timespec="microseconds") if start else "~"
        found.setdefault(place, (said, uuid))
    return found


def read_records(
    trials: Sequence[tuple[int, FrozenTrial]], waiting: Sequence[FinishedTrial], where: str
) -> list[tuple[str | None, TrialRecord]]:
    """Return the records among the Optuna trials, and those that wait for the storage, with UUIDs, oldest first.

    Foreign ones and later formats are left out, which is logged; so are trials that were interrupted, or go on, and
    the second of two that are one.

    A trial has the number of the first Optuna trial of its UUID. One that waits and is not there yet gets the next
    number that is free, which is what it will have unless others are quicker.
    """
    records: list[tuple[str | None, TrialRecord]] = []
    unread: list[str] = []
    seen: set[str] = set()
    last = max((number for number, _ in trials), default=-1)
    entries: list[tuple[int, Any, str | None]] = []
    first: dict[str, int] = {}
    for number, trial in trials:
        uuid = _uuid(trial)
        entries.append((number if uuid is None else first.setdefault(uuid, number), trial.user_attrs, uuid))
    free = itertools.count(last + 1)
    for late in waiting:
        number = first[late.uuid] if late.uuid in first else first.setdefault(late.uuid, next(free))
        entries.append((number, late.attributes, late.uuid))
    for number, attributes, uuid in entries:
        try:
            if not isinstance(attributes, Mapping):
                raise ValueError("no attributes")
            record = attributes.get(RECORD)
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
    if starts := starts_of(trials):
        records.sort(key=lambda entry: starts.get(entry[1].number, ("~", "")))
    elif last >= _FURTHER:
        records.sort(key=lambda entry: entry[1].ended_utc)  # stable: within an Optuna study the order is known
    return records


# Entry of the record: a trial as the journal keeps it, and its validation when it is read back.


FORMAT = 2
"""Version of the attributes of a trial. In 1 the figures of a GPU stood beside its other fields; it is still read."""

_LONGEST_S = 1e12
_MOST_GPUS = 256
_MOST_WINDOWS = 1_000_000
_MOST_LOSSES = 10_000
_MOST_FILES = 1_000
_LONGEST_TEXT = 1_000
_ADDED = frozenset({"number", "validation", "race", "code"})
"""Fields that a written trial may lack: the number is its place, and earlier studies of format 2 had no others."""

_ONCE = {
    "validation asked for, s": VALIDATION_ASKED,
    "pairs planned at most": PAIRS_PLANNED,
    "changes of the training": CHANGES,
    "changes allowed": ALLOWED,
    "answer left out": LEFT_OUT,
    "answer outside the domains": OUTSIDE,
    "free data, speed over today's": FREE_DATA,
    "free data, speed over today's, at most": FREE_DATA + HIGH,
    "free step, speed over today's": FREE_STEP,
    "free step, speed over today's, at most": FREE_STEP + HIGH,
}
"""Names that conditions had in earlier studies of format 1 and 2."""

_ONCE_THE_BASELINE = "today"  # the purpose's word in format 1, and in the first studies of format 2


def attributes_of(record: TrialRecord) -> dict[str, Any]:
    """Return a trial as it is written; its number is its place."""
    attributes = asdict(record)
    del attributes["number"]
    return {"format": FORMAT, **attributes}


def record_of(number: int, attributes: Mapping[str, Any]) -> TrialRecord:
    """Read a trial back.

    Args:
        attributes: Attributes written there, as JSON gives them.

    Raises:
        ValueError: It is none of ours, of another format, or holds what no trial can; with the reason, of one line.
    """
    if attributes.get("format") not in (1, FORMAT) or isinstance(attributes["format"], bool):
        raise ValueError("another format")
    if attributes["format"] == 1:
        attributes = _of_format_1(attributes)
    if attributes.get("purpose") == _ONCE_THE_BASELINE:
        attributes = {**attributes, "purpose": Purpose.BASELINE.value}
    if isinstance(conditions := attributes.get("conditions"), Mapping):
        attributes = {**attributes, "conditions": {_ONCE.get(name, name): value for name, value in conditions.items()}}
    missing = [field.name for field in fields(TrialRecord) if field.name not in {*attributes, *_ADDED}]
    if missing:
        raise ValueError(f"no {missing[0]}")
    try:
        # A list may be a tuple here and an object a record, but "5" and true are no numbers.
        json.dumps({**attributes}, ensure_ascii=False).encode()  # no halves of characters
        # Where it is missing, early versions of msgspec cannot make the default.
        record = msgspec.convert({"code": {}, **attributes, "number": number}, TrialRecord)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        # characters; it may quote what stands there
        raise ValueError(ascii(f"{place.rstrip('`')}: {what}")[1:-1][:120]) from None
    except (ValueError, RecursionError) as error:
        raise ValueError("not readable") from error
    if len(record.code) > _MOST_FILES or any(
        len(text) > _LONGEST_TEXT for pair in record.code.items() for text in pair
    ):
        raise ValueError("code: too many files, or a text is too long")
    if record.race:
        curves = (record.race.curve, record.race.held_out)
        if any(curve and len(curve.ends_s) > _MOST_LOSSES for curve in curves):
            raise ValueError("race: too many losses")
    if record.measurement:
        if len(record.measurement.gpus) > _MOST_GPUS:
            raise ValueError("too many GPUs")
        for gpu in record.measurement.gpus:
            _check_windows(gpu)
        if stages := record.measurement.stages:
            _check_stages(stages)
    return record


def _of_format_1(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    measurement = attributes.get("measurement")
    if not isinstance(measurement, Mapping) or not isinstance(measurement.get("gpus"), list):
        return attributes
    gpus = [{**gpu, "figures": gpu} if isinstance(gpu, Mapping) else gpu for gpu in measurement["gpus"]]
    return {**attributes, "measurement": {**measurement, "gpus": gpus}}


def _check_stages(stages: PipelineTimes) -> None:
    """Check times whose class is the trainer's too, and holds no bounds itself."""
    for stage in (stages.data, stages.model):
        times_s = (stages.passed_s, stage.busy_s, stage.input_s, stage.room_s)
        if not all(0.0 <= one <= _LONGEST_S for one in times_s) or not 0 <= stage.batches <= 1 << 53:
            raise ValueError("stages: out of range")


def _check_windows(gpu: GpuMeasurement) -> None:
    if len(gpu.busy_windows) > _MOST_WINDOWS:
        raise ValueError("busy_windows: too many")
    if any(abs(end_s) > _LONGEST_S or length_s > _LONGEST_S for end_s, length_s, _ in gpu.busy_windows):
        raise ValueError("busy_windows out of range")
