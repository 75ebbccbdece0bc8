"""Other storages on the command line: a search in a database, its secrets, and what cannot be used."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.command_line import CommandLine
from tests.postgresql import PASSWORD, Server
from tests.study.test_storages import at

SEARCH = ("search", "--config", "config.yaml")
STATUS = ("status", "--config", "config.yaml")
SPELLINGS = (PASSWORD, quote(PASSWORD, safe=""), repr(PASSWORD)[1:-1])


def shown_by_processes(search: psutil.Process) -> str:
    """Return the command lines of a search and all its processes, and the environments of these."""
    texts = []
    for process in (search, *search.children(recursive=True)):
        try:
            texts += process.cmdline()
            if process.cmdline() != search.cmdline():  # it, and what is about to become another program, were told it
                texts += [f"{name}={value}" for name, value in process.environ().items()]
        except psutil.Error:
            continue
    return "\n".join(texts)


@pytest.mark.services
def test_a_search_in_a_database_keeps_its_password_to_itself(project: Path, postgresql: Server) -> None:
    """The study is in the database alone, and the password in nothing that is written, printed or passed on."""
    url = postgresql.new_database("secrets")
    environment = {"AUTOTUNE_STORAGE": url}
    seen = set()
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *SEARCH, "--budget", "20s"],
        cwd=project,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as search:
        assert search.stderr is not None
        ends = threading.Event()

        def look() -> None:
            while not ends.wait(0.05):
                with suppress(psutil.NoSuchProcess):
                    seen.add(shown_by_processes(psutil.Process(search.pid)))

        looking = threading.Thread(target=look)
        looking.start()
        said = [*search.stderr, search.stdout.read() if search.stdout else ""]
        ends.set()
        looking.join()
    assert search.returncode == 0
    assert any("AUTOTUNE_TRIAL_ID" in texts for texts in seen), "no trial was looked at"
    status = CommandLine(project)(*STATUS, "--json", env=environment)
    document = status.document
    assert document["paths"]["journal"] is None
    assert document["paths"]["storage"] == url.replace(quote(PASSWORD, safe=""), "").replace(":@", "@")
    assert not list(project.rglob("*.journal"))
    written = [path.read_bytes().decode(errors="replace") for path in project.rglob("*") if path.is_file()]
    for spelling in SPELLINGS:
        assert not [text for text in (*seen, *said, status.stdout, status.stderr, *written) if spelling in text]


def test_what_is_typed_wrong_is_said(simulated: CommandLine) -> None:
    """A password on the command line or in the section, Redis, a kind that nobody knows."""
    for address, why in {
        "postgresql://me:secret@host/name": "contains a password",
        "redis://host": "unpickles",
        "studies.db": "is not a storage address",
    }.items():
        done = simulated(*STATUS, "--storage", address)
        assert (done.returncode, why in done.stderr, "secret" in done.stderr) == (1, True, False), done.stderr
    config = simulated.folder / "config.yaml"
    config.write_text(
        config.read_text().replace("autotune:\n", 'autotune:\n    storage: "postgresql://a:secret@b/c"\n')
    )
    said = simulated(*STATUS).refusal()
    assert "config.yaml:9 (autotune.storage): this URL contains a password" in said
    assert "secret" not in said


def test_a_driver_that_is_not_installed_is_named(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = simulated(*STATUS, env={"AUTOTUNE_STORAGE": "postgresql://me@127.0.0.1:1/name"}).refusal()
    assert "in the clone of autotune: pip install '.[postgresql]'" in said


def test_a_database_that_is_none_of_ours_is_said(simulated: CommandLine) -> None:
    """A file that is no database, tables of another version, and one without a study of this config."""
    project = simulated.folder
    (project / "text.db").write_text("no database " * 100)
    done = simulated(*STATUS, "--storage", "sqlite:text.db")
    assert (done.returncode, "file is not a database" in done.stderr) == (1, True), done.stderr
    said = simulated(*STATUS, "--storage", "sqlite:absent.db").refusal()
    assert f"no study of this config in sqlite:{project}/absent.db (no such file or folder)" in said
    assert not list(project.glob("absent.db*"))
    assert "Run: autotune search --config config.yaml --budget 30m --storage sqlite:absent.db" in said
    at("sqlite:old.db", project).connect("any").close()
    with sqlite3.connect(project / "old.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'")
    database.close()
    done = simulated(*SEARCH, "--storage", "sqlite:old.db", "--budget", "3s")
    assert (done.returncode, "another Optuna version" in done.stderr) == (1, True), done.stderr
    assert "optuna storage upgrade" in done.stderr
