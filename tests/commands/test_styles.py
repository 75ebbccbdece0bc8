"""Short searches over trainers in the style of real ones: what they print, and that the project is as it was."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.command_line import typed
from tests.commands.conftest import left_running
from tests.trainers.styles import NOTHING_TO_TUNE, STYLES

SAID = {
    "argparse flags": "",
    "Python config": "",
    "dataclass config": "",
    "reads its config twice": "",
    "swallows out of memory": "out of GPU memory",
    "resumes": "checkpoint_dir is not empty",
    "dead key": "data.prefetch: ",
    "fills a cache": "corpus/train/.features is treated as a cache",
}
"""By style, what is printed on the way."""

FAILED = {"ends at once": "let it train longer", "never trains": "no valid training step"}
"""By style that has nothing to measure, what the error says."""


def tree(project: Path) -> dict[str, str]:
    """Hash each file of a project; autotune's own folder is left out."""
    files = {path.relative_to(project): path for path in project.rglob("*") if path.is_file()}
    return {
        str(name): hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if ".autotune" not in name.parts
    }


@pytest.mark.services
@pytest.mark.parametrize("name", [*SAID, *FAILED])
def test_a_trainer_of_each_style(tmp_path: Path, name: str) -> None:
    """It trains with each value, what is odd about it is told, and nothing but a cache is left in its project."""
    style, project = {**STYLES, **NOTHING_TO_TUNE}[name], tmp_path / 'it\'s a\n"project" é'
    style.lay_out(project)
    style.prepare(project)
    before = tree(project)
    done = typed("search", "--config", "config.yaml", "--budget", "110s", "--json", cwd=project)
    answer, after = json.loads(done.stdout), tree(project)
    assert {file for file in after if after[file] != before.get(file)} == set(style.leaves)
    assert before.keys() <= after.keys()
    assert left_running(project) == []
    if name in FAILED:
        assert FAILED[name] in answer["error"]["message"] + answer["error"]["remedy"]
        return
    assert SAID[name] in done.stderr
    assert answer["baseline"]["metrics"]["samples_per_s"] > 0
    assert set(answer["outcomes"]) <= {"stopped", "killed by budget", "out of GPU memory"}
    assert answer["outcomes"]["stopped"] > 1


def test_a_trainer_that_is_no_python(tmp_path: Path) -> None:
    """No observer can report a step there: that is said with the remedy, and nothing is left behind."""
    (tmp_path / "train.sh").write_text("test -f $1 && echo trained\n")
    (tmp_path / "config.yaml").write_text('batch_size: 8\nautotune: {command: "sh train.sh {config}"}\n')
    before = tree(tmp_path)
    done = typed("search", "--config", "config.yaml", "--budget", "30s", cwd=tmp_path)
    assert done.returncode == 1
    assert "observer missing: Nothing inside the trainer reported to autotune" in done.stderr
    assert "AUTOTUNE_TRIAL_DIR" in done.stderr
    assert tree(tmp_path) == before
