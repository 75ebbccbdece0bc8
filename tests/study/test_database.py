"""Databases that somebody else changes: an expected error, or the search goes on; never a crash."""

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import optuna
import psycopg
import pytest
import sqlalchemy

from autotune.errors import StorageAway, StudyError
from autotune.search.problem import open_problem
from autotune.study.record import StudyRecord
from autotune.study.storage.address import GivenAddress, parse_address
from autotune.study.storage.database import Database, DatabaseErrors
from tests.postgresql import Server
from tests.study.storages import CHOICES, VALUES, at, record


def opened(folder: Path) -> StudyRecord:
    """Open the study in a file of SQLite's."""
    return StudyRecord("s", at("sqlite:studies.db", folder))


def execute(folder: Path, *statements: str) -> None:
    """Execute statements in the file as any other tool does."""
    with closing(sqlite3.connect(folder / "studies.db")) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trial_user_attributes SET value_json = '{'",
        "UPDATE trial_params SET distribution_json = '{}'",
        "UPDATE trials SET state = 'SOMEHOW'",
    ],
)
def test_content_that_optuna_did_not_write(tmp_path: Path, statement: str) -> None:
    """It is an error with place and remedy, from whatever reads it."""
    study = opened(tmp_path)
    study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
    study.begin(VALUES, CHOICES)
    execute(tmp_path, statement)
    database = at("sqlite:studies.db", tmp_path)
    study.renew()
    study.close()
    for use in (lambda: database.latest("s"), lambda: opened(tmp_path)):
        with pytest.raises(StudyError, match="contains unreadable data") as caught:
            use()
        assert caught.value.remedy


def test_a_trial_that_was_deleted_while_it_went_on_is_added(tmp_path: Path) -> None:
    """The measurements are not lost."""
    study = opened(tmp_path)
    claim = study.begin(VALUES, CHOICES)
    execute(tmp_path, *(f"DELETE FROM {table}" for table in ("trial_params", "trial_user_attributes", "trials")))
    study.renew()
    study.finish(claim, record(), score=1.0)
    study.close()
    assert len(opened(tmp_path).records()) == 1


@pytest.mark.parametrize("name", ["a" * 300, os.fsdecode(b"\xff")])
def test_a_name_that_cannot_be_used_is_an_expected_error(tmp_path: Path, name: str) -> None:
    """One that is too long, or no text."""
    for use in (
        lambda: at(f"sqlite:{name}", tmp_path).connect("s"),
        lambda: at(f"sqlite:{name * 300}", tmp_path).latest("s"),
    ):
        with pytest.raises(StudyError):
            use()


@pytest.mark.parametrize(("password", "is_shown"), [("e", True), ("Connection", False)])
def test_masking_a_password_changes_nothing_else(tmp_path: Path, password: str, is_shown: bool) -> None:
    """A very short one says nothing where it is read, and neither decides what kind of error it is."""
    database = at(f"postgresql://me:{password}@127.0.0.1:1/name", tmp_path)
    assert isinstance(database, Database)
    with pytest.raises(StorageAway) as caught:
        database.latest("s")
    assert ("Connection refused" in caught.value.message) is is_shown
    assert caught.value.remedy == "Check that it runs there."


@pytest.mark.parametrize(
    ("said", "url", "remedy"),
    [
        ("fe_sendauth: no password supplied", "postgresql://me@host/name", "PGPASSWORD or the file ~/.pgpass"),
        ('FATAL: database "me" does not exist', "postgresql://me@host", "add /NAME"),
        ('FATAL: database "name" does not exist', "postgresql://me@host/name", "createdb"),
        ("permission denied for table", "postgresql://me@host/name", "Ask its administrator for access"),
    ],
)
def test_what_helps_against_a_servers_refusal(tmp_path: Path, said: str, url: str, remedy: str) -> None:
    """It never helps to wait."""
    address = parse_address(GivenAddress(text=url, where="", folder=tmp_path))
    refused = psycopg.OperationalError(said)
    error = DatabaseErrors(address).of(sqlalchemy.exc.OperationalError("", {}, refused))
    assert remedy in str(error.remedy)
    assert not isinstance(error, StorageAway)


