"""The record: written once, read back the same, whatever happens to the file."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import StudyError
from autotune.records import Purpose, RunRecord
from autotune.search.study import Study
from tests.search.conftest import MakeRun

VALUES = {"data.batch_size": 8, "data.cache": "none", "x.on": True, "x.rate": 1e-4}


def test_runs_come_back_as_they_were_written(tmp_path: Path, make_run: MakeRun) -> None:
    """Values, metrics, pairs and conditions survive the file, types included."""
    runs = [
        make_run(VALUES, 61.5, conditions={"host": "a", "cores": 2}),
        make_run(VALUES, None, detail="ValueError: no"),
        make_run(VALUES, 70.0, purpose=Purpose.CONFIRM, pair=3),
    ]
    study = Study("s", tmp_path / "s.journal")
    written = [study.append(run) for run in runs]
    assert written == [replace(run, number=number) for number, run in enumerate(runs)]
    assert Study("s", tmp_path / "s.journal").records() == written


def test_a_cut_journal_goes_on(tmp_path: Path, make_run: MakeRun) -> None:
    """Cut at any byte of its last three records, the study opens, has lost no other run, and takes the next."""
    path = tmp_path / "s.journal"
    study = Study("s", path)
    for _ in range(4):
        study.append(make_run(VALUES, 60.0))
    content = path.read_bytes()
    starts = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(starts[-4], len(content), 7):
        folder = tmp_path / str(cut)
        folder.mkdir()
        copy = folder / "s.journal"
        copy.write_bytes(content[:cut])
        finished = sum(start <= cut for start in starts) - sum(start <= starts[-5] for start in starts)
        reopened = Study("s", copy)
        assert len(reopened.records()) in (finished, finished + 1)  # one more where only the newline was cut
        before = len(reopened.records())
        reopened.append(make_run(VALUES, 61.0))
        assert len(Study("s", copy).records()) == before + 1
        shutil.rmtree(folder)


def test_a_full_disk_leaves_the_journal_whole(tmp_path: Path, make_run: MakeRun, small_disk: Path) -> None:
    """A run that cannot be written is an error that says so; what was written before stays readable."""
    path = small_disk / "s.journal"
    study = Study("s", path)
    study.append(make_run(VALUES, 60.0))
    _fill(small_disk)
    with pytest.raises(StudyError, match="No space left"):
        _append_many(study, make_run(VALUES, 60.0, detail="x" * 4000))
    (small_disk / "filler").unlink()
    assert len(Study("s", path).records()) >= 1


def test_what_is_not_ours_is_left_out(tmp_path: Path, make_run: MakeRun) -> None:
    """A trial that somebody else added, or whose values are no scalars, is skipped, never guessed at."""
    path = tmp_path / "s.journal"
    Study("s", path).append(make_run(VALUES, 60.0))
    storage = JournalStorage(JournalFileBackend(str(path)))
    foreign = optuna.load_study(study_name="s", storage=storage)
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    foreign.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"format": 1, "values": {"a": ["rm", "-rf"]}}))
    assert len(Study("s", path).records()) == 1


def test_json_that_is_no_journal_is_an_expected_error(tmp_path: Path) -> None:
    """Whole lines that Optuna did not write give a message with a remedy, not a traceback."""
    path = tmp_path / "s.journal"
    path.write_text('{"hello": 1}\n')
    with pytest.raises(StudyError) as caught:
        Study("s", path)
    assert caught.value.where == str(path)
    assert caught.value.remedy


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def _append_many(study: Study, run: RunRecord) -> None:
    for _ in range(100):
        study.append(run)
