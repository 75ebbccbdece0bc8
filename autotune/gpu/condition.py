"""Condition of the GPUs right now: what holds their clocks down, their power limit, their link to the host."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from autotune.gpu.driver import Device, Driver
from autotune.gpu.driver_errors import DriverError
from autotune.gpu.throttling import reasons_of

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class GpuCondition:
    """Condition of one GPU; what the driver does not say is None.

    Attributes:
        name: Product name.
        uuid: Its UUID.
        driver: Version of the driver.
        clock_reasons: Reasons for which its clocks are held down; see `throttling`.
        temperature_c: Temperature of the die.
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
