"""Scenarios: simulated trainers with known truth, on which a search is judged.

A scenario is a config, its machine, and a trainer that `scripts.bench.simulation.pipeline_model` stands for. The
search observes what it would of a real one: a config file, steps, endings, probes. Only the benchmark knows the truth.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from autotune.clock import VirtualClock
from autotune.config.document import Document
from autotune.records import Machine, Scalar, Values
from autotune.space.space import Space
from autotune.testing.simulated_phases import PhaseTimes
from autotune.testing.simulated_probes import SimulatedGpuProbe, SimulatedHostProbe
from autotune.testing.simulated_runner import SimulatedRunner, Training
from autotune.trial.instruments import Instruments
from scripts.bench.simulation.machines import MACHINES, SimulatedMachine
from scripts.bench.simulation.pipeline_model import Options, Pace, coded, predict
from scripts.bench.simulation.priors import FAMILIES, Draw, Kinds, choices_of, draw, pace_of

PATHS: Mapping[str, str] = {
    "batch_size": "data.batch_size",
    "workers": "data.num_workers",
    "prefetch": "data.prefetch_buffer_size",
    "native_loading": "data.use_tf_native_loading",
    "cache": "data.cache",
    "length_buckets": "data.bucket_by_length",
    "fixed_length": "data.pad_to_fixed_length",
    "prefetch_to_gpu": "data.prefetch_to_gpu",
    "pipeline_buffer": "data.pipeline_buffer_size",
    "graph_mode": "training.enable_graph_mode",
    "xla": "training.enable_xla_compilation",
    "precision": "training.mixed_precision",
    "inter_op_threads": "runtime.inter_op_threads",
    "intra_op_threads": "runtime.intra_op_threads",
}
"""Keys of a scenario's config, by kind of knob."""

