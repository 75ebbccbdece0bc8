"""Index of profiles: beside journals, and in a database."""

import os
from multiprocessing import get_context
from pathlib import Path

from autotune.study.profiles import INDEX, PROFILE, ProfileIndex, attribute_of
from autotune.study.record import StudyRecord
from autotune.study.storage.address import StorageAddress, StorageKind
from autotune.study.storage.journal import JournalFolder, open_storage
from tests.study.profiles import profile


def _index(folder: Path) -> ProfileIndex:
    folder.mkdir(exist_ok=True)
    return ProfileIndex(JournalFolder(folder), folder)


def _keep_some(folder: Path, first: int) -> None:
    for number in range(first, first + 10):
        _index(folder).keep(profile(f"s-{number}"))


def test_damage_costs_the_damaged_lines_alone(tmp_path: Path) -> None:
    """Torn, foreign and overlong lines are left out, and are gone with the next write."""
    index = _index(tmp_path)
    index.keep(profile("a"))
    with (tmp_path / INDEX).open("ab") as file:
        file.write(b'\xff\n[1]\n{"format": 1}\n' + b"[" * 100_000 + b'\n{"torn')
    assert [one.study for one in index.profiles()] == ["a"]
    index.keep(profile("b"))
    index.keep(profile("a", training="new"))  # the latest of each study
    assert [(one.study, one.training) for one in index.profiles()] == [("b", "t"), ("a", "new")]
    assert len((tmp_path / INDEX).read_bytes().splitlines()) == 2


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """Whoever can put a link there does not make us read or write another file."""
    other = tmp_path / "other"
    other.write_text("mine\n")
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / INDEX).symlink_to(other)
    index = _index(folder)
    assert index.profiles() == []
    index.keep(profile("a"))
    assert other.read_text() == "mine\n"


def test_two_searches_that_end_at_once_both_leave_theirs(tmp_path: Path) -> None:
    """Processes that write at the same time lose nothing."""
    context = get_context("fork")
    writers = [context.Process(target=_keep_some, args=(tmp_path, 10 * number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(_index(tmp_path).profiles()) == 30
    assert os.stat(tmp_path / INDEX).st_mode & 0o777 == 0o600


def test_a_database_answers_for_all_its_studies(tmp_path: Path) -> None:
    """There a profile is an attribute of its study; one look reads all, and makes nothing where nothing is."""
    address = StorageAddress(kind=StorageKind.SQLITE, shown="sqlite", path=tmp_path / "studies.db")
    journals = tmp_path / "journals"
    assert ProfileIndex(open_storage(address, journals), journals).profiles() == []
    assert list(tmp_path.iterdir()) == []
    for name in ("a", "b", "c"):
        study = StudyRecord(name, open_storage(address, journals))
        if name != "c":
            study.note(PROFILE, attribute_of(profile(name)))
        else:
            study.note(PROFILE, "nonsense")
        study.close()
    _index(journals).keep(profile("local"))
    found = ProfileIndex(open_storage(address, journals), journals).profiles()
    assert sorted(one.study for one in found) == ["a", "b", "local"]


def test_a_shared_folder_of_journals_has_an_index_of_its_own(tmp_path: Path) -> None:
    """What another machine left there is found, beside what this one left in its own folder."""
    _index(tmp_path / "own").keep(profile("own"))
    _index(tmp_path / "shared").keep(profile("shared"))
    found = ProfileIndex(JournalFolder(tmp_path / "shared"), tmp_path / "own").profiles()
    assert sorted(one.study for one in found) == ["own", "shared"]
