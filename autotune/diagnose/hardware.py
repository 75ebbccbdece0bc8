"""Checks of the machine as it is right now: GPUs and their driver, and the host's memory."""

import glob
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, capitalized, issue
from autotune.diagnose.subject import Subject, known_keys
from autotune.errors import GpuError
from autotune.measure.gpu.driver import THROTTLING, Device, Driver, DriverError, in_time, look_for_gpus, reasons_of
from autotune.measure.gpu.occupancy import GpuOccupancy, busy_gpus
from autotune.measure.host import memory_state, text_of
from autotune.search.gpus import remarks_on_gpus

_GIB = 1 << 30
_of_hardware = partial(issue, "hardware")

Answer = TypeVar("Answer")


def check_hardware(look: Subject) -> CheckResult:
    """Look for GPUs, at what holds their clocks down, their limits, and at who is on them."""
    inventory = look_for_gpus()
    issues = [*_choice(look)]
    if inventory.why_none is not None:
        if not inventory.is_without_driver or _cards():
            cards = " though there is a card of NVIDIA's in this machine" if _cards() else ""
            unusable = f"No GPU can be used{cards}: {inventory.why_none}."
            issues.append(_of_hardware(unusable, inventory.remedy or ""))
        none = f"no GPU: {inventory.why_none}"
        return CheckResult(check="hardware", issues=tuple(issues), sentence=none)
    issues += map(_of_hardware, inventory.silent)
    try:
        asked = in_time(_driver_and_conditions)
    except DriverError as error:
        broken = _of_hardware(capitalized(f"{error.for_people}."), error.remedy)
        return CheckResult(check="hardware", issues=(*issues, broken))
    if asked is None:
        silent = _of_hardware("The NVIDIA driver has not answered for 10 s.", "`dmesg` may say why.")
        return CheckResult(check="hardware", issues=(*issues, silent))
    driver, conditions = asked
    issues += conditions
    for gpu in inventory.gpus:
        if gpu.mig_uuids is not None:
            cut = f"{gpu.name} is cut into {len(gpu.mig_uuids)} MIG instances, whose utilization not all drivers tell."
            issues.append(_of_hardware(cut, place=gpu.uuid, severity=Severity.NOTE))
    issues += _neighbours(look)
    names = ", ".join(f"{gpu.name} ({(gpu.memory_bytes or 0) / _GIB:.0f} GiB)" for gpu in inventory.gpus)
    sentence = f"{names}; driver {driver}" if driver else names
    return CheckResult(check="hardware", issues=tuple(issues), sentence=sentence)


def _choice(look: Subject) -> Iterator[Issue]:
    if look.problem is None:
        return
    place = "CUDA_VISIBLE_DEVICES"
    try:
        for remark in remarks_on_gpus(look.problem):
            if "alike" not in remark and not remark.startswith("To have"):
                yield _of_hardware(capitalized(f"{remark}."), place=place, severity=Severity.NOTE)
    except GpuError as error:
        yield _of_hardware(capitalized(f"{error.message}."), error.remedy or "", place=place, severity=Severity.ERROR)


def _driver_and_conditions() -> tuple[str | None, list[Issue]]:
    """Return the driver's version and what holds the GPUs back that answer, in the order of the driver.

    Raises:
        DriverError: There is no driver, or it does not work.
    """
    found = []
    with Driver() as driver:
        for index in range(driver.count()):
            device = _if_told(partial(driver.device_at, index))
            found += (_if_told(partial(_of_device, device)) or []) if device is not None else []
        return _if_told(driver.version), found


