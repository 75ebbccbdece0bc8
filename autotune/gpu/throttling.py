"""Reasons for which a GPU's clocks are held down, and those of them that spoil a measurement.

The bits are ``nvmlClocksEventReasons`` of nvml.h, called throttle reasons before driver 535. Which count, by the NVML
API Reference Guide ("NvmlClocksEventReasons") and the notes on the same bits in the DCGM API reference:

* *HW slowdown*, "reducing the core clocks by a factor of 2 or more": too hot, an external power brake, or too high a
  draw; since Maxwell with a bit of its own for heat and for the brake. It counts. It may also show for a moment at a
  change of clocks, so a single reading of it is no verdict: look at the share of time.
* *SW thermal slowdown*: the driver holds the GPU below its highest operating temperature. It counts.
* *SW power cap*: clocks are chosen so as not to exceed the power limit. That is how a GPU runs that is fully busy: it
  follows from the load, is the same at each repetition, and does not count.
* Idle, clocks set by the user, sync boost, a display, the board's voltage and reliability limits: states of the machine
  that do not change under a trial, or consequences of its load. They do not count.
"""

from collections.abc import Mapping
from types import MappingProxyType

REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x001: "idle",
        0x002: "application clocks",
        0x004: "power limit",
        0x008: "hardware slowdown",
        0x010: "sync boost",
        0x020: "heat (driver)",
        0x040: "heat (hardware)",
        0x080: "power brake",
        0x100: "display clocks",
        0x200: "board limit",
        0x400: "reliability limit",
    }
)
"""Names of the bits, for people."""

THROTTLING = frozenset({"hardware slowdown", "heat (driver)", "heat (hardware)", "power brake"})
"""The reasons that make a GPU slower than the same trial would find it another time."""


def reasons_of(mask: int) -> tuple[str, ...]:
    """Return the names of the bits of a mask; one that later drivers may have added is named by its number."""
    bits = (1 << place for place in range(mask.bit_length()))
    return tuple(REASONS.get(bit, f"reason {bit:#x}") for bit in bits if mask & bit)
