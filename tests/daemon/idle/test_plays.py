"""Promises kept on whole timelines: no start that should not be, and somebody who comes has the machine at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import CONFIG
from tests.daemon.idle.timelines import Kind, Play, machine_of
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, Scenario

WORST_NOTICE_S = 1.4  # of virtual time: a quarter of a second, and a second of load
TIMELINES = [*range(4), *(pytest.param(seed, marks=pytest.mark.services) for seed in range(4, 100))]
REPOSITORY = Path(__file__).parents[3]
TOY = REPOSITORY / "tests" / "toys" / "toy_trainer.py"


def test_the_timelines_hold_what_they_promise():
    """All kinds of visits, machines with and without GPUs, and jobs of cron on many of them."""
    machines = [machine_of(seed) for seed in range(100)]
    assert {visit.kind for machine in machines for visit in machine.visits} == set(Kind)
    assert {machine.gpus for machine in machines} == {0, 1, 2, 4, 8}
    assert sum(machine.blip_every_s < 100.0 for machine in machines) > 50
    assert machine_of(3) == machine_of(3)


@pytest.mark.parametrize("seed", TIMELINES)
def test_no_start_while_somebody_is_there_and_no_stay_when_somebody_comes(seed):
    """In virtual time, with all that decides."""
    played = Play(machine_of(seed)).run()
    assert played.wrong == []
    assert played.left_for_nobody == []
    assert played.starts >= 1
    assert all(noticed_s <= WORST_NOTICE_S for noticed_s in played.noticed_s)
    assert played.missed_s / played.starts < 30.0


@pytest.mark.services
@pytest.mark.parametrize(("stranger", "mood"), [("gpu", ""), ("cpu", ""), ("gpu", "ignores SIGTERM")])
def test_a_real_search_leaves_when_a_real_process_comes(nvml_library, tmp_path, stranger, mood):
    """Whoever it is, and whatever the trainer does: the reason names the process, and nothing of the search stays."""
    machine = FakeGpu(nvml_library, tmp_path, Scenario(gpus=(Gpu(),), follow=True), at_s=None, began_s_ago=30.0)
    machine.tenants.mkdir()
    project = tmp_path / "a project"
    project.mkdir()
    (project / "config.yaml").write_text(CONFIG.replace("out:", f"mood: {json.dumps(mood)}\nout:"))
    (project / "train.py").write_text(TOY.read_text())
    words = (sys.executable, "-m", "tests.daemon.idle.staged", str(project), stranger)
    outcome = json.loads(
        subprocess.run(words, env=machine.env, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
    )
    expected = {"gpu": f"GPU 0 is in use by python (process {outcome['stranger']})", "cpu": "of 2 cores"}
    assert expected[stranger] in outcome["reason"]
    assert outcome["left"] == []