def _if_told(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except DriverError:
        return None


def _of_device(device: Device) -> list[Issue]:
    """Return what holds one GPU back; what the driver does not say is no issue."""
    return list(_issues_of(device.name(), partial(_of_hardware, place=device.uuid()), device))


def _issues_of(name: str, found: Callable[..., Issue], device: Device) -> Iterator[Issue]:
    held = THROTTLING & set(reasons_of(_if_told(device.clock_reasons) or 0))
    if held:
        temperature = _if_told(device.temperature_c)
        at = f" at {temperature} °C" if temperature is not None else ""
        reasons = ", ".join(sorted(held))
        yield found(
            f"The clocks of {name} are held down right now{at}: {reasons}.",
            "See to its fans and the air in front of them, or its power supply; numbers measured now are too low.",
            limit=Limit.THROTTLING,
        )
    now_w, usual_w = _if_told(device.power_limits_w) or (1.0, 1.0)
    if now_w < 0.95 * usual_w:  # of the limit that a GPU came with; makers round
        yield found(
            f"{name} may draw {now_w:.0f} W of the {usual_w:.0f} W that it came with.",
            f"If nobody wants it so: sudo nvidia-smi -pl {usual_w:.0f}.",
            severity=Severity.NOTE,
            numbers={"power_limit_w": now_w, "default_power_limit_w": usual_w},
            limit=Limit.STEP,
        )
    now, most = _if_told(device.pcie_widths) or (0, 0)
    if 0 < now < most:
        yield found(
            f"{name} is linked to the host by {now} lanes of the {most} that both could use.",
            "Some lower it while idle; if it stays so under load, put the card into another slot, or seat it again.",
            severity=Severity.WARNING if now * 2 <= most else Severity.NOTE,
            numbers={"pcie_lanes": now, "most_pcie_lanes": most},
        )
    if _if_told(device.is_persistent) is False:
        sentence = f"The driver of {name} is unloaded whenever nobody uses it: each training starts some seconds later."
        remedy = "sudo nvidia-smi -pm 1, or the service nvidia-persistenced."
        yield found(sentence, remedy, severity=Severity.NOTE)


def _neighbours(look: Subject) -> Iterator[Issue]:
    uuids = [gpu.uuid for gpu in look.gpus if gpu.mig_uuids is None]
    try:
        busy: tuple[GpuOccupancy, ...] = in_time(lambda: busy_gpus(uuids, look.clock)) or ()
    except DriverError:
        return
    for gpu in busy:
        names = {one.pid: f" ({one.name})" if one.name else "" for one in gpu.occupants if one.computes}
        computing = [f"process {pid}{name}" for pid, name in names.items()]
        if computing:
            yield _of_hardware(
                f"{gpu.name} is in use by {', '.join(computing)}.",
                "Wait until it is free, or choose another one with CUDA_VISIBLE_DEVICES.",
                place=gpu.uuid,
                limit=Limit.NEIGHBOUR,
            )


def _cards() -> bool:
    # On the PCI bus 0x10de is NVIDIA, and 0x03 the class of display controllers, with compute ones.
    return any(
        text_of(vendor) == "0x10de" and (text_of(vendor.replace("vendor", "class")) or "").startswith("0x03")
        for vendor in glob.glob("/sys/bus/pci/devices/*/vendor")
    )


# Check of the host's memory: what is free of it, swap, a cgroup's limit, and the shared memory of loaders.


def check_memory(look: Subject) -> CheckResult:
    """Look at the memory that a training may have."""
    state = memory_state()
    available, total = _gib(state.available_bytes), _gib(state.total_bytes)
    found = partial(issue, "memory", limit=Limit.MEMORY)
    numbers = {"available_bytes": float(state.available_bytes), "total_bytes": float(state.total_bytes)}
    issues = []
    # a framework with its libraries takes half a GiB to two
    if state.available_bytes < max(2 * _GIB, 0.1 * state.total_bytes):
        of = "of the limit of its cgroup" if state.limit_bytes is not None else "of the host's memory"
        left = f"{available} {of}, {total}, are left for a training."
        remedy = "End what else runs here, or give the container more memory."
        issues.append(found(left, remedy, numbers=numbers))
    if state.pressure is not None and state.pressure > 0.1:  # share of time in which some process waits for memory
        swapped = state.swap_used_bytes
        swap = f" {_gib(swapped)} are swapped out." if swapped else ""
        waited = f"Processes waited for memory in {state.pressure:.0%} of the last 10 s.{swap}"
        numbers |= {"swap_used_bytes": float(swapped), "pressure_fraction": state.pressure}
        issues.append(found(waited, "End what takes it, or use fewer workers.", numbers=numbers))
    if (small := _small_shared_memory(look)) is not None:
        issues.append(small)
    limit = f", a limit of {_gib(state.limit_bytes)}" if state.limit_bytes is not None else ""
    sentence = f"{available} of {total} available{limit}"
    return CheckResult(check="memory", issues=tuple(issues), sentence=sentence)


def _small_shared_memory(look: Subject) -> Issue | None:
    """Return shared memory that is too small for the workers of PyTorch's loader, which die of a bus error then."""
    if look.problem is None or "torch" not in look.problem.frameworks:
        return None
    workers = [key.value for key in known_keys(look.problem) if key.row.counts == "workers"]
    if not any(isinstance(number, int) and number > 0 for number in workers):
        return None
    folder = "/dev/shm"  # noqa: S108 -- it is looked at, and nothing made in it
    try:
        size = shutil.disk_usage(folder).total
    except OSError:
        return None
    if size >= _GIB:  # Docker gives 64 MiB; PyTorch's README asks for --ipc=host or --shm-size
        return None
    sentence: str = f"{folder} holds {size / 2**20:.0f} MiB: workers of PyTorch's loader send batches through it."
    remedy = "Start the container with --ipc=host, or --shm-size=8g."
    return issue("memory", sentence, remedy, numbers={"shared_memory_bytes": float(size)}, limit=Limit.MEMORY)


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
