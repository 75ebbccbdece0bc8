"""The whole path as its user walks it: search, status, apply, revert; real trainers in real processes."""

import hashlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.commands.conftest import TRAINER, Autotune, start_search

SEARCH = ("search", "--config", "config.yaml", "--json")


def left_running(project: Path) -> list[int]:
    """List the processes that carry a trial of this project in their environment and are not dead."""
    left = []
    for process in psutil.process_iter():
        try:
            folder = process.environ().get("AUTOTUNE_TRIAL_DIR", "")
            if folder.startswith(str(project)) and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.pid)
        except psutil.Error:
            continue
    return left


def _tree(project: Path) -> dict[str, str]:
    """Hash every file of the project but autotune's own."""
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in project.rglob("*")
        if path.is_file() and ".autotune" not in path.parts
    }


def _write(project: Path, old: str, new: str) -> None:
    config = project / "config.yaml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


def test_search_apply_and_revert(project: Path, autotune: Autotune, request: pytest.FixtureRequest) -> None:
    """A better config is found and confirmed; applying it changes two values and reverting gives the file back."""
    before, tree = (project / "config.yaml").read_bytes(), _tree(project)
    answer = request.getfixturevalue("searched")
    assert answer["verdict"] == "better"
    assert answer["best"]["values"] == {"data.batch_size": 64, "data.num_workers": 2}
    assert answer["baseline"]["values"] == {"data.batch_size": 4, "data.num_workers": 1}
    assert answer["speedup"]["low"] > 1.5
    assert answer["elapsed_s"] < 90
    assert _tree(project) == tree

    known = json.loads(autotune("status", "--config", "config.yaml", "--json").stdout)
    assert {key: known[key] for key in ("verdict", "best", "speedup", "trials")} == {
        key: answer[key] for key in ("verdict", "best", "speedup", "trials")
    }

    preview = autotune("apply", "--config", "config.yaml", "--all", "--dry-run")
    assert "+    batch_size: 64      # samples per step" in preview.stdout
    assert (project / "config.yaml").read_bytes() == before
    alike = before.replace(b"num_workers: 1 ", b"num_workers: 2 ")
    whole = alike.replace(b"batch_size: 4 ", b"batch_size: 64 ")
    has_both = answer["same_training_confirmed"] is not None  # there was time for that, too
    said = autotune("status", "--config", "config.yaml").stdout
    assert "Next:  autotune apply" in said
    assert ("\nor     autotune apply --config config.yaml --all" in said) is has_both
    for options, after in ((["--all"], whole), ([] if has_both else ["--all"], alike if has_both else whole)):
        assert autotune("apply", "--config", "config.yaml", *options).returncode == 0
        assert (project / "config.yaml").read_bytes() == after
        assert "The config holds these values now." in autotune("status", "--config", "config.yaml").stdout
        assert "Nothing to do" in autotune("apply", "--config", "config.yaml", *options).stdout
        assert (project / "config.yaml").read_bytes() == after
        assert autotune("revert", "--config", "config.yaml").returncode == 0
        assert (project / "config.yaml").read_bytes() == before


def test_an_answer_that_changes_the_training_alone_is_not_applied_without_a_yes(
    project: Path, autotune: Autotune
) -> None:
    """There is no other beside it: whether it learns as fast is not known."""
    _write(project, "        data.num_workers: [1, 2]\n", "")
    autotune(*SEARCH, "--budget", "30s")
    refused = autotune("apply", "--config", "config.yaml")
    assert refused.returncode == 1
    assert "it changes the batch, and whether it also learns faster is not known" in refused.stderr


@pytest.mark.services
def test_knobs_that_do_nothing_are_left_alone(project: Path, autotune: Autotune) -> None:
    """The answer is that nothing helps, and apply edits nothing."""
    _write(project, "out:", "dull: true\nout:")
    answer = json.loads(autotune(*SEARCH, "--budget", "30s").stdout)
    assert answer["verdict"] == "no_change"
    assert answer["best"] == answer["baseline"]
    before = (project / "config.yaml").read_bytes()
    assert "No change" in autotune("apply", "--config", "config.yaml").stdout
    assert (project / "config.yaml").read_bytes() == before


def test_a_point_that_crashes_does_not_end_the_search(project: Path, autotune: Autotune) -> None:
    """A crash is counted by name and learned from; the answer is the best of the others."""
    _write(project, "out:", "crashes_at: 64\nout:")
    searched = autotune(*SEARCH, "--budget", "90s")
    answer = json.loads(searched.stdout)
    assert answer["outcomes"]["crashed"] >= 1
    assert answer["best"]["values"]["data.batch_size"] == 16
    assert "Better" in autotune("status", "--config", "config.yaml").stdout
    assert left_running(project) == []


def test_todays_config_may_fail(project: Path, autotune: Autotune) -> None:
    """A default that crashes is reported, the search goes on, and apply refuses without --force."""
    _write(project, "out:", "crashes_at: 4\nout:")
    answer = json.loads(autotune(*SEARCH, "--budget", "8s").stdout)
    assert answer["verdict"] == "no_baseline"
    assert answer["speedup"] is None
    assert answer["baseline"]["metrics"] is None
    refused = autotune("apply", "--config", "config.yaml")
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert autotune("apply", "--config", "config.yaml", "--force").returncode == 0


