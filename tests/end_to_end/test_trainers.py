"""Trainers of each framework: seen without a change to them, searched, and their answer applied and reverted."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import HERE, ROOT, Project, interpreter_with

TRAINERS = {
    "torch": ("torch_compile", "data:\n    batch_size: 32  # samples\n"),
    "jax": ("jax_jit", "data:\n    batch_size: 32  # samples\n"),
    "keras": ("keras_fit", "data:\n    batch_size: 16  # samples\n    num_parallel_calls: 1\n"),
}


INSIDE, ABOVE = "TMPDIR in the project", "TMPDIR above the project"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("framework", "temporary"),
    [
        pytest.param("torch", INSIDE, marks=[pytest.mark.core, pytest.mark.services]),
        pytest.param("jax", ABOVE, marks=[pytest.mark.core, pytest.mark.services]),
        pytest.param("keras", INSIDE, marks=[pytest.mark.core, pytest.mark.services]),
        pytest.param("torch", ABOVE, marks=pytest.mark.services),
        pytest.param("jax", INSIDE, marks=pytest.mark.services),
        pytest.param("keras", ABOVE, marks=pytest.mark.services),
    ],
)
def test_an_unmodified_trainer_is_searched_and_its_values_applied(
    tmp_path: Path, framework: str, temporary: str
) -> None:
    """Real, because frameworks decide how steps are made and what code they generate, where, during a trial."""
    trainer, config = TRAINERS[framework]
    python = interpreter_with(framework)
    project = Project(
        tmp_path / "project", HERE / "trainers" / f"{trainer}.py", config, f"{python} train.py {{config}}"
    )
    folder = project.folder / "tmp" if temporary == INSIDE else tmp_path
    folder.mkdir(exist_ok=True)
    project.env |= {"TMPDIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
    project.tune("data.batch_size: [16, 32, 64]")
    project.search_until("explore .*/s")
    project.apply_and_revert()
    project.until_nothing_runs()


@pytest.mark.services
@pytest.mark.timeout(300)
@pytest.mark.parametrize("temporary", [pytest.param(".", marks=pytest.mark.core), "tmp"])
def test_the_shipped_trainer_is_searched_and_its_values_applied(tmp_path: Path, temporary: str) -> None:
    """Real, because it is what the README's first command runs; its command runs in TMPDIR itself, or above it."""
    pytest.importorskip("tensorflow")
    project = Project(tmp_path / "configs", ROOT / "tests" / "toys" / "toy_trainer.py", "")
    (tmp_path / temporary).mkdir(exist_ok=True)
    project.env |= {"TMPDIR": str(tmp_path / temporary), "TF_CPP_MIN_LOG_LEVEL": "2"}
    project.config.write_text((ROOT / "configs" / "config.yaml").read_text())
    corpus = [sys.executable, "-m", "autotune.workloads.tts.corpus", "--out", "data/quickstart"]
    subprocess.run(corpus, cwd=tmp_path, check=True, capture_output=True)
    project.search_until("explore .*/s")
    project.apply_and_revert()
    project.until_nothing_runs()
