"""Classes of GPUs: the 16-bit types that they compute in, and a batch to begin with.

The types are from the CUDA C++ Programming Guide, "Compute Capabilities": tensor cores
compute in float16 since compute capability 7.0 (Volta, Turing), in bfloat16 since 8.0 (Ampere). The batch is a rule of
thumb and nothing measured: about one sample and a half for each GiB, a power of two.
"""

import re
from dataclasses import dataclass

from autotune.records import Gpu

_GIB = 1 << 30
_SAMPLES_PER_GIB = 1.5


@dataclass(frozen=True, kw_only=True)
class GpuClass:
    """Class of GPUs.

    Attributes:
        name: Its name, for people.
        models: Pattern of the names of its models, as the driver gives them.
        bfloat16: Whether its tensor cores compute in bfloat16.
        float16: Whether they compute in float16.
    """

    name: str
    models: str
    bfloat16: bool = True
    float16: bool = True


GPU_CLASSES: tuple[GpuClass, ...] = (
    GpuClass(name="H100 or H200", models=r"H[12]00|H20\b|GH200|B[12]00"),
    GpuClass(name="A100", models=r"A100|A800|A30\b"),
    GpuClass(name="L40 or RTX Ada", models=r"L40S?|L20|RTX \d000.*Ada"),
    GpuClass(name="A10 or L4", models=r"A10G?\b|A40|L4\b|RTX A\d000|A16\b|A2\b"),
    GpuClass(name="RTX 4090", models=r"RTX 4090"),
    GpuClass(name="RTX 3090", models=r"RTX 3090"),
    GpuClass(name="RTX 3060", models=r"RTX 3060"),
    GpuClass(name="GeForce RTX 30, 40 or 50", models=r"RTX [345]0\d0"),
    GpuClass(name="Turing or Volta", models=r"V100|TITAN (V|RTX)|T4\b|RTX 20\d0|Quadro RTX", bfloat16=False),
    GpuClass(
        name="GTX, Pascal or older",
        models=r"GTX|P100|P40\b|P4\b|K80|M60|TITAN X",
        bfloat16=False,
        float16=False,
    ),
)
"""Known classes; the first that fits counts."""


def gpu_class(gpu: Gpu) -> GpuClass | None:
    """Return the class of a GPU; None for one that is not known."""
    return next((one for one in GPU_CLASSES if re.search(one.models, gpu.name)), None)


def starting_batch(gpu: Gpu) -> int | None:
    """Return a batch to begin with on a GPU; None where the driver does not say how much memory it has."""
    samples = int((gpu.memory_bytes or 0) / _GIB * _SAMPLES_PER_GIB)
    return 1 << (samples.bit_length() - 1) if samples else None