_KINDS = {path: kind for kind, path in PATHS.items()}
_MEAN_LENGTH = 500.0  # frames of a sample; only its ratio between steps counts
_BATCHES_BEFORE_A_LONG_ONE = 2  # which is what takes the most memory
_OUT_OF_HOST_MEMORY = """Traceback (most recent call last):
  File "train.py", line 131, in <module>
    main()
numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.47 GiB for an array with shape (64, 880, 7000)
"""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One config of one trainer on one machine, with the truth about it.

    Attributes:
        seed: Its number.
        family: Kind of bottleneck at the baseline.
        machine_name: Name of the machine in tables.
        machine: Conditions that a search knows of; for `autotune.search.problem.open_problem`.
        config_text: The config, with the trainer's command and the domains of its knobs.
        place: The simulated machine.
        training: The simulated training.
        null: True if all points are as fast as the baseline.
    """

    seed: int
    family: str
    machine_name: str
    machine: Machine
    config_text: str
    place: SimulatedMachine
    training: Draw
    null: bool = False

    def speed(self, values: Values) -> float:
        """Return the true long-run samples per second of a point, without noise; 0.0 if it cannot run.

        Args:
            values: Values by key path; missing ones are the baseline's.
        """
        kinds = self._kinds(values)
        if any(_springs(trap.where, kinds) for trap in self.training.traps):
            return 0.0
        return float(pace_of(kinds, self.training.workload, self.place).samples_per_s)

    def best(self) -> tuple[Values, float]:
        """Return the fastest point and its speed; of equals the one with the fewest changes."""
        return self._best

    def runner(self, clock: VirtualClock, *, seed: int, fresh_processes: bool) -> SimulatedRunner:
        """Return a runner of this trainer's trials.

        Args:
            clock: Virtual clock, advanced by the runner.
            seed: Seed of the noise, the drift and the accidents.
            fresh_processes: True if each trial imports the frameworks anew, instead of being forked from a process that
                has.
        """
        train = self.trainer(fresh_processes=fresh_processes)
        return SimulatedRunner(clock, train, seed=seed, drift=self.training.drift)

    def trainer(self, *, fresh_processes: bool) -> Callable[[str], Training]:
        """Return the function from a config's text to the behaviour of the trainer; for the arguments see `runner`."""
        import_s = self.place.import_s if fresh_processes else self.place.fork_s
        # Repeats and pairs run the same texts again, and reading one takes longer than simulating its trial.
        return cache(partial(self._train, start_s=import_s + self.training.setup_s))

    def instruments(self, runner: SimulatedRunner) -> Instruments:
        """Return the instruments of one trial of that runner; a `Tuner` takes ``lambda: one.instruments(runner)``."""
        return Instruments(SimulatedHostProbe(runner), SimulatedGpuProbe(runner) if self.machine.gpus else None)

    def advised(self, space: Space) -> Space:
        """Return the space as the search knows it: with the advice of the table of known knobs."""
        return space

    def values(self, config_text: str) -> Values:
        """Return the values of a config, by key path."""
        config = Document.parse(config_text).data
        return {path: config[section][key] for path in PATHS.values() for section, _, key in [path.partition(".")]}

    def _kinds(self, values: Values) -> Kinds:
        turned = {} if self.null else {_KINDS[path]: value for path, value in values.items()}
        return {**self.training.baseline, **turned}

    @cached_property
    def _best(self) -> tuple[Values, float]:
        baseline = self.training.baseline
        if self.null:
            return {PATHS[kind]: baseline[kind] for kind in self.training.searched}, self.speed({})
        grid = self.grid
        fastest = np.flatnonzero(grid.speeds >= grid.speeds.max() * (1 - 1e-9))
        values = min(
            (grid.at(int(row)) for row in fastest),
            key=lambda values: sum(values[PATHS[kind]] != baseline[kind] for kind in self.training.searched),
        )
        return values, self.speed(values)

    @cached_property
    def grid(self) -> "Grid":
        """All points with their true speeds, as if the knobs had their effects in a scenario without any."""
        baseline, workload = self.training.baseline, self.training.workload
        choices = {kind: choices_of(kind, baseline, self.place, workload) for kind in self.training.searched}
        grids = np.meshgrid(*(np.arange(len(values)) for values in choices.values()), indexing="ij")
        index = {kind: grid.ravel() for kind, grid in zip(choices, grids, strict=True)}
        points = {
            kind: np.array([coded(choice) for choice in choices[kind]])[index[kind]]
            if kind in choices
            else np.asarray(coded(value))
            for kind, value in baseline.items()
        }
        speeds = predict(Options(**points), workload, self.place.hardware).samples_per_s
        for trap in self.training.traps:
            caught = [points[kind] == coded(value) for kind, value in trap.where.items()]
            speeds = np.where(np.logical_and.reduce(np.broadcast_arrays(*caught)), 0.0, speeds)
        return Grid(
            choices={PATHS[kind]: values for kind, values in choices.items()},
            positions=np.column_stack([index[kind] for kind in choices]),
            speeds=speeds,
        )

    def _train(self, config_text: str, *, start_s: float) -> Training:
        """Return the behaviour of this trainer under a config."""
        kinds = self._kinds(self.values(config_text))
        workload, habits = self.training.workload, self.training.habits
        training = replace(habits, samples=float(kinds["batch_size"] or 0), start_s=start_s)
        pace = pace_of(kinds, workload, self.place)
        for trap in self.training.traps:
            if _springs(trap.where, kinds):
                if trap.stderr is not None:
                    return replace(training, steps=0, exit_code=1, stderr=trap.stderr)
                training = replace(training, loss=math.nan)
        shapes_vary = workload.longest > 1.0 and not kinds["fixed_length"]
        if pace.needs_gpu_memory:
            steps = _BATCHES_BEFORE_A_LONG_ONE if shapes_vary else 0
            training = replace(training, steps=steps, exit_code=1, stderr=_out_of_gpu_memory(workload.worker_bytes > 0))
        elif pace.needs_host_memory:
            steps = self._steps_to_a_full_cache(kinds, pace)
            training = replace(training, steps=steps, exit_code=1, stderr=_OUT_OF_HOST_MEMORY)
        spread = habits.work_spread / (1.0 if kinds["length_buckets"] else math.sqrt(training.samples))
        return replace(
            training,
            step_s=float(pace.step_s),
            first_pass_step_s=float(pace.first_pass_step_s),
            first_step_s=float(pace.first_step_s),
            epoch=int(pace.epoch_steps),
            epoch_gap_s=float(pace.epoch_gap_s),
            work=None if workload.longest == 1.0 else training.samples * _MEAN_LENGTH,
            work_spread=spread,
            work_weight=0.9 if shapes_vary else 0.0,
            wait_fraction=float(pace.wait_fraction),
            first_pass_wait_fraction=float(pace.first_pass_wait_fraction),
            cpu_cores=float(pace.cpu_cores),
            memory_bytes=int(min(float(pace.host_bytes), self.place.hardware.memory_bytes)),
            gpu_memory_bytes=int(pace.gpu_bytes) if self.machine.gpus else None,
            gpu_utilization=float(pace.gpu_utilization) if self.machine.gpus else None,
            phases=PhaseTimes(
                train_s=float(pace.step_s),
                wait_s=float(pace.wait_fraction * pace.step_s),
                replay_s=float(pace.compute_s),
                load_s=float(pace.load_s),
                train_cores=float(pace.cpu_cores),
            ),
        )

    def _steps_to_a_full_cache(self, kinds: Kinds, pace: Pace) -> int:
        """Return the steps until host memory is exhausted; 0 where it is not the cache that takes it."""
        limit = self.place.hardware.memory_bytes
        empty = float(pace_of({**kinds, "cache": "none"}, self.training.workload, self.place).host_bytes)
        filled = float(pace.host_bytes) - empty
        return max(0, int(float(pace.epoch_steps) * (limit - empty) / filled)) if filled > 0 else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """All points of a scenario.

    Attributes:
        choices: Choices of each searched knob, by key path.
        positions: Position of each point's value among the choices of each knob, shape (points, knobs).
        speeds: True samples per second of each point, 0.0 where it cannot run, shape (points,).
    """

    choices: Mapping[str, tuple[Scalar, ...]]
    positions: NDArray[np.int64]
    speeds: NDArray[np.float64]

    def at(self, row: int) -> Values:
        """Return the values of a point."""
        return {
            path: values[position]
            for (path, values), position in zip(self.choices.items(), self.positions[row], strict=True)
        }


