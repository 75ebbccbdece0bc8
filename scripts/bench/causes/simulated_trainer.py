"""Diagnosis of a simulated trainer, in virtual time."""

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.clock import VirtualClock
from autotune.config.document import Document
from autotune.diagnose.diagnosis import verdict_of
from autotune.diagnose.findings import Verdict
from autotune.diagnose.measured import Diagnoser
from autotune.measure.probe import GpuUsage, TrialGpus
from autotune.records import Gpu, Machine, Validity
from autotune.search.parts import SearchParts
from autotune.search.problem import open_problem
from autotune.search.schedule import Budget
from autotune.study.record import Study
from autotune.testing.simulated_probes import SimulatedGpuProbe, SimulatedHostProbe
from autotune.testing.simulated_runner import SimulatedRunner, Training
from autotune.trial.instruments import Instruments

_GIB = 1 << 30
_CONFIG = """\
data:
    batch_size: 16
    num_workers: 1
    prefetch_buffer_size: PREFETCH
training:
    enable_graph_mode: true
autotune:
    command: "{python} train.py {config}"
    trial: {start_timeout_s: 60, min_s: 1, min_steps: 10, max_s: 5}
"""
BATCH = 16
"""Batch size of the config."""


@dataclass(frozen=True, kw_only=True)
class SimulatedMachineState:
    """State of the machine beside the trainer.

    Attributes:
        cores: Cores that there are.
        foreign_cores: Cores that others keep busy.
        own_cores: Cores that the trainer keeps busy.
        spoiled: What spoils trials on its GPU; None for a machine without one, or a GPU that is fine.
    """

    cores: int = 8
    foreign_cores: float = 0.0
    own_cores: float = 1.5
    spoiled: Validity | None = None


class _SpoiledGpuProbe(SimulatedGpuProbe):
    """Probe of a GPU that somebody else uses, or whose clocks are held down."""

    def __init__(self, runner: SimulatedRunner, spoiled: Validity) -> None:
        super().__init__(runner)
        self._spoiled = spoiled

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """See `autotune.measure.probe.GpuProbe.between`."""
        return GpuUsage(utilization=0.7, spoiled=self._spoiled, remark=f"the GPU was {self._spoiled.value}")


def diagnose_simulated(
    train: Callable[[Mapping[str, Any]], Training],
    state: SimulatedMachineState,
    *,
    prefetch: int,
    seed: int,
    budget_s: float,
) -> Verdict:
    """Diagnose a simulated trainer; return the verdict.

    Args:
        train: Function from the config to the trainer's behaviour.
        state: The machine beside it.
        prefetch: Batches that the config has loaded ahead.
        seed: Seed of all noise.
        budget_s: Budget of the diagnosis, in virtual seconds.
    """
    clock = VirtualClock()
    gpus = (Gpu(name="simulated", uuid="GPU-0", memory_bytes=24 * _GIB),) if state.spoiled else ()
    machine = Machine(cpu_cores=state.cores, cpu_model="simulated", memory_bytes=32 * _GIB, gpus=gpus)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(_CONFIG.replace("PREFETCH", str(prefetch)))
        problem = open_problem(config, command=None, state_dir=Path(folder) / "state", machine=machine)
        problem.state.create()
        runner = SimulatedRunner(clock, lambda text: train(Document.parse(text).data), seed=seed)

        def instruments() -> Instruments:
            gpu = _SpoiledGpuProbe(runner, state.spoiled) if state.spoiled else None
            return Instruments(SimulatedHostProbe(runner), gpu)

        study = Study(problem.study, problem.storage)
        try:
            parts = SearchParts(
                name="diagnosis",
                seed=seed,
                problem=problem,
                study=study,
                runner=runner,
                budget=Budget(clock, started_s=clock.now_s(), budget_s=budget_s),
                clock=clock,
                instruments=instruments,
            )
            used_cores = state.foreign_cores + state.own_cores
            diagnoser = Diagnoser(parts, (), busy_s=lambda: used_cores * clock.now_s(), cores=float(state.cores))
            measured = diagnoser.run()
        finally:
            study.close()
    return verdict_of(measured.results, measured.why_not_seen)
