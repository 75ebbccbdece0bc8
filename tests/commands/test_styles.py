"""Short searches over trainers in the style of real ones: their answers, and that the project is as it was."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import typed
from tests.commands.conftest import left_running
from tests.trainers.styles import NOTHING_TO_TUNE, STYLES

FOUND: dict[str, tuple[dict[str, Any], str]] = {
    "argparse flags": ({"batch_size": 32, "workers": 2}, ""),
    "Python config": ({"batch_size": 32, "num_workers": 2}, ""),
    "dataclass config": ({"data.batch_size": 32, "data.num_workers": 2}, ""),
    "reads its config twice": ({"data.batch_size": 32, "model.mixed_precision": True}, ""),
    "swallows out of memory": ({"batch_size": 32}, "out of GPU memory"),  # larger ones are faster, and do not train
    "resumes": ({"batch_size": 32}, "checkpoint_dir holds something already"),
    "dead key": ({"data.batch_size": 32, "data.prefetch": 4}, "data.prefetch: "),
    "fills a cache": ({"data.batch_size": 32}, "corpus/train/.features is taken for a cache"),
}
"""By style: the best values, if the search came to all of them, and what is printed on the way."""

FAILED = {"ends at once": "let it train longer", "never trains": "no training step"}


def tree(project: Path) -> dict[str, str]:
    """Hash each file of a project; autotune's own folder is left out."""
    files = {path.relative_to(project): path for path in project.rglob("*") if path.is_file()}
    return {
        str(name): hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if ".autotune" not in name.parts
    }


@pytest.mark.services
@pytest.mark.parametrize("name", [*FOUND, *FAILED])
def test_a_trainer_of_each_style(tmp_path: Path, name: str) -> None:
    """Each value reaches it, the best ones are found, and nothing but a cache is left in its project."""
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
    faster, said = FOUND[name]
    assert answer["verdict"] == "better"
    assert answer["best"]["values"].items() <= faster.items() | answer["baseline"]["values"].items()
    assert answer["speedup"]["low"] > 1.2
    assert said in done.stderr


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
