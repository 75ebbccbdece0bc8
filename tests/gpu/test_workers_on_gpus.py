"""Workers for each GPU of a machine, on fake ones: real processes, their trainers say where they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = """\
import json, os, sys, time
import yaml
from autotune.trainee import step
values = yaml.safe_load(open(sys.argv[1]))
where = {"gpu": os.environ["CUDA_VISIBLE_DEVICES"], "cores": sorted(os.sched_getaffinity(0))}
with open("where.jsonl", "a") as file:
    file.write(json.dumps(where) + "\\n")
while True:
    time.sleep(0.02 / values["workers"])
    step(samples=8)
"""


def workers(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``autotune worker --submit gpus`` on a machine with two fake GPUs."""
    (folder / "train.py").write_text(TRAINER)
    (folder / "config.yaml").write_text(
        f"workers: 1\nautotune: {{command: '{sys.executable} train.py {{config}}', knobs: {{workers: [1, 2, 4, 8]}}}}\n"
    )
    own = [sys.executable, "-m", "autotune", "worker", "--config", "config.yaml", "--submit", "gpus", *words]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fake_nvml",
            "follow",
            "--",
            "sh",
            "-c",
            'cd "$0" && exec "$@"',
            str(folder),
            *own,
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.usefixtures("nvml_library")
def test_each_gpu_has_a_worker_with_its_share_of_the_cores(tmp_path: Path) -> None:
    """They make trials of one study; each of them sees its own GPU and its own cores."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = workers(tmp_path, "--budget", "12s")
    assert done.returncode == 0, done.stdout + done.stderr
    where = {
        (one["gpu"], *one["cores"]) for one in map(json.loads, (tmp_path / "where.jsonl").read_text().splitlines())
    }
    gpus, cores = zip(*((gpu, set(own)) for gpu, *own in sorted(where)), strict=True)
    assert len(set(gpus)) == len(where) == 2
    assert not cores[0] & cores[1]
    assert cores[0] | cores[1] == os.sched_getaffinity(0)
    assert len(list((tmp_path / ".autotune" / "studies").glob("*.journal"))) == 1
    assert {line.partition(":")[0] for line in done.stderr.splitlines()} >= {"GPU 0", "GPU 1"}


@pytest.mark.usefixtures("nvml_library")
def test_what_would_run_is_shown(tmp_path: Path) -> None:
    """One command a GPU, nothing started; what has no meaning here is wrong."""
    done = workers(tmp_path, "--dry-run")
    first, second = done.stdout.splitlines()
    assert "--seed 0 --state-dir" in first
    assert "--seed 1 --state-dir" in second
    assert not (tmp_path / "where.jsonl").exists()
    assert "leave -n, and further words, out" in workers(tmp_path, "-n", "2").stderr
