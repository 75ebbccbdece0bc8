"""The record in a journal: written once, read back the same, whatever happens to the file."""

import contextlib
import os
import shutil
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import StudyError
from autotune.records import Scalar, Values
from tests.runs import MakeTrial
from tests.study.storages import CHOICES, VALUES, append, journal_study


def test_a_cut_journal_goes_on(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Cut at any byte of its last records, the study opens, has lost no other trial, and takes the next."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    for _ in range(3):
        append(study, make_trial(VALUES, 60.0))
    content = path.read_bytes()
    for cut in range(content.rindex(b'"record":{') - 2000, len(content), 67):
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
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(StudyError, match="No space left"):
        all(append(study, make_trial(VALUES, 60.0, detail="x" * 4000)) for _ in range(100))
    (small_disk / "filler").unlink()
    assert len(journal_study(path).records()) >= 1


def test_what_is_not_ours_is_left_out(tmp_path: Path, make_trial: MakeTrial) -> None:
    """A trial that somebody else added, or whose values are no scalars, is skipped, never guessed at."""
    path = tmp_path / "s.journal"
    append(journal_study(path), make_trial(VALUES, 60.0))
    foreign = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(path))))
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    foreign.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"format": 1, "values": {"a": ["rm", "-rf"]}}))
    assert len(journal_study(path).records()) == 1


def test_what_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, make_trial: MakeTrial, caplog: pytest.LogCaptureFixture
) -> None:
    """With the numbers of the trials and the reason, and nothing that a terminal would obey."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    for _ in range(8):
        append(study, make_trial(VALUES, 60.0))
    path.write_bytes(path.read_bytes().replace(b'"values":{', b'"values":{"\\u001b[31m":[],'))
    assert journal_study(path).records() == []
    (warning,) = caplog.messages
    assert "0 (values" in warning
    assert "and 3 more" in warning
    assert warning.isprintable()


def replaced(path: Path, way: str) -> None:
    """Does to a journal what another process may do while it is searched."""
    content = path.read_bytes()
    if way == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif way == "a line of its own":
        path.write_bytes(content + b"hello\n")
    else:
        path.unlink()
    if way == "a folder":
        path.mkdir()
    elif way == "a pipe":
        os.mkfifo(path)
    elif way == "a link":
        path.with_name("other").write_bytes(content)
        path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize("way", ["cut", "deleted", "a folder", "a pipe", "a link", "a line of its own"])
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
    """Else nobody could read the file any more; what was cut off is kept, and all files are their owner's alone."""
    path = tmp_path / "s.journal"
    before = os.umask(0)
    try:
        study = journal_study(path)
        append(study, make_trial(VALUES, 60.0))
        with path.open("ab") as file:
            file.write(b'{"op_code": ')
        append(study, make_trial(VALUES, 61.0))
    finally:
        os.umask(before)
    assert len(journal_study(path).records()) == 2
    assert path.with_name("s.journal.torn").read_bytes() == b'{"op_code": \n'
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"s.journal": 0o600, "s.journal.flock": 0o600, "s.journal.torn": 0o600}


@pytest.mark.parametrize("name", ["s.journal", "s.journal.flock"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "json"])
def test_what_is_no_journal_in_its_place_is_an_expected_error(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe is not waited for, the file that a link leads to is not touched, and JSON alone is no journal."""
    victim = tmp_path / "victim"
    victim.write_text('{"hello": 1}\n')
    way = {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(victim, path)}
    way.get(kind, lambda _: shutil.copy(victim, tmp_path / "s.journal"))(tmp_path / name)
    with pytest.raises(StudyError) as caught:
        journal_study(tmp_path / "s.journal")
    assert caught.value.remedy
    assert victim.read_text() == '{"hello": 1}\n'


def test_domains_may_change(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Ranges and knobs within one Optuna study, lists of categories in a further one; all are one record."""
    path = tmp_path / "s.journal"
    study = journal_study(path)

    def trial(values: Values, **choices: tuple[Scalar, ...]) -> int:
        of = {**CHOICES, **{path.replace("__", "."): some for path, some in choices.items()}}
        begun = study.begin(values, {path: of[path] for path in values})
        return study.finish(begun, make_trial(values, 60.0), score=1.0).number

    numbers = [
        trial(VALUES),
        trial({**VALUES, "data.batch_size": 512}, data__batch_size=(8, 512)),
        trial({**VALUES, "new": "a"}, new=("a", "b")),
        trial({**VALUES, "data.cache": "memory"}, data__cache=("memory",)),
        trial({**VALUES, "data.cache": "disk"}, data__cache=("none", "memory", "disk")),
        trial(VALUES),
        trial({**VALUES, "x.rate": "auto"}, x__rate=("auto", 0.1)),
    ]
    assert numbers == [0, 1, 2, 3, 1_000_000, 1_000_001, 2_000_000]
    assert sorted(record.number for record in journal_study(path).records()) == numbers
