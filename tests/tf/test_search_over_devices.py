"""A real search over a real pipeline, on logical devices."""

import json
import sys
from pathlib import Path

import pytest

from tests.until import ended

TRAINER = Path(__file__).with_name("waiting_trainer.py")
CONFIG = f"""\
data: {{data_gpu: null, model_gpu: null, pipeline_buffer_size: 4, features_s: 0.02, step_s: 0.025}}
autotune:
  command: "{sys.executable} {TRAINER} {{config}}"
  knobs: {{data.model_gpu: [null, 1, 0], data.pipeline_buffer_size: [1, 4]}}
  trial: {{min_s: 1.0, min_steps: 10, max_s: 1.5}}
"""


@pytest.mark.services
@pytest.mark.timeout(300)
def test_two_devices_are_found_and_their_stages_told(tmp_path: Path) -> None:
    """Features and steps that take as long as each other are nearly twice as fast apart."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    words = ("search", "--config", "config.yaml", "--budget", "75s", "--json")
    done = ended(sys.executable, "-m", "autotune", *words, cwd=tmp_path, timeout_s=200)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "better"
    assert answer["best"]["values"]["data.model_gpu"] in (0, 1)
    assert 1.4 < answer["speedup"]["ratio"] < 2.1
    stages = answer["best"]["stages"]
    assert stages["features_s"] == pytest.approx(0.02, rel=0.6)
    assert stages["reached_fraction"] > 0.7
    assert answer["baseline"]["stages"] is None
