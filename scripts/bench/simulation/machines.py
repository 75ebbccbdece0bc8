"""Simulated machines of the scenarios: their conditions, and the hardware that decides their speed."""

from dataclasses import dataclass

from autotune.records import Gpu, Machine
from scripts.bench.simulation.pipeline_model import Hardware

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class SimulatedMachine:
    """Machine with its visible conditions and its true speed.

    Attributes:
        name: Name in tables.
        machine: Conditions that a search knows of.
        hardware: Hardware that decides its speed.
        import_s: Time to import the trainer's frameworks in a fresh process.
        fork_s: Time to fork a process that has imported them.
    """

    name: str
    machine: Machine
    hardware: Hardware
    import_s: float
    fork_s: float


def _gpus(name: str, count: int, memory_bytes: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(name=name, uuid=f"GPU-00000000-0000-0000-0000-{index:012d}", memory_bytes=memory_bytes)
        for index in range(count)
    )


MACHINES: tuple[SimulatedMachine, ...] = (
    SimulatedMachine(
        name="2 cores, no GPU",
        machine=Machine(cpu_cores=2, cpu_model="simulated, 2 cores", memory_bytes=8 * _GIB, cpu_bfloat16=True),
        # Half precision as measured with TensorFlow 2.21: float16 is emulated, bfloat16 is not.
        hardware=Hardware(
            cores=2, memory_bytes=8 * _GIB, float16_speed=0.26, bfloat16_speed=1.28, disk_bytes_per_s=4e8
        ),
        import_s=5.8,
        fork_s=0.35,
    ),
    SimulatedMachine(
        name="8 cores, RTX 4090",
        machine=Machine(
            cpu_cores=8,
            cpu_model="simulated, 8 cores",
            memory_bytes=64 * _GIB,
            cpu_bfloat16=False,
            gpus=_gpus("NVIDIA GeForce RTX 4090", 1, 24 * _GIB),
        ),
        hardware=Hardware(
            cores=8,
            core_speed=1.3,
            memory_bytes=64 * _GIB,
            gpus=1,
            gpu_memory_bytes=24 * _GIB,
            float16_speed=2.2,
            bfloat16_speed=2.1,
            copy_bytes_per_s=12e9,
            disk_bytes_per_s=2e9,
        ),
        import_s=4.5,
        fork_s=0.25,
    ),
    SimulatedMachine(
        name="16 cores, A100",
        machine=Machine(
            cpu_cores=16,
            cpu_model="simulated, 16 cores",
            memory_bytes=128 * _GIB,
            cpu_bfloat16=True,
            gpus=_gpus("NVIDIA A100-SXM4-40GB", 1, 40 * _GIB),
        ),
        hardware=Hardware(
            cores=16,
            core_speed=0.9,
            memory_bytes=128 * _GIB,
            gpus=1,
            gpu_memory_bytes=40 * _GIB,
            float16_speed=2.6,
            bfloat16_speed=2.6,
            copy_bytes_per_s=15e9,
            disk_bytes_per_s=1e9,
        ),
        import_s=7.0,
        fork_s=0.4,
    ),
    SimulatedMachine(
        name="32 cores, 2 GPUs",
        machine=Machine(
            cpu_cores=32,
            cpu_model="simulated, 32 cores",
            memory_bytes=256 * _GIB,
            cpu_bfloat16=True,
            gpus=_gpus("NVIDIA L40S", 2, 48 * _GIB),
        ),
        hardware=Hardware(
            cores=32,
            core_speed=1.0,
            memory_bytes=256 * _GIB,
            gpus=2,
            gpu_memory_bytes=48 * _GIB,
            float16_speed=2.0,
            bfloat16_speed=2.0,
            copy_bytes_per_s=10e9,
            disk_bytes_per_s=2e9,
        ),
        import_s=6.5,
        fork_s=0.4,
    ),
)
"""Machines, from small to large."""
