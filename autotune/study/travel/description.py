"""Description of a study from its record alone, for whoever lists or shows it, also without its config."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.records import TrialRecord
from autotune.results import SearchResult
from autotune.score import EFFECTIVE_UTILIZATION, Objective
from autotune.space.space import Space
from autotune.study.identity import frameworks_text
from autotune.study.members import Member
from autotune.study.record import Study
from autotune.study.standing import standing_answers
from autotune.study.storage.storage import Storage
from autotune.study.summary import Stood, answer_of, summarize

_GIB = 1024**3
_NO_SPACE = Space(knobs=())  # gives labels alone, which are not shown


@dataclass(frozen=True, kw_only=True)
class SearchFacts:
    """Search of a study.

    Attributes:
        name: Its name.
        trials: Number of its trials.
        ended_utc: End of its last trial.
        result: Its answer; None if no trial gave numbers.
    """

    name: str
    trials: int
    ended_utc: str
    result: SearchResult | None


@dataclass(frozen=True, kw_only=True)
class StudyFacts:
    """Study in short.

    Attributes:
        name: Its name.
        trials: Number of its trials with a record.
        endings: Number of trials of each ending.
        last_utc: End of its last trial; None for no trial.
        hosts: Hosts of its trials.
        hardware: Class of hardware in words, each of several.
        frameworks: Versions of the frameworks in words, each of several.
        versions: Versions of this program that made the trials.
        searches: Its searches, oldest first.
        answer: The answer that counts; None if there is none.
        members: Processes that have worked on it.
    """

    name: str
    trials: int
    endings: Mapping[str, int]
    last_utc: str | None
    hosts: Sequence[str]
    hardware: Sequence[str]
    frameworks: Sequence[str]
    versions: Sequence[str]
    searches: Sequence[SearchFacts]
    answer: SearchResult | None
    members: Sequence[Member]


def describe_study(name: str, storage: Storage, *, objective: Objective | None = None) -> StudyFacts:
    """Describe a study.

    Args:
        name: Its name.
        storage: Where it is kept.
        objective: Objective of its config; None where that is not known: the usual one.

    Raises:
        StudyError: It cannot be read.
    """
    study = Study(name, storage, reads_only=True)
    try:
        records, members = study.records(), members_of(study)
    finally:
        study.close()
    objective = objective or EFFECTIVE_UTILIZATION
    current = [trial for trial in records if trial.shares_code_with(records[-1])]
    stood = standing_answers(records, objective)
    searches = [_search(search, records, objective, stood) for search in dict.fromkeys(one.search for one in records)]
    return StudyFacts(
        name=name,
        trials=len(records),
        endings=dict(Counter(one.ending.value for one in records)),
        last_utc=max((one.ended_utc for one in records), default=None),
        hosts=_told(records, "host"),
        hardware=list(dict.fromkeys(_hardware(one) for one in records)),
        frameworks=[text for text in dict.fromkeys(frameworks_text(one.conditions) for one in records) if text],
        versions=_told(records, "autotune"),
        searches=searches,
        answer=answer_of(current, _NO_SPACE, objective=objective),
        members=members,
    )


def members_of(study: Study) -> list[Member]:
    """Return the processes that have worked on a study, who joined first in front."""
    return study.members()


def _search(name: str, records: Sequence[TrialRecord], objective: Objective, stood: Stood) -> SearchFacts:
    trials = [one for one in records if one.search == name]
    return SearchFacts(
        name=name,
        trials=len(trials),
        ended_utc=max(one.ended_utc for one in trials),
        result=summarize(records, name, _NO_SPACE, objective=objective, stood=stood),
    )


def _told(records: Sequence[TrialRecord], name: str) -> list[str]:
    return [str(value) for value in dict.fromkeys(one.conditions.get(name) for one in records) if value is not None]


def _hardware(record: TrialRecord) -> str:
    told = record.conditions
    memory = told.get("memory_bytes")
    parts = [
        told.get("gpus") or "no GPU",
        told.get("cpu_model"),
        f"{told['cpu_cores']} cores" if told.get("cpu_cores") else None,
        f"{memory / _GIB:.0f} GiB" if isinstance(memory, int | float) and 0 < memory < 1 << 60 else None,
    ]
    return ", ".join(str(part) for part in parts if part)
