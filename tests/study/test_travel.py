"""Exports and imports of studies: what is exported comes back the same, in any order, into any storage."""

import itertools
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.errors import StudyError
from autotune.records import Conditions, Purpose, TrialRecord
from autotune.study.entry import local_time
from autotune.study.record import StudyRecord
from autotune.study.storage.storage import Storage
from autotune.study.travel import MANIFEST, export_study, import_files, read_export
from tests.runs import MakeTrial
from tests.study.storages import CHOICES, NAME, OWNER, VALUES, at, fill, records_of, whichever


def some(make_trial: MakeTrial, speed: float = 60.0) -> list[TrialRecord]:
    """Return trials of several kinds."""
    return [
        make_trial(VALUES, speed, purpose=Purpose.BASELINE, conditions=Conditions(host="a", cpu_model="x")),
        make_trial({**VALUES, "data.batch_size": 64, "x.rate": 0.1}, speed + 5, conditions=Conditions(host="a")),
        make_trial({**VALUES, "data.cache": "memory"}, None, detail="OSError: /home/me/my/corpus.h5 is not there"),
    ]


def exported(storage: Storage, path: Path) -> dict[str, tuple[str, str]]:
    """Export a study; return the start and the record of each of its trials, by UUID."""
    export_study(NAME, storage, path)
    return {uuid: (one.started, one.text) for uuid, one in read_export(path).trials.items()}


@pytest.mark.parametrize("text", ["journal:other", "sqlite:other.db", pytest.param("", marks=pytest.mark.services)])
def test_export_import_export_is_identical(
    tmp_path: Path, make_trial: MakeTrial, text: str, request: pytest.FixtureRequest
) -> None:
    """Through a file, into whichever storage, and imported again: the same trials and the same records, each once.

    Interrupted trials stay behind, and the file says nothing of processes and folders.
    """
    first = at("journal:studies", tmp_path)
    second = at(text or request.getfixturevalue("postgresql").new_database("travel"), tmp_path)
    fill(first, some(make_trial))
    study = StudyRecord(NAME, first, owner=OWNER)
    study.begin(VALUES, CHOICES)
    study.close()
    file = tmp_path / "study.journal"
    contents = export_study(NAME, first, file)
    assert (len(contents.trials), contents.interrupted) == (3, 1)
    content = file.read_bytes()
    assert b"corpus.h5 is not there" in content
    assert not any(hidden in content for hidden in (b"boot_id", b"/home/me"))
    done = import_files([file], whichever, second)
    assert (done.added, done.known, done.differing) == (3, 0, 0)
    for storage in (second, first):
        assert import_files([file], whichever, storage).added == 0
        assert exported(storage, tmp_path / "again.journal") == exported(first, tmp_path / "first.journal")
        assert len(records_of(storage)) == 3
    assert records_of(second) == [
        replace(one, detail=one.detail.replace("/home/me/my/", "…/")) for one in records_of(first)
    ]


def test_tools_of_optuna_read_an_export(tmp_path: Path, make_trial: MakeTrial) -> None:
    """It is a journal with the study under its name: parameters, scores, states, and the manifest as an attribute."""
    storage = at("journal:studies", tmp_path)
    fill(storage, some(make_trial))
    export_study(NAME, storage, tmp_path / "study.journal")
    study = optuna.load_study(
        study_name=NAME, storage=JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))
    )
    assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert study.trials[0].params == VALUES
    assert study.best_trial.value == pytest.approx(65 / 60)
    manifest = study.user_attrs[MANIFEST]
    assert (manifest["format"], manifest["config"], manifest["trials"]) == (1, "config", 3)
    assert manifest["hardware"] == {"cpu_model": ["x"]}


