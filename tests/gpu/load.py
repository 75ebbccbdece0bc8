"""A load whose busy time is known, on a GPU: ``python load.py FRAMEWORK BUSY_MS IDLE_MS FILE``; see check.py.

It keeps the GPU busy for `BUSY_MS`, waits until it is idle, stays idle for `IDLE_MS`, and so on until it is killed.
Each stretch is a line of the file, in seconds of the monotonic clock: from before the first kernel was launched until
after the last one was waited for. Standard library only, but for the framework: ``torch``, ``tensorflow``, or ``fake``
for the tests' fake GPUs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

Burst = Callable[[int], None]  # so many kernels, one after the other, and the wait for them

_SIZE = 2048  # of the matrices: a product takes a fraction of a millisecond


def _torch() -> tuple[Burst, str]:
    import torch

    matrix = torch.randn(_SIZE, _SIZE, device="cuda")

    def burst(kernels: int) -> None:
        for _ in range(kernels):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    return burst, f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}"


def _tensorflow() -> tuple[Burst, str]:
    import tensorflow as tf

    (gpu,) = tf.config.list_physical_devices("GPU")[:1]
    tf.config.experimental.set_memory_growth(gpu, True)
    matrix = tf.random.normal((_SIZE, _SIZE))

    def burst(kernels: int) -> None:
        for _ in range(kernels):
            product = tf.linalg.matmul(matrix, matrix)
        product[0, 0].numpy()

    return burst, f"TensorFlow {tf.__version__} on {tf.config.experimental.get_device_details(gpu).get('device_name')}"


def _fake() -> tuple[Burst, str]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "fake_nvml"))
    from busy_writer import BusyWriter

    writer = BusyWriter(os.environ["AUTOTUNE_FAKE_NVML_TENANTS"])

    def burst(kernels: int) -> None:
        now_s = time.monotonic()
        writer.kernel(now_s, now_s + 1e-4 * kernels)
        time.sleep(max(0.0, now_s + 1e-4 * kernels - time.monotonic()))

    return burst, "a fake GPU"


FRAMEWORKS = {"torch": _torch, "tensorflow": _tensorflow, "fake": _fake}


def _kernels_of(burst: Burst, busy_s: float) -> int:
    """Return the number of kernels that take that long."""
    burst(20)  # the first ones load libraries
    kernels = 20
    while True:
        began_s = time.monotonic()
        burst(kernels)
        took_s = time.monotonic() - began_s
        if took_s > busy_s / 2:
            return max(1, round(kernels * busy_s / took_s))
        kernels *= 2


def main(framework: str, busy_s: float, idle_s: float, file: Path) -> None:
    """Works until it is killed."""
    burst, device = FRAMEWORKS[framework]()
    kernels = _kernels_of(burst, busy_s)
    with file.open("w", encoding="ascii", buffering=1) as lines:
        lines.write(json.dumps({"device": device}) + "\n")
        while True:
            began_s = time.monotonic()
            burst(kernels)
            lines.write(json.dumps([began_s, time.monotonic()]) + "\n")
            time.sleep(idle_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) / 1e3, float(sys.argv[3]) / 1e3, Path(sys.argv[4]))
