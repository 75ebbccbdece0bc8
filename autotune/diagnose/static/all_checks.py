"""Entry to the static checks: all of them, one after the other, in seconds."""

from collections.abc import Callable, Mapping

from autotune.clock import Clock
from autotune.diagnose.findings import CheckResult
from autotune.diagnose.static.checks import STATIC_CHECKS
from autotune.diagnose.static.code_scan import CODE, check_code
from autotune.diagnose.static.config_keys import CONFIGURATION
from autotune.diagnose.static.configuration import check_configuration
from autotune.diagnose.static.framework import (
    FRAMEWORK,
    GRAPH,
    LOADER,
    check_framework,
    check_graph,
    check_native_loader,
)
from autotune.diagnose.static.hardware import HARDWARE, check_hardware
from autotune.diagnose.static.host_memory import MEMORY, check_memory
from autotune.diagnose.static.look import Look
from autotune.diagnose.static.storage import STORAGE, check_storage
from autotune.problem.problem import Problem

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
        clock: The machine's clock.
        is_run: See `Look`.
    """
    look = Look(problem=problem, clock=clock, is_run=is_run)
    return tuple(_FUNCTIONS[check.id](look) for check in STATIC_CHECKS)
