"""Scenarios: simulated trainers with known truth, on which a search is judged.

A scenario is a config, its machine, and a trainer that `scripts.bench.simulation.pipeline_model` stands for. The
search observes what it would of a real one: a config file, steps, endings, probes. Only the benchmark knows the truth.

A training is drawn in proportions first (share of launch overhead in a step, speedup of native loading), then scaled
so that the baseline has the time and the bottleneck of its family.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from autotune.clock import VirtualClock
from autotune.config.document import Document
from autotune.records import Machine, Scalar, Values
from autotune.space.catalog import KNOWN_KNOBS
from autotune.space.knob import with_baseline
from autotune.trial.instruments import Instruments
from scripts.bench.simulated_runner import (
    Drift,
    PhaseTimes,
    SimulatedGpuProbe,
    SimulatedHostProbe,
    SimulatedRunner,
    Training,
)
from scripts.bench.simulation.pipeline_model import MACHINES, Options, Pace, SimulatedMachine, Workload, coded, predict

Kinds = Mapping[str, Scalar]
"""Values by kind of knob (a row of `autotune.space.catalog`)."""

_ROWS = {row.kind: row for row in KNOWN_KNOBS}
_ALWAYS = ("batch_size", "workers", "prefetch")
_FEWEST_POINTS, _MOST_POINTS = 300, 50_000


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of bottleneck.

    Attributes:
        load_to_step: Range of the loader's time over the step's, at the baseline.
        largest_batch: Range of the largest batch that memory allows, over the baseline's.
        filling: Range of the batch at which the device works at half its rate, over the baseline's.
        levers: Kinds of knobs that a config of this family always has.
    """

    load_to_step: tuple[float, float]
    largest_batch: tuple[float, float]
    filling: tuple[float, float]
    levers: tuple[str, ...]


FAMILIES: Mapping[str, Family] = {
    "input-bound": Family(
        load_to_step=(1.5, 5.0), largest_batch=(12.0, 80.0), filling=(0.1, 0.8), levers=("native_loading", "cache")
    ),
    "compute-bound": Family(
        load_to_step=(0.08, 0.45), largest_batch=(8.0, 60.0), filling=(0.2, 1.5), levers=("xla", "precision")
    ),
    "memory-bound": Family(
        load_to_step=(0.1, 0.5), largest_batch=(1.4, 3.6), filling=(1.0, 3.0), levers=("precision", "xla")
    ),
    "mixed": Family(
        load_to_step=(0.5, 2.0), largest_batch=(4.0, 30.0), filling=(0.2, 1.5), levers=("native_loading", "precision")
    ),
}
"""Families in the order in which scenarios cycle through them."""


@dataclass(frozen=True, kw_only=True)
class Trap:
    """Combination of values that breaks the trainer.

    Attributes:
        where: The values, by kind of knob.
        stderr: Last output of the trainer; None where it continues with NaN losses.
    """

    where: Kinds
    stderr: str | None


