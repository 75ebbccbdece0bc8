"""The GPUs of this machine; or why there are none, and what to do about it."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from autotune.errors import GpuError
from autotune.gpu.driver import GpuInventory, gpus

_PATIENCE_S = 10.0

Answer = TypeVar("Answer")


def look_for_gpus() -> GpuInventory:
    """Lists the GPUs that the driver knows, or says why there are none; waits for a driver for 10 s at most."""
    found = in_time(gpus)
    if found is not None:
        return found
    return GpuInventory(
        gpus=(),
        why_none=f"the NVIDIA driver has not answered for {_PATIENCE_S:.0f} s",
        remedy="`dmesg` may say why; a driver that hangs in the kernel goes with a reboot only.",
    )


def present_gpus() -> GpuInventory:
    """The same, of a machine that has GPUs.

    Raises:
        GpuError: There is none, or no driver that works, or it does not answer: what, and what helps.
    """
    found = look_for_gpus()
    if found.why_none:
        raise GpuError(found.why_none, remedy=found.remedy or "")
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
