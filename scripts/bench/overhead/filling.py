"""Filling of studies with made-up trials, as searches of 13 knobs on one GPU record them, many at a time.

To begin and finish 10,000 trials one by one takes most of an hour on a database. So the trials of one search after the
other are begun and finished in a journal in memory, by the same calls that a search makes, and passed on: to a journal
on disk the very entries, in one append; to a database the very rows that Optuna makes of them, in one transaction.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.storages import JournalStorage, RDBStorage
from optuna.trial import FrozenTrial

from autotune.clock import Clock
from autotune.records import (
    Conditions,
    Ending,
    GpuConditions,
    GpuFigures,
    GpuMeasurement,
    Measurement,
    Purpose,
    Scalar,
    TrialRecord,
    Validity,
    Values,
)
from autotune.space.knob import Knob, Label
from autotune.space.space import Space
from autotune.study.claims import Claim
from autotune.study.record import StudyRecord
from autotune.study.storage.journal import JournalFile, JournalFolder
from autotune.study.storage.lock import FileLock
from autotune.study.storage.server import ServerStorage
from autotune.study.storage.storage import Connection, Storage

TRIALS_OF_A_SEARCH = 200
"""The first is the baseline, the last are pairs that confirm the best point."""

_PAIRED = 8
_REPEATS = 0.3
_FAILURES = 0.1
_NOISE = 0.05
_WINDOW_S = 5.0
_READINGS = 30  # of the driver in that time
_SPEEDS = 8
_GPU_READINGS: Mapping[str, Scalar] = {
    "gpu0.name": "NVIDIA A100-SXM4-80GB",
    "gpu0.sm_clock_mhz": 1410.0,
    "gpu0.temperature_start_c": 41.0,
    "gpu0.temperature_end_c": 44.0,
    "gpu0.throttled_fraction": 0.0,
    "gpu0.clock_reasons": None,
    "gpu0.foreign_fraction": 0.0,
    "gpu0.attribution": "processes",
}
_BEGAN = datetime(2030, 1, 1, tzinfo=UTC)

_CHOICES: dict[str, tuple[Scalar, ...]] = {
    "data.batch_size": (8, 16, 24, 32, 48, 64),
    "data.num_workers": (0, 1, 2, 3, 4, 6, 8, 12, 16),
    "data.prefetch_buffer_size": (0, 1, 2, 4, 8, 16),
    "data.use_tf_native_loading": (False, True),
    "data.cache": ("none", "memory", "disk"),
    "data.pad_to_fixed_length": (False, True),
    "data.bucket_by_length": (False, True),
    "data.prefetch_to_gpu": (False, True),
    "training.enable_graph_mode": (True, False),
    "training.enable_xla_compilation": (False, True),
    "training.mixed_precision": ("float32", "mixed_float16", "mixed_bfloat16"),
    "runtime.inter_op_threads": (0, 1, 2, 4, 8),
    "runtime.intra_op_threads": (0, 1, 2, 4, 8),
}
SPACE = Space(
    knobs=tuple(
        Knob(
            path=path,
            choices=choices,
            ordered=isinstance(choices[-1], int) and not isinstance(choices[-1], bool),
            baseline=choices[0],
            label=Label.SAME_TRAINING,
        )
        for path, choices in _CHOICES.items()
    )
)
"""Knobs of the shipped config: switches, lists of words, counts."""


@dataclass(frozen=True, kw_only=True)
class MadeUpTrial:
    """Trial that nobody has made, and what a search tells its study about it.

    Attributes:
        score: Its score over the baseline's; None if it failed.
        speeds: Its speed over time, in samples per second.
    """

    record: TrialRecord
    score: float | None
    speeds: tuple[float, ...]


def made_up_trials(count: int, *, seed: int = 0) -> Iterator[MadeUpTrial]:
    """Yield the trials of one search after the other, the same ones for the same seed."""
    rng = random.Random(seed)
    explored: list[Values] = []
    for number in range(count):
        search, place = divmod(number, TRIALS_OF_A_SEARCH)
        if place == 0:
            explored = [SPACE.baseline]
            purpose, pair, values = Purpose.BASELINE, None, SPACE.baseline
        elif place < TRIALS_OF_A_SEARCH - _PAIRED:
            purpose, pair = Purpose.EXPLORE, None
            values = rng.choice(explored) if rng.random() < _REPEATS else _anywhere(rng)
            explored.append(values)
        else:
            purpose, pair = Purpose.CONFIRM, (place - TRIALS_OF_A_SEARCH + _PAIRED) // 2
            values = SPACE.baseline if place % 2 else max(explored, key=_ln_speed)
        fails = purpose is Purpose.EXPLORE and rng.random() < _FAILURES
        yield _trial(number, f"search-{search:03d}", purpose, pair, values, None if fails else rng)


def _anywhere(rng: random.Random) -> Values:
    return {knob.path: rng.choice(knob.choices) for knob in SPACE.knobs}


def _ln_speed(values: Values) -> float:
    return sum(0.02 * place * index for place, index in enumerate(SPACE.indices(values)))


def _trial(
    number: int, search: str, purpose: Purpose, pair: int | None, values: Values, rng: random.Random | None
) -> MadeUpTrial:
    """Return a trial; without numbers for one that failed."""
    speeds = [100.0 * math.exp(_ln_speed(values) + rng.gauss(0.0, _NOISE)) for _ in range(_SPEEDS)] if rng else []
    record = TrialRecord(
        number=number,
        search=search,
        point=SPACE.name(values),
        values=values,
        purpose=purpose,
        pair=pair,
        ending=Ending.STOPPED if rng else Ending.CRASHED,
        validity=Validity.GOOD,
        ended_utc=(_BEGAN + timedelta(seconds=9 * number)).isoformat(timespec="seconds"),
        duration_s=9.0,
        measurement=_measurement(speeds, rng) if rng else None,
        detail="" if rng else "InvalidArgumentError: Input to reshape is a tensor with 14080 values",
        conditions=Conditions(
            autotune="1.0",
            host="node-17.cluster",
            cpu_model="AMD EPYC 7763 64-Core Processor",
            cpu_cores=16,
            memory_bytes=128 << 30,
            gpus="NVIDIA A100-SXM4-80GB",
            frameworks={"tensorflow": "2.17.0"},
            gpu=GpuConditions(driver="550.54.15", readings=_GPU_READINGS, not_measured=None),
        ),
    )
    return MadeUpTrial(record=record, score=fmean(speeds) / 100.0 if speeds else None, speeds=tuple(speeds))


def _measurement(speeds: Sequence[float], rng: random.Random) -> Measurement:
    step_s = 16.0 / fmean(speeds)
    busy = [round(min(1.0, max(0.0, rng.gauss(0.4, 0.2))), 2) for _ in range(_READINGS)]
    reading_s = _WINDOW_S / _READINGS
    return Measurement(
        window_s=_WINDOW_S,
        steps=max(1, round(_WINDOW_S / step_s)),
        samples_per_s=fmean(speeds),
        cv=rng.uniform(0.02, 0.3),
        step_p50_s=step_s,
        step_p95_s=step_s * rng.uniform(1.1, 1.6),
        data_wait_fraction=rng.random(),
        first_step_s=rng.uniform(2.0, 4.0),
        cpu_cores=rng.uniform(1.0, 8.0),
        peak_memory_bytes=rng.randrange(1 << 30, 4 << 30),
        gpu_utilization=fmean(busy),
        gpu_memory_bytes=rng.randrange(1 << 30, 64 << 30),
        energy_per_sample_j=rng.uniform(1.0, 4.0),
        gpus=(
            GpuMeasurement(
                figures=GpuFigures(
                    uuid="GPU-7b3c1a52-9d0e-4f6a-8a51-3c2f5e9d1b70",
                    name="NVIDIA A100-SXM4-80GB",
                    utilization=fmean(busy),
                    covered_fraction=1.0,
                    memory_total_bytes=80 << 30,
                    peak_memory_bytes=rng.randrange(1 << 30, 64 << 30),
                    power_w=rng.uniform(90.0, 300.0),
                    energy_j=rng.uniform(450.0, 1500.0),
                    own_fraction=fmean(busy),
                    foreign_fraction=0.0,
                    throttled_fraction=0.0,
                ),
                busy_windows=tuple(
                    (round((place + 1) * reading_s, 6), round(reading_s, 6), share) for place, share in enumerate(busy)
                ),
            ),
        ),
    )


def fill(storages: Sequence[Storage], name: str, count: int) -> Iterator[int]:
    """Add trials to a study in each of some storages, the same ones; yields their number so far.

    Args:
        storages: The storages, in which there is no study of this name.

    Raises:
        StudyError: A storage cannot be used.
    """
    trials = made_up_trials(count)
    for first in range(0, count, TRIALS_OF_A_SEARCH):
        made = MemoryJournal()
        study = StudyRecord(name, made)
        for trial in islice(trials, TRIALS_OF_A_SEARCH):
            finish(study, begin(study, trial), trial)
        study.close()
        for storage in storages:
            if isinstance(storage, JournalFolder):
                _append(storage, name, made.entries, first)
            else:
                _insert(storage, name, made.trials(name), first)
        yield min(first + TRIALS_OF_A_SEARCH, count)


def begin(study: StudyRecord, trial: MadeUpTrial) -> Claim:
    """Begin a trial as a search does."""
    record = trial.record
    return study.begin(record.values, SPACE.choices, search=record.search, purpose=record.purpose.value)


def finish(study: StudyRecord, claim: Claim, trial: MadeUpTrial) -> None:
    """Finish a trial as a search does."""
    study.finish(claim, trial.record, score=trial.score, speeds=trial.speeds)


def clear(storage: Storage, name: str) -> None:
    """Delete a study.

    Raises:
        StudyError: The storage cannot be used.
    """
    if isinstance(storage, JournalFolder):
        path = storage.path(name)
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".flock").unlink(missing_ok=True)
        return
    connection = storage.connect(name)
    with connection.expected(), _engine(connection).begin() as database:
        tables = _tables(database)
        studies = _study_ids(tables, name)
        trials = sqlalchemy.select(tables["trials"].c.trial_id).where(tables["trials"].c.study_id.in_(studies))
        for table in reversed(list(tables.values())):  # what refers to a trial before the trial
            if "study_id" in table.c:
                database.execute(table.delete().where(table.c.study_id.in_(studies)))
            elif "trial_id" in table.c:
                database.execute(table.delete().where(table.c.trial_id.in_(trials)))
    connection.close()


class MemoryJournal:
    """Storage of one study in a journal in memory; see `Storage`, and `JournalFile` for what Optuna calls."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def trials(self, study: str) -> list[FrozenTrial]:
        """Return the trials of the study."""
        storage = self.connect(study).storage
        return optuna.load_study(study_name=study, storage=storage).get_trials(deepcopy=False)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the entries from this one on."""
        return iter(self.entries[log_number_from:])

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Append entries."""
        self.entries += json.loads(json.dumps(logs))

    def where(self, study: str) -> str:
        """Return the place in words."""
        return "memory"

    def latest(self, pattern: str) -> str | None:
        """Return None: it is not searched."""
        return None

    def names(self) -> list[str]:
        """Return no names: it is not searched."""
        return []

    def discard(self, study: str, trash: Path) -> None:
        """Forget everything."""
        self.entries = []

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Return a connection."""
        storage = JournalStorage(self)  # type: ignore[arg-type]
        return Connection(storage=storage, expected=nullcontext, names=partial(optuna.get_all_study_names, storage))

    def attributes(self, name: str) -> list[object]:
        """Return nothing: it is not searched."""
        return []

    def archive(self, study: str, clock: Clock) -> None:
        """Make room for a new study."""
        self.entries = []


def _append(folder: JournalFolder, name: str, entries: Sequence[dict[str, Any]], first: int) -> None:
    """Append the entries of some trials to a journal.

    Args:
        entries: The entries; the first makes the study.
    """
    path = folder.path(name)
    folder.connect(name)
    renumbered = [
        {**entry, "trial_id": entry["trial_id"] + first} if "trial_id" in entry else entry
        for entry in (entries[1:] if first else entries)
    ]
    JournalFile(path, FileLock(path.with_name(path.name + ".flock"))).append_logs(renumbered)


def _insert(storage: Storage, name: str, trials: Sequence[FrozenTrial], first: int) -> None:
    """Insert finished trials into a database, of whose study there are so many."""
    connection = storage.connect(name)
    with connection.expected():
        optuna.create_study(study_name=name, storage=connection.storage, direction="maximize", load_if_exists=True)
        with _engine(connection).begin() as database:
            tables = _tables(database)
            study_id = database.execute(_study_ids(tables, name)).scalar_one()
            rows: list[dict[str, Any]] = [
                {
                    "study_id": study_id,
                    "number": first + trial.number,
                    "state": trial.state.name,
                    "datetime_start": trial.datetime_start,
                    "datetime_complete": trial.datetime_complete,
                }
                for trial in trials
            ]
            new = tables["trials"]
            ids = database.execute(new.insert().returning(new.c.trial_id, sort_by_parameter_order=True), rows).scalars()
            for table, rows in _rows(dict(zip(ids, trials, strict=True))).items():
                database.execute(tables[table].insert(), rows)
    connection.close()


def _rows(trials: dict[int, FrozenTrial]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of some trials by their ids, for each table but that of the trials themselves."""
    return {
        "trial_params": [
            {
                "trial_id": number,
                "param_name": path,
                "param_value": trial.distributions[path].to_internal_repr(value),
                "distribution_json": distribution_to_json(trial.distributions[path]),
            }
            for number, trial in trials.items()
            for path, value in trial.params.items()
        ],
        "trial_values": [
            {"trial_id": number, "objective": 0, "value": trial.value, "value_type": "FINITE"}
            for number, trial in trials.items()
            if trial.value is not None
        ],
        "trial_user_attributes": [
            {"trial_id": number, "key": key, "value_json": json.dumps(value)}
            for number, trial in trials.items()
            for key, value in trial.user_attrs.items()
        ],
        "trial_intermediate_values": [
            {"trial_id": number, "step": step, "intermediate_value": value, "intermediate_value_type": "FINITE"}
            for number, trial in trials.items()
            for step, value in trial.intermediate_values.items()
        ],
    }


def _engine(connection: Connection) -> sqlalchemy.Engine:
    assert isinstance(connection.storage, RDBStorage | ServerStorage), "every other storage is a database"
    return connection.storage.engine


def _tables(database: sqlalchemy.Connection) -> Mapping[str, sqlalchemy.Table]:
    """Return the tables by name, each before those that refer to it."""
    described = sqlalchemy.MetaData()
    described.reflect(database)
    return {table.name: table for table in described.sorted_tables}


def _study_ids(tables: Mapping[str, sqlalchemy.Table], name: str) -> sqlalchemy.Select[tuple[int]]:
    """Return the query for the id of a study; it finds none where there is no such study."""
    studies = tables["studies"]
    return sqlalchemy.select(studies.c.study_id).where(studies.c.study_name == name)
