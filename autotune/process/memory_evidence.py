"""Evidence that memory ran out: the words of errors, and the kernel's count of the processes that it killed for it."""

import re
from pathlib import Path

# Allocators first: TensorFlow's ResourceExhaustedError is raised for the host's memory too, and says which it was.
HOST_MEMORY = re.compile(
    r"\bMemoryError\b|_ArrayMemoryError|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator"
    r"|by allocator (?:mkl)?cpu\b"
)
"""Words of errors that the host's memory ran out."""

GPU_MEMORY = re.compile(
    r"ResourceExhaustedError|RESOURCE_EXHAUSTED|CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|\bOutOfMemoryError\b"
)
"""Words of errors that a GPU's memory ran out."""

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Count the kills by the out-of-memory killer so far, in the smallest group around this process that is readable.

    That is the count of its control group (v2: ``memory.events``, v1: ``memory.oom_control``, both in the
    kernel's Documentation/admin-guide), which processes started by it share, else that of the whole machine.

    Args:
        proc: Mount point of procfs.
        cgroups: Mount point of the control groups.

    Returns:
        A number that only ever grows; None if none can be read.
    """
    for counter in (*_group_counters(proc, cgroups), proc / "vmstat"):
        try:
            found = _COUNT.search(counter.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return int(found[1])
    return None


def _group_counters(proc: Path, cgroups: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    counters: list[Path] = []
    for line in lines:
        # "0::/path" is version 2, "4:memory:/path" version 1; see cgroups(7).
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            folder, name = cgroups, "memory.events"
        elif "memory" in controllers.split(","):
            folder, name = cgroups / "memory", "memory.oom_control"
        else:
            continue
        # In a container the path may be the host's, while what is mounted is the container's own group.
        counters += [folder / group.lstrip("/") / name, folder / name]
    return counters
