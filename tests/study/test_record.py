"""The record: written once, read back the same, whatever happens to the file."""

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autotune.errors import StudyError
from autotune.records import Purpose, Scalar, TrialRecord
from autotune.study.record import Study
from tests.runs import MakeTrial
from tests.study.storages import append, journal_study

VALUES = {"data.batch_size": 8, "data.cache": "none", "x.on": True, "x.rate": 1e-4}
CHOICES: dict[str, tuple[Scalar, ...]] = {
    "data.batch_size": (8, 16, 64),
    "data.cache": ("none", "memory"),
    "x.on": (False, True),
    "x.rate": (1e-4, 0.1),
}


def test_runs_come_back_as_they_were_written(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Values, metrics, pairs and conditions survive the file, types included."""
    trials = [
        make_trial(VALUES, 61.5, conditions={"host": "a", "cores": 2}),
        make_trial(VALUES, None, detail="ValueError: no"),
        make_trial(VALUES, 70.0, purpose=Purpose.CONFIRM, pair=3),
    ]
    study = journal_study(tmp_path / "s.journal")
    written = [append(study, trial) for trial in trials]
    assert written == [replace(trial, number=number) for number, trial in enumerate(trials)]
    assert journal_study(tmp_path / "s.journal").records() == written


def test_a_cut_journal_goes_on(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Cut at any byte of its last records, the study opens, has lost no other trial, and takes the next."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    for _ in range(4):
        append(study, make_trial(VALUES, 60.0))
    content = path.read_bytes()
    for cut in range(content.rindex(b'"record":{') - 4000, len(content), 7):
        folder = tmp_path / str(cut)
        folder.mkdir()
        copy = folder / "s.journal"
        copy.write_bytes(content[:cut])
        finished = content[: content.rindex(b"\n", 0, cut) + 1].count(b'"record":{')
        reopened = journal_study(copy)
        assert len(reopened.records()) in (finished, finished + 1)  # one more where only the newline was cut
        before = len(reopened.records())
        append(reopened, make_trial(VALUES, 61.0))
        assert len(journal_study(copy).records()) == before + 1
        shutil.rmtree(folder)


def test_a_full_disk_leaves_the_journal_whole(tmp_path: Path, make_trial: MakeTrial, small_disk: Path) -> None:
    """A trial that cannot be written is an error that says so; what was written before stays readable."""
    path = small_disk / "s.journal"
    study = journal_study(path)
    append(study, make_trial(VALUES, 60.0))
    _fill(small_disk)
    with pytest.raises(StudyError, match="No space left"):
        _append_many(study, make_trial(VALUES, 60.0, detail="x" * 4000))
    (small_disk / "filler").unlink()
    assert len(journal_study(path).records()) >= 1


def test_what_is_not_ours_is_left_out(tmp_path: Path, make_trial: MakeTrial) -> None:
    """A trial that somebody else added, or whose values are no scalars, is skipped, never guessed at."""
    path = tmp_path / "s.journal"
    append(journal_study(path), make_trial(VALUES, 60.0))
    storage = JournalStorage(JournalFileBackend(str(path)))
    foreign = optuna.load_study(study_name="s", storage=storage)
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    foreign.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"format": 1, "values": {"a": ["rm", "-rf"]}}))
    assert len(journal_study(path).records()) == 1


def test_json_that_is_no_journal_is_an_expected_error(tmp_path: Path) -> None:
    """Whole lines that Optuna did not write give a message with a remedy, not a traceback."""
    path = tmp_path / "s.journal"
    path.write_text('{"hello": 1}\n')
    with pytest.raises(StudyError) as caught:
        journal_study(path)
    assert caught.value.where == str(path)
    assert caught.value.remedy


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def _append_many(study: Study, trial: TrialRecord) -> None:
    for _ in range(100):
        append(study, trial)


def replaced(path: Path, way: str) -> None:
    """Does to a journal what another process may do while it is searched."""
    content = path.read_bytes()
    if way == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif way == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    if way == "a folder":
        path.mkdir()
    elif way == "a pipe":
        os.mkfifo(path)
    elif way == "a link":
        path.with_name("other").write_bytes(content)
        path.symlink_to(path.with_name("other"))
    elif way == "a copy":
        path.with_name("other").write_bytes(content)  # first, so that it has a number of its own
        path.with_name("other").rename(path)
    elif way == "a line of its own":
        path.write_bytes(content + b"hello\n")


CHANGES = ("cut", "emptied", "deleted", "a folder", "a pipe", "a link", "a line of its own")


@pytest.mark.parametrize("way", CHANGES)
def test_a_journal_that_is_changed_while_it_is_searched_is_an_expected_error(
    tmp_path: Path, make_trial: MakeTrial, way: str
) -> None:
    """The next trial is not written into whatever is there now, nothing waits, and what was measured is still known."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    append(study, make_trial(VALUES, 60.0))
    claim = study.begin(VALUES, CHOICES)
    replaced(path, way)
    with pytest.raises(StudyError) as caught:
        study.finish(claim, make_trial(VALUES, 61.0))
    assert str(path) in str(caught.value.where)
    assert caught.value.remedy
    assert [trial.comparable.samples_per_s for trial in study.records() if trial.comparable] == [60.0, 61.0]
    if way == "a link":
        assert path.with_name("other").read_bytes().count(b'"record":{') == 1
    with pytest.raises(StudyError):
        study.begin(VALUES, CHOICES)


def test_half_a_line_of_a_dead_writer_is_cut_off_before_the_next_one(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Else nobody could read the file any more; what was cut off is kept."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    append(study, make_trial(VALUES, 60.0))
    with path.open("ab") as file:
        file.write(b'{"op_code": ')
    append(study, make_trial(VALUES, 61.0))
    assert len(journal_study(path).records()) == 2
    assert path.with_name("s.journal.torn").read_bytes() == b'{"op_code": \n'


@pytest.mark.parametrize("name", ["s.journal", "s.journal.flock"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_in_a_journals_place_is_an_expected_error(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe is not waited for, and the file that a link leads to is neither read nor written."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(victim, path)}[kind](tmp_path / name)
    with pytest.raises(StudyError):
        journal_study(tmp_path / "s.journal")
    assert victim.read_text() == "precious"


def test_the_files_of_a_study_are_their_owners_alone(tmp_path: Path, make_trial: MakeTrial) -> None:
    """No umask opens the files of a study to others, nor the piece of a torn line."""
    before = os.umask(0)
    try:
        append(journal_study(tmp_path / "s.journal"), make_trial(VALUES, 60.0))
        with (tmp_path / "s.journal").open("ab") as file:
            file.write(b"torn")
        journal_study(tmp_path / "s.journal")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"s.journal": 0o600, "s.journal.flock": 0o600, "s.journal.torn": 0o600}


def test_what_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, make_trial: MakeTrial, caplog: pytest.LogCaptureFixture
) -> None:
    """With the numbers of the trials and the reason, and nothing that a terminal would obey."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    for _ in range(8):
        append(study, make_trial(VALUES, 60.0))
    bad = path.read_bytes().replace(b'"values":{', b'"values":{"\\u001b[31m":[],')
    path.write_bytes(bad)
    assert journal_study(path).records() == []
    (warning,) = caplog.messages
    assert "0 (values" in warning
    assert "and 3 more" in warning
    assert warning.isprintable()


def optuna_trials(path: Path, name: str = "s") -> list[optuna.trial.FrozenTrial]:
    """Return the trials as any other tool of Optuna's sees them."""
    return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(path)))).trials


