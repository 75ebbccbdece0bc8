"""Checks of the machine as it is right now: GPUs and their driver, and the host's memory."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from autotune.diagnose.config_keys import of_kind
from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.look import Look
from autotune.errors import GpuError
from autotune.measure.gpu.devices import in_time, look_for_gpus
from autotune.measure.gpu.driver import THROTTLING, Device, Driver, DriverError, reasons_of
from autotune.measure.gpu.occupancy import GpuOccupancy, busy_gpus
from autotune.measure.host import MemoryState, memory_state, text_of
from autotune.messages import _, capitalized, listed
from autotune.search.gpus import remarks_on_gpus

HARDWARE = "hardware"
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI ids: the maker, and the class of display controllers, with compute ones


def check_hardware(look: Look) -> CheckResult:
    """Look for GPUs, at what holds their clocks down, their limits, and at who is on them."""
    inventory = look_for_gpus()
    issues = [*_choice(look)]
    if inventory.why_none is not None:
        if not inventory.is_without_driver or _cards():
            cards = _(" though there is a card of NVIDIA's in this machine") if _cards() else ""
            unusable = _("No GPU can be used{cards}: {why}.", cards=cards, why=inventory.why_none)
            issues.append(_issue("", unusable, inventory.remedy or ""))
        none = _("no GPU: {why}", why=inventory.why_none)
        return CheckResult(check=HARDWARE, issues=tuple(issues), sentence=none)
    issues += [_issue("", f"{sentence}") for sentence in inventory.silent]
    try:
        conditions = in_time(gpu_conditions)
    except DriverError as error:
        return CheckResult(
            check=HARDWARE,
            issues=(*issues, _issue("", _("{clause}.", clause=error.for_people), error.remedy)),
        )
    if conditions is None:
        silent = _("The NVIDIA driver has not answered for 10 s.")
        slow = _issue("", silent, _("`dmesg` may say why."))
        return CheckResult(check=HARDWARE, issues=(*issues, slow))
    issues += [issue for condition in conditions for issue in _of_condition(condition)]
    for gpu in inventory.gpus:
        if gpu.mig_uuids is not None:
            cut = _(
                "{gpu} is cut into {count} MIG instances, whose utilization not all drivers tell.",
                gpu=gpu.name,
                count=len(gpu.mig_uuids),
            )
            issues.append(_issue(gpu.uuid, cut, severity=Severity.NOTE))
    issues += _neighbours(look)
    names = ", ".join(f"{gpu.name} ({(gpu.memory_bytes or 0) / 2**30:.0f} GiB)" for gpu in inventory.gpus)
    driver = next((one.driver for one in conditions if one.driver), None)
    return CheckResult(check=HARDWARE, issues=tuple(issues), sentence=_inventory(names, driver))


def _inventory(names: str, driver: str | None) -> str:
    return _("{gpus}; driver {driver}", gpus=names, driver=driver) if driver else names


def _choice(look: Look) -> Iterator[Issue]:
    """Yield what is wrong with the choice of GPUs by CUDA_VISIBLE_DEVICES."""
    if look.problem is None:
        return
    try:
        for remark in remarks_on_gpus(look.problem):
            if "alike" not in remark and not remark.startswith("To have"):
                yield _issue("CUDA_VISIBLE_DEVICES", _("{clause}.", clause=remark), severity=Severity.NOTE)
    except GpuError as error:
        sentence = _("{clause}.", clause=error.message)
        yield _issue("CUDA_VISIBLE_DEVICES", sentence, error.remedy or "", severity=Severity.ERROR)


def _of_condition(gpu: GpuCondition) -> Iterator[Issue]:
    held = sorted(THROTTLING & set(gpu.clock_reasons or ()))
    if held:
        known = gpu.temperature_c is not None
        at = _(" at {temperature} °C", temperature=gpu.temperature_c) if known else ""
        yield _issue(
            gpu.uuid,
            _(
                "The clocks of {gpu} are held down right now{at}: {reasons}.",
                gpu=gpu.name,
                at=at,
                reasons=", ".join(held),
            ),
            _(
                "See to its fans and the air in front of them, or its power supply; numbers measured now are too low.",
            ),
            limit=Limit.THROTTLING,
        )
    # of the limit that a GPU came with; makers round
    if gpu.power_limits_w is not None and gpu.power_limits_w[0] < 0.95 * gpu.power_limits_w[1]:
        now_w, usual_w = gpu.power_limits_w
        yield _issue(
            gpu.uuid,
            _(
                "{gpu} may draw {now:.0f} W of the {usual:.0f} W that it came with.",
                gpu=gpu.name,
                now=now_w,
                usual=usual_w,
            ),
            _(
                "If nobody wants it so: {command}.",
                command=f"sudo nvidia-smi -pl {usual_w:.0f}",
            ),
            severity=Severity.NOTE,
            numbers={"power_limit_w": now_w, "default_power_limit_w": usual_w},
            limit=Limit.STEP,
        )
    if gpu.pcie_widths is not None and 0 < gpu.pcie_widths[0] < gpu.pcie_widths[1]:
        now, most = gpu.pcie_widths
        yield _issue(
            gpu.uuid,
            _(
                "{gpu} is linked to the host by {now} lanes of the {most} that both could use.",
                gpu=gpu.name,
                now=now,
                most=most,
            ),
            _(
                "Some lower it while idle; if it stays so under load, put the card into another slot, or seat it "
                "again.",
            ),
            severity=Severity.WARNING if now * 2 <= most else Severity.NOTE,
            numbers={"pcie_lanes": now, "most_pcie_lanes": most},
        )
    if gpu.is_persistent is False:
        yield _issue(
            gpu.uuid,
            _(
                "The driver of {gpu} is unloaded whenever nobody uses it: each training starts some seconds later.",
                gpu=gpu.name,
            ),
            _("sudo nvidia-smi -pm 1, or the service nvidia-persistenced."),
            severity=Severity.NOTE,
        )


def _neighbours(look: Look) -> Iterator[Issue]:
    uuids = [gpu.uuid for gpu in look.gpus if gpu.mig_uuids is None]
    try:
        busy: tuple[GpuOccupancy, ...] = in_time(lambda: busy_gpus(uuids, look.clock)) or ()
    except DriverError:
        return
    for gpu in busy:
        names = {
            one.pid: f"{one.pid} ({one.name})" if one.name else f"{one.pid}" for one in gpu.occupants if one.computes
        }
        computing = [_("process {process}", process=name) for name in names.values()]
        if computing:
            yield _issue(
                gpu.uuid,
                _("{gpu} is in use by {users}.", gpu=gpu.name, users=listed(", ", computing)),
                _("Wait until it is free, or choose another one with CUDA_VISIBLE_DEVICES."),
                limit=Limit.NEIGHBOUR,
            )


def _cards() -> bool:
    """Return whether there is a card of NVIDIA's on the PCI bus."""
    return any(
        text_of(vendor) == _NVIDIA and (text_of(vendor.replace("vendor", "class")) or "").startswith(_DISPLAY)
        for vendor in glob.glob("/sys/bus/pci/devices/*/vendor")
    )