def scenario(seed: int) -> Scenario:
    """Return the scenario of that number.

    Families and machines alternate: any 16 consecutive numbers have each family on each machine.
    """
    return _scenario(seed, null=False)


def null_scenario(seed: int) -> Scenario:
    """Return the scenario of that number with knobs without effect: any improvement found there is false."""
    return _scenario(seed, null=True)


def _scenario(seed: int, *, null: bool) -> Scenario:
    family = tuple(FAMILIES)[seed % len(FAMILIES)]
    place = MACHINES[seed // len(FAMILIES) % len(MACHINES)]
    training = draw(np.random.default_rng(seed), FAMILIES[family], place)
    return Scenario(
        seed=seed,
        family=family,
        machine_name=place.name,
        machine=place.machine,
        config_text=config_of(training, place),
        place=place,
        training=training,
        null=null,
    )


def _springs(where: Kinds, kinds: Kinds) -> bool:
    return all(kinds[kind] == value for kind, value in where.items())


def config_of(training: Draw, place: SimulatedMachine) -> str:
    """Return the config of a training on a machine, with the choices that its knobs have there."""
    sections: dict[str, list[str]] = {}
    for kind, path in PATHS.items():
        section, _, key = path.partition(".")
        sections.setdefault(section, []).append(f"    {key}: {_yaml(training.baseline[kind])}")
    text = "".join(f"{section}:\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    domains = ""
    for kind in training.searched:
        choices = choices_of(kind, training.baseline, place, training.workload)
        domains += f"        {PATHS[kind]}: [{', '.join(map(_yaml, choices))}]\n"
    return f"""{text}autotune:
    command: "{{python}} train.py --config {{config}}"
    objective: throughput
    knobs:
{domains}"""


def _yaml(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _out_of_gpu_memory(is_torch: bool) -> str:
    traceback = 'Traceback (most recent call last):\n  File "train.py", line 131, in <module>\n    main()\n'
    if is_torch:
        return traceback + (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of "
            "23.65 GiB of which 1.12 GiB is free.\n"
        )
    return traceback + (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\n"
        "OOM when allocating tensor with shape[64,880,1024] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:__inference_train_step_4711]\n"
    )
