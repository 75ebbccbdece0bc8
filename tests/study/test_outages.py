"""A server that goes away in the middle of a search: nothing is lost, nothing is there twice, nobody waits for long."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.errors import StorageAway
from autotune.events import OnRemark, no_remark
from autotune.study.claims import Owner
from autotune.study.record import StudyRecord
from tests.postgresql import Server, running_server, small_disk
from tests.study.storages import CHOICES, VALUES, at, record
from tests.until import until

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Run a server of this module's own, which it ends as it likes."""
    with running_server() as server:
        yield server


@pytest.fixture
def clock() -> VirtualClock:
    """Clock of the study: time passes when a test says so."""
    return VirtualClock()


def opened(url: str, name: str, folder: Path, clock: VirtualClock, remark: OnRemark = no_remark) -> StudyRecord:
    """Open a study as a search does."""
    owner = Owner(about={"host": "a"}, is_gone=lambda _claim: False, clock=clock)
    return StudyRecord(name, at(url, folder), pending=folder / "s.pending", owner=owner, remark=remark)


def make_trial(study: StudyRecord, detail: str) -> None:
    """Make a trial, and wait until it is written, or the storage does not answer."""
    study.finish(study.begin(VALUES, CHOICES), replace(record(), detail=detail), score=1.0, speeds=(59.0, 61.0))
    study.calls.write_pending()


def catch_up(study: StudyRecord, clock: VirtualClock, pending: Path) -> None:
    """Let a study try again until nothing waits any more."""

    def is_written() -> bool:
        clock.wait(10.0)
        study.calls.write_pending()
        return not pending.exists()

    until(is_written)


def details(url: str, name: str, folder: Path) -> list[str]:
    """Return what another process finds in the storage, in order."""
    study = StudyRecord(name, at(url, folder))
    found = [one.detail for one in sorted(study.records(), key=lambda one: one.number)]
    study.close()
    return found


@pytest.mark.parametrize("how", ["kill", "freeze", "stop"])
def test_trials_go_on_while_the_server_is_away(server: Server, tmp_path: Path, clock: VirtualClock, how: str) -> None:
    """What finishes is kept here, and is there once and in order when the server is back; the user is told."""
    said: list[str] = []
    study = opened(server.url, how, tmp_path, clock, said.append)
    make_trial(study, "0")
    claim = study.begin(VALUES, CHOICES)
    getattr(server, how)()
    study.finish(claim, replace(record(), detail="1"), score=1.0)
    make_trial(study, "2")
    make_trial(study, "3")
    assert [one.detail for one in study.records()] == ["0", "1", "2", "3"]
    server.thaw() if how == "freeze" else server.start()
    catch_up(study, clock, tmp_path / "s.pending")
    make_trial(study, "4")
    study.close()
    assert details(server.url, how, tmp_path) == ["0", "1", "2", "3", "4"]
    assert "kept here, and written when it answers" in said[0]
    assert any("The storage is reachable again" in one for one in said)
    assert any("Delayed trials written to the storage: " in one for one in said)
    assert [one.number for one in study.records()] == sorted({one.number for one in study.records()})


@pytest.mark.parametrize(
    ("name", "parameter", "value", "query"),
    [
        ("standby", "default_transaction_read_only", "on", ""),
        ("slow", "statement_timeout", "1", "?options=-c%20client_min_messages%3Dwarning"),  # the session sets none
    ],
)
def test_trials_go_on_while_a_server_refuses(
    server: Server, tmp_path: Path, clock: VirtualClock, name: str, parameter: str, value: str, query: str
) -> None:
    """A standby takes no writes, a slow server ends statements: that passes, and every trial is there once."""
    url = server.new_database(name) + query
    study = opened(url, name, tmp_path, clock)
    make_trial(study, "0")
    claim = study.begin(VALUES, CHOICES)
    server.set_database(name, f"SET {parameter} = {value}")
    study.finish(claim, replace(record(), detail="1"), score=1.0)
    make_trial(study, "2")
    server.set_database(name, f"RESET {parameter}")
    catch_up(study, clock, tmp_path / "s.pending")
    make_trial(study, "3")
    study.close()
    assert details(url, name, tmp_path) == ["0", "1", "2", "3"]


def test_trials_go_on_while_a_servers_disk_is_full(tmp_path: Path, clock: VirtualClock) -> None:
    """What does not fit is kept here, and written once there is room."""
    with running_server() as server:
        url = server.new_database("small")
        with small_disk(server, "small") as disk:
            study = opened(url, "full", tmp_path, clock)
            make_trial(study, "0")
            disk.fill()
            made = ["0"]
            while not (tmp_path / "s.pending").exists():  # a page has room for a few
                made.append(str(len(made)))
                make_trial(study, made[-1])
                assert len(made) < 200
            disk.empty()
            catch_up(study, clock, tmp_path / "s.pending")
            study.close()
            assert details(url, "full", tmp_path) == made


def test_connections_that_end_at_every_call(server: Server, tmp_path: Path, clock: VirtualClock) -> None:
    """A call goes on with a new connection, and nothing has to wait here."""
    study = opened(server.url, "ended", tmp_path, clock)
    for detail in "0123":
        claim = study.begin(VALUES, CHOICES)
        study.calls.write_pending()
        server.end_connections()
        study.finish(claim, replace(record(), detail=detail), score=1.0)
        study.calls.write_pending()
        server.end_connections()
    assert not (tmp_path / "s.pending").exists()
    study.close()
    assert details(server.url, "ended", tmp_path) == ["0", "1", "2", "3"]


def test_what_waited_at_the_end_is_written_by_the_next_search(
    server: Server, tmp_path: Path, clock: VirtualClock
) -> None:
    """Until then this machine counts it; the server of another storage is left alone."""
    study = opened(server.url, "next", tmp_path, clock)
    make_trial(study, "0")
    server.kill()
    make_trial(study, "1")
    study.close()
    with pytest.raises(StorageAway, match="refused"):
        opened(server.url, "next", tmp_path, clock)
    server.start()
    assert details(server.url, "next", tmp_path) == ["0"]
    again = opened(server.url, "next", tmp_path, clock)
    assert [one.detail for one in again.records()] == ["0", "1"]
    make_trial(again, "2")
    again.close()
    assert details(server.url, "next", tmp_path) == ["0", "1", "2"]
    assert not (tmp_path / "s.pending").exists()
