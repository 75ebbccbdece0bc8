"""Reading of a study: its records and ratings, as the answer of a study needs them.

Of a journal they are read without Optuna, whose import takes longer than all the rest of ``autotune status``.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from autotune.records import TrialRecord
from autotune.study.entry import read_records
from autotune.study.storage.journal import JournalFolder
from autotune.study.storage.storage import Storage
from autotune.study.summary import Rating, ratings_among


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """Study as its storage has it.

    Attributes:
        records: Its trials, oldest first.
        ratings: What searches have kept of the worth of each change of their answers, by search.
    """

    where: str
    records: Sequence[TrialRecord]
    ratings: Mapping[str, Rating]


def read_study(name: str, storage: Storage, *, pending: Path | None = None) -> StoredStudy:
    """Read a study; nothing is written.

    Args:
        pending: File of trials that wait for a server.

    Raises:
        StudyError: The storage cannot be read.
    """
    where = storage.where(name)
    if isinstance(storage, JournalFolder) and (found := storage.read(name)) is not None:
        trials, attributes = found
        records = [record for _, record in read_records(trials, (), where)]
        return StoredStudy(where=where, records=records, ratings=ratings_among(attributes))
    from autotune.study.record import Study  # imports Optuna

    with closing(Study(name, storage, pending=pending, reads_only=True)) as study:
        return StoredStudy(where=where, records=study.records(), ratings=study.ratings)
