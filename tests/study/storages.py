"""Studies of tests, in the storages that there are, filled as a search fills them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autotune.clock import SystemClock
from autotune.records import Conditions, Ending, Measurement, Purpose, Scalar, TrialRecord, Validity, Values
from autotune.study.claims import Owner
from autotune.study.record import StudyRecord
from autotune.study.storage.address import GivenAddress, parse_address
from autotune.study.storage.journal import JournalFolder, open_storage
from autotune.study.storage.storage import Storage
from autotune.study.travel import Export, StudyName

NAME = "config-0123abcd-4567-89ef"
VALUES: Values = {"data.batch_size": 8, "data.cache": "none", "x.on": True, "x.rate": 1e-4}
CHOICES: Mapping[str, Sequence[Scalar]] = {
    "data.batch_size": (8, 16, 64),
    "data.cache": ("none", "memory"),
    "x.on": (False, True),
    "x.rate": (1e-4, 0.1),
}
BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
OWNER = Owner(about={"host": "a", "pid": 17, "boot_id": "b"}, is_gone=lambda _claim: False, clock=SystemClock())


def at(text: str, folder: Path) -> Storage:
    """Return the storage at an address, as the environment may say it."""
    return open_storage(parse_address(GivenAddress(text=text, where="", folder=folder, may_hold_password=True)), folder)


def journal_study(path: Path, *, is_gone: bool = False) -> StudyRecord:
    """Return the study in a journal; to it, the owners of all claims are gone, or none."""
    owner = Owner(about={}, is_gone=lambda _claim: is_gone, clock=SystemClock())
    return StudyRecord(path.stem, JournalFolder(path.parent), owner=owner)


def append(study: StudyRecord, trial: TrialRecord) -> TrialRecord:
    """Write a trial that has ended; return it with its number."""
    return study.finish(study.begin({}, {}), trial)


def record() -> TrialRecord:
    """Return a trial that gave numbers."""
    return TrialRecord(
        number=-1,
        search="a",
        point="p",
        values=VALUES,
        purpose=Purpose.EXPLORE,
        pair=None,
        ending=Ending.STOPPED,
        validity=Validity.GOOD,
        ended_utc="2030-01-01T00:00:00+00:00",
        duration_s=9.0,
        measurement=Measurement(
            window_s=4.0,
            steps=40,
            samples_per_s=60.0,
            cv=0.1,
            step_p50_s=0.1,
            step_p95_s=0.2,
            data_wait_fraction=0.5,
            first_step_s=3.0,
            cpu_cores=1.0,
            peak_memory_bytes=1 << 30,
        ),
        detail="",
        conditions=Conditions(host="a"),
    )


def fill(
    storage: Storage,
    trials: Sequence[TrialRecord],
    *,
    minute: int = 0,
    choices: Mapping[str, Sequence[Scalar]] = CHOICES,
    name: str = NAME,
) -> None:
    """Make trials of a study, one a minute from a minute on."""
    study = StudyRecord(name, storage, owner=OWNER)
    for place, trial in enumerate(trials):
        claim = study.begin(trial.values, choices, purpose=trial.purpose.value, sampler="autotune")
        started = BEGAN + timedelta(minutes=minute + place)
        ended = started + timedelta(seconds=trial.duration_s)
        claim.started = started.astimezone().replace(tzinfo=None)
        speed = trial.comparable.samples_per_s if trial.comparable else None
        record = replace(trial, ended_utc=ended.isoformat(timespec="seconds"))
        study.finish(claim, record, score=speed and speed / 60.0, speeds=(speed, speed + 0.1) if speed else ())
    study.close()


def records_of(storage: Storage, name: str = NAME) -> list[TrialRecord]:
    """Return the records of a study as a reader sees them, without their numbers, which are the storage's."""
    study = StudyRecord(name, storage, reads_only=True)
    study.close()
    return [replace(record, number=0) for record in study.records()]


def whichever(files: Sequence[Export]) -> StudyName:
    """Return the study that the first file names."""
    return files[0].study
