"""``python -m scripts.bench workers``: real worker processes on one study, and the check of what they leave."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.environment import STORAGE_VARIABLE
from autotune.records import Ending, Purpose, Stop, TrialPlan, TrialRecord, Validity
from autotune.study.record import Study
from scripts.bench.__main__ import main
from scripts.bench.workers.kept_trials import kept_trials
from scripts.bench.workers.waiting_runner import TRIAL_S, WaitingRunner
from scripts.bench.workers.worker_process import WorkerJob, key_of
from tests.postgresql import Server


def job(tmp_path: Path, number: int = 0) -> WorkerJob:
    """Job of a worker on a journal."""
    folder = tmp_path / str(number)
    folder.mkdir()
    return WorkerJob(
        number=number, study="test", storage=f"journal:{tmp_path / 'studies'}", budget_s=60.0, folder=folder
    )


def plan(tmp_path: Path, worker: WorkerJob) -> TrialPlan:
    """Plan of a trial of today's config."""
    text = worker.problem().settings.trial_document.text
    return TrialPlan(trial_id="t", folder=tmp_path / "trial", argv=("none",), cwd=tmp_path, env={}, config_text=text)


def test_a_trial_takes_its_second_and_reports_steps(tmp_path: Path) -> None:
    """Whatever the watch says; the answer of that is the reason of its end."""
    clock, steps = VirtualClock(), []

    def watch(events):
        steps.extend(event for event in events if event.kind == "step")
        return Stop.ENOUGH if len(steps) > 5 else None

    done = WaitingRunner(clock, 0).run(plan(tmp_path, job(tmp_path)), watch, clock.now_s() + 100.0)
    assert done.ended_s - done.started_s == pytest.approx(TRIAL_S)
    assert done.stop is Stop.ENOUGH
    assert 5 < len(steps) < 30


def test_the_deadline_ends_a_trial(tmp_path: Path) -> None:
    """A worker's budget is a wall here, too."""
    clock = VirtualClock()
    done = WaitingRunner(clock, 0).run(plan(tmp_path, job(tmp_path)), lambda _events: None, clock.now_s() + 0.5)
    assert (done.ended_s - done.started_s, done.stop) == (pytest.approx(0.5), Stop.DEADLINE)


def trial(number: int, *, purpose: Purpose = Purpose.EXPLORE) -> TrialRecord:
    """A trial without numbers, of a point of its own."""
    return TrialRecord(
        number=number,
        search="s",
        point=f"point {number}",
        values={},
        purpose=purpose,
        pair=None,
        ending=Ending.CRASHED,
        validity=Validity.UNMEASURED,
        ended_utc="2030-01-01T00:00:00+00:00",
        duration_s=1.0 + number / 7,
        measurement=None,
    )


def test_the_check_sees_what_is_lost_and_what_is_there_twice(tmp_path: Path) -> None:
    """Of what was announced; a point that two have explored, and a trial that has no end, are counted."""
    problem = job(tmp_path).problem()
    problem.state.create()
    study = Study(problem.study, problem.storage)
    for record in (trial(0), trial(1), trial(1), replace(trial(2), point="point 0")):
        study.finish(study.begin({}, {}), record)
    study.begin({}, {})
    kept = kept_trials(problem, [problem], [key_of(trial(0)), key_of(trial(1)), key_of(trial(3))])
    study.close()
    assert (kept.announced, kept.missing, kept.repeated, kept.unannounced) == (3, 1, 1, 1)
    assert (kept.same_uuid, kept.same_point, kept.running, kept.interrupted, kept.late) == (0, 2, 1, 0, 0)
    assert not kept.is_whole


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command."""
    monkeypatch.setattr(sys, "argv", ["scripts.bench", "workers", *arguments])
    return main()


@pytest.mark.services
def test_workers_on_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two beside one: a line each, nothing lost, and their studies are gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()
    assert run(monkeypatch, "--workers", "2", "--trials", "3", "--rounds", "0", "--storage", "journal:shared") == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[4:6]]
    assert [row[0] for row in rows] == ["1", "2"]
    assert [row[6:8] for row in rows] == [["0", "0"], ["0", "0"]]
    assert list((tmp_path / "shared").glob("*.journal*")) == []


@pytest.mark.services
def test_workers_that_go_lose_nothing_on_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], postgresql: Server
) -> None:
    """One is killed, one frozen, one told to leave: what they had announced is in the record once."""
    monkeypatch.setenv(STORAGE_VARIABLE, postgresql.new_database("workers"))
    assert run(monkeypatch, "--workers", "4", "--trials", "0", "--frozen", "2s") == 0
    out = capsys.readouterr().out
    row = [cell.strip() for cell in out.splitlines()[4].split("|")[1:-1]]
    assert int(row[1]) > 4
    assert row[2:5] == ["0", "0", "0"]
    assert "1 of 1 rounds" in out


def test_too_few_workers_for_three_that_go(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error with a remedy before anything is started."""
    assert run(monkeypatch, "--workers", "2") == 1
    assert "--rounds 0" in capsys.readouterr().err