def _issue(
    place: str,
    sentence: str,
    remedy: str = "",
    *,
    severity: Severity = Severity.WARNING,
    numbers: dict[str, float] | None = None,
    limit: Limit | None = None,
) -> Issue:
    return Issue(
        check=HARDWARE,
        severity=severity,
        sentence=capitalized(sentence),
        place=place,
        numbers=numbers or {},
        limit=limit,
        recommendations=(Recommendation(sentence=remedy),) if remedy else (),
    )


Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class GpuCondition:
    """Condition of one GPU; what the driver does not say is None.

    Attributes:
        clock_reasons: Reasons for which its clocks are held down; see `throttling`.
        power_limits_w: Highest power that it may draw now, and the one that it came with.
        pcie_widths: Lanes of its link to the host now, and the most that it and this machine could have.
        is_persistent: Whether the driver stays loaded while nobody uses it.
    """

    name: str
    uuid: str
    driver: str | None
    clock_reasons: tuple[str, ...] | None
    temperature_c: int | None
    power_limits_w: tuple[float, float] | None
    pcie_widths: tuple[int, int] | None
    is_persistent: bool | None


def gpu_conditions() -> tuple[GpuCondition, ...]:
    """Return the condition of each GPU that answers, in the order of the driver.

    Raises:
        DriverError: There is no driver, or it does not work.
    """
    found = []
    with Driver() as driver:
        version = _if_told(driver.version)
        for index in range(driver.count()):
            device = _if_told(partial(driver.device_at, index))
            condition = None if device is None else _if_told(partial(_condition, device, version))
            found += [condition] if condition else []
    return tuple(found)


