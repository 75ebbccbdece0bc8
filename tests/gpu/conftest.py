"""The command line on a machine with fake GPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CONFIG, Done
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Fault, Gpu, Scenario

UUID = "GPU-{:08x}-0000-4000-8000-000000000000"

_TYPES = """
from dataclasses import asdict
from pathlib import Path
from autotune.measure.gpu import driver
from scripts.bench.simulated_runner import Training
from tests.command_line import project_in, toy
driver.TIME_LIMIT_S = {time_limit_s}
tell(asdict(project_in(Path({folder!r}), {trainer}, {config!r})(*{words!r})))
"""


@dataclass(frozen=True, kw_only=True)
class GpuProject:
    """A project with a simulated trainer, on a machine with fake GPUs: its searches begin on them, in virtual time.

    Attributes:
        config: Its config; in code, as `trainer`, the function of it that describes the trainer.
        time_limit_s: Time that the driver has for an answer.
    """

    folder: Path
    machine: FakeGpu
    config: str
    trainer: str
    time_limit_s: float

    def __call__(self, *words: str, **env: str) -> Done:
        """Run one command, with these variables set."""
        self.machine.env.update(env)
        how = {"folder": str(self.folder), "trainer": self.trainer, "config": self.config}
        return Done(**self.machine.run(_TYPES.format(**how, words=words, time_limit_s=self.time_limit_s)))

    def search(self, **env: str) -> Done:
        """Search for a short while."""
        return self("search", "--config", "config.yaml", "--budget", "30s", "--no-apply", **env)


@pytest.fixture
def gpu_project(fake_gpu: Callable[..., FakeGpu], tmp_path: Path) -> Callable[..., GpuProject]:
    """Makes a project on a machine with two GPUs, or with others, of which nobody knows yet."""

    def make(
        *faults: Fault,
        gpus: tuple[Gpu, ...] = (Gpu(), Gpu()),
        config: str = CONFIG,
        trainer: str = "toy",
        time_limit_s: float = 60.0,
        **options: Any,
    ) -> GpuProject:
        machine = fake_gpu(Scenario(gpus=gpus, faults=faults, **options), began_s_ago=30.0)
        machine.env.pop("CUDA_VISIBLE_DEVICES", None)
        folder = tmp_path / "a project"
        return GpuProject(folder=folder, machine=machine, config=config, trainer=trainer, time_limit_s=time_limit_s)

    return make
