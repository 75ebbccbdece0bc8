"""Check of the host's memory: what is free of it, swap, a cgroup's limit, and the shared memory of loaders."""

import shutil
from collections.abc import Iterator

from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.messages.message import said
from autotune.diagnose.static.config_keys import of_kind
from autotune.diagnose.static.look import Look
from autotune.measure.host import MemoryState, memory_state

MEMORY = "memory"
_GIB = 1 << 30
_LEAST_SHARE = 0.1
_LEAST_BYTES = 2 * _GIB  # a framework with its libraries takes half a GiB to two
_PRESSURE = 0.1  # share of time in which some process waits for memory
_SHARED = "/dev/shm"  # noqa: S108 -- it is looked at, and nothing made in it
_SHARED_BYTES = _GIB  # Docker gives 64 MiB; PyTorch's README asks for --ipc=host or --shm-size


def check_memory(look: Look) -> CheckResult:
    """Look at the memory that a training may have.

    Args:
        look: What is diagnosed.
    """
    state = memory_state()
    limit = ""
    if state.limit_bytes is not None:
        limit = said("memory.limit", ", a limit of {limit}", limit=_gib(state.limit_bytes))
    sentence = said(
        "memory.available",
        "{available} of {total} available{limit}",
        available=_gib(state.available_bytes),
        total=_gib(state.total_bytes),
        limit=limit,
    )
    return CheckResult(check=MEMORY, issues=(*_of_state(state), *_shared_memory(look)), sentence=sentence)


def _of_state(state: MemoryState) -> Iterator[Issue]:
    numbers = {"available_bytes": float(state.available_bytes), "total_bytes": float(state.total_bytes)}
    if state.available_bytes < max(_LEAST_BYTES, _LEAST_SHARE * state.total_bytes):
        host = said("memory.of-host", "of the host's memory")
        of = said("memory.of-cgroup", "of the limit of its cgroup") if state.limit_bytes is not None else host
        yield Issue(
            check=MEMORY,
            severity=Severity.WARNING,
            sentence=said(
                "memory.little",
                "{available} {of}, {total}, are left for a training.",
                available=_gib(state.available_bytes),
                of=of,
                total=_gib(state.total_bytes),
            ),
            numbers=numbers,
            limit=Limit.MEMORY,
            recommendations=(
                Recommendation(
                    sentence=said("memory.end-others", "End what else runs here, or give the container more memory.")
                ),
            ),
        )
    if state.pressure is not None and state.pressure > _PRESSURE:
        swap = ""
        if state.swap_used_bytes:
            swap = said("memory.swapped", " {size} are swapped out.", size=_gib(state.swap_used_bytes))
        yield Issue(
            check=MEMORY,
            severity=Severity.WARNING,
            sentence=said(
                "memory.pressure",
                "Processes waited for memory in {pressure:.0%} of the last 10 s.{swap}",
                pressure=state.pressure,
                swap=swap,
            ),
            numbers={**numbers, "swap_used_bytes": float(state.swap_used_bytes), "pressure_fraction": state.pressure},
            limit=Limit.MEMORY,
            recommendations=(
                Recommendation(sentence=said("memory.fewer-workers", "End what takes it, or use fewer workers.")),
            ),
        )


def _shared_memory(look: Look) -> Iterator[Issue]:
    """Yield shared memory that is too small for the workers of PyTorch's loader, which die of a bus error then."""
    if look.problem is None or "torch" not in look.problem.frameworks:
        return
    if not any(isinstance(key.value, int) and key.value > 0 for key in of_kind(look.problem, "workers")):
        return
    try:
        size = shutil.disk_usage(_SHARED).total
    except OSError:
        return
    if size < _SHARED_BYTES:
        yield Issue(
            check=MEMORY,
            severity=Severity.WARNING,
            sentence=said(
                "memory.shared",
                "{folder} holds {size:.0f} MiB: workers of PyTorch's loader send batches through it.",
                folder=_SHARED,
                size=size / 2**20,
            ),
            numbers={"shared_memory_bytes": float(size)},
            limit=Limit.MEMORY,
            recommendations=(
                Recommendation(sentence=said("memory.ipc", "Start the container with --ipc=host, or --shm-size=8g.")),
            ),
        )


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
