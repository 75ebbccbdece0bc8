"""Studies of tests, in the storages that there are."""

from pathlib import Path

from autotune.clock import SystemClock
from autotune.records import TrialRecord
from autotune.study.claims import Owner
from autotune.study.record import Study
from autotune.study.storage.journal import JournalFolder


def journal_study(path: Path, *, is_gone: bool = False) -> Study:
    """Return the study in a journal; to it, the owners of all claims are gone, or none."""
    owner = Owner(about={}, is_gone=lambda _claim: is_gone, clock=SystemClock())
    return Study(path.stem, JournalFolder(path.parent), owner=owner)


def append(study: Study, trial: TrialRecord) -> TrialRecord:
    """Write a trial that has ended; return it with its number."""
    return study.finish(study.begin({}, {}), trial)