@pytest.mark.parametrize(
    "mood",
    [
        "forks away",
        "ends at once",
        "crashes",
        "writes no step",
        *(pytest.param(mood, marks=pytest.mark.services) for mood in ("sleeps for ever", "prints 100 MB")),
    ],
)
def test_the_budget_is_a_wall_and_nothing_stays(project: Path, autotune: Autotune, mood: str) -> None:
    """The command is back soon after its budget, and alone, whatever the trainer does.

    Two seconds after it on a machine that is not loaded: `python -m tests.soak hostile` measures that.
    """
    _write(project, "out:", f"mood: {mood}\nout:")
    started_s = time.monotonic()
    searched = autotune(*SEARCH, "--budget", "6s")
    assert time.monotonic() - started_s < 6 + 14
    assert left_running(project) == []
    if mood not in ("forks away", "prints 100 MB"):
        assert searched.returncode == 1
        assert json.loads(searched.stdout)["error"]["remedy"]


def test_the_same_command_goes_on(autotune: Autotune, searched: dict[str, Any]) -> None:
    """A second search finds the trials of the first, measures the baseline anew, and spends its time elsewhere."""
    second = autotune("search", "--config", "config.yaml", "--budget", "8s")
    assert f"{searched['trials']} earlier trials found" in second.stderr
    assert "Better" in second.stdout


@pytest.mark.parametrize(
    "victim", ["search", *(pytest.param(victim, marks=pytest.mark.services) for victim in ("guard", "trial"))]
)
def test_killed_at_any_moment(project: Path, autotune: Autotune, victim: str) -> None:
    """SIGKILL of any of the three: no process stays, no finished trial is lost, the same command goes on."""
    with start_search(project, 15) as search:
        assert search.stderr is not None
        finished = 0
        for line in search.stderr:
            finished += "] trial " in line
            if finished == 2:
                break
        guard = next(
            child for child in psutil.Process(search.pid).children() if "guard_process" in str(child.cmdline())
        )
        # Between two trials there is none to kill for a moment.
        target = {"search": lambda: search.pid, "guard": lambda: guard.pid, "trial": lambda: guard.children()[0].pid}[
            victim
        ]
        deadline_s = time.monotonic() + 20
        while True:
            try:
                os.kill(target(), signal.SIGKILL)
                break
            except IndexError:
                assert time.monotonic() < deadline_s, "no trial was ever there"
        search.stderr.read()
        search.wait(timeout=60)
        psutil.wait_procs([guard], timeout=20)
    assert left_running(project) == []
    after = autotune("search", "--config", "config.yaml", "--budget", "4s")
    found = re.search(r"(\d+) earlier trials found", after.stderr)
    assert found is not None
    assert int(found[1]) >= finished


@pytest.mark.services
def test_a_command_typed_with_the_configs_own_path(project: Path, autotune: Autotune) -> None:
    """The search gives each trial its own copy in that place, as init does; no section is needed."""
    (project / "config.yaml").write_text("data: {batch_size: 4, num_workers: 1}\nout: {log_dir: logs}\n")
    trainer = ("--", sys.executable, str(TRAINER), "./config.yaml")
    planned = autotune("search", "--config", "config.yaml", "--dry-run", *trainer).stdout
    assert f"command: {sys.executable} {TRAINER} {{config}}" in planned
    searched = autotune(*SEARCH, "--budget", "20s", *trainer)
    assert searched.returncode == 0, searched.stderr
    with_braces = autotune("status", "--config", "config.yaml", "--json")
    assert json.loads(with_braces.stdout)["study"] == json.loads(searched.stdout)["study"]
    assert not (project / "logs").exists()


def test_a_secret_in_the_command_is_not_shown(project: Path, autotune: Autotune) -> None:
    """No secret is in the plan or the messages, wherever the command comes from; the trial gets what was typed."""
    trainer = project / "trainer.py"
    trainer.write_text(f"import sys\nassert sys.argv.pop() == '--password=hunter2'\n{TRAINER.read_text()}")
    typed = ("--", sys.executable, "trainer.py", "{config}", "--password=hunter2")
    planned = autotune("search", "--config", "config.yaml", "--dry-run", *typed)
    searched = autotune("search", "--config", "config.yaml", "--budget", "6s", *typed)
    assert searched.returncode == 0, searched.stderr
    _write(project, "{config}", "{config} --api-key hunter2 --db mysql://me:hunter2@host/x")
    _write(project, "    knobs:", "    env: {HF_TOKEN: hunter2}\n    knobs:")
    written = autotune("search", "--config", "config.yaml", "--dry-run")
    real = autotune("run", "--config", "config.yaml", "--dry-run")
    assert "--password=***" in planned.stdout
    assert "--password=***" in searched.stderr
    assert "--api-key *** --db mysql://me:***@host/x" in written.stdout
    assert "HF_TOKEN=***" in real.stdout.replace("'", "")
    assert "hunter2" not in "".join(done.stdout + done.stderr for done in (planned, searched, written, real))


def test_without_a_command_the_way_to_one_is_said(project: Path, autotune: Autotune) -> None:
    """The message holds a line that can be pasted."""
    (project / "my config.yaml").write_text("data: {batch_size: 4}\n")
    done = autotune("search", "--config", "my config.yaml")
    assert done.returncode == 1
    assert "autotune init --config 'my config.yaml' -- python train.py --config 'my config.yaml'" in done.stderr


@pytest.mark.usefixtures("searched")
def test_status_says_what_became_of_the_config(project: Path, autotune: Autotune) -> None:
    """An edit by hand since the search: the answer is for the values of then."""
    assert "Edited since" not in autotune("status", "--config", "config.yaml").stdout
    _write(project, "batch_size: 4 ", "batch_size: 16 ")
    edited = autotune("status", "--config", "config.yaml").stdout
    assert "Edited since that search: data.batch_size is 16, it was 4." in edited
