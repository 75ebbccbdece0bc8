"""A search or worker for each GPU of a machine, on fake ones: real processes, their trainers say where they are."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.gpu.conftest import GpuProject, machine_with

TRAINER = """\
import json, os, sys, time
import yaml
from autotune.trainee import step
values = yaml.safe_load(open(sys.argv[1]))
here = os.environ["CUDA_VISIBLE_DEVICES"]
where = {"gpu": here, "cores": sorted(os.sched_getaffinity(0))}
with open("where.jsonl", "a") as file:
    file.write(json.dumps(where) + "\\n")
own = f"training.{here}"
while True:
    open(own, "w").close()
    others = [name for name in os.listdir() if name.startswith("training.") and name != own]
    busy = sum(time.time() - os.path.getmtime(name) < 0.3 for name in others)
    time.sleep(0.02 / values["workers"] * (1.0 + values["disturbs"] * busy))
    step(samples=8)
"""

pytestmark = [
    pytest.mark.usefixtures("nvml_library"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]


def config_of(disturbs: float) -> str:
    """Return a config of which a neighbour takes that part of the time, and more."""
    section = f"{{command: '{sys.executable} train.py {{config}}', knobs: {{workers: [1, 2, 4, 8]}}}}"
    return f"workers: 1\ndisturbs: {disturbs}\nautotune: {section}\n"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of autotune on a machine with two fake GPUs."""
    (folder / "train.py").write_text(TRAINER)
    (folder / "config.yaml").write_text(config_of(0.0))
    own = [sys.executable, "-m", "autotune", words[0], "--config", "config.yaml", *words[1:]]
    fakes = [sys.executable, "-m", "tests.fake_nvml", "follow", "--", "sh", "-c", 'cd "$0" && exec "$@"', str(folder)]
    return subprocess.run(
        [*fakes, *own], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=290, check=False
    )


def places(folder: Path) -> tuple[set[str], Sequence[set[int]]]:
    """Return the GPUs that trainers saw, one each, and the cores that went with each of them."""
    lines = (folder / "where.jsonl").read_text().splitlines()
    where = {(one["gpu"], *one["cores"]) for one in map(json.loads, lines)}
    gpus, cores = zip(*((gpu, set(own)) for gpu, *own in sorted(where)), strict=True)
    return set(gpus), cores


def test_each_gpu_has_a_worker_with_its_share_of_the_cores(tmp_path: Path) -> None:
    """They make trials of one study; each of them sees its own GPU and its own cores."""
    done = run(tmp_path, "worker", "--submit", "gpus", "--budget", "12s")
    assert done.returncode == 0, done.stdout + done.stderr
    gpus, cores = places(tmp_path)
    assert (len(gpus), len(cores)) == (2, 2)
    assert not cores[0] & cores[1]
    assert len(cores[0]) == len(cores[1]) == len(os.sched_getaffinity(0)) // 2
    assert len(list((tmp_path / ".autotune" / "studies").glob("*.journal"))) == 1
    assert {line.partition(":")[0] for line in done.stderr.splitlines()} >= {"GPU 0", "GPU 1"}


def test_what_would_run_is_shown(tmp_path: Path) -> None:
    """One command a GPU, with its GPU and its cores, nothing started; what has no meaning here is wrong."""
    done = run(tmp_path, "worker", "--submit", "gpus", "--dry-run")
    first, second = done.stdout.splitlines()
    assert "--seed 0 --state-dir" in first
    assert "--seed 1 --state-dir" in second
    assert first.startswith("CUDA_VISIBLE_DEVICES=GPU-")
    assert " taskset -c 0" in first
    assert not (tmp_path / "where.jsonl").exists()
    assert "leave -n, and further words, out" in run(tmp_path, "worker", "--submit", "gpus", "-n", "2").stderr


@pytest.mark.services
def test_a_search_on_several_gpus_sees_that_they_disturb_each_other(gpu_project: Callable[..., GpuProject]) -> None:
    """Today's config beside and alone tells; then pairs are made alone, each on one GPU.

    What was found is there afterwards for commands that see the whole machine.
    """
    project = gpu_project(machine_with(2), config_of(0.6))
    (project.folder / "train.py").write_text(TRAINER)
    done = project.search(180, "--gpus", "0,1", "--no-apply")
    assert done.returncode == 0, done.said + done.complained[-4000:]
    assert done.answer["verdict"] == "better"
    said = next(line for line in done.complained.splitlines() if "Beside this machine's other GPUs" in line)
    assert "pairs are made while these wait" in said  # so it is, too, where the check has not ended by then
    results = project.folder.glob(".autotune/**/trials/*/*/result.json")
    trials = [json.loads(one.read_text()) for one in sorted(results)]
    assert len({one["conditions"]["machine"] for one in trials}) == 2
    todays = [one for one in trials if one["purpose"] == "baseline"]
    alone, beside = (
        [one["measurement"]["samples_per_s"] for one in todays if one["conditions"].get("alone") is how]
        for how in (True, False)
    )
    if alone and beside:  # a loaded machine has no time for the check
        assert min(alone) > 1.3 * min(beside), (alone, beside)
    pairs = [one for one in trials if one["purpose"] == "confirm"]
    assert {one["conditions"]["alone"] for one in pairs} == {True}
    assert len(places(project.folder)[0]) == 2
    status = project.autotune("status", "--config", "config.yaml", "--json")
    assert json.loads(status.stdout)["verdict"] == "better", status.stdout + status.stderr


def test_gpus_that_are_not_there_are_told(tmp_path: Path) -> None:
    """With how many there are; nothing is started."""
    done = run(tmp_path, "search", "--gpus", "0,7", "--budget", "1m")
    assert (done.returncode, "there is no GPU 7: there are 2" in done.stderr) == (1, True), done.stderr
    assert "neither all nor numbers" in run(tmp_path, "search", "--gpus", "x").stderr
