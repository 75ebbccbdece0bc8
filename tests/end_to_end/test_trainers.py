"""Trainers of each framework: seen without a change to them, searched, and their answer applied and reverted."""

import json
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


@pytest.mark.core
@pytest.mark.services
@pytest.mark.timeout(300)
def test_workers_that_repeat_a_stream_are_another_training(tmp_path: Path) -> None:
    """Real, because only real workers repeat it; the speed is there, and plain `apply` does not write it."""
    config = "data:\n    batch_size: 16\n    num_workers: 0\n"
    python = interpreter_with("torch")
    command = f"{python} train.py {{config}}"
    project = Project(tmp_path / "project", HERE / "trainers" / "torch_stream.py", config, command)
    project.tune("data.num_workers: [0, 4]")
    found = json.loads(project.run("search", "--config", "config.yaml", "--budget", "60s", "--json"))
    shown = found["best"] if found["verdict"] == "better" else found["candidate"]
    assert shown["values"]["data.num_workers"] == 4
    assert found["data"]["effect"] == "different data"
    # of all four workers, or of as many as had begun
    assert found["data"]["evidence"].startswith(("every sample occurs about ", "samples repeat within a pass"))
    assert [change["label"] for change in found["changes"]] == ["different data"]
    project.run("apply", "--config", "config.yaml", code=0 if found["verdict"] in ("no_change", "not_confirmed") else 1)
    assert "num_workers: 0" in project.config.read_text()
