"""``autotune diagnose`` as its user sees it: real trainers in real processes."""

import json
import signal
import sys
from pathlib import Path

import pytest

from autotune.report.json_answer import FORMAT
from tests.commands.conftest import Autotune, answered
from tests.commands.test_search import left_running

DIAGNOSE = ("diagnose", "--config", "config.yaml")
SHORT = ("--budget", "45s")


@pytest.mark.services
def test_what_helps_is_measured_and_written_in_if_that_is_asked_for(project: Path, autotune: Autotune) -> None:
    """A second worker makes the trainer twice as fast: it is written in, and the larger batch is not.

    Its plain trials are on record, and there is no answer of a search that could be applied.
    """
    done = autotune(*DIAGNOSE, "--budget", "75s", "--json", "--fail-on", "gain>=1.2", "--fix")
    answer = json.loads(done.stdout)
    assert done.returncode == 1, "the condition holds"
    assert answer["format"] == FORMAT
    assert answer["failed_on"] == "gain>=1.2"
    assert {check["id"] for check in answer["checks"]} >= {"code", "configuration", "input", "switches", "steadiness"}
    workers = [one for one in answer["recommendations"] if one["values"] == {"data.num_workers": 2}]
    assert workers[0]["evidence"] == "measured"
    assert workers[0]["gain"]["low"] > 1.2
    text = (project / "config.yaml").read_text()
    assert "num_workers: 2   # loaders" in text
    assert "batch_size: 4      # samples" in text
    assert "autotune search --config config.yaml" in done.stderr
    assert left_running(project) == []
    status = autotune("status", "--config", "config.yaml", "--json")
    assert json.loads(status.stdout).get("verdict") != "better"


def test_a_trainer_that_crashes_is_a_verdict(project: Path, autotune: Autotune) -> None:
    """Nothing was seen, for a reason, which is an answer: exit 0, in a few seconds."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("out:", "mood: crashes\nout:"))
    done = autotune(*DIAGNOSE, *SHORT)
    assert done.returncode == 0
    assert done.stdout.startswith("Not seen: today's config crashed")
    assert "there is no such layer" in done.stdout


def test_everything_is_kept_in_a_folder(project: Path, autotune: Autotune) -> None:
    """The object and the text lie in the folder that was named; a source that does not parse is said, and no more."""
    (project / "broken.py").write_text("def broken(:\n")
    done = autotune(*DIAGNOSE, "--static", "--out", "kept", "--", sys.executable, "broken.py", "{config}")
    assert done.returncode == 0, done.stderr
    assert "broken.py" in done.stdout
    summary = (project / "kept/summary.txt").read_text()
    assert summary.startswith(done.stdout.strip())
    assert "No report: nothing is known about this config yet" in " ".join(summary.split())
    assert json.loads((project / "kept/diagnosis.json").read_text())["format"] == FORMAT


def test_a_folder_that_cannot_be_written_is_an_error(project: Path, autotune: Autotune) -> None:
    """Said with its name, and what to do."""
    (project / "taken").write_text("")
    done = autotune(*DIAGNOSE, "--static", "--out", "taken/folder")
    assert done.returncode == 1
    assert "cannot write into taken/folder" in done.stderr


def test_without_a_config_it_is_about_the_machine(autotune: Autotune) -> None:
    """What a bug report needs, without a single trial."""
    done = autotune("diagnose", "--json")
    assert done.returncode == 0
    checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["configuration"]["why_not"]


def test_where_to_begin_on_gpus_is_a_table(project: Path, autotune: Autotune) -> None:
    """For the effective batch of the config where one is named; nothing is started."""
    done = autotune(*DIAGNOSE, "--gpus")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line[:12].strip(): line.split() for line in done.stdout.splitlines()}
    assert rows["H100"][1:] == ["80", "GB", "bfloat16", "4", "1x"]
    done = autotune("diagnose", "--gpus")
    assert "T4           16 GB   float16     16     4x" in done.stdout
    assert "no answers" in " ".join(done.stdout.split())


@pytest.mark.services
def test_whether_the_step_is_what_the_config_says_is_an_exit_code(project: Path, autotune: Autotune) -> None:
    """Nobody tells settings of this trainer's framework: that is not seen, and not well."""
    done = autotune(*DIAGNOSE, "--verify", "--budget", "45s", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["verdict"]["sentence"].startswith("Not seen: no framework in the trainer's process")
    assert [check["id"] for check in answer["checks"]] == ["code", "in-force", "recurring-costs"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--verify", "--static"), "nothing of --static"),
        (("--fail-on", "speed>2"), "is no condition"),
        (("--fail-on", "gain>"), "is no condition"),
        (("--static", "--fix"), "--static makes none"),
        (("--budget", "0"), "budget"),
    ],
)
def test_wrong_usage(autotune: Autotune, arguments: tuple[str, ...], word: str) -> None:
    """What the parser can reject is exit 2, with the reason."""
    done = autotune(*DIAGNOSE, *arguments)
    assert done.returncode == 2
    assert word in done.stderr


def test_interrupting_leaves_nothing_behind(project: Path) -> None:
    """^C ends the trials, and the exit code says so."""
    code, screen = answered(project, {b"steps": signal.SIGINT}, *DIAGNOSE, *SHORT)
    assert code == 130, screen
    assert left_running(project) == []