def test_the_times_of_trials_are_those_of_the_clock_whatever_the_zone(
    tmp_path: Path, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that was searched in Tehran is imported in New York."""
    monkeypatch.setenv("TZ", "Asia/Tehran")
    time.tzset()
    try:
        storage, target = at("journal:studies", tmp_path), at("journal:target", tmp_path)
        fill(storage, some(make_trial))
        began = [started for started, _ in exported(storage, tmp_path / "study.journal").values()]
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        import_files([tmp_path / "study.journal"], whichever, target)
        journal = str(tmp_path / "target" / f"{NAME}.journal")
        study = optuna.load_study(study_name=NAME, storage=JournalStorage(JournalFileBackend(journal)))
        assert [trial.datetime_start for trial in study.trials] == [local_time(one) for one in began]
        assert [started for started, _ in exported(target, tmp_path / "again.journal").values()] == began
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_order_of_imports_does_not_matter(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Three machines' files, also with other lists of categories, in all orders: the same records in the same order."""
    wider = {**CHOICES, "data.cache": ("none", "memory", "disk")}
    files = []
    for place, choices in enumerate((CHOICES, wider, CHOICES)):
        storage = at(f"journal:machine{place}", tmp_path)
        fill(storage, some(make_trial, 60.0 + place), minute=(2 - place) * 2, choices=choices)
        files.append(tmp_path / f"{place}.journal")
        exported(storage, files[-1])
    seen = []
    for number, order in enumerate(itertools.permutations(files)):
        target = at(f"journal:target{number}", tmp_path)
        for file in order:
            import_files([file], whichever, target)
        seen.append((records_of(target), exported(target, tmp_path / f"all{number}.journal")))
    together = at("journal:together", tmp_path)
    assert import_files(files, whichever, together).added == 9
    seen.append((records_of(together), exported(together, tmp_path / "together.journal")))
    assert all(one == seen[0] for one in seen)


def test_a_cut_file_changes_nothing(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Cut anywhere, the file is refused as a whole, and the storage has not even a new study."""
    storage, target = at("journal:studies", tmp_path), at("journal:target", tmp_path)
    fill(storage, some(make_trial))
    exported(storage, tmp_path / "study.journal")
    content = (tmp_path / "study.journal").read_bytes()
    cut = tmp_path / "cut.journal"
    for end in (*range(0, len(content), 211), content.rindex(b"\n", 0, -1) + 1):
        cut.write_bytes(content[:end])
        with pytest.raises(StudyError):
            import_files([cut], whichever, target)
    assert not (tmp_path / "target").exists()


Change = Callable[[list[dict[str, Any]]], object]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda entries: entries[1]["user_attr"][MANIFEST].update(format=2), "format 2, but"),
        (lambda entries: entries[1]["user_attr"][MANIFEST].update(trials=2), "truncated: 3 of 2 trials"),
        (lambda entries: entries[1].update(user_attr={"other": 1}), "manifest is missing"),
        (lambda entries: entries[0].update(study_name="../../etc-01234567-0123-0123"), "invalid study name"),
        (lambda entries: entries[-1].update(values=["1.0"]), "damaged"),
        (lambda entries: entries[2]["params"].update({"x.rate": 0.2}), "damaged"),
        (lambda entries: entries[2]["distributions"].update({"x.rate": "{}"}), "damaged"),
        (lambda entries: entries[2]["user_attrs"]["record"]["values"].update({"x.\u202eon": 1}), "invalid key"),
        (lambda entries: entries[2]["user_attrs"]["record"].update(ended_utc="2026-13-01T00:00:00Z"), "damaged"),
        (lambda entries: entries[2]["user_attrs"]["claim"].update(uuid="../x"), "damaged"),
        (lambda entries: entries[2]["user_attrs"]["imported"].update(started="yesterday"), "damaged"),
    ],
)
def test_one_damaged_file_stops_all_files(tmp_path: Path, make_trial: MakeTrial, change: Change, says: str) -> None:
    """A trial, a name or a manifest that cannot be: an expected error with a remedy, and nothing is imported."""
    storage, target = at("journal:studies", tmp_path), at("journal:target", tmp_path)
    fill(storage, some(make_trial))
    exported(storage, tmp_path / "study.journal")
    entries = [json.loads(line) for line in (tmp_path / "study.journal").read_text().splitlines()]
    change(entries)
    (tmp_path / "bad.journal").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(StudyError) as raised:
        import_files([tmp_path / "study.journal", tmp_path / "bad.journal"], whichever, target)
    assert re.search(says, str(raised.value))
    assert (raised.value.where, bool(raised.value.remedy)) == (str(tmp_path / "bad.journal"), True)
    assert not (tmp_path / "target").exists()


def test_huge_files_are_refused_unread(tmp_path: Path) -> None:
    """Ten gigabytes do not take the memory."""
    huge = tmp_path / "huge.journal"
    with open(huge, "wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(StudyError, match="MiB"):
        import_files([huge], whichever, at("journal:target", tmp_path))


def test_a_file_that_is_no_export_is_not_replaced(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Neither the user's own, nor the journal of a study itself."""
    storage = at("journal:studies", tmp_path)
    fill(storage, some(make_trial))
    for path in (tmp_path / "notes.txt", tmp_path / "studies" / f"{NAME}.journal"):
        path.touch()
        before = path.read_bytes()
        with pytest.raises(StudyError, match="not overwritten"):
            export_study(NAME, storage, path)
        assert path.read_bytes() == before