def test_a_claimed_trial_is_one_that_every_tool_of_optuna_understands(tmp_path: Path, make_trial: MakeTrial) -> None:
    """RUNNING with its parameters while it goes on; then with its score, its times, its speeds and its attributes."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    claim = study.begin(VALUES, CHOICES, search="a", purpose="explore")
    (running,) = optuna_trials(path)
    assert running.state is TrialState.RUNNING
    assert running.params == VALUES
    assert running.user_attrs["claim"]["search"] == "a"
    written = study.finish(claim, make_trial(VALUES, 60.0), score=1.25, speeds=(58.0, 62.0))
    (done,) = optuna_trials(path)
    assert done.state is TrialState.COMPLETE
    assert done.value == 1.25
    assert done.intermediate_values == {0: 58.0, 1: 62.0}
    assert done.duration is not None
    assert done.user_attrs["ending"] == "stopped"
    assert done.user_attrs["samples_per_s"] == 60.0
    assert journal_study(path).records() == study.records() == [written]


def test_a_trial_without_a_score_has_failed(tmp_path: Path, make_trial: MakeTrial) -> None:
    """It carries no value, and is read back all the same."""
    study = journal_study(tmp_path / "s.journal")
    study.finish(study.begin(VALUES, CHOICES), make_trial(VALUES, None, detail="ValueError: no"))
    (failed,) = optuna_trials(tmp_path / "s.journal")
    assert (failed.state, failed.value) == (TrialState.FAIL, None)
    assert journal_study(tmp_path / "s.journal").records()[0].detail == "ValueError: no"


def test_what_a_dead_search_left_running_is_closed(tmp_path: Path, make_trial: MakeTrial) -> None:
    """By who holds the study next; it is no record, and numbers go on behind it."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    study.finish(study.begin(VALUES, CHOICES), make_trial(VALUES, 60.0), score=1.0)
    study.begin(VALUES, CHOICES)
    again = journal_study(path, is_gone=True)
    assert len(again.records()) == 1
    assert again.close_abandoned() == 1
    assert again.close_abandoned() == 0
    written = again.finish(again.begin(VALUES, CHOICES), make_trial(VALUES, 61.0), score=1.01)
    assert written.number == 2
    assert [trial.state for trial in optuna_trials(path)] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]


