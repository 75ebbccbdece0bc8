"""Studies that travel: what is exported comes back the same, in any order, into any storage."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.records import Purpose, TrialRecord
from autotune.study.record import Study
from autotune.study.storage.storage import Storage
from autotune.study.travel import VERSION, export_study, import_files
from tests.runs import MakeTrial
from tests.study.storages import CHOICES, NAME, OWNER, VALUES, at, fill, records_of, whichever


def some(make_trial: MakeTrial, speed: float = 60.0) -> list[TrialRecord]:
    """Return trials of several kinds."""
    return [
        make_trial(VALUES, speed, purpose=Purpose.BASELINE, conditions={"host": "a", "cpu_model": "x"}),
        make_trial({**VALUES, "data.batch_size": 64, "x.rate": 0.1}, speed + 5, conditions={"host": "a"}),
        make_trial({**VALUES, "data.cache": "memory"}, None, detail="OSError: /home/me/my/corpus.h5 is not there"),
    ]


def exported(storage: Storage, path: Path) -> bytes:
    """Export a study; return the file's content."""
    export_study(NAME, storage, path)
    return path.read_bytes()


@pytest.mark.parametrize("text", ["journal:other", "sqlite:other.db", pytest.param("", marks=pytest.mark.services)])
def test_export_import_export_is_identical(
    tmp_path: Path, make_trial: MakeTrial, text: str, request: pytest.FixtureRequest
) -> None:
    """Through a file, into whichever storage, and imported again: the same file and the same records, each once.

    Interrupted trials stay behind, and the file says nothing of processes and folders.
    """
    first = at("journal:studies", tmp_path)
    second = at(text or request.getfixturevalue("postgresql").new_database("travel"), tmp_path)
    fill(first, some(make_trial))
    study = Study(NAME, first, owner=OWNER)
    study.begin(VALUES, CHOICES)
    study.close()
    file = tmp_path / "study.jsonl"
    contents = export_study(NAME, first, file)
    assert (len(contents.trials), contents.interrupted) == (3, 1)
    content = file.read_bytes()
    assert b"corpus.h5 is not there" in content
    assert not any(hidden in content for hidden in (b"boot_id", b"/home/me"))
    done = import_files([file], whichever, second)
    assert (done.added, done.known, done.differing) == (3, 0, 0)
    for storage in (second, first):
        assert import_files([file], whichever, storage).added == 0
        assert exported(storage, tmp_path / "again.jsonl") == content
        assert len(records_of(storage)) == 3
    assert records_of(second) == [
        replace(one, detail=one.detail.replace("/home/me/my/", "…/")) for one in records_of(first)
    ]


def test_the_order_of_imports_does_not_matter(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Three machines' files, also with other lists of categories, in all orders: the same records in the same order."""
    wider = {**CHOICES, "data.cache": ("none", "memory", "disk")}
    files = []
    for place, choices in enumerate((CHOICES, wider, CHOICES)):
        storage = at(f"journal:machine{place}", tmp_path)
        fill(storage, some(make_trial, 60.0 + place), minute=(2 - place) * 2, choices=choices)
        files.append(tmp_path / f"{place}.jsonl")
        exported(storage, files[-1])
    seen = []
    for number, order in enumerate(itertools.permutations(files)):
        target = at(f"journal:target{number}", tmp_path)
        for file in order:
            import_files([file], whichever, target)
        seen.append((records_of(target), exported(target, tmp_path / f"all{number}.jsonl")))
    together = at("journal:together", tmp_path)
    assert import_files(files, whichever, together).added == 9
    seen.append((records_of(together), exported(together, tmp_path / "together.jsonl")))
    assert all(one == seen[0] for one in seen)


def test_a_cut_file_changes_nothing(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Cut anywhere, the file is refused as a whole, and the storage has not even a new study."""
    storage, target = at("journal:studies", tmp_path), at("journal:target", tmp_path)
    fill(storage, some(make_trial))
    content = exported(storage, tmp_path / "study.jsonl")
    cut = tmp_path / "cut.jsonl"
    for end in (*range(0, len(content), 211), content.rindex(b"\n", 0, -1) + 1):
        cut.write_bytes(content[:end])
        with pytest.raises(StudyError):
            import_files([cut], whichever, target)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": VERSION + 1, "autotune": "9.9"}, "newer.*\n.*Update autotune here to 9.9 or later"),
        ({"format": "other"}, "not a study that travels"),
        ({"study": "../../etc-01234567-0123-0123"}, "name"),
        ({"trials": 2}, "cut off, or was changed"),
        ({"version": True}, "version"),
    ],
)
def test_a_header_that_is_refused(tmp_path: Path, make_trial: MakeTrial, change: dict[str, object], says: str) -> None:
    """A file of a newer version, no study, or one whose name would leave the folder: refused with a remedy."""
    storage = at("journal:studies", tmp_path)
    fill(storage, some(make_trial))
    header, _, rest = exported(storage, tmp_path / "study.jsonl").partition(b"\n")
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(json.dumps({**json.loads(header), **change}).encode() + b"\n" + rest)
    with pytest.raises(StudyError) as raised:
        import_files([changed], whichever, at("journal:target", tmp_path))
    assert re.search(says, str(raised.value))
    assert raised.value.remedy


def test_huge_files_and_lines_are_refused_unread(tmp_path: Path) -> None:
    """Ten gigabytes, or a line without an end, do not take the memory."""
    huge, endless = tmp_path / "huge.jsonl", tmp_path / "endless.jsonl"
    with open(huge, "wb") as file:
        file.truncate(10 << 30)
    with open(endless, "wb") as file:
        file.truncate(200 << 20)
    for path, says in ((huge, "MiB"), (endless, "line is too long")):
        with pytest.raises(StudyError, match=says):
            import_files([path], whichever, at("journal:target", tmp_path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"score": 1.0,', '"score": "1.0",'),
        (r'"x\.on"', r'"x.\\u202eon"'),
        (r'"x\.rate": 0\.0001', '"x.rate": 0.2'),
        (r'\\"low\\": 8', r'\\"low\\": NaN'),
        (r'\\"none\\", \\"memory\\"', r'\\"other\\"'),
    ],
)
def test_one_trial_that_is_none_stops_all_files(tmp_path: Path, make_trial: MakeTrial, old: str, new: str) -> None:
    """Also where its type is right: a 13th month, a text or a number without end, a value outside its distribution."""
    storage, target = at("journal:studies", tmp_path), at("journal:target", tmp_path)
    fill(storage, some(make_trial))
    content = exported(storage, tmp_path / "study.jsonl").decode()
    changed, count = re.subn(old, new, content)
    assert count
    (tmp_path / "bad.jsonl").write_text(changed)
    with pytest.raises(StudyError, match=r"bad.jsonl:[2-4]: this is not a trial"):
        import_files([tmp_path / "study.jsonl", tmp_path / "bad.jsonl"], whichever, target)
    assert not (tmp_path / "target").exists()
