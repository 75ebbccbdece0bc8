"""Short searches over trainers in the style of real ones: their answers, and that the project is as it was.

Each of these imports TensorFlow; `python -m tests.soak styles` has the others.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_search import left_running
from tests.trainers.styles import NOTHING_TO_TUNE, STYLES, Style
from tests.warm import typed

Answer = dict[str, Any]
Values = Mapping[str, Any]

BUDGET = "110s"
"""Enough on a busy machine; on another the searches end by themselves, long before."""


def tree(project: Path) -> dict[str, str]:
    """Hash each file of a project, and list its folders; autotune's own folder is left out."""
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in project.rglob("*")
        if ".autotune" not in path.relative_to(project).parts
    }


def with_folders(names: Iterable[str]) -> Iterator[str]:
    """Yield these files, and the folders that they lie in."""
    for name in names:
        yield name
        yield from map(str, Path(name).parents)


class Project:
    """Project of a trainer, in a folder with a hostile name."""

    def __init__(self, style: Style, folder: Path) -> None:
        self.style = style
        self.folder = folder
        style.lay_out(folder)
        style.prepare(folder)
        self.before = tree(folder)

    def search(self, budget: str, *, config: Path = Path("config.yaml"), cwd: Path | None = None) -> tuple[Answer, str]:
        """Run ``autotune search``: its answer, and its stderr; the project may have changed nowhere else."""
        words = ("search", "--config", str(config), "--budget", budget, "--json")
        done = typed(*words, cwd=cwd or self.folder)
        after = tree(self.folder)
        left = {name for name in after.keys() | self.before.keys() if after.get(name) != self.before.get(name)}
        assert set(self.style.leaves) <= left <= set(with_folders(self.style.leaves))
        assert left_running(self.folder) == []
        return json.loads(done.stdout), done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Project]:
    """Lay a style's project out."""
    return lambda name: Project({**STYLES, **NOTHING_TO_TUNE}[name], tmp_path / 'it\'s a\n"project" é')


def is_better(answer: Answer, faster: Values) -> None:
    """Assert that some of these values were found and confirmed, and that each trial trained."""
    assert answer["verdict"] == "better"
    assert answer["best"]["values"].items() <= faster.items() | answer["baseline"]["values"].items()
    assert answer["speedup"]["low"] > 1.2
    assert set(answer["outcomes"]) <= {"stopped", "killed by budget"}


@pytest.mark.services
@pytest.mark.parametrize(
    ("style", "faster"),
    [
        ("Python config", {"batch_size": 32, "num_workers": 2}),
        pytest.param(
            "reads its config twice",
            {"data.batch_size": 32, "model.mixed_precision": True},
            marks=pytest.mark.services,
        ),
    ],
)
def test_whatever_way_a_trainer_is_configured(project: Callable[[str], Project], style: str, faster: Values) -> None:
    """Flags and Python, or YAML that is read twice: each value reaches the trainer, and the best ones are found."""
    is_better(project(style).search(BUDGET)[0], faster)


@pytest.mark.services
def test_a_config_of_known_keys_that_is_reached_from_elsewhere(tmp_path: Path) -> None:
    """Trials start in that other directory, with a relative path; a key of ours in the config would be fatal."""
    style = replace(STYLES["dataclass config"], command="{python} far/away/train.py --config {config}")
    there = Project(style, tmp_path / "far" / "away")
    answer, _ = there.search(BUDGET, config=Path("far/away/config.yaml"), cwd=tmp_path)
    is_better(answer, {"data.batch_size": 32, "data.num_workers": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far"]


@pytest.mark.services
def test_memory_that_ran_out_and_was_swallowed(project: Callable[[str], Project]) -> None:
    """Larger batches are by far the fastest, and do not train."""
    answer, _ = project("swallows out of memory").search(BUDGET)
    assert answer["best"]["values"] == {"batch_size": 32}
    assert answer["outcomes"]["out of GPU memory"] == 1  # and the still larger batch is not tried


@pytest.mark.services
def test_a_trainer_that_resumes(project: Callable[[str], Project]) -> None:
    """The checkpoint of two weeks is not resumed from, not touched, and named."""
    answer, said = project("resumes").search(BUDGET)
    assert answer["best"]["values"] == {"batch_size": 32}
    assert "checkpoint_dir holds something already" in said


@pytest.mark.services
def test_a_key_that_is_not_read(project: Callable[[str], Project]) -> None:
    """The key is named, no new point turns it any more, and the answer leaves it alone."""
    answer, said = project("dead key").search(BUDGET)
    assert "data.prefetch: the trainer printed 2 each time" in said or "data.prefetch: no effect seen in" in said
    assert answer["best"]["values"] == {"data.batch_size": 32, "data.prefetch": 4}


@pytest.mark.services
def test_a_cache_beside_the_data(project: Callable[[str], Project]) -> None:
    """The trial that fills it is not compared with those that use it, and the cache is named."""
    answer, said = project("fills a cache").search(BUDGET)
    assert "corpus/train/.features is taken for a cache" in said
    assert answer["speedup"]["ratio"] < 4.0  # 2.6 by the batch; the cache alone makes the baseline three times as fast


@pytest.mark.services
def test_a_training_that_is_over_too_soon(project: Callable[[str], Project]) -> None:
    """Training of 8 steps cannot be measured, however slow the machine: the answer is an error with the remedy."""
    answer, said = project("ends at once").search(BUDGET)
    assert "gave numbers: The trainer ran to its end" in answer["error"]["message"]
    assert "let it train longer" in answer["error"]["remedy"]
    assert "let it train longer" in said


@pytest.mark.services
def test_data_that_are_read_and_not_trained_on(project: Callable[[str], Project]) -> None:
    """A loop over batches is not taken for a training."""
    answer, _ = project("never trains").search("15s")
    assert re.search("no training step (that counts )?was seen", answer["error"]["message"])


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
