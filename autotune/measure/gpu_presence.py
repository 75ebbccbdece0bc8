"""The GPUs of this machine; or why there are none, and what to do about it."""

import queue
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from autotune.errors import GpuError
from autotune.measure.gpu_errors import NO_LIBRARY, DriverError
from autotune.measure.nvml import Driver, GpuFacts, gpus

_PATIENCE_S = 10.0

_REMEDY = "See whether `nvidia-smi` works in this very shell."
_REMEDIES: Mapping[int, str] = MappingProxyType(
    {
        4: "Ask whoever runs the machine for access to /dev/nvidia*; in a container, start it with `--gpus all`.",
        9: "Load it (`sudo modprobe nvidia`), and see with `nvidia-smi` whether that worked.",
        NO_LIBRARY: (
            "Install NVIDIA's driver. A container has to be started with `--gpus all` (NVIDIA Container Toolkit). "
            "Under WSL2, install the driver in Windows and put /usr/lib/wsl/lib on LD_LIBRARY_PATH."
        ),
        15: "`nvidia-smi` and `dmesg` (lines with Xid) say more; the machine may need a reboot.",
        16: "Reset it with `sudo nvidia-smi --gpu-reset`, once nobody uses it; else reboot.",
        18: "The driver was updated while it was in use: reboot, or unload and load its kernel modules.",
    }
)
"""By the driver's own code; see gpu_errors.py."""

Answer = TypeVar("Answer")


def present_gpus() -> tuple[GpuFacts, ...]:
    """Lists the GPUs that the driver knows, at least one.

    Raises:
        GpuError: There is none, or no driver that works, or it has not answered for 10 s: what, and what helps.
    """

    def ask() -> tuple[GpuFacts, ...]:
        try:
            Driver().close()
        except DriverError as error:
            raise GpuError(error.for_people, remedy=_REMEDIES.get(error.code, _REMEDY)) from error
        found = gpus()
        if found.why_none:
            raise GpuError(found.why_none, remedy=_REMEDY)
        return found.gpus

    found = in_time(ask)
    if found is None:
        raise GpuError(
            f"the NVIDIA driver has not answered for {_PATIENCE_S:.0f} s",
            remedy="`dmesg` may say why; a driver that hangs in the kernel goes with a reboot only.",
        )
    return found


def in_time(question: Callable[[], Answer]) -> Answer | None:
    """Asks in a thread that is left behind if there is no answer in time; None then. What it raises comes out."""
    answers: queue.SimpleQueue[tuple[Answer | None, BaseException | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except BaseException as error:  # noqa: BLE001 -- raised again by who asked
            answers.put((None, error))

    threading.Thread(target=ask, name="gpu-presence", daemon=True).start()
    try:
        answer, error = answers.get(timeout=_PATIENCE_S)
    except queue.Empty:
        return None
    if error is not None:
        raise error
    return answer
