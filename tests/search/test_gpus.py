"""GPUs that the trials of a search use, on machines with fake ones; and the remarks on them before it begins."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, Process, Scenario

UUIDS = [f"GPU-{index:08x}-0000-4000-8000-000000000000" for index in range(3)]
CONFIG = """\
data:
    batch_size: 8
    data_gpu: 0
model_gpu: 1
autotune:
    command: "{{python}} train.py {{config}}"
    knobs:
        data.batch_size: [8, 16]
{more}
"""
ASK = """
from dataclasses import asdict
from pathlib import Path
from autotune.clock import SystemClock
from autotune.errors import AutotuneError
from autotune.search.gpus import busy_remarks, remarks_on_gpus, require_free_gpus, trial_gpus, watched_gpus
from autotune.search.problem import open_problem

problem = open_problem(Path({config!r}), command=None, state_dir=None)

def said(ask, *arguments):
    try:
        return ask(problem, *arguments)
    except AutotuneError as error:
        return [error.kind, error.message, error.where, error.remedy]

tell({{
    "trial": asdict(trial_gpus(problem, problem.space.baseline)),
    "watched": watched_gpus(problem),
    "remarks": said(remarks_on_gpus),
    "why_no_gpu": problem.hardware.why_no_gpu,
    "study": problem.study,
    "gpus": [gpu.uuid for gpu in problem.machine.gpus],
    "busy": busy_remarks(problem, SystemClock()) if {look} else None,
    "refused": said(require_free_gpus, SystemClock()) if {look} else None,
}})
"""

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(fake_gpu: Callable[..., FakeGpu], tmp_path: Path) -> Ask:
    """Ask a process for the GPUs of a search in an environment, on a machine with two GPUs."""

    def asked(
        scenario: Scenario | None = None,
        *,
        more: str = "",
        look: bool = False,
        env: dict[str, str] | None = None,
        text: str = CONFIG,
    ) -> dict[str, Any]:
        machine = fake_gpu(scenario or Scenario(gpus=(Gpu(), Gpu())), began_s_ago=30.0)
        machine.env.pop("CUDA_VISIBLE_DEVICES", None)
        machine.env.update(env or {})
        config = tmp_path / "config.yaml"
        config.write_text(text.format(more=more))
        answer: dict[str, Any] = machine.run(ASK.format(config=str(config), look=look))
        return answer

    return asked


def test_a_trial_may_use_the_gpus_it_sees_and_its_model_is_where_the_config_says(ask: Ask) -> None:
    """Both GPUs are measured; the model's is the one that is scored, and the data's is known."""
    told = ask()
    assert told["trial"] == {"uuids": UUIDS[:2], "reported": False, "model": 1, "data": 0}
    assert told["watched"] == UUIDS[:2]
    assert (told["remarks"], told["why_no_gpu"]) == ([], None)


def test_alike_gpus_are_said_to_be_tried_one_way_round(ask: Ask) -> None:
    """Unlike ones are tried both ways, and nothing is said; nor is it where the user lists the knobs."""
    found = CONFIG.replace("    knobs:\n        data.batch_size: [8, 16]\n", "")
    unlike = Scenario(gpus=(Gpu(), Gpu(name="NVIDIA A10")))
    said = "GPUs 0 and 1 are equal: data on 0 and training on 1 stands for both orders"
    assert ask(text=found)["remarks"] == [said]
    assert said not in ask(unlike, text=found, env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})["remarks"]
    together = ask(unlike, text=found.replace("model_gpu: 1", "model_gpu: 0"))["remarks"]
    assert any("data on 1 and training on 0 is not tried" in remark for remark in together)


def test_the_environment_of_the_trials_decides_not_that_of_the_search_alone(ask: Ask) -> None:
    """The config's variables for trials go before those of the shell."""
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    assert ask(env=env)["trial"]["uuids"] == UUIDS[:1]
    assert ask(env=env, more="    env: {CUDA_VISIBLE_DEVICES: 1}")["trial"]["uuids"] == UUIDS[1:2]


def test_a_gpu_that_is_not_there_is_an_error_with_a_remedy(ask: Ask) -> None:
    """CUDA would train on the CPU without a word."""
    told = ask(env={"CUDA_VISIBLE_DEVICES": "7"})
    kind, message, where, remedy = told["remarks"]
    assert (kind, where) == ("gpu", None)
    assert message == (
        "CUDA_VISIBLE_DEVICES=7 names 7, but this machine has 2, numbered 0 to 1: training would run without a GPU"
    )
    assert "Set it to an existing GPU" in remedy


def test_a_busy_gpu_is_refused_with_who_is_on_it(ask: Ask) -> None:
    """The error names process, memory and program, and a remedy."""
    with subprocess.Popen([shutil.which("sleep") or "sleep", "1000"]) as tenant:
        busy = Gpu(busy_percent=40, processes=(Process(pid=tenant.pid, memory_bytes=5 << 30, share=1.0),))
        told = ask(Scenario(gpus=(Gpu(), busy)), look=True)
        tenant.kill()
    (remark,) = told["busy"]
    assert remark.startswith(f"NVIDIA H100 80GB HBM3 ({UUIDS[1]}) is in use: process {tenant.pid} (")
    assert "sleep) with 5.0 GiB, kernels ran for 40 % of the last second" in remark
    kind, message, _, remedy = told["refused"]
    assert (kind, message) == ("gpu", remark)
    assert "--allow-busy-gpu" in remedy


def test_a_study_is_one_of_the_gpus_that_trials_see(ask: Ask) -> None:
    """One card of a kind is as good as another; one is not two, and none is none, wherever that is said."""
    seen = ("0", "1", "0,1", "")
    shell = {which: ask(env={"CUDA_VISIBLE_DEVICES": which}) for which in seen}
    section = {which: ask(more=f'    env: {{CUDA_VISIBLE_DEVICES: "{which}"}}') for which in seen}
    for told in (shell, section):
        assert [told[which]["gpus"] for which in seen] == [UUIDS[:1], UUIDS[1:2], UUIDS[:2], []]
    names = {which: told["study"] for which, told in shell.items()}
    assert names["0"] == names["1"]
    assert len({names["0"], names["0,1"], names[""]}) == 3
    assert names["0,1"] == ask()["study"]
    assert {which: told["study"] for which, told in section.items()} == names
