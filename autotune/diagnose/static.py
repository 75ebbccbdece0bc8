"""Entry to the static checks: all of them, one after the other, in seconds."""

from collections.abc import Callable, Mapping

from autotune.clock import Clock
from autotune.diagnose.code_scan import CODE, check_code
from autotune.diagnose.config_checks import check_configuration
from autotune.diagnose.config_keys import CONFIGURATION
from autotune.diagnose.findings import Check, CheckResult
from autotune.diagnose.framework import FRAMEWORK, GRAPH, LOADER, check_framework, check_graph, check_native_loader
from autotune.diagnose.hardware import HARDWARE, MEMORY, check_hardware, check_memory
from autotune.diagnose.look import Look
from autotune.diagnose.storage import STORAGE, check_storage
from autotune.messages import _
from autotune.search.problem import Problem

_FUNCTIONS: Mapping[str, Callable[[Look], CheckResult]] = {
    HARDWARE: check_hardware,
    FRAMEWORK: check_framework,
    MEMORY: check_memory,
    STORAGE: check_storage,
    CONFIGURATION: check_configuration,
    CODE: check_code,
    GRAPH: check_graph,
    LOADER: check_native_loader,
}


def static_checks(problem: Problem | None, clock: Clock, *, is_run: bool = False) -> tuple[CheckResult, ...]:
    """Return the results of all static checks, in the order of their table; no training is started.

    It takes 10 s where TensorFlow is imported for it, and at most half a minute.

    Args:
        problem: What is diagnosed; None for this machine and this installation alone.
    """
    look = Look(problem=problem, clock=clock, is_run=is_run)
    return tuple(_FUNCTIONS[check.id](look) for check in STATIC_CHECKS)


# Table of the static checks, in the order in which they are shown.


STATIC_CHECKS: tuple[Check, ...] = (
    Check(
        id="hardware",
        question=_("Are the GPUs there, free, and not held down?"),
        how="the driver is asked: clocks, power limit, lanes to the host, persistence, who computes on them",
        threshold="heat and power brakes (autotune/measure/gpu/driver.py); less power than it came with; fewer lanes "
        "than the link could have (NVML's current and largest width)",
    ),
    Check(
        id="framework",
        question=_("Does the framework load, and see the GPUs?"),
        how="a child of the trainer's interpreter imports it and asks",
        threshold="no GPU seen where the driver has one",
    ),
    Check(
        id="memory",
        question=_("Is there memory for a training?"),
        how="the kernel and the cgroup are asked, and who had to wait for memory in the last 10 s",
        threshold="less than 2 GiB or a tenth; waiting for 10 % of the time; /dev/shm below 1 GiB where PyTorch's "
        "workers need it (PyTorch's README, Docker image)",
    ),
    Check(
        id="storage",
        question=_("Is the dataset near, and fast to read?"),
        how="paths of the config that exist: their file system, disk, size; a sample is read, 2 s or 256 MiB",
        threshold="below 150 MB/s and below 200 files/s from the disk, which is what one that rotates gives; a network",
    ),
    Check(
        id="configuration",
        question=_("Is the config free of mistakes, and does it suit this machine?"),
        how="its values are read, and compared with the known knobs and with this machine's cores and GPUs",
        threshold="config_checks.py and config_for_machine.py name each with its source",
    ),
    Check(
        id="code",
        question=_("Is there slow code in the trainer's own sources?"),
        how="the script that the command starts, and the modules beside it that it imports, are read, not imported",
        threshold="what a rule knows, in code that training reaches; autotune/diagnose/code_scan.py names each",
    ),
    Check(
        id="graph-and-xla",
        question=_("Do graph mode and XLA work here?"),
        how="a child of the trainer's interpreter compiles a small function both ways",
        threshold="an error, or no answer within 25 s",
    ),
    Check(
        id="native-loader",
        question=_("Can TensorFlow decode the dataset by itself?"),
        how="the same child decodes one audio, image or record file of the dataset",
        threshold="an error",
    ),
)
