"""A study in optuna-dashboard: what its HTTP API says is what the record holds."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest

from autotune.clock import SystemClock
from autotune.records import Ending, Scalar, Validity
from autotune.study.claims import Claim, Owner
from autotune.study.record import StudyRecord
from autotune.study.storage.journal import JournalFolder
from autotune.study.storage.storage import Storage
from tests.postgresql import PASSWORD, Server
from tests.study.storages import VALUES, at, record
from tests.until import DEADLINE_S, until

_PROGRAM = shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent))

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(_PROGRAM is None, reason="optuna-dashboard is not installed"),
]

CHOICES: dict[str, tuple[Scalar, ...]] = {
    "data.batch_size": (8, 16, 64),
    "data.cache": ("none", "memory"),
    "x.on": (False, True),
    "x.rate": (1e-4, 0.01, 0.1),
}


class Dashboard:
    """Running optuna-dashboard.

    Args:
        process: It.
        port: Where it listens.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self._port = port

    def ask(self, path: str) -> Any:
        """Return what the API answers; None while it does not listen yet."""
        with suppress(URLError), urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=DEADLINE_S) as answer:
            return json.loads(answer.read())


@contextmanager
def running_dashboard(argument: str, environment: dict[str, str], folder: Path) -> Iterator[Dashboard]:
    """Run optuna-dashboard for as long as a ``with`` block lasts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(_PROGRAM), argument, "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "dashboard.log").open("wb") as output:
        process = subprocess.Popen(
            words, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        dashboard = Dashboard(process, port)
        until(lambda: dashboard.ask("/api/studies"), (folder / "dashboard.log").read_text)
        yield dashboard
    finally:
        process.kill()
        process.wait()


Place = tuple[Storage, str, dict[str, str]]
"""Storage, as autotune opens it; and the argument and the variables of the dashboard."""


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, hostile: Path) -> Place:
    """Return one of the places that studies are kept in."""
    if request.param == "journal":
        return at("journal:studies", hostile), "studies/s-1.journal", {}
    if request.param == "sqlite":
        return at("sqlite:studies.db", hostile), "sqlite:///studies.db", {}
    server: Server = request.getfixturevalue("postgresql")
    url = server.new_database("dashboard")
    bare = f"{server.bare_url.rpartition('/')[0]}/{url.rpartition('/')[2]}"
    # The database has no encoding.
    environment = {"PGPASSWORD": PASSWORD, "PGCLIENTENCODING": "utf8"}
    return at(url, hostile), bare.replace("postgresql:", "postgresql+psycopg:"), environment


@contextmanager
def opened(storage: Storage) -> Iterator[StudyRecord]:
    """Open a study as a search does."""
    owner = Owner(about={"host": "a"}, is_gone=lambda _claim: False, clock=SystemClock())
    with closing(StudyRecord("s-1", storage, owner=owner)) as study:
        yield study


def begin(study: StudyRecord, number: int) -> Claim:
    """Begin the trial of the point of this number."""
    batch_size, cache, on = list(itertools.product(*list(CHOICES.values())[:3]))[number]
    values = {"data.batch_size": batch_size, "data.cache": cache, "x.on": on, "x.rate": CHOICES["x.rate"][number % 3]}
    return study.begin(values, CHOICES, search="a")


def finish(study: StudyRecord, claim: Claim) -> None:
    """Finish a trial with the score of its point."""
    batch_size, cache = claim.values["data.batch_size"], claim.values["data.cache"]
    assert isinstance(batch_size, int)
    score = 1.0 + batch_size / 64 + (cache == "memory") / 4
    study.finish(claim, replace(record(), values=claim.values), score=score, speeds=(58.0 * score, 62.0 * score))


@pytest.mark.parametrize("hostile", ["sp ace"], indirect=True)
def test_a_study_is_shown_while_it_goes_on(place: Place, hostile: Path) -> None:
    """Its trials in each state, with bars of some length in the timeline, and how much each parameter matters."""
    storage, argument, environment = place
    with opened(storage) as study:
        for number in range(11):
            finish(study, begin(study, number))
        crashed = replace(record(), ending=Ending.CRASHED, validity=Validity.UNMEASURED, measurement=None)
        study.finish(begin(study, 0), crashed)
        running = begin(study, 11)
        with running_dashboard(argument, environment, hostile) as dashboard:
            (listed,) = dashboard.ask("/api/studies")["study_summaries"]
            assert (listed["study_name"], listed["directions"]) == ("s-1", ["maximize"])
            page = f"/api/studies/{listed['study_id']}"
            detail = dashboard.ask(page)
            trials = detail["trials"]
            assert [trial["state"] for trial in trials] == [*["Complete"] * 11, "Fail", "Running"]
            assert [trial.get("values") for trial in trials[:2]] == [[1.125]] * 2
            assert {one["step"]: one["value"] for one in trials[0]["intermediate_values"]} == {0: 65.25, 1: 69.75}
            assert {one["name"]: one["param_external_value"] for one in trials[0]["params"]} == {
                "data.batch_size": "8", "data.cache": "none", "x.on": "False", "x.rate": "0.0001",
            }  # fmt: skip
            assert all(trial["datetime_start"] < trial["datetime_complete"] for trial in trials[:12])
            is_axis = {one["key"]: one["sortable"] for one in detail["union_user_attrs"]}
            assert is_axis["samples_per_s"]  # also where a trial has none
            assert not is_axis["purpose"]
            (of_the_value,) = dashboard.ask(f"{page}/param_importances")["param_importances"]
            found = {one["name"]: one["importance"] for one in of_the_value}
            assert found.keys() == CHOICES.keys()
            assert all(isfinite(one) and one >= 0 for one in found.values())
            assert found["data.batch_size"] > found["x.on"]
            finish(study, running)
            assert until(lambda: dashboard.ask(page)["trials"][12].get("values")) == [2.25]
            command = psutil.Process(dashboard.process.pid).cmdline()
    assert not [argument for argument in command if PASSWORD in argument]


def test_the_script_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Optuna alone: each trial with its value and its parameters."""
    text = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
    script = text.partition("```python\n")[2].partition("```")[0]
    study = StudyRecord("config", JournalFolder(tmp_path))
    study.finish(
        study.begin(VALUES, {path: (value,) for path, value in VALUES.items()}, sampler="tpe"), record(), score=1.25
    )
    study.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    exec(compile(script, "record.md", "exec"), {})
    assert capsys.readouterr().out == f"0 COMPLETE 1.25 {dict(VALUES)} tpe\n"
