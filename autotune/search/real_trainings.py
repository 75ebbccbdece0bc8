"""Real trainings counted by `autotune run`, as trials of their study, to compare claimed and achieved speeds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from autotune.clock import SystemClock
from autotune.errors import AutotuneError
from autotune.records import Ending, Purpose, TrialRecord, Validity
from autotune.trial.pace_files import PaceReader, PaceWindow
from autotune.trial.trainings import TrainingHeader, achieved_by, is_over, training_names
from autotune.trial.user_folder import TRAININGS, user_folder

if TYPE_CHECKING:
    from autotune.study.record import StudyRecord


def trainings_here(study: str, known: Collection[str]) -> Iterator[tuple[TrialRecord, bool]]:
    """Yield measured trainings of a study's config on this machine but the known ones, and whether each has ended."""
    try:
        folder = user_folder(os.environ) / TRAININGS
    except AutotuneError:  # another user could have written there
        return
    now = SystemClock().utc()
    for name in training_names(folder):
        header = None if name in known else TrainingHeader.read(folder / name)
        if header is None or header.study != study:
            continue
        with suppress(ValueError, ArithmeticError):  # impossible numbers or times
            if record := _record(name, header, PaceReader(folder / name).poll()):
                yield record, is_over(folder / name, header, now)


def keep_trainings(study: StudyRecord, found: Iterable[tuple[TrialRecord, bool]] | None = None) -> None:
    """Write this machine's ended trainings of a config into its study, once each; raise StudyError."""
    known = {trial.search for trial in study.records() if trial.purpose is Purpose.TRAINING}
    for record, has_ended in trainings_here(study.name, known) if found is None else found:
        if has_ended and record.search not in known:
            about = {"search": record.search, "purpose": record.purpose.value, "machine": record.machine}
            # The same name in every copy, for imports to recognise. The record has the values.
            name = hashlib.sha256(record.search.encode()).hexdigest()[:32]
            study.finish(study.begin({}, {}, uuid=name, **about), record)


def _record(name: str, header: TrainingHeader, windows: Sequence[PaceWindow]) -> TrialRecord | None:
    measured = achieved_by(windows, header.samples_per_step)
    if measured is None or header.point is None or header.conditions is None:
        return None
    counted_s = max(one.t1_s for one in windows) - min(one.t0_s for one in windows)
    ended = datetime.fromisoformat(header.started_utc) + timedelta(seconds=counted_s)
    return TrialRecord(
        number=0,
        search=name,
        point=header.point,
        values=header.values or {},
        purpose=Purpose.TRAINING,
        ending=Ending.COMPLETED,
        validity=Validity.GOOD,
        ended_utc=ended.isoformat(timespec="seconds"),
        duration_s=counted_s,
        measurement=measured,
        conditions=header.conditions,
        code=header.digests,
    )
