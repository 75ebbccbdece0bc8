"""The journal's repair and its locks, on real files and real processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from autotune.clock import VirtualClock
from autotune.errors import StudyBusy, StudyError
from autotune.study.storage.journal import JournalFile, JournalFolder
from autotune.study.storage.lock import FileLock, sole_search
from tests.recorded.recording import JOURNAL
from tests.runs import MakeTrial
from tests.study.storages import append, journal_study

LINES = [json.dumps({"op_code": i, "text": "é" * i}).encode() + b"\n" for i in range(4)]


def _file(path: Path) -> JournalFile:
    return JournalFile(path, FileLock(path.with_name("lock")))


def test_damage_in_the_middle_is_named_and_left_alone(tmp_path: Path, make_trial: MakeTrial) -> None:
    """A line that is no journal line is somebody's accident: the message names it, the file stays, its torn end too."""
    path = tmp_path / "s.journal"
    append(journal_study(path), make_trial({"x.on": True}, 60.0))
    first, second = path.read_bytes().splitlines(keepends=True)[:2]
    for rest in (b"", b'{"half": '):
        content = first + b"garbage\n" + second + rest
        path.write_bytes(content)
        with pytest.raises(StudyError, match="truncate it before that line") as caught:
            JournalFolder(tmp_path).connect("s")
        assert caught.value.where == f"{path}:2"
        assert path.read_bytes() == content


def test_reads_what_python_writes(tmp_path: Path) -> None:
    """Half a character, as in a file's name that is none, and numbers that are none."""
    path = tmp_path / "j"
    entries = [
        {"text": "\ud800"},
        {"number": float("inf")},
        {"number": 10**30},
        {"deep": json.loads("[" * 300 + "]" * 300)},
    ]
    path.write_bytes(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
    file = _file(path)
    assert list(file.read_logs(0)) == entries
    assert list(file.read_logs(3)) == entries[3:]


def test_readers_without_optuna_see_what_it_sees(tmp_path: Path) -> None:
    """And leave to it what they do not know, such as the deletion of a study."""
    name = json.loads(JOURNAL.read_text().partition("\n")[0])["study_name"]
    folder = JournalFolder(tmp_path)
    shutil.copyfile(JOURNAL, folder.path(name))
    study = optuna.load_study(study_name=name, storage=folder.connect(name, reads_only=True).storage)
    trials, attributes = folder.read(name) or ([], {})
    assert [(number, one.user_attrs, one.datetime_start, one.is_finished) for number, one in trials] == [
        (one.number, one.user_attrs, one.datetime_start, one.state.is_finished()) for one in study.trials
    ]
    assert attributes == study.user_attrs
    with folder.path(name).open("a") as file:
        file.write('{"op_code": 1, "worker_id": "another", "study_id": 0}\n')
    assert folder.read(name) is None


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    """Its beginning is no damage; once it is whole, it is the next entry."""
    path = tmp_path / "j"
    file = _file(path)
    path.write_bytes(LINES[0] + LINES[1][:9])
    assert [entry["op_code"] for entry in file.read_logs(0)] == [0]
    path.write_bytes(LINES[0] + LINES[1])
    assert [entry["op_code"] for entry in file.read_logs(1)] == [1]


def test_the_disk_is_waited_for_once_a_call(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial has some thirty entries; all are on disk when its beginning, and when its end, has been written."""
    path = tmp_path / "s.journal"
    study = journal_study(path)
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), path.stat()):  # other threads may write other files
            synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", sync)
    claim = study.begin({"x.on": True}, {"x.on": (False, True)})
    assert synced == [path.stat().st_size]
    study.finish(claim, make_trial({"x.on": True}, 60.0), score=1.0, speeds=(58.0, 62.0))
    assert synced[1:] == [path.stat().st_size]
    study.close_abandoned()
    assert len(synced) == 2


def test_a_second_search_is_refused_by_name_and_a_dead_one_leaves_nothing(tmp_path: Path) -> None:
    """While one search holds the study another is told who does; a killed holder holds nothing."""
    lock = tmp_path / "study.search"
    script = (
        "import sys\nfrom pathlib import Path\nfrom autotune.study.storage.lock import sole_search\n"
        f"with sole_search(Path({str(lock)!r}), 'study'):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StudyBusy, match=f"process {holder.pid}"), sole_search(lock, "study"):
            pass
        holder.kill()
        holder.wait(timeout=30)
        with sole_search(lock, "study"):
            pass


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_in_the_place_of_the_lock_is_an_expected_error(tmp_path: Path, kind: str) -> None:
    """A pipe is not waited for, and the file that a link leads to is not emptied."""
    victim, lock = tmp_path / "victim", tmp_path / "study.search"
    victim.write_text("precious")
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(victim, path)}[kind](lock)
    with pytest.raises(StudyError, match="cannot lock this study"), sole_search(lock, "study"):
        pass
    assert victim.read_text() == "precious"


def test_a_lock_that_is_never_given_back_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """A stopped process may hold it for ever."""
    late = FileLock(tmp_path / "lock", VirtualClock())
    with FileLock(tmp_path / "lock"), pytest.raises(OSError, match="another process holds its lock"), late:
        pass
    with late:
        pass
