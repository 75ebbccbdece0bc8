"""A search on each GPU of a machine, on fake ones."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.commands.search_run import share_cores
from tests.gpu.conftest import GpuProject
from tests.until import until

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")

SHARES = {
    "a node each": ([range(4), range(4, 8)], [range(4), range(4, 8)]),
    "two on each node": ([range(4), range(4), range(4, 8), range(4, 8)], [{0, 1}, {2, 3}, {4, 5}, {6, 7}]),
    "crossed": ([range(4, 8), range(4)], [range(4, 8), range(4)]),
    "interleaved": ([range(0, 8, 2), range(1, 8, 2)], [range(0, 8, 2), range(1, 8, 2)]),
    "all on one node": ([range(4), range(4), range(4)], [{0, 1}, {2, 3}, {4, 5}]),
    "not known": ([range(0), range(0)], [range(4), range(4, 8)]),
    "known of one": ([range(0), range(4)], [range(4), range(4, 8)]),
    "of a machine with more cores": ([range(4, 64), range(64, 128)], [range(4), range(4, 8)]),
}


@pytest.mark.parametrize("case", SHARES)
def test_all_get_as_many_cores_as_near_as_can_be(case: str) -> None:
    """No core twice; where too few are near to some, by their numbers."""
    near, expected = SHARES[case]
    assert share_cores(range(8), [frozenset(one) for one in near]) == [frozenset(one) for one in expected]


def test_gpus_that_are_not_there_are_told(gpu_project: Callable[..., GpuProject]) -> None:
    """With how many there are; nothing is started."""
    project = gpu_project()
    done = project("search", "--config", "config.yaml", "--gpus", "0,7", "--budget", "1m")
    assert (done.returncode, "there is no GPU 7: there are 2" in done.stderr) == (1, True), done.stderr
    assert "neither 'all' nor" in project("search", "--config", "config.yaml", "--gpus", "x").stderr


TRAINER = """\
import json, os, time
from autotune.trainee import step
where = {"gpu": os.environ["CUDA_VISIBLE_DEVICES"], "cores": sorted(os.sched_getaffinity(0))}
with open("where.jsonl", "a") as file:
    file.write(json.dumps(where) + "\\n")
while True:
    time.sleep(0.01)
    step(samples=8)
"""
SECTION = f"{{command: '{sys.executable} train.py {{config}}', knobs: {{workers: [1, 2, 4, 8]}}}}"


@needs_two_cores
@pytest.mark.services
@pytest.mark.usefixtures("nvml_library")
def test_a_search_on_two_gpus_trains_on_both_each_with_its_own_cores(tmp_path: Path) -> None:
    """This process has the first of them, and a worker on the same study the other one."""
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "config.yaml").write_text(f"workers: 1\nautotune: {SECTION}\n")
    typed = ("-m", "autotune", "search", "--config", "config.yaml", "--gpus", "0,1", "--budget", "1h", "--no-apply")
    fakes = (sys.executable, "-m", "tests.fake_nvml", "follow", "--", "sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path))
    where = tmp_path / "where.jsonl"
    where.touch()

    def seen() -> dict[str, frozenset[int]]:
        lines = where.read_text().splitlines()
        return {one["gpu"]: frozenset(one["cores"]) for one in map(json.loads, lines)}

    with subprocess.Popen(
        [*fakes, sys.executable, *typed],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as search:
        try:
            until(lambda: len(seen()) == 2)
        finally:
            os.killpg(search.pid, signal.SIGINT)
    places = seen()
    first, second = places.values()
    assert not first & second
    assert len(first) == len(second) == len(os.sched_getaffinity(0)) // 2
    assert len(list((tmp_path / ".autotune" / "studies").glob("*.journal"))) == 1
