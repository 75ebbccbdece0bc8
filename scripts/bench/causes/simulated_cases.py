"""Simulated cases: trainers with one cause of slowness each, of which the truth is known, and healthy ones.

They stand for what cannot be staged on any machine: slow storage, GPUs that are held down, memory that fills, many
cores. Their trials vary as measured ones do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from autotune.diagnose.findings import Limit, Verdict
from autotune.records import Validity
from autotune.testing.simulated_phases import PhaseTimes
from autotune.testing.simulated_runner import Training
from scripts.bench.causes.cases import HEALTHY, Case
from scripts.bench.causes.simulated_trainer import BATCH, SimulatedMachineState, diagnose_simulated

_BUDGET_S = 180.0
_GIB = 1 << 30
_LONG = 1_000_000  # steps


@dataclass(frozen=True, kw_only=True)
class SimulatedTrainer:
    """Simulated trainer: a loader and a step, and what it does besides.

    Attributes:
        step_s: Time of a step with free data, at the config's batch.
        fixed: Share of that which does not depend on the batch.
        load_s: Time of the loader alone for such a batch.
        load_cores: Cores that the loader keeps busy.
        ahead: Whether batches are loaded ahead of the step.
        scales: Most workers that share the loading.
        noise: Standard deviation of ln speed between trials.
        step_noise: The same of ln time between steps.
        besides: Further behaviour, by the fields of `Training`.
    """

    step_s: float = 0.05
    fixed: float = 0.15
    load_s: float = 0.02
    load_cores: float = 1.0
    ahead: bool = True
    scales: int = 4
    noise: float = 0.02
    step_noise: float = 0.04
    besides: Mapping[str, Any] = field(default_factory=dict)

    def train(self, own_cores: float, config: Mapping[str, Any]) -> Training:
        """Return its behaviour under a config."""
        data = config["data"]
        batches = data["batch_size"] / BATCH
        loading_s = self.load_s * batches / min(self.scales, data["num_workers"])
        stepping_s = self.step_s * (self.fixed + (1.0 - self.fixed) * batches)
        whole_s = max(loading_s, stepping_s) if self.ahead else loading_s + stepping_s
        training = Training(
            samples=float(data["batch_size"]),
            step_s=whole_s,
            start_s=3.0,
            noise=self.noise,
            step_noise=self.step_noise,
            autocorrelation=0.2,
            wait_fraction=1.0 - stepping_s / whole_s,
            cpu_cores=own_cores,
            phases=PhaseTimes(
                train_s=whole_s,
                wait_s=whole_s - stepping_s,
                replay_s=stepping_s,
                load_s=loading_s,
                train_cores=own_cores,
                replay_cores=own_cores,
                load_cores=self.load_cores,
            ),
        )
        return replace(training, **self.besides)


@dataclass(frozen=True, kw_only=True)
class _Row:
    cause: str
    limit: Limit
    trainer: SimulatedTrainer
    state: SimulatedMachineState = field(default_factory=SimulatedMachineState)


def simulated_cases() -> list[Case]:
    """Return all simulated cases, numbered within each cause."""
    rows = [*_input_rows(), *_step_rows(), *_besides_rows(), *_machine_rows(), *_healthy_rows()]
    numbers: dict[str, int] = {}
    cases = []
    for seed, row in enumerate(rows):
        numbers[row.cause] = numbers.get(row.cause, 0) + 1
        cases.append(
            Case(
                name=f"simulated-{row.cause.replace(' ', '-')}-{numbers[row.cause]}",
                cause=row.cause,
                expected=frozenset({row.limit}),
                run=_run(row, seed),
                is_real=False,
            )
        )
    return cases


def _run(row: _Row, seed: int) -> Callable[[float], Verdict]:
    train = partial(row.trainer.train, row.state.own_cores)
    prefetch = 2 if row.trainer.ahead else 0
    return lambda _budget_s: diagnose_simulated(train, row.state, prefetch=prefetch, seed=seed, budget_s=_BUDGET_S)


def _input_rows() -> Iterator[_Row]:
    for step_s, ratio in ((0.01, 1.3), (0.05, 1.6), (0.2, 3.0)):
        slow = SimulatedTrainer(step_s=step_s, load_s=ratio * step_s)
        yield _Row(cause="slow disk", limit=Limit.READING, trainer=replace(slow, load_cores=0.15))
        yield _Row(cause="slow map", limit=Limit.PREPARING, trainer=slow)
        many = replace(slow, load_cores=7.6, scales=1)
        yield _Row(cause="slow map on all cores", limit=Limit.PREPARING, trainer=many)
    for step_s, ratio in ((0.02, 0.4), (0.05, 1.0), (0.1, 1.5)):
        trainer = SimulatedTrainer(step_s=step_s, load_s=ratio * step_s, ahead=False, scales=1)
        yield _Row(cause="no prefetch", limit=Limit.OVERLAP, trainer=trainer)


def _step_rows() -> Iterator[_Row]:
    for step_s, fixed in ((0.004, 0.95), (0.01, 0.8), (0.03, 0.85)):
        trainer = SimulatedTrainer(step_s=step_s, fixed=fixed, load_s=0.1 * step_s)
        yield _Row(cause="tiny batch", limit=Limit.HOST, trainer=trainer)


def _besides_rows() -> Iterator[_Row]:
    for every, pause_s in ((60, 0.5), (100, 1.5), (150, 6.0)):
        for kind, cause in (("eval", "slow validation"), ("checkpoint", "checkpoints")):
            pauses = dict.fromkeys(range(every, _LONG, every), kind)
            besides = {"pauses": pauses, "pause_s": pause_s}
            yield _Row(cause=cause, limit=Limit.OUTSIDE, trainer=SimulatedTrainer(besides=besides))
    for every, stall_s in ((25, 0.3), (40, 1.0), (80, 2.0)):
        besides = {"stall_every": every, "stall_s": stall_s}
        yield _Row(cause="periodic stall", limit=Limit.STALLS, trainer=SimulatedTrainer(besides=besides))
    for epoch, gap_s in ((50, 0.5), (90, 2.0)):
        besides = {"epoch": epoch, "epoch_gap_s": gap_s}
        yield _Row(cause="slow start of epochs", limit=Limit.STALLS, trainer=SimulatedTrainer(besides=besides))


def _machine_rows() -> Iterator[_Row]:
    for cores, foreign, own in ((2, 0.9, 1.1), (8, 3.0, 5.0), (16, 9.0, 7.0)):
        state = SimulatedMachineState(cores=cores, foreign_cores=foreign, own_cores=own)
        yield _Row(cause="neighbour on the CPU", limit=Limit.NEIGHBOUR, trainer=SimulatedTrainer(), state=state)
    for validity, cause, limit in (
        (Validity.THROTTLED, "throttled GPU", Limit.THROTTLING),
        (Validity.CONTAMINATED, "neighbour on the GPU", Limit.NEIGHBOUR),
    ):
        for step_s in (0.02, 0.1):
            state = SimulatedMachineState(spoiled=validity)
            yield _Row(cause=cause, limit=limit, trainer=SimulatedTrainer(step_s=step_s), state=state)
    for memory in (30.5, 31.5):
        trainer = SimulatedTrainer(besides={"memory_bytes": int(memory * _GIB)})
        yield _Row(cause="memory nearly full", limit=Limit.MEMORY, trainer=trainer)
    for growth_mib in (3.0, 30.0):
        trainer = SimulatedTrainer(besides={"memory_growth_bytes_per_s": growth_mib * (1 << 20)})
        yield _Row(cause="memory that grows", limit=Limit.MEMORY, trainer=trainer)


def _healthy_rows() -> Iterator[_Row]:
    shapes: Sequence[tuple[float, float, float, float]] = (
        # step_s, load over step, noise between trials, noise between steps
        (0.003, 0.3, 0.02, 0.05),
        (0.01, 0.6, 0.02, 0.05),
        (0.01, 0.9, 0.04, 0.1),
        (0.03, 0.5, 0.04, 0.05),
        (0.05, 0.8, 0.02, 0.15),
        (0.1, 0.3, 0.04, 0.1),
        (0.2, 0.7, 0.02, 0.05),
        (0.3, 0.5, 0.04, 0.1),
        (0.5, 0.9, 0.02, 0.05),
        (1.0, 0.4, 0.04, 0.05),
    )
    for step_s, load, noise, step_noise in shapes:
        trainer = SimulatedTrainer(step_s=step_s, load_s=load * step_s, noise=noise, step_noise=step_noise)
        yield _Row(cause=HEALTHY, limit=Limit.STEP, trainer=trainer)
