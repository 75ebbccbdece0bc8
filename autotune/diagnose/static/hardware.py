"""Check of the GPUs and their driver, as they are right now."""

import glob
from collections.abc import Iterator

from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.static.look import Look
from autotune.errors import GpuError
from autotune.gpu.condition import GpuCondition, gpu_conditions
from autotune.gpu.discovery import in_time, look_for_gpus
from autotune.gpu.driver_errors import DriverError
from autotune.gpu.occupancy import GpuOccupancy, busy_gpus
from autotune.gpu.throttling import THROTTLING
from autotune.measure.cgroups import text_of
from autotune.problem.gpus import remarks_on_gpus

HARDWARE = "hardware"
_LEAST_POWER = 0.95  # of the limit that a GPU came with; makers round
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI ids: the maker, and the class of display controllers, with compute ones


def check_hardware(look: Look) -> CheckResult:
    """Look for GPUs, at what holds their clocks down, their limits, and at who is on them.

    Args:
        look: What is diagnosed.
    """
    inventory = look_for_gpus()
    issues = [*_choice(look)]
    if inventory.why_none is not None:
        if not inventory.is_without_driver or _cards():
            cards = " though there is a card of NVIDIA's in this machine" if _cards() else ""
            issues.append(_issue("", f"No GPU can be used{cards}: {inventory.why_none}.", inventory.remedy or ""))
        return CheckResult(check=HARDWARE, issues=tuple(issues), sentence=f"no GPU: {inventory.why_none}")
    issues += [_issue("", f"{sentence}") for sentence in inventory.silent]
    try:
        conditions = in_time(gpu_conditions)
    except DriverError as error:
        return CheckResult(check=HARDWARE, issues=(*issues, _issue("", f"{error.for_people}.", error.remedy)))
    if conditions is None:
        slow = _issue("", "The NVIDIA driver does not answer.", "`dmesg` may say why.")
        return CheckResult(check=HARDWARE, issues=(*issues, slow))
    issues += [issue for condition in conditions for issue in _of_condition(condition)]
    for gpu in inventory.gpus:
        if gpu.mig_uuids is not None:
            said = f"{gpu.name} is cut into {len(gpu.mig_uuids)} MIG instances, whose utilization not all drivers tell."
            issues.append(_issue(gpu.uuid, said, severity=Severity.NOTE))
    issues += _neighbours(look)
    names = ", ".join(f"{gpu.name} ({(gpu.memory_bytes or 0) / 2**30:.0f} GiB)" for gpu in inventory.gpus)
    driver = next((one.driver for one in conditions if one.driver), None)
    return CheckResult(check=HARDWARE, issues=tuple(issues), sentence=f"{names}; driver {driver}" if driver else names)


def _choice(look: Look) -> Iterator[Issue]:
    """Yield what is wrong with the choice of GPUs by CUDA_VISIBLE_DEVICES."""
    if look.problem is None:
        return
    try:
        for remark in remarks_on_gpus(look.problem):
            if "alike" not in remark and not remark.startswith("To have"):
                yield _issue("CUDA_VISIBLE_DEVICES", f"{remark}.", severity=Severity.NOTE)
    except GpuError as error:
        yield _issue("CUDA_VISIBLE_DEVICES", f"{error.message}.", error.remedy or "", severity=Severity.ERROR)


def _of_condition(gpu: GpuCondition) -> Iterator[Issue]:
    held = sorted(THROTTLING & set(gpu.clock_reasons or ()))
    if held:
        at = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C"
        yield _issue(
            gpu.uuid,
            f"The clocks of {gpu.name} are held down right now{at}: {', '.join(held)}.",
            "See to its fans and the air in front of them, or its power supply; numbers measured now are too low.",
            limit=Limit.THROTTLING,
        )
    if gpu.power_limits_w is not None and gpu.power_limits_w[0] < _LEAST_POWER * gpu.power_limits_w[1]:
        now_w, usual_w = gpu.power_limits_w
        yield _issue(
            gpu.uuid,
            f"{gpu.name} may draw {now_w:.0f} W of the {usual_w:.0f} W that it came with.",
            f"If nobody wants it so: sudo nvidia-smi -pl {usual_w:.0f}.",
            severity=Severity.NOTE,
            numbers={"power_limit_w": now_w, "default_power_limit_w": usual_w},
            limit=Limit.STEP,
        )
    if gpu.pcie_widths is not None and 0 < gpu.pcie_widths[0] < gpu.pcie_widths[1]:
        now, most = gpu.pcie_widths
        yield _issue(
            gpu.uuid,
            f"{gpu.name} is linked to the host by {now} lanes of the {most} that both could use.",
            "Some lower it while idle; if it stays so under load, put the card into another slot, or seat it again.",
            severity=Severity.WARNING if now * 2 <= most else Severity.NOTE,
            numbers={"pcie_lanes": now, "most_pcie_lanes": most},
        )
    if gpu.is_persistent is False:
        yield _issue(
            gpu.uuid,
            f"The driver of {gpu.name} is unloaded whenever nobody uses it: each training starts some seconds later.",
            "sudo nvidia-smi -pm 1, or the service nvidia-persistenced.",
            severity=Severity.NOTE,
        )


def _neighbours(look: Look) -> Iterator[Issue]:
    uuids = [gpu.uuid for gpu in look.gpus if gpu.mig_uuids is None]
    try:
        busy: tuple[GpuOccupancy, ...] = in_time(lambda: busy_gpus(uuids, look.clock)) or ()
    except DriverError:
        return
    for gpu in busy:
        names = {one.pid: f" ({one.name})" if one.name else "" for one in gpu.occupants if one.computes}
        computing = [f"process {pid}{name}" for pid, name in names.items()]
        if computing:
            yield _issue(
                gpu.uuid,
                f"{gpu.name} is in use by {', '.join(computing)}.",
                "Wait until it is free, or choose another one with CUDA_VISIBLE_DEVICES.",
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
        sentence=f"{sentence[0].upper()}{sentence[1:]}",
        place=place,
        numbers=numbers or {},
        limit=limit,
        recommendations=(Recommendation(sentence=remedy),) if remedy else (),
    )
