"""Trial as the portable file has it, and the checks of one that is read: nothing of it is trusted."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import FrozenTrial, TrialState

from autotune.records import Scalar, TrialRecord
from autotune.space.knob import is_number, same_scalar
from autotune.study.claims import CLAIM
from autotune.study.entry import attributes_of, record_of
from autotune.study.optuna_trials import IMPORTED, RECORD
from autotune.study.pending import FinishedTrial, trial_object, trial_of
from autotune.study.record import scalars_of
from autotune.study.storage.storage import DAMAGE

_UUID = re.compile("[0-9a-f]{32}")
_STAMP = re.compile(r"(2[01]\d\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)")
_FOLDERS = re.compile(r"(?<![\w.…])(?:~|[A-Za-z]:)?[/\\](?:[^\s:;,'\"()<>|/\\]+[/\\])+")
_CLAIMED = ("machine", "purpose", "sampler")
_FIELDS = frozenset({"uuid", "values", "distributions", "attributes", "score", "speeds", "started", "ended"})
_MOST_KNOBS = 1000
_MOST_CHOICES = 10_000
_MOST_SPEEDS = 10_000
_LONGEST_KEY = 500  # a column of Optuna's tables holds 512
_LONGEST_TEXT = 10_000
_LARGEST_INT = 1 << 53  # Optuna keeps parameters as floats
_LARGEST = 1e300
_SCORES = (1e-30, 1e30)


@dataclass(frozen=True, kw_only=True)
class PortableTrial:
    """Finished trial with its record, as it travels.

    Attributes:
        trial: The trial, its times in UTC, its attributes reduced to what travels.
        record: Its record, whose number is 0.
    """

    trial: FinishedTrial
    record: TrialRecord

    def line(self) -> str:
        """Return its line in the file, without the line end; of two equal trials it is the same."""
        return json.dumps(trial_object(self.trial), sort_keys=True, allow_nan=False)

    @property
    def order(self) -> tuple[str, str]:
        """Key of its place in the file."""
        return self.trial.started.isoformat(timespec="microseconds"), self.trial.uuid

    def imported(self) -> FinishedTrial:
        """Return it as a storage gets it: times are local there, and lists of categories those that it knows."""
        trial = self.trial
        lists = {
            path: distribution_to_json(one)
            for path, one in trial.distributions.items()
            if isinstance(one, CategoricalDistribution)
        }
        marker = {"started": _utc_text(trial.started), "ended": _utc_text(trial.ended), "distributions": lists}
        return replace(
            trial,
            attributes={**trial.attributes, IMPORTED: marker},
            started=_local(trial.started),
            ended=_local(trial.ended),
        )


def portable_of(trial: FrozenTrial) -> PortableTrial | None:
    """Return a trial of a storage as it travels; None for one that has no record: interrupted, or still going on.

    Raises:
        ValueError: It is none of ours, or holds what no trial can; with the reason.
    """
    attributes = trial.user_attrs
    if not trial.state.is_finished() or not isinstance(attributes, Mapping):
        return None
    if RECORD not in attributes and (CLAIM in attributes or "format" not in attributes):
        return None
    if trial.state not in (TrialState.COMPLETE, TrialState.FAIL):
        raise ValueError("a state that is none of a trial's")
    started, ended = trial.datetime_start, trial.datetime_complete
    if started is None or ended is None:
        raise ValueError("no times")
    record = attributes.get(RECORD, attributes)
    if not isinstance(record, Mapping):
        raise ValueError("no record")
    finished = FinishedTrial(
        uuid="",
        values=trial.params,
        distributions=trial.distributions,
        attributes={CLAIM: attributes.get(CLAIM), RECORD: record, IMPORTED: attributes.get(IMPORTED)},
        score=trial.value if trial.state is TrialState.COMPLETE else None,
        speeds=tuple(speed for _, speed in sorted(trial.intermediate_values.items())),
        started=started,
        ended=ended,
    )
    return portable_of_finished(finished)


def portable_of_finished(finished: FinishedTrial) -> PortableTrial:
    """Return a finished trial as it travels: without what is said of processes, and of folders.

    Raises:
        ValueError: It holds what no trial can; with the reason.
    """
    written = finished.attributes.get(RECORD)
    if not isinstance(written, Mapping):
        raise ValueError("no record")
    record = _without_folders(record_of(0, written))
    claim = finished.attributes.get(CLAIM)
    claim = claim if isinstance(claim, Mapping) else {}
    uuid = claim.get("uuid") or finished.uuid or _derived(record)
    marker = finished.attributes.get(IMPORTED)
    marker = marker if isinstance(marker, Mapping) else {}
    lists = marker.get("distributions")
    distributions = {path: distribution_to_json(one) for path, one in finished.distributions.items()}
    if isinstance(lists, Mapping):
        distributions.update({path: text for path, text in lists.items() if path in distributions})
    about = {name: text for name in _CLAIMED if isinstance(text := claim.get(name), str)}
    return portable_from(
        {
            **trial_object(replace(finished, distributions={}, attributes={})),
            "uuid": uuid,
            "distributions": distributions,
            "attributes": {CLAIM: {"uuid": uuid, **about}, RECORD: attributes_of(record)},
            "started": marker.get("started") or _utc_text(finished.started.astimezone(UTC)),
            "ended": marker.get("ended") or _utc_text(finished.ended.astimezone(UTC)),
        }
    )


def portable_from(said: Any) -> PortableTrial:
    """Return the trial that an object of the file describes, checked in all its parts.

    Raises:
        ValueError: It holds what no trial can; with the reason, of one line.
    """
    try:
        return _read(said)
    except DAMAGE as error:
        if type(error) is ValueError:
            raise
        raise ValueError("not a trial") from error


def _read(said: Any) -> PortableTrial:
    if not isinstance(said, dict) or set(said) != _FIELDS:
        raise ValueError("not a trial, or not all of it")
    if not isinstance(said["uuid"], str) or not _UUID.fullmatch(said["uuid"]):
        raise ValueError("uuid: not 32 hex digits")
    distributions = _distributions(said["distributions"])
    _check_values(said["values"], distributions)
    _check_speeds(said["score"], said["speeds"])
    claim, record = _claim(said["attributes"], said["uuid"]), record_of(0, _record(said["attributes"]))
    _check_record(record, said["values"])
    about = {name: claim[name] for name in _CLAIMED if name in claim}
    trial = trial_of(
        {
            **said,
            "distributions": {path: distribution_to_json(one) for path, one in distributions.items()},
            "attributes": {CLAIM: {"uuid": said["uuid"], **about}, **scalars_of(record, about)},
            "started": _stamp(said["started"], "started").isoformat(),
            "ended": _stamp(said["ended"], "ended").isoformat(),
        }
    )
    # The record as the program writes it, without fields that it does not know.
    normal = json.loads(json.dumps(attributes_of(record), allow_nan=False))
    trial = replace(trial, attributes={**trial.attributes, RECORD: normal})
    if trial.ended < trial.started:
        raise ValueError("ended before it started")
    return PortableTrial(trial=trial, record=record)


def _distributions(said: Any) -> dict[str, BaseDistribution]:
    if not isinstance(said, dict) or len(said) > _MOST_KNOBS:
        raise ValueError("distributions: none, or too many")
    return {_key(path): _distribution(text) for path, text in said.items()}


def _distribution(text: Any) -> BaseDistribution:
    """Return the distribution that a text describes: one of those that knobs have."""
    if not isinstance(text, str):
        raise ValueError("distributions: not a text")
    said = json.loads(text)
    name, about = said["name"], said["attributes"]
    if name == "CategoricalDistribution":
        choices = about["choices"]
        if set(about) != {"choices"} or not isinstance(choices, list) or not 0 < len(choices) <= _MOST_CHOICES:
            raise ValueError("distributions: no list of choices")
        return CategoricalDistribution(tuple(_scalar(choice) for choice in choices))
    low, high = about["low"], about["high"]
    if about.get("log") is not False or set(about) != {"low", "high", "log", "step"}:
        raise ValueError("distributions: not those of a knob")
    if not is_number(low) or not is_number(high) or not -_LARGEST <= low <= high <= _LARGEST:
        raise ValueError("distributions: no range")
    if name == "IntDistribution" and all(isinstance(one, int) and abs(one) <= _LARGEST_INT for one in (low, high)):
        if about["step"] == 1:
            return IntDistribution(low, high)
    elif name == "FloatDistribution" and about["step"] is None:
        return FloatDistribution(float(low), float(high))
    raise ValueError("distributions: not those of a knob")


def _check_values(values: Any, distributions: Mapping[str, BaseDistribution]) -> None:
    if not isinstance(values, dict) or set(values) != set(distributions):
        raise ValueError("values: not those of the distributions")
    for path, value in values.items():
        match distributions[path]:
            case CategoricalDistribution(choices=choices):
                fits = any(same_scalar(_scalar(value), choice) for choice in choices)
            case IntDistribution(low=low, high=high):
                fits = isinstance(value, int) and is_number(value) and low <= value <= high
            case FloatDistribution(low=low, high=high):
                fits = isinstance(value, int | float) and is_number(value) and low <= value <= high
            case _:
                fits = False
        if not fits:
            raise ValueError(f"{ascii(path)[1:61]}: not within its distribution")


def _check_speeds(score: Any, speeds: Any) -> None:
    if score is not None and not (is_number(score) and _SCORES[0] <= score <= _SCORES[1]):
        raise ValueError("score: out of range")
    if not isinstance(speeds, list) or len(speeds) > _MOST_SPEEDS:
        raise ValueError("speeds: no list, or too long")
    if not all(is_number(speed) and 0 <= speed <= _SCORES[1] for speed in speeds):
        raise ValueError("speeds: out of range")


def _claim(attributes: Any, uuid: str) -> Mapping[str, str]:
    claim = attributes.get(CLAIM)
    if not isinstance(claim, dict) or claim.get("uuid") != uuid:
        raise ValueError("claim: another trial's")
    for name in _CLAIMED:
        if name in claim and (not isinstance(claim[name], str) or len(claim[name]) > _LONGEST_KEY):
            raise ValueError(f"claim.{name}: no text, or too long")
    return claim


def _record(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    record = attributes.get(RECORD)
    if not isinstance(record, dict):
        raise ValueError("no record")
    return record


def _check_record(record: TrialRecord, values: Mapping[str, Scalar]) -> None:
    _instant(record.ended_utc, "ended_utc")
    for text in (record.search, record.point, record.detail):
        if len(text) > _LONGEST_TEXT:
            raise ValueError("record: a text is too long")
    for path, value in (*record.values.items(), *record.conditions.items()):
        _key(path)
        _scalar(value)
    if any(path not in record.values or not _same(record.values[path], value) for path, value in values.items()):
        raise ValueError("values: not those of the record")


def _same(one: Scalar, other: Scalar) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float) and is_number(one) and is_number(other):
        return one == other  # a range of floats keeps the integers in it as floats
    return same_scalar(one, other)


def _key(path: Any) -> str:
    if not isinstance(path, str) or not 0 < len(path) <= _LONGEST_KEY or not path.isprintable():
        raise ValueError("a key that no config has")
    return path


def _scalar(value: Any) -> Scalar:
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise ValueError("a text is too long")
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and math.isfinite(value) and abs(value) <= _LARGEST:
        return value
    raise ValueError("a value that no config has")


def _stamp(text: Any, name: str) -> datetime:
    return _instant(text, name).astimezone(UTC)


def _instant(text: Any, name: str) -> datetime:
    if not isinstance(text, str) or not _STAMP.fullmatch(text):
        raise ValueError(f"{name}: no time in UTC of these two centuries")
    return datetime.fromisoformat(text)


def _utc_text(time: datetime) -> str:
    return time.isoformat(timespec="microseconds")


def _local(time: datetime) -> datetime:
    """Return a time as Optuna keeps it: local, without its zone."""
    return time.astimezone().replace(tzinfo=None, fold=0)


def _derived(record: TrialRecord) -> str:
    """Return the UUID of a trial that was written without one, which is the same wherever it is read."""
    return sha256(json.dumps(attributes_of(record), sort_keys=True).encode()).hexdigest()[:32]


def _without_folders(record: TrialRecord) -> TrialRecord:
    """Return a record whose texts name files without their folders, which are a machine's own."""
    checked = record.validation
    if checked is not None:
        checked = replace(checked, broke=_bare(checked.broke), remarks=_bare(checked.remarks))
    return replace(record, detail=_FOLDERS.sub("…/", record.detail), validation=checked)


def _bare(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(_FOLDERS.sub("…/", text) for text in texts)
