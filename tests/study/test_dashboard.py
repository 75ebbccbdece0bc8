"""A study in optuna-dashboard: what its HTTP API says is what the record holds."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import optuna
import psutil
import pytest
from optuna.trial import FrozenTrial

from autotune.clock import SystemClock
from autotune.records import Ending, Scalar, Validity
from autotune.study.claims import Claim, Owner
from autotune.study.record import Study
from autotune.study.storage.journal import JournalFolder
from autotune.study.storage.storage import Storage
from tests.postgresql import PASSWORD, Server
from tests.study.storages import VALUES, at, record

_PROGRAM = shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent))

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(_PROGRAM is None, reason="optuna-dashboard is not installed"),
]

_LONG_S = 60.0  # for a program that starts, on a busy machine

CHOICES: dict[str, tuple[Scalar, ...]] = {
    "data.batch_size": (8, 16, 64),
    "data.cache": ("none", "memory"),
    "x.on": (False, True),
    "x.rate": (1e-4, 0.01, 0.1),
}


class Dashboard:
    """Running optuna-dashboard.

    Args:
        argument: Storage, as its command line has it.
    """

    def __init__(self, argument: str, environment: dict[str, str], folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log = folder / "dashboard.log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(_PROGRAM), argument, "--host", "127.0.0.1", "--port", str(self._port)],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        """Return what the API answers; None where there is no JSON in it."""
        headers = {"Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self._port}{path}", content, headers, method=method)
        with urlopen(request, timeout=_LONG_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def until(self, function: Callable[[], Any]) -> Any:
        """Return the first true answer of a function, which may be refused the connection until then."""
        ends_s = SystemClock().now_s() + _LONG_S
        while SystemClock().now_s() < ends_s and self.process.poll() is None:
            with suppress(URLError):
                if answer := function():
                    return answer
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        raise AssertionError(f"it never said so: {self._log.read_text()}")


@contextmanager
def running_dashboard(argument: str, environment: dict[str, str], folder: Path) -> Iterator[Dashboard]:
    """Run optuna-dashboard for as long as a ``with`` block lasts."""
    dashboard = Dashboard(argument, environment, folder)
    try:
        dashboard.until(lambda: dashboard.ask("/api/studies"))
        yield dashboard
    finally:
        dashboard.process.kill()
        dashboard.process.wait(_LONG_S)


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
def opened(storage: Storage) -> Iterator[Study]:
    """Open a study as a search does."""
    owner = Owner(about={"host": "a"}, is_gone=lambda _claim: False, clock=SystemClock())
    with closing(Study("s-1", storage, owner=owner)) as study:
        yield study


def begin(study: Study, number: int) -> Claim:
    """Begin the trial of the point of this number."""
    batch_size, cache, on = list(itertools.product(*list(CHOICES.values())[:3]))[number]
    values = {"data.batch_size": batch_size, "data.cache": cache, "x.on": on, "x.rate": CHOICES["x.rate"][number % 3]}
    return study.begin(values, CHOICES, search="a")


def finish(study: Study, claim: Claim) -> None:
    """Finish a trial with the score of its point."""
    batch_size, cache = claim.values["data.batch_size"], claim.values["data.cache"]
    assert isinstance(batch_size, int)
    score = 1.0 + batch_size / 64 + (cache == "memory") / 4
    study.finish(claim, replace(record(), values=claim.values), score=score, speeds=(58.0 * score, 62.0 * score))


def in_storage(storage: Storage, name: str) -> list[FrozenTrial]:
    """Return the trials of a study as Optuna reads them."""
    connection = storage.connect(name)
    try:
        return optuna.load_study(study_name=name, storage=connection.storage).get_trials()
    finally:
        connection.close()


def shown(trial: FrozenTrial) -> dict[str, Any]:
    """Return what the dashboard should say of a trial."""
    assert trial.datetime_start is not None
    said = {
        "number": trial.number,
        "state": trial.state.name.capitalize(),
        "params": {name: str(value) for name, value in trial.params.items()},
        "datetime_start": trial.datetime_start.isoformat(),
        "intermediate_values": trial.intermediate_values,
    }
    if trial.datetime_complete is not None:
        said["datetime_complete"] = trial.datetime_complete.isoformat()
    if trial.values is not None:
        said["values"] = trial.values
    return said


def said_of(trial: dict[str, Any]) -> dict[str, Any]:
    """Return what the dashboard says of a trial, in the same form."""
    names = ("number", "state", "datetime_start", "datetime_complete", "values")
    return {
        **{name: trial[name] for name in names if name in trial},
        "params": {one["name"]: one["param_external_value"] for one in trial["params"]},
        "intermediate_values": {one["step"]: one["value"] for one in trial["intermediate_values"]},
    }


def importances(dashboard: Dashboard, study_id: int) -> dict[str, float]:
    """Return the importance of each parameter for the value."""
    (of_the_value,) = dashboard.ask(f"/api/studies/{study_id}/param_importances")["param_importances"]
    return {one["name"]: one["importance"] for one in of_the_value}


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
            assert [said_of(trial) for trial in detail["trials"]] == list(map(shown, in_storage(storage, "s-1")))
            assert [trial["state"] for trial in detail["trials"]] == [*["Complete"] * 11, "Fail", "Running"]
            assert all(trial["datetime_start"] < trial["datetime_complete"] for trial in detail["trials"][:12])
            assert {one["name"]: one["distribution"]["type"] for one in detail["intersection_search_space"]} == {
                "data.batch_size": "IntDistribution",
                "data.cache": "CategoricalDistribution",
                "x.on": "CategoricalDistribution",
                "x.rate": "FloatDistribution",
            }
            assert detail["has_intermediate_values"]
            is_axis = {one["key"]: one["sortable"] for one in detail["union_user_attrs"]}
            assert is_axis["samples_per_s"]  # also where a trial has none
            assert is_axis["cv"]
            assert not is_axis["purpose"]
            assert "gpu_utilization" not in is_axis
            found = importances(dashboard, listed["study_id"])
            assert found.keys() == CHOICES.keys()
            assert all(isfinite(one) and one >= 0 for one in found.values())
            assert found["data.batch_size"] > found["x.on"]

            dashboard.ask(f"{page}/note", "PUT", {"version": 1, "body": "a faster disk since noon"})  # it does no harm
            finish(study, running)
            values = dashboard.until(lambda: dashboard.ask(page)["trials"][12].get("values"))
            assert values == [2.25]
            command = psutil.Process(dashboard.process.pid).cmdline()
    assert not [argument for argument in command if PASSWORD in argument]


def test_the_script_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Optuna alone: each trial with its value and its parameters."""
    text = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
    script = text.partition("```python\n")[2].partition("```")[0]
    study = Study("config", JournalFolder(tmp_path))
    study.finish(
        study.begin(VALUES, {path: (value,) for path, value in VALUES.items()}, sampler="tpe"), record(), score=1.25
    )
    study.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    exec(compile(script, "record.md", "exec"), {})
    assert capsys.readouterr().out == f"0 COMPLETE 1.25 {dict(VALUES)} tpe\n"
