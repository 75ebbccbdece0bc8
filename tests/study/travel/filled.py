"""Studies of tests that travel: filled as a search fills them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from autotune.clock import SystemClock
from autotune.records import Scalar, TrialRecord
from autotune.study.claims import Owner
from autotune.study.record import Study
from autotune.study.storage.storage import Storage
from autotune.study.travel import PortableFile, StudyName

NAME = "config-0123abcd-4567-89ef"
CHOICES: dict[str, tuple[Scalar, ...]] = {
    "data.batch_size": (8, 16, 64),
    "data.cache": ("none", "memory"),
    "x.on": (False, True),
    "x.rate": (1e-4, 0.1),
}
VALUES: dict[str, Scalar] = {"data.batch_size": 8, "data.cache": "none", "x.on": True, "x.rate": 1e-4}
BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
OWNER = Owner(about={"host": "a", "pid": 17, "boot_id": "b"}, is_gone=lambda _claim: False, clock=SystemClock())


def fill(
    storage: Storage,
    trials: Sequence[TrialRecord],
    *,
    minute: int = 0,
    choices: dict[str, tuple[Scalar, ...]] | None = None,
    name: str = NAME,
) -> None:
    """Make trials of a study, one a minute from a minute on."""
    study = Study(name, storage, owner=OWNER)
    for place, trial in enumerate(trials):
        claim = study.begin(trial.values, choices or CHOICES, purpose=trial.purpose.value, sampler="autotune")
        started = BEGAN + timedelta(minutes=minute + place)
        ended = started + timedelta(seconds=trial.duration_s)
        claim.started = started.astimezone().replace(tzinfo=None)
        speed = trial.comparable.samples_per_s if trial.comparable else None
        record = replace(trial, ended_utc=ended.isoformat(timespec="seconds"))
        study.finish(claim, record, score=speed and speed / 60.0, speeds=(speed, speed + 0.1) if speed else ())
    study.close()


def records_of(storage: Storage, name: str = NAME) -> list[TrialRecord]:
    """Return the records of a study as a reader sees them, without their numbers, which are the storage's."""
    study = Study(name, storage, reads_only=True)
    study.close()
    return [replace(record, number=0) for record in study.records()]


def whichever(files: Sequence[PortableFile]) -> StudyName:
    """Return the study that the first file names."""
    return files[0].header.study
