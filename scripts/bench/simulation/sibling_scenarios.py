"""Siblings of a scenario: the same training on another machine, and another training that looks the same."""

from dataclasses import replace

import numpy as np

from autotune.records import Machine
from scripts.bench.simulation.machines import MACHINES, SimulatedMachine
from scripts.bench.simulation.pipeline_model import Hardware, Workload
from scripts.bench.simulation.priors import FAMILIES, draw
from scripts.bench.simulation.scenarios import Scenario, config_of

_GIB = 2**30
_DEVICE_SPEEDS = (0.5, 2.0)  # of the other machine's GPUs, relative to the scenario's
_CORE_SPEEDS = (0.8, 1.4)
_MOST_DRAWS = 100


def on_another_machine(one: Scenario) -> Scenario:
    """Return the same training, with the same config, on a machine of another class that can run it.

    A GPU is replaced by one of another machine, whose step takes half to twice the time; a machine without one by one
    with other cores and memory. What limits the training there may be something else.
    """
    rng = np.random.default_rng((one.seed, 3, 0))
    for _ in range(_MOST_DRAWS):
        place, device_speed = _other_place(rng, one.place), _between(rng, *_DEVICE_SPEEDS)
        workload = one.training.workload
        if place.hardware.gpus:
            workload = _on_faster_device(workload, device_speed)
        other = _moved(one, place, workload)
        if other.speed({}) > 0.0:
            return other
    raise ValueError(f"scenario {one.seed} runs on no other machine")


def another_training(one: Scenario) -> Scenario:
    """Return a scenario with the same config on the same machine, whose model and data are of another kind."""
    rng = np.random.default_rng((one.seed, 4, 0))
    others = [family for name, family in FAMILIES.items() if name != one.family]
    for _ in range(_MOST_DRAWS):
        drawn = draw(rng, others[int(rng.integers(len(others)))], one.place)
        longest = one.training.workload.longest  # it decides which knobs there are
        other = _moved(one, one.place, replace(drawn.workload, longest=longest))
        if other.speed({}) > 0.0:
            return other
    raise ValueError(f"no other training has the config of scenario {one.seed}")


def _moved(one: Scenario, place: SimulatedMachine, workload: Workload) -> Scenario:
    training = replace(one.training, workload=workload)
    return Scenario(
        seed=one.seed,
        family=one.family,
        machine_name=place.name,
        machine=place.machine,
        config_text=config_of(training, place),
        place=place,
        training=training,
    )


def _other_place(rng: np.random.Generator, place: SimulatedMachine) -> SimulatedMachine:
    if place.hardware.gpus:
        others = [other for other in MACHINES if other.hardware.gpus and other.name != place.name]
        return others[int(rng.integers(len(others)))]
    cores = int(rng.choice((4, 8, 16)))
    memory_bytes = 4 * cores * _GIB
    hardware: Hardware = replace(
        place.hardware, cores=cores, core_speed=_between(rng, *_CORE_SPEEDS), memory_bytes=memory_bytes
    )
    name = f"{cores} cores, no GPU"
    machine = Machine(
        cpu_cores=cores, cpu_model=f"simulated, {cores} cores", memory_bytes=memory_bytes, cpu_bfloat16=True
    )
    return replace(place, name=name, machine=machine, hardware=hardware)


def _on_faster_device(workload: Workload, speed: float) -> Workload:
    return replace(workload, step_s=workload.step_s / speed, gpu_transform_s=workload.gpu_transform_s / speed)


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw from a log-uniform distribution."""
    return float(low * (high / low) ** rng.random())