def test_an_interrupted_trial_gives_its_claim_up(tmp_path: Path) -> None:
    """^C in a trial: nothing stays RUNNING."""
    study = journal_study(tmp_path / "s.journal")
    study.abandon(study.begin(VALUES, CHOICES))
    assert [trial.state for trial in optuna_trials(tmp_path / "s.journal")] == [TrialState.FAIL]


def test_domains_may_change(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Ranges and knobs within one Optuna study, lists of categories in a further one; all are one record."""
    path = tmp_path / "s.journal"
    study = journal_study(path)

    def trial(values: dict[str, Scalar], **choices: tuple[Scalar, ...]) -> int:
        of = {**CHOICES, **{path.replace("__", "."): some for path, some in choices.items()}}
        begun = study.begin(values, {path: of[path] for path in values})
        return study.finish(begun, make_trial(values, 60.0), score=1.0).number

    assert trial(VALUES) == 0
    assert trial({**VALUES, "data.batch_size": 512}, data__batch_size=(8, 512)) == 1
    assert trial({**VALUES, "new": "a"}, new=("a", "b")) == 2
    assert trial({"data.batch_size": 8}) == 3
    assert trial({**VALUES, "data.cache": "memory"}, data__cache=("memory",)) == 4
    other = {**VALUES, "data.cache": "disk"}
    assert trial(other, data__cache=("none", "memory", "disk")) == 1_000_000
    assert trial(VALUES) == 1_000_001
    assert trial({**VALUES, "x.rate": "auto"}, x__rate=("auto", 0.1)) == 2_000_000
    assert sorted(record.number for record in journal_study(path).records()) == [
        0,
        1,
        2,
        3,
        4,
        1_000_000,
        1_000_001,
        2_000_000,
    ]
    assert [one.params for one in optuna_trials(path, "s~2")] == [other, VALUES]
