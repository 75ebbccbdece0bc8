"""Discovery of the GPUs of this machine, or of the reason why there are none and its remedy."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from autotune.errors import GpuError
from autotune.gpu.driver import GpuInventory, gpus

TIME_LIMIT_S = 10.0
"""Longest wait for an answer of the driver."""

Answer = TypeVar("Answer")


def look_for_gpus() -> GpuInventory:
    """Return the GPUs that the driver knows, or the reason why there are none, within 10 s."""
    found = in_time(gpus)
    if found is not None:
        return found
    return GpuInventory(
        gpus=(),
        why_none=f"the NVIDIA driver has not answered for {TIME_LIMIT_S:.0f} s",
        remedy="`dmesg` may say why. It may be that it hangs in the kernel: then only a reboot helps.",
    )


def present_gpus() -> GpuInventory:
    """Return the GPUs that the driver knows, at least one.

    Raises:
        GpuError: There is none, or no driver that works, or it does not answer; with the remedy.
    """
    found = look_for_gpus()
    if found.why_none:
        raise GpuError(found.why_none, remedy=found.remedy or "")
    return found


def in_time(question: Callable[[], Answer]) -> Answer | None:
    """Return the answer to a question, or None after 10 s; the question is asked in a thread, left behind then.

    Raises:
        Exception: Whatever the question raises.
    """
    answers: queue.SimpleQueue[tuple[Answer | None, BaseException | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except BaseException as error:  # noqa: BLE001 -- raised again by who asked
            answers.put((None, error))

    threading.Thread(target=ask, name="gpu-discovery", daemon=True).start()
    try:
        answer, error = answers.get(timeout=TIME_LIMIT_S)
    except queue.Empty:
        return None
    if error is not None:
        raise error
    return answer