def _condition(device: Device, version: str | None) -> GpuCondition:
    mask = _if_told(device.clock_reasons)
    return GpuCondition(
        name=device.name(),
        uuid=device.uuid(),
        driver=version,
        clock_reasons=None if mask is None else reasons_of(mask),
        temperature_c=_if_told(device.temperature_c),
        power_limits_w=_if_told(device.power_limits_w),
        pcie_widths=_if_told(device.pcie_widths),
        is_persistent=_if_told(device.is_persistent),
    )


def _if_told(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except DriverError:
        return None


# Check of the host's memory: what is free of it, swap, a cgroup's limit, and the shared memory of loaders.


MEMORY = "memory"
_GIB = 1 << 30
_SHARED = "/dev/shm"  # noqa: S108 -- it is looked at, and nothing made in it


def check_memory(look: Look) -> CheckResult:
    """Look at the memory that a training may have."""
    state = memory_state()
    limit = ""
    if state.limit_bytes is not None:
        limit = _(", a limit of {limit}", limit=_gib(state.limit_bytes))
    sentence = _(
        "{available} of {total} available{limit}",
        available=_gib(state.available_bytes),
        total=_gib(state.total_bytes),
        limit=limit,
    )
    return CheckResult(check=MEMORY, issues=(*_of_state(state), *_shared_memory(look)), sentence=sentence)


def _of_state(state: MemoryState) -> Iterator[Issue]:
    numbers = {"available_bytes": float(state.available_bytes), "total_bytes": float(state.total_bytes)}
    # a framework with its libraries takes half a GiB to two
    if state.available_bytes < max(2 * _GIB, 0.1 * state.total_bytes):
        host = _("of the host's memory")
        of = _("of the limit of its cgroup") if state.limit_bytes is not None else host
        yield Issue(
            check=MEMORY,
            severity=Severity.WARNING,
            sentence=_(
                "{available} {of}, {total}, are left for a training.",
                available=_gib(state.available_bytes),
                of=of,
                total=_gib(state.total_bytes),
            ),
            numbers=numbers,
            limit=Limit.MEMORY,
            recommendations=(
                Recommendation(sentence=_("End what else runs here, or give the container more memory.")),
            ),
        )
    if state.pressure is not None and state.pressure > 0.1:  # share of time in which some process waits for memory
        swap = ""
        if state.swap_used_bytes:
            swap = _(" {size} are swapped out.", size=_gib(state.swap_used_bytes))
        yield Issue(
            check=MEMORY,
            severity=Severity.WARNING,
            sentence=_(
                "Processes waited for memory in {pressure:.0%} of the last 10 s.{swap}",
                pressure=state.pressure,
                swap=swap,
            ),
            numbers={**numbers, "swap_used_bytes": float(state.swap_used_bytes), "pressure_fraction": state.pressure},
            limit=Limit.MEMORY,
            recommendations=(Recommendation(sentence=_("End what takes it, or use fewer workers.")),),
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
    if size < _GIB:  # Docker gives 64 MiB; PyTorch's README asks for --ipc=host or --shm-size
        yield Issue(
            check=MEMORY,
            severity=Severity.WARNING,
            sentence=_(
                "{folder} holds {size:.0f} MiB: workers of PyTorch's loader send batches through it.",
                folder=_SHARED,
                size=size / 2**20,
            ),
            numbers={"shared_memory_bytes": float(size)},
            limit=Limit.MEMORY,
            recommendations=(Recommendation(sentence=_("Start the container with --ipc=host, or --shm-size=8g.")),),
        )


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