@pytest.mark.parametrize("name", [".", "text.db", "empty.db", "old.db"])
def test_what_cannot_be_used_gets_no_lock_beside_it(tmp_path: Path, name: str) -> None:
    """A folder, a file that is no database, one of another version; nor does a look at an empty one leave anything."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "text.db").write_text("no database " * 100)
    (place / "empty.db").touch()
    at("sqlite:old.db", place).connect("s").close()
    (place / "old.db.flock").unlink()
    with closing(sqlite3.connect(place / "old.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'")
    before = sorted(tmp_path.rglob("*"))
    for use in ("latest", "connect"):
        if (name, use) == ("empty.db", "latest"):
            assert at(f"sqlite:{name}", place).latest("s") is None
        elif name != "empty.db":
            with pytest.raises(StudyError):
                getattr(at(f"sqlite:{name}", place), use)("s")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("address", ["sqlite:studies.db", "journal:studies"])
def test_who_only_reads_leaves_nothing_behind(tmp_path: Path, address: str) -> None:
    """Nor beside a copy, which has no lock."""
    study = StudyRecord("s", at(address, tmp_path))
    study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
    study.close()
    for lock in tmp_path.rglob("*.flock"):
        lock.unlink()
    before = sorted(tmp_path.rglob("*"))
    assert at(address, tmp_path).latest("s") == "s"
    reader = StudyRecord("s", at(address, tmp_path), reads_only=True)
    assert len(reader.records()) == 1
    reader.close()
    assert sorted(tmp_path.rglob("*")) == before


def test_what_helps_is_said(tmp_path: Path) -> None:
    """A folder that is not there, a file that was moved away meanwhile."""
    with pytest.raises(StudyError) as caught:
        at("sqlite:absent/studies.db", tmp_path).connect("s")
    assert "its folder" in str(caught.value.remedy)
    study = opened(tmp_path)
    (tmp_path / "studies.db").rename(tmp_path / "moved.db")
    with pytest.raises(StudyError) as caught:
        study.begin(VALUES, CHOICES)
    study.close()
    assert "not replaced" in str(caught.value.remedy)


@pytest.mark.services
def test_several_machines_may_begin_in_an_empty_database(tmp_path: Path, postgresql: Server) -> None:
    """All of them find tables and the study, whoever makes them."""
    url, at_once = postgresql.new_database("empty"), threading.Barrier(6)

    def open_one(_: int) -> str:
        at_once.wait(60)
        study = StudyRecord("s", at(url, tmp_path))
        study.begin(VALUES, CHOICES)
        study.close()
        return "opened"

    with ThreadPoolExecutor(6) as machines:
        assert list(machines.map(open_one, range(6))) == ["opened"] * 6
    connection = at(url, tmp_path).connect("s")
    assert optuna.get_all_study_names(connection.storage) == ["s"]
    connection.close()


def test_a_study_whose_name_only_looks_like_ours_is_not_taken(tmp_path: Path) -> None:
    """Others may give a study any name; it ends up in paths."""
    config = tmp_path / "config.yaml"
    config.write_text("batch_size: 4\nautotune: {command: 'true', knobs: {batch_size: [4, 8]}}\n")
    problem = open_problem(config, command=None, state_dir=tmp_path, storage=f"sqlite:{tmp_path}/studies.db")
    StudyRecord(f"{problem.study[:-4]}/../", problem.storage).close()
    assert problem.place.known_study() is None
    StudyRecord(f"{problem.study[:-4]}0123", problem.storage).close()
    assert problem.place.known_study() == f"{problem.study[:-4]}0123"
