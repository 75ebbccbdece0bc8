"""The truth about a fake GPU: what the intervals say that tenants wrote with `BusyWriter`."""

from collections.abc import Collection, Iterator
from pathlib import Path

from tests.fake_nvml.busy_writer import RECORD


def busy_fraction(folder: Path, gpu: int, t0_s: float, t1_s: float, *, pids: Collection[int] | None = None) -> float:
    """The share of a stretch of monotonic time in which a kernel ran on a GPU, 0..1, exactly.

    Args:
        folder: The scenario's tenants folder.
        gpu: NVML index.
        t0_s: Start of the stretch.
        t1_s: Its end.
        pids: Whose kernels count; None for everybody's.
    """
    busy_s, reached_s = 0.0, t0_s
    for start_s, end_s in sorted(_kernels(folder, gpu, pids)):
        start_s, end_s = max(start_s, reached_s), min(end_s, t1_s)
        if end_s > start_s:
            busy_s, reached_s = busy_s + end_s - start_s, end_s
    return busy_s / (t1_s - t0_s)


def _kernels(folder: Path, gpu: int, pids: Collection[int] | None) -> Iterator[tuple[float, float]]:
    for path in folder.glob("*.busy"):
        if pids is not None and int(path.stem) not in pids:
            continue
        written = path.read_bytes()
        whole = len(written) - len(written) % RECORD.size  # a kill may have torn the last one
        for where, _holds, start_ns, end_ns, _memory_bytes in RECORD.iter_unpack(written[:whole]):
            if where == gpu:
                yield start_ns / 1e9, end_ns / 1e9
