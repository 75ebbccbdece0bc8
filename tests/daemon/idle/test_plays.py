"""Promise of a real search: somebody who comes has the machine at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import CONFIG
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, Scenario

REPOSITORY = Path(__file__).parents[3]
TOY = REPOSITORY / "tests" / "toys" / "toy_trainer.py"


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
