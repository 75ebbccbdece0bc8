"""Reasons, for people, why a machine is not idle."""

from autotune.daemon.idle.reading import GpuProcess, GpuReading, MachineReading

_GIB = 1 << 30


def gpu_label(gpu: GpuReading) -> str:
    """Return the name of a GPU, or of an instance of one."""
    if gpu.index < 0:
        return f"GPU {gpu.uuid}"
    return f"GPU {gpu.index} ({gpu.uuid})" if gpu.uuid.startswith("MIG-") else f"GPU {gpu.index}"


def process_label(process: GpuProcess) -> str:
    """Return the name of a process."""
    return _named(process.name, process.pid)


def unknown(gpu: GpuReading) -> str:
    """Return the reason that nothing is known of a GPU."""
    return f"nothing is known of {gpu_label(gpu)}: {gpu.why_unknown}"


def in_use(gpu: GpuReading) -> str:
    """Return the reason that processes of others compute on a GPU."""
    more = len(gpu.neighbours) - 1
    others = f" and {more} more" if more else ""
    return f"{gpu_label(gpu)} is in use by {process_label(gpu.neighbours[0])}{others}"


def memory_held(gpu: GpuReading) -> str:
    """Return the reason that memory of a GPU is held by nobody who is listed."""
    held = (gpu.unlisted_bytes or 0) / _GIB
    return f"{held:.1f} GiB of {gpu_label(gpu)} are held by processes that the driver does not show"


def kernels_run(gpu: GpuReading) -> str:
    """Return the reason that kernels of others run on a GPU."""
    return f"{gpu_label(gpu)} is at work for others: kernels run {gpu.utilization or 0.0:.0%} of the time"


def cores_used(reading: MachineReading, cores: float) -> str:
    """Return the reason that others use so many cores."""
    used = f"others use {cores:.1f} of {reading.cores:g} cores"
    busiest = reading.busiest
    # One that uses less than half of it is not the reason.
    return f"{used}, {_named(busiest.name, busiest.pid)}" if busiest and busiest.cores >= cores / 2 else used


def _named(name: str | None, pid: int) -> str:
    # A process may call itself anything.
    clean = "".join(letter if letter.isprintable() else "?" for letter in name or "")
    return f"{clean} (process {pid})" if clean else f"process {pid}"
