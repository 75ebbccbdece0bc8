"""Searches whose knob is which GPU does what, on two GPUs that the fake driver shows; the trainer is simulated."""

import json
from collections.abc import Callable

import pytest

from tests.fake_nvml.scenario import Gpu
from tests.gpu.conftest import GpuProject

PLACED = """\
data: {data_gpu: null, model_gpu: null, pipeline_buffer_size: 2, pipeline_buffer_mb: 64}
training: {}
autotune:
  command: "{python} train.py {config}"
  trial: {min_s: 1.0, min_steps: 10, max_s: 1.5}
"""

# One GPU for both takes 34 ms for a step. Training on the second, which is twice as fast, takes 14 ms; the other way
# round takes 20 ms.
TRAINER = "lambda config: Training(step_s={None: 0.034, 1: 0.014, 0: 0.020}[config['data']['model_gpu']], noise=0.02)"


def test_data_and_model_get_the_gpus_that_suit_them(gpu_project: Callable[..., GpuProject]) -> None:
    """Of two unlike GPUs the faster one trains; the key of the data's GPU moves along, and both are written."""
    project = gpu_project(gpus=(Gpu(name="NVIDIA A10"), Gpu()), config=PLACED, trainer=TRAINER)
    found = project("search", "--config", "config.yaml", "--budget", "10m", "--no-apply", "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["verdict"] == "better", found.stderr
    assert answer["best"]["values"]["data.model_gpu"] == 1
    assert answer["speedup"]["ratio"] == pytest.approx(34 / 14, rel=0.1)
    (placement,) = (change for change in answer["changes"] if change["path"] == "data.model_gpu")
    assert placement["along"] == [{"path": "data.data_gpu", "old": None, "new": 0}]
    results = [json.loads(file.read_text()) for file in project.folder.glob(".autotune/trials/*/*/result.json")]
    tried = {(trial["values"]["data.model_gpu"], trial["values"]["data.pipeline_buffer_size"]) for trial in results}
    assert {model for model, _ in tried} == {None, 0, 1}
    assert {depth for model, depth in tried if model is None} == {2}
    applied = project("apply", "--config", "config.yaml")
    assert applied.returncode == 0, applied.stderr
    assert "data: {data_gpu: 0, model_gpu: 1, " in (project.folder / "config.yaml").read_text()
