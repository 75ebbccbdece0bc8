"""Problems made of a text, for tests of checks that look at a config."""

from pathlib import Path

from autotune.records import Gpu, Machine
from autotune.search.problem import Problem, open_problem

GIB = 1 << 30
CPU = Machine(cpu_cores=2, cpu_model="Some CPU", memory_bytes=8 * GIB)
CORES = Machine(cpu_cores=16, cpu_model="Some CPU", memory_bytes=64 * GIB, cpu_bfloat16=True)


def with_gpus(*names: str, memory_gib: int = 24, cores: int = 16) -> Machine:
    """Return a machine with these GPUs."""
    gpus = tuple(Gpu(name=name, uuid=f"GPU-{place}", memory_bytes=memory_gib * GIB) for place, name in enumerate(names))
    return Machine(cpu_cores=cores, cpu_model="Some CPU", memory_bytes=64 * GIB, gpus=gpus)


def problem_of(folder: Path, config: str, *, machine: Machine = CPU, trainer: str | None = None) -> Problem:
    """Return a problem of a config on a machine, with a trainer of this text where one is given."""
    path = folder / "config.yaml"
    path.write_text(config)
    command = None
    if trainer is not None:
        (folder / "train.py").write_text(trainer)
        command = ["python", str(folder / "train.py"), "--config", "{config}"]
    return open_problem(path, command=command, state_dir=folder / "state", machine=machine)
