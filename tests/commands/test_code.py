"""An answer belongs to the trainer that it was measured with: copied, edited, moved and linked projects."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import TRAINER
from tests.warm import typed

CONFIG = """\
data:
    batch_size: 4  # samples per step
    num_workers: 1
out: {log_dir: logs}
autotune:
    command: "{python} train.py {config}"
    knobs:
        data.batch_size: [4, 16]
        data.num_workers: [1, 2]
    trial: {min_s: 0.15, min_steps: 10, max_s: 0.5}
"""


def autotune(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one command in a folder."""
    return typed(*words, "--config", "config.yaml", cwd=folder, env={**os.environ, **env})


def status(folder: Path, **env: str) -> dict[str, Any]:
    """Return what ``status --json`` says of a folder's config."""
    read: dict[str, Any] = json.loads(autotune(folder, "status", "--json", **env).stdout)
    return read


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project with a trainer of its own that loads a plugin by name, and a search that found something better."""
    folder = tmp_path_factory.mktemp("code") / "project"
    (folder / "plugins").mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    trainer = TRAINER.read_text()
    plugin = "    import importlib\n    importlib.import_module('plugins.' + 'waits')\n"
    (folder / "train.py").write_text(trainer.replace('"""Train for ever."""\n', f'"""Train for ever."""\n{plugin}'))
    (folder / "plugins" / "waits.py").write_text("WAITS_S = 0.0\n")
    done = autotune(folder, "search", "--budget", "60s", "--no-apply", "--json")
    assert json.loads(done.stdout)["verdict"] == "better", done.stderr
    return folder


@pytest.fixture
def project(searched: Path, tmp_path: Path) -> Path:
    """Copy of that project, with its study."""
    return shutil.copytree(searched, tmp_path / "project")


def edit(file: Path, old: str, new: str) -> None:
    """Replace some text of a file that has it."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_another_trainer_beside_a_copied_config_has_no_answer(project: Path) -> None:
    """The study is the same by its name, and none of its trials are of that trainer: nothing is said, or written."""
    other = project.with_name("other")
    shutil.copytree(project, other, ignore=shutil.ignore_patterns(".autotune"))
    edit(other / "train.py", "0.008", "0.009")
    shared = {"AUTOTUNE_DIR": str(project / ".autotune")}
    assert status(project, **shared)["verdict"] == "better"
    error = status(other, **shared)["error"]
    assert "train.py differs" in error["message"]
    applied = autotune(other, "apply", **shared)
    assert (applied.returncode, (other / "config.yaml").read_text()) == (1, CONFIG)
    assert "train.py differs" in applied.stderr
    (other / "train.py").unlink()
    assert "train.py" in status(other, **shared)["error"]["message"]


@pytest.mark.parametrize("name", ["train.py", "plugins/waits.py"])
def test_an_edited_trainer_has_no_answer_until_it_is_measured(project: Path, name: str) -> None:
    """Also where the edit is in a module that only its own run shows; taken back, the answer counts again."""
    file = project / name
    text = file.read_text()
    file.write_text(f"{text}\nEDITED = True\n")
    said = autotune(project, "status")
    assert (said.returncode, f"{name} differs" in said.stderr) == (1, True)
    applied = autotune(project, "apply")
    assert (applied.returncode, (project / "config.yaml").read_text()) == (1, CONFIG)
    file.write_text(text)
    assert status(project)["verdict"] == "better"


def test_trials_of_other_code_are_in_no_verdict_and_their_best_point_is_tried_first(project: Path) -> None:
    """A search after an edit measures anew; the answer of before is a proposal."""
    edit(project / "train.py", "0.0004 * batch_size", "0.004 * batch_size")  # a larger batch does not pay any more
    done = autotune(project, "search", "--budget", "12s", "--no-apply", "--json")
    answer = json.loads(done.stdout)
    assert "A search begins with" in done.stderr
    assert "code of before" in done.stderr
    assert not answer["speedup"] or answer["speedup"]["ratio"] < 3.0
    now = status(project)
    assert (now["speedup"], now["answer"]) == (answer["speedup"], answer["answer"])
    assert "are of other code: train.py differs" in autotune(project, "status").stdout


def test_comments_and_layout_are_no_other_code(project: Path) -> None:
    """An answer outlives them."""
    edit(project / "train.py", "    made, due_s", "    # how often, and when next\n\n    made, due_s")
    edit(project / "plugins" / "waits.py", "WAITS_S = 0.0", "WAITS_S  =  0.0  # none")
    assert status(project)["verdict"] == "better"
    assert autotune(project, "apply", "--dry-run").returncode == 0


def test_an_edit_during_a_search_ends_it_without_an_answer(project: Path) -> None:
    """What was measured before says nothing of the trainer as it is now, and the config stays."""
    command = [sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", "60s", "--apply"]
    child = subprocess.Popen(
        [*command, "--fresh", "--json"], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    assert any("trial 1 " in line for line in child.stderr)
    (project / "train.py").write_text((project / "train.py").read_text() + "\nEDITED = True\n")
    out, _ = child.communicate(timeout=100)
    error = json.loads(out)["error"]
    assert (child.returncode, error["kind"]) == (1, "code_changed")
    assert "train.py" in error["message"]
    assert (project / "config.yaml").read_text() == CONFIG


def test_what_is_written_is_the_answer_that_was_named(project: Path) -> None:
    """A name of another answer is refused; the right one is written, in whatever order things happened."""
    name = status(project)["answer"]["id"]
    refused = autotune(project, "apply", "--answer", "0123456789abcdef")
    assert (refused.returncode, (project / "config.yaml").read_text()) == (1, CONFIG)
    assert "does not stand by the answer 0123456789abcdef" in refused.stderr
    assert autotune(project, "apply", "--answer", name, "--force").returncode == 0
    assert "num_workers: 2" in (project / "config.yaml").read_text()


def test_a_narrower_question_has_an_answer_of_its_own(project: Path) -> None:
    """With --same-training less is found: the answer of the whole question stands, and both can be applied by name."""
    before = status(project)
    done = autotune(project, "search", "--same-training", "--budget", "30s", "--no-apply", "--json")
    narrow = json.loads(done.stdout)
    assert [key["new"] for key in narrow["answer"]["keys"]] == [2, 4]
    assert status(project)["answer"] == before["answer"]
    assert autotune(project, "apply", "--answer", narrow["answer"]["id"], "--force").returncode == 0
    assert "batch_size: 4 " in (project / "config.yaml").read_text()
    assert autotune(project, "revert").returncode == 0
    assert autotune(project, "apply", "--answer", before["answer"]["id"], "--force").returncode == 0
    assert "batch_size: 16 " in (project / "config.yaml").read_text()
