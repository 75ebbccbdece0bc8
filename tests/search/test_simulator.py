"""The simulator keeps what every runner promises."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

from autotune.clock import VirtualClock
from autotune.records import RunPlan
from autotune.testing import Behaviour, RunnerContract
from autotune.trial.launch import Runner
from tests.search.simulator import Simulator, Training

TRAININGS = {
    Behaviour.ENDS_WELL: Training(steps=5),
    Behaviour.FAILS: Training(steps=5, exit_code=3),
    Behaviour.TRAINS_ON: Training(),
    Behaviour.IS_SILENT: Training(start_s=inf),
}


def _trainer(config: Mapping[str, Any]) -> Training:
    return TRAININGS[Behaviour(config["behaviour"])]


class TestSimulator(RunnerContract):
    """The contract, in virtual time."""

    clock = VirtualClock()

    @contextmanager
    def opened(self) -> Iterator[Runner]:
        """See `RunnerContract.opened`."""
        yield Simulator(self.clock, _trainer)

    def plan(self, behaviour: Behaviour, folder: Path) -> RunPlan:
        """See `RunnerContract.plan`."""
        return RunPlan(
            run_id=f"study/{behaviour}",
            folder=folder,
            argv=("train",),
            cwd=folder,
            env={},
            config_text=f"behaviour: {behaviour.value}\n",
        )
