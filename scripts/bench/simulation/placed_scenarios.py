"""Placed scenarios: trainings on two GPUs, whose data and model may be on one of them, or on one each.

The trainer obeys the keys for the GPU of the data and for that of the model as the reference trainer does: both null is
one GPU, two numbers are one each, and it refuses anything else.
"""

import json
from dataclasses import dataclass, replace

import numpy as np

from autotune.config.document import Document
from autotune.records import Gpu, Machine, Scalar, Values
from autotune.testing.simulated_runner import Training
from scripts.bench.simulation.machines import SimulatedMachine
from scripts.bench.simulation.pipeline_model import Hardware
from scripts.bench.simulation.priors import FAMILIES, Draw, Kinds, draw
from scripts.bench.simulation.scenarios import PATHS, Scenario

MODEL_GPU = "data.model_gpu"
"""Key that names the placement."""

DATA_GPU = "data.data_gpu"
"""Key that moves with it."""

DEPTH = PATHS["pipeline_buffer"]
"""Key of the depth of the buffer between the two GPUs."""

_PLACEMENTS: tuple[tuple[Scalar, Scalar], ...] = ((None, None), (0, 1), (1, 0))
_DEPTHS = (1, 2, 4, 8, 16)
_GIB = 2**30
_REFUSED = "Traceback (most recent call last):\nValueError: data_gpu and model_gpu: set both, to two GPUs, or none\n"


@dataclass(frozen=True, kw_only=True)
class PlacedScenario(Scenario):
    """Scenario on a machine with two GPUs, with a placement.

    Attributes:
        gpu_speeds: Speeds of the two GPUs.
        feature_share: Time of the features of a batch over that of its step, on equal GPUs.
    """

    gpu_speeds: tuple[float, float]
    feature_share: float

    def best_speed(self, values: Values) -> float:
        """Return the highest true speed of a point among all placements and depths, the rest as it is."""
        return max(self.placement_speed(values, model) for _, model in _PLACEMENTS)

    def worst_placement_speed(self, values: Values) -> float:
        """Return the lowest true speed of a point among all placements, with the best depth of each."""
        return min(self.placement_speed(values, model) for _, model in _PLACEMENTS)

    def placement_speed(self, values: Values, model: Scalar) -> float:
        """Return the true speed of a point with another placement and the best depth for it, the rest as it is."""
        return max(self.speed({**values, MODEL_GPU: model, DEPTH: depth}) for depth in _DEPTHS)

    def values(self, config_text: str) -> Values:
        """See `Scenario.values`."""
        config = Document.parse(config_text).data
        paths = (*(PATHS[kind] for kind in self.training.searched), MODEL_GPU)
        return {path: config[section][key] for path in paths for section, _, key in [path.partition(".")]}

    def _kinds(self, values: Values) -> Kinds:
        model = values.get(MODEL_GPU, self.training.baseline["model_gpu"])
        others = {path: value for path, value in values.items() if path != MODEL_GPU}
        return {**super()._kinds(others), "model_gpu": model}

    def _train(self, config_text: str, *, start_s: float) -> Training:
        data = Document.parse(config_text).data["data"]
        if (data["data_gpu"], data["model_gpu"]) not in _PLACEMENTS:
            return replace(self.training.habits, start_s=start_s, steps=0, exit_code=1, stderr=_REFUSED)
        return super()._train(config_text, start_s=start_s)


def placed_scenario(seed: int) -> PlacedScenario:
    """Return the placed scenario of that number; two in three have unlike GPUs."""
    rng = np.random.default_rng((seed, 5, 0))
    family = tuple(FAMILIES)[seed % len(FAMILIES)]
    speeds = (1.0, float(_between(rng, 0.4, 2.5)) if seed % 3 else 1.0)
    place = _machine(speeds)
    drawn = draw(rng, FAMILIES[family], place)
    share = float(_between(rng, 0.03, 2.0))
    batch = float(drawn.baseline["batch_size"] or 0)
    workload = drawn.workload
    step_s = workload.step_s * (1.0 + workload.filling / batch)
    data, model = _PLACEMENTS[int(rng.choice(3, p=(0.6, 0.2, 0.2)))]
    baseline = {**drawn.baseline, "pipeline_buffer": int(rng.choice((1, 2, 16))), "model_gpu": model}
    if "cache" not in FAMILIES[family].levers:
        baseline["cache"] = "none"  # a cache that the config does not show would be measured before it is filled
    training = replace(
        drawn,
        baseline=baseline,
        workload=replace(workload, gpu_transform_s=share * step_s, jitter=float(_between(rng, 0.1, 0.8))),
        searched=tuple(
            kind
            for kind in drawn.baseline
            if kind in ("workers", "prefetch", "pipeline_buffer", *FAMILIES[family].levers)
        ),
        traps=(),
    )
    return PlacedScenario(
        seed=seed,
        family=family,
        machine_name=place.name,
        machine=place.machine,
        config_text=_config(training, data, model),
        place=place,
        training=training,
        gpu_speeds=speeds,
        feature_share=share,
    )


def _config(training: Draw, data: Scalar, model: Scalar) -> str:
    """Return a config without a list of knobs, whose keys are the searched ones: the search finds them by name."""
    keys: dict[str, Scalar] = {PATHS[kind]: training.baseline[kind] for kind in training.searched}
    keys |= {DATA_GPU: data, MODEL_GPU: model}
    sections: dict[str, dict[str, Scalar]] = {}
    for path, value in keys.items():
        section, _, key = path.partition(".")
        sections.setdefault(section, {})[key] = value
    command = '"{python} train.py --config {config}"'
    lines = [f"{section}: {json.dumps(held)}" for section, held in sections.items()]
    return "\n".join(lines) + f"\nautotune:\n    command: {command}\n    objective: throughput\n"


def _machine(speeds: tuple[float, float]) -> SimulatedMachine:
    """Return a machine with two GPUs of these speeds."""
    names = ["simulated GPU" if speed == 1.0 else f"simulated GPU, {speed:.2f} times as fast" for speed in speeds]
    gpus = tuple(
        Gpu(name=name, uuid=f"GPU-00000000-0000-0000-0000-{place:012d}", memory_bytes=24 * _GIB)
        for place, name in enumerate(names)
    )
    return SimulatedMachine(
        name="16 cores, 2 GPUs",
        machine=Machine(cpu_cores=16, cpu_model="simulated, 16 cores", memory_bytes=128 * _GIB, gpus=gpus),
        hardware=Hardware(
            cores=16,
            memory_bytes=128 * _GIB,
            gpus=2,
            gpu_speeds=speeds,
            gpu_memory_bytes=24 * _GIB,
            float16_speed=2.2,
            bfloat16_speed=2.1,
        ),
        import_s=4.5,
        fork_s=0.25,
    )


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw from a log-uniform distribution."""
    return float(low * (high / low) ** rng.random())