_TRAPS = (
    Trap(where={"precision": "mixed_float16"}, stderr=None),
    Trap(
        where={"xla": True, "precision": "mixed_float16"},
        stderr="tensorflow.python.framework.errors_impl.InvalidArgumentError: Detected unsupported operations when "
        "trying to compile graph on XLA_GPU_JIT: CTCLossV2\n",
    ),
    Trap(
        where={"cache": "disk", "native_loading": False},
        stderr="Traceback (most recent call last):\nTypeError: cannot pickle '_io.BufferedReader' object\n",
    ),
    Trap(
        where={"graph_mode": True, "length_buckets": True},
        stderr="Traceback (most recent call last):\nValueError: tf.function only supports singleton tf.Variables "
        "created on the first call.\n",
    ),
    Trap(
        where={"prefetch": 0, "prefetch_to_gpu": True},
        stderr="Traceback (most recent call last):\nValueError: `buffer_size` must be at least 1, got 0\n",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One training, as drawn.

    Attributes:
        baseline: Values of its baseline, by kind of knob.
        setup_s: Time from the end of imports to the start of the first step.
        habits: Variation of its steps; the other fields come from the model.
    """

    baseline: Kinds
    searched: tuple[str, ...]
    workload: Workload
    setup_s: float
    habits: Training
    drift: Drift
    traps: tuple[Trap, ...]


def draw(rng: np.random.Generator, family: Family, place: SimulatedMachine) -> Draw:
    """Draw a training of a family for a machine."""
    baseline = _baseline(rng, place)
    proportions = _proportions(rng, family, place, baseline)
    step_s = _between(rng, 0.015, 0.35)
    workload = _scaled(
        proportions, place, baseline, compute_s=step_s, load_s=step_s * _between(rng, *family.load_to_step)
    )
    workload = _with_data(rng, workload, place, baseline)
    workload = _with_memory(
        workload, place, baseline, float(baseline["batch_size"] or 0) * _between(rng, *family.largest_batch)
    )
    return Draw(
        baseline=baseline,
        searched=_searched(rng, family, place, baseline, workload),
        workload=workload,
        setup_s=rng.uniform(1.0, 3.0) if place.hardware.gpus else rng.uniform(0.2, 1.2),
        habits=_habits(rng, workload),
        drift=_drift(rng, place),
        traps=_traps(rng, baseline),
    )


def pace_of(values: Kinds, workload: Workload, place: SimulatedMachine) -> Pace:
    """Return the model's prediction for one point."""
    options = Options(**{kind: np.asarray(coded(value)) for kind, value in values.items()})
    return predict(options, workload, place.hardware)


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw from a log-uniform distribution."""
    return float(low * (high / low) ** rng.random())


def _chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def _pick(rng: np.random.Generator, *values: int) -> int:
    return int(rng.choice(values))


def _baseline(rng: np.random.Generator, place: SimulatedMachine) -> Kinds:
    """Draw a baseline as people have it: defaults mostly, with a few values that somebody has tuned."""
    cores, gpus = place.hardware.cores, place.hardware.gpus
    graph_mode = _chance(rng, 0.7)
    fixed_length = _chance(rng, 0.25)
    return {
        "batch_size": _pick(rng, 8, 16, 32),
        "workers": _pick(rng, *(count for count in (1, 2, 4) if count <= cores)),
        "prefetch": _pick(rng, 0, 1, 1, 2),
        "native_loading": _chance(rng, 0.2),
        "cache": "memory" if _chance(rng, 0.1) else "none",
        "length_buckets": _chance(rng, 0.15),
        "fixed_length": fixed_length,
        "graph_mode": graph_mode,
        "xla": graph_mode and fixed_length and _chance(rng, 0.3),
        "precision": "mixed_bfloat16" if gpus and _chance(rng, 0.2) else "float32",
        "prefetch_to_gpu": bool(gpus) and _chance(rng, 0.2),
        "pipeline_buffer": 0,
        "inter_op_threads": 0,
        "intra_op_threads": 0,
    }


def _proportions(rng: np.random.Generator, family: Family, place: SimulatedMachine, baseline: Kinds) -> Workload:
    """Draw a workload in proportions: the step works 1 s a batch, native loading takes 1 s a sample."""
    batch = float(baseline["batch_size"] or 0)
    has_gpu = place.hardware.gpus > 0
    processes = _chance(rng, 0.4)
    filling = batch * _between(rng, *family.filling)
    work_s = 1.0 / (batch + filling)
    graph_s = _between(rng, 0.04, 0.4) if has_gpu else _between(rng, 0.02, 0.1)
    return Workload(
        dataset_samples=1,
        sample_bytes=1.0,
        longest=1.0 if _chance(rng, 0.25) else rng.uniform(1.3, 2.5),
        python_s=_between(rng, 1.4, 5.0),
        native_s=1.0,
        locked_share=0.0 if processes else rng.uniform(0.5, 1.0),
        read_wait_s=_between(rng, 0.2, 2.0) if _chance(rng, 0.3) else 0.0,
        cached_share=rng.uniform(0.02, 0.25),
        batch_s=_between(rng, 0.1, 1.0),
        step_s=work_s,
        filling=filling,
        parallel_share=rng.uniform(0.85, 0.98),
        half_share=rng.uniform(0.3, 0.9),
        xla_time=rng.uniform(0.75, 1.05),
        eager_launch_s=graph_s * _between(rng, 2.5, 7.0),
        graph_launch_s=graph_s,
        xla_launch_s=graph_s * rng.uniform(0.1, 0.4),
        gpu_transform_s=work_s * rng.uniform(0.1, 0.5) if place.hardware.gpus > 1 else 0.0,
        worker_bytes=4e8 if processes else 0.0,
        trace_s=rng.uniform(0.3, 2.0),
        compile_s=_between(rng, 3.0, 25.0) if has_gpu else _between(rng, 0.6, 4.0),
    )


def _scaled(
    workload: Workload, place: SimulatedMachine, baseline: Kinds, *, compute_s: float, load_s: float
) -> Workload:
    """Scale a workload to these times at the baseline: the parts of the step alike, and those of the loader."""
    pace = pace_of(baseline, workload, place)
    step, load = compute_s / float(pace.compute_s), load_s / float(pace.load_s)
    return replace(
        workload,
        step_s=workload.step_s * step,
        eager_launch_s=workload.eager_launch_s * step,
        graph_launch_s=workload.graph_launch_s * step,
        xla_launch_s=workload.xla_launch_s * step,
        gpu_transform_s=workload.gpu_transform_s * step,
        python_s=workload.python_s * load,
        native_s=workload.native_s * load,
        read_wait_s=workload.read_wait_s * load,
        batch_s=workload.batch_s * load,
    )


def _with_data(rng: np.random.Generator, workload: Workload, place: SimulatedMachine, baseline: Kinds) -> Workload:
    """Draw the size of samples and the length of epochs."""
    epoch_s = _between(rng, 4.0, 400.0)
    # A copy to the GPU takes up to a quarter of the step.
    copied_bytes = rng.uniform(0.01, 0.25) * place.hardware.copy_bytes_per_s
    step_s = float(pace_of(baseline, workload, place).step_s)
    batch = float(baseline["batch_size"] or 0)
    samples = math.ceil(batch * max(5.0, epoch_s / step_s))
    # What is kept in memory today fits into it; else it may be more than there is.
    most_bytes = (0.3 if baseline["cache"] == "memory" else 3.0) * place.hardware.memory_bytes
    sample_bytes = min(copied_bytes * step_s / batch, most_bytes / samples, _between(rng, 5e4, 4e6))
    return replace(workload, dataset_samples=samples, sample_bytes=sample_bytes)


def _with_memory(workload: Workload, place: SimulatedMachine, baseline: Kinds, largest_batch: float) -> Workload:
    """Scale the activations so that a batch of that size fits, in float32 and with the baseline's other values."""
    hardware = place.hardware
    empty = pace_of({**baseline, "batch_size": largest_batch, "precision": "float32"}, workload, place)
    free = (
        0.9 * hardware.gpu_memory_bytes - float(empty.gpu_bytes)
        if hardware.gpus
        else 0.9 * hardware.memory_bytes - float(empty.host_bytes)
    )
    model = 0.1 * hardware.gpu_memory_bytes if hardware.gpus else 0.05 * hardware.memory_bytes
    activation_bytes = (free - model) / (largest_batch * workload.longest)
    return replace(workload, model_bytes=model, activation_bytes=max(workload.sample_bytes, activation_bytes))


def _searched(
    rng: np.random.Generator, family: Family, place: SimulatedMachine, baseline: Kinds, workload: Workload
) -> tuple[str, ...]:
    """Draw the knobs of the config: the family's levers, and others as long as the space can be enumerated."""
    most = _between(rng, _FEWEST_POINTS, _MOST_POINTS)
    others = [kind for kind in baseline if kind not in (*_ALWAYS, *family.levers)]
    rng.shuffle(others)
    chosen: list[str] = []
    points = 1
    for kind in (*_ALWAYS, *family.levers, *others):
        choices = len(choices_of(kind, baseline, place, workload))
        if choices > 1 and (kind in _ALWAYS or points * choices <= _MOST_POINTS) and (points < most or points < 200):
            chosen.append(kind)
            points *= choices
    return tuple(kind for kind in baseline if kind in chosen)


def choices_of(kind: str, baseline: Kinds, place: SimulatedMachine, workload: Workload) -> tuple[Scalar, ...]:
    """Return the choices that the catalog proposes for a knob, the baseline's value included."""
    if kind in ("length_buckets", "fixed_length") and workload.longest == 1.0:
        return (baseline[kind],)  # such trainers have no such keys
    choices, _ = with_baseline(_ROWS[kind].domain(baseline[kind], place.machine), baseline[kind])
    return choices


def _habits(rng: np.random.Generator, workload: Workload) -> Training:
    return Training(
        noise=0.03 + 0.07 * rng.beta(2.5, 1.0),  # 8 % on average
        step_noise=rng.uniform(0.02, 0.08),
        autocorrelation=0.95 * rng.beta(1.5, 1.7),  # integrated time 2.6 in the median, about 10 at p90
        long_steps=rng.uniform(0.0, 0.015),
        long_step=rng.uniform(2.0, 5.0),
        warm_up=rng.uniform(0.2, 1.0),
        work_spread=min(0.45, (workload.longest - 1.0) / 3.0),
        crash_chance=0.005,
        hang_chance=0.005,
        loss=1.0,
    )


def _drift(rng: np.random.Generator, place: SimulatedMachine) -> Drift:
    return Drift(
        spread=rng.uniform(0.01, 0.04) if _chance(rng, 0.5) else 0.0,
        throttles_per_h=rng.uniform(2.0, 6.0) if place.hardware.gpus and _chance(rng, 0.3) else 0.0,
    )


def _traps(rng: np.random.Generator, baseline: Kinds) -> tuple[Trap, ...]:
    """Draw the combinations that do not work, in half of all trainers; never the baseline."""
    if _chance(rng, 0.5):
        return ()
    trap = _TRAPS[int(rng.integers(len(_TRAPS)))]
    return () if all(baseline[kind] == value for kind, value in trap.where.items()) else (trap,)


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
        machine: Conditions that a search knows of; for `autotune.search.problem.open_problem`.
        config_text: The config, with the trainer's command and the domains of its knobs.
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
        import_s = self.place.import_s if fresh_processes else self.place.fork_s
        # Repeats and pairs run the same texts again, and reading one takes longer than simulating its trial.
        train = cache(partial(self._train, start_s=import_s + self.training.setup_s))
        return SimulatedRunner(clock, train, seed=seed, drift=self.training.drift)

    def instruments(self, runner: SimulatedRunner) -> Instruments:
        """Return the instruments of one trial of that runner; a `Tuner` takes ``lambda: one.instruments(runner)``."""
        return Instruments(SimulatedHostProbe(runner), SimulatedGpuProbe(runner) if self.machine.gpus else None)

    def values(self, config_text: str) -> Values:
        """Return the values of a config, by key path."""
        config = Document(config_text).data
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
