"""Environment variables that ``autotune init`` suggests for a trainer whose config has no knobs."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from autotune.files import read_beginning
from autotune.records import Machine, Scalar
from autotune.settings.section import OfferedVariable

_READ_BYTES = 1 << 18
_IMPORT = re.compile(
    rb"^[ \t]*(?:import|from)[ \t]+(tensorflow|keras|torch|lightning|pytorch_lightning)\b", re.MULTILINE
)
_TENSORFLOW = {b"tensorflow", b"keras"}
_LIBRARY_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_NO_XLA, _XLA = "--tf_xla_auto_jit=0", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"


def environment_offers(
    argv: Sequence[str], environ: Mapping[str, str], machine: Machine, *, cwd: Path
) -> tuple[OfferedVariable, ...]:
    """Return the variables that a trainer may heed, judged by the frameworks that its script imports.

    Args:
        argv: The trainer's command; its script is read, never run.
        environ: The environment that the trainer will have: today's values.
        machine: The machine of the trials.
        cwd: The folder that trials start in.
    """
    cores = machine.cpu_cores
    if _frameworks(argv, cwd) & _TENSORFLOW:
        threads = tuple(dict.fromkeys((0, 1, max(1, cores // 2), cores)))
        offers = [
            _offer("TF_XLA_FLAGS", _NO_XLA, (_NO_XLA, _XLA), environ, "XLA for clusters of ops, of itself"),
            _offer("TF_NUM_INTRAOP_THREADS", 0, threads, environ, "threads inside one op; 0: TensorFlow's choice"),
            _offer("TF_NUM_INTEROP_THREADS", 0, threads, environ, "ops at the same time; 0: TensorFlow's choice"),
        ]
        if machine.gpus:
            modes = ("global", "gpu_private")
            offers.append(_offer("TF_GPU_THREAD_MODE", "global", modes, environ, "threads that launch kernels"))
        return tuple(offers)
    choices = tuple(dict.fromkeys((1, max(1, cores // 2), cores)))
    return tuple(_offer(name, cores, choices, environ, "threads of the numerical library") for name in _LIBRARY_THREADS)


def _offer(
    name: str, usual: Scalar, choices: tuple[Scalar, ...], environ: Mapping[str, str], note: str
) -> OfferedVariable:
    return OfferedVariable(name=name, baseline=environ.get(name, str(usual)), choices=choices, note=note)


def _frameworks(argv: Sequence[str], cwd: Path) -> set[bytes]:
    modules = [word.replace(".", "/") + ".py" for before, word in pairwise(argv) if before == "-m"]
    scripts = [*(word for word in argv if word.endswith(".py")), *modules][:1]
    return {name for script in scripts for name in _IMPORT.findall(read_beginning(cwd / script, _READ_BYTES))}
