"""Check of the GPUs and their driver, as they are right now."""

import glob
from collections.abc import Iterator

from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.messages.message import capitalized, listed, said
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
            cards = said("hardware.card", " though there is a card of NVIDIA's in this machine") if _cards() else ""
            unusable = said(
                "hardware.unusable", "No GPU can be used{cards}: {why}.", cards=cards, why=inventory.why_none
            )
            issues.append(_issue("", unusable, inventory.remedy or ""))
        none = said("hardware.none", "no GPU: {why}", why=inventory.why_none)
        return CheckResult(check=HARDWARE, issues=tuple(issues), sentence=none)
    issues += [_issue("", f"{sentence}") for sentence in inventory.silent]
    try:
        conditions = in_time(gpu_conditions)
    except DriverError as error:
        return CheckResult(
            check=HARDWARE,
            issues=(*issues, _issue("", said("sentence", "{clause}.", clause=error.for_people), error.remedy)),
        )
    if conditions is None:
        silent = said("hardware.silent", "The NVIDIA driver has not answered for 10 s.")
        slow = _issue("", silent, said("hardware.dmesg", "`dmesg` may say why."))
        return CheckResult(check=HARDWARE, issues=(*issues, slow))
    issues += [issue for condition in conditions for issue in _of_condition(condition)]
    for gpu in inventory.gpus:
        if gpu.mig_uuids is not None:
            cut = said(
                "hardware.mig",
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
    return said("hardware.gpus", "{gpus}; driver {driver}", gpus=names, driver=driver) if driver else names


def _choice(look: Look) -> Iterator[Issue]:
    """Yield what is wrong with the choice of GPUs by CUDA_VISIBLE_DEVICES."""
    if look.problem is None:
        return
    try:
        for remark in remarks_on_gpus(look.problem):
            if "alike" not in remark and not remark.startswith("To have"):
                yield _issue(
                    "CUDA_VISIBLE_DEVICES", said("sentence", "{clause}.", clause=remark), severity=Severity.NOTE
                )
    except GpuError as error:
        sentence = said("sentence", "{clause}.", clause=error.message)
        yield _issue("CUDA_VISIBLE_DEVICES", sentence, error.remedy or "", severity=Severity.ERROR)


def _of_condition(gpu: GpuCondition) -> Iterator[Issue]:
    held = sorted(THROTTLING & set(gpu.clock_reasons or ()))
    if held:
        known = gpu.temperature_c is not None
        at = said("hardware.at", " at {temperature} °C", temperature=gpu.temperature_c) if known else ""
        yield _issue(
            gpu.uuid,
            said(
                "hardware.held-down",
                "The clocks of {gpu} are held down right now{at}: {reasons}.",
                gpu=gpu.name,
                at=at,
                reasons=", ".join(held),
            ),
            said(
                "hardware.fans",
                "See to its fans and the air in front of them, or its power supply; numbers measured now are too low.",
            ),
            limit=Limit.THROTTLING,
        )
    if gpu.power_limits_w is not None and gpu.power_limits_w[0] < _LEAST_POWER * gpu.power_limits_w[1]:
        now_w, usual_w = gpu.power_limits_w
        yield _issue(
            gpu.uuid,
            said(
                "hardware.power",
                "{gpu} may draw {now:.0f} W of the {usual:.0f} W that it came with.",
                gpu=gpu.name,
                now=now_w,
                usual=usual_w,
            ),
            said(
                "hardware.power-limit",
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
            said(
                "hardware.lanes",
                "{gpu} is linked to the host by {now} lanes of the {most} that both could use.",
                gpu=gpu.name,
                now=now,
                most=most,
            ),
            said(
                "hardware.slot",
                "Some lower it while idle; if it stays so under load, put the card into another slot, or seat it "
                "again.",
            ),
            severity=Severity.WARNING if now * 2 <= most else Severity.NOTE,
            numbers={"pcie_lanes": now, "most_pcie_lanes": most},
        )
    if gpu.is_persistent is False:
        yield _issue(
            gpu.uuid,
            said(
                "hardware.persistence",
                "The driver of {gpu} is unloaded whenever nobody uses it: each training starts some seconds later.",
                gpu=gpu.name,
            ),
            said("hardware.persistenced", "sudo nvidia-smi -pm 1, or the service nvidia-persistenced."),
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
        computing = [said("hardware.process", "process {process}", process=name) for name in names.values()]
        if computing:
            yield _issue(
                gpu.uuid,
                said("hardware.busy", "{gpu} is in use by {users}.", gpu=gpu.name, users=listed(", ", computing)),
                said("hardware.wait", "Wait until it is free, or choose another one with CUDA_VISIBLE_DEVICES."),
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
