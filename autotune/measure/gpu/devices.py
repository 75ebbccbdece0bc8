"""Discovery of the GPUs of this machine, or of the reason why there are none and its remedy."""

import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from autotune.errors import GpuError
from autotune.measure.gpu.driver import GpuFacts, GpuInventory, gpus, is_mig_uuid

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


def cores_near(gpu: GpuFacts) -> frozenset[int]:
    """Return the cores of the processor that a GPU is next to, as the kernel says it; empty where it does not."""
    domain, _, rest = gpu.pci_bus_id.lower().partition(":")
    try:
        said = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/local_cpulist").read_text()
        ranges = [[int(end) for end in part.split("-")] for part in said.strip().split(",") if part]
    except (OSError, ValueError):
        return frozenset()
    return frozenset(core for ends in ranges for core in range(ends[0], ends[-1] + 1))


_NUMBER = re.compile(r"[+-]?\d+")
_UUID_KINDS = ("GPU-", "MIG-")
_PCI_ORDER = "PCI_BUS_ID"


@dataclass(frozen=True, kw_only=True)
class VisibleDevices:
    """Devices that a process with some environment will see.

    Attributes:
        uuids: In the order in which CUDA numbers them.
        why_none: Reason, for people, why there is none; None if there is one.
        cut: Sentence, for people, on a device that the setting names and this machine lacks; None if it has all. CUDA
            reports no error, and goes on with the devices before it.
        assumed: Sentence, for people, on an assumption that had to be made; None if none was.
    """

    uuids: tuple[str, ...]
    why_none: str | None = None
    cut: str | None = None
    assumed: str | None = None


def visible_devices(gpus: Sequence[GpuFacts], environment: Mapping[str, str]) -> VisibleDevices:
    """Return the devices that a process with that environment will see."""
    ordered = sorted(gpus, key=lambda gpu: (gpu.pci_bus_id, gpu.index))
    # A GPU that is cut into instances is not there itself.
    devices = [uuid for gpu in ordered for uuid in ((gpu.uuid,) if gpu.mig_uuids is None else gpu.mig_uuids)]
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        why = None if devices else "all GPUs are in MIG mode and have no instance"
        return VisibleDevices(uuids=_one_instance(devices), why_none=why, assumed=_assumed(ordered, environment))

    by_uuid = setting.startswith(_UUID_KINDS)
    chosen: list[str] = []
    cut = None
    for entry in setting.split(","):
        if not entry.strip() or entry.strip().startswith("-"):  # as people write to end the list
            break
        fitting = _begin_with(entry, setting, devices) if by_uuid else _numbered(entry, devices)
        if len(fitting) != 1:
            here = f"{len(fitting)} GPUs here begin like that" if fitting else f"this machine has {_numbers(devices)}"
            cut = f"CUDA_VISIBLE_DEVICES={setting} names {entry.strip()}, and {here}"
            break
        if fitting[0] in chosen:
            return VisibleDevices(
                uuids=(), why_none=f"CUDA_VISIBLE_DEVICES={setting} names a GPU twice: CUDA shows none"
            )
        chosen += fitting
    if not chosen:
        return VisibleDevices(uuids=(), why_none=cut or f"CUDA_VISIBLE_DEVICES={setting} hides every GPU", cut=cut)
    assumed = None if by_uuid else _assumed(ordered, environment)
    return VisibleDevices(uuids=_one_instance(chosen), cut=cut, assumed=assumed)


def _numbered(entry: str, devices: Sequence[str]) -> list[str]:
    number = _NUMBER.match(entry.strip())  # as strtol reads it: "1gpu" is 1
    return [] if number is None else list(devices[int(number.group()) :][:1])


def _begin_with(entry: str, setting: str, devices: Sequence[str]) -> list[str]:
    kind = setting[: len(_UUID_KINDS[0])]  # that of the first entry: kinds cannot be mixed
    return [uuid for uuid in devices if entry.startswith(kind) and uuid.startswith(entry)]


def _one_instance(uuids: Sequence[str]) -> tuple[str, ...]:
    instances = [uuid for uuid in uuids if is_mig_uuid(uuid)]
    return tuple(instances[:1] or uuids)


def _assumed(ordered: Sequence[GpuFacts], environment: Mapping[str, str]) -> str | None:
    if environment.get("CUDA_DEVICE_ORDER") == _PCI_ORDER or len({gpu.name for gpu in ordered}) == 1:
        return None  # among equals CUDA goes by the bus too
    return (
        "CUDA numbers unlike GPUs fastest first, which the driver does not say: the order of the PCI bus is assumed "
        "(CUDA_DEVICE_ORDER=PCI_BUS_ID makes it so)"
    )


def _numbers(devices: Sequence[str]) -> str:
    return f"{len(devices)}, numbered 0 to {len(devices) - 1}" if len(devices) > 1 else "only one, number 0"
