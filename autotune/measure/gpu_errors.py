"""What the error codes of the NVIDIA driver mean for one who reads on.

The codes are those of ``nvmlReturn_t`` in nvml.h, which are part of its binary interface (NVML API Reference Guide,
"nvmlDeviceEnumvs"). The rule behind the table: one error switches a reading off only if the code says that it will
never succeed.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Trouble(StrEnum):
    """What a failed reading means."""

    NOTHING_NEW = "nothing new"
    CAPABILITY_OFF = "this device never answers this"
    PASSING = "this one reading failed"
    DEVICE_LOST = "this device does not answer any more"
    DRIVER_LOST = "the driver does not answer any more"

    @property
    def is_fatal(self) -> bool:
        """Whether no reading of the device will succeed any more."""
        return self in (Trouble.DEVICE_LOST, Trouble.DRIVER_LOST)


NO_LIBRARY, FUNCTION_NOT_FOUND = 12, 13

_NOTHING_NEW = frozenset(
    {
        0,  # pynvml raises "success" when a question for the size finds no rows
        6,  # not found
        21,  # no data
    }
)
_CAPABILITY_OFF = frozenset(
    {
        3,  # not supported
        4,  # no permission
        FUNCTION_NOT_FOUND,  # in this version of the library
        25,  # version of a struct: the library knows another one
        26,  # deprecated: the library does not serve it any more
    }
)

FATAL_NAMES: Mapping[int, str] = MappingProxyType(
    {
        1: "driver library not initialized",
        9: "driver not loaded",
        NO_LIBRARY: "no driver library",
        15: "GPU lost",
        16: "GPU needs a reset",
        18: "driver and library differ in version",
        28: "GPU not found",
    }
)
"""How a run ends that met such a code."""

_OF_ONE_DEVICE = frozenset({15, 16, 28})


def trouble(code: int) -> Trouble:
    """Sorts a return code of NVML; a code that nobody knows is taken as passing."""
    if code in _NOTHING_NEW:
        return Trouble.NOTHING_NEW
    if code in _CAPABILITY_OFF:
        return Trouble.CAPABILITY_OFF
    if code in FATAL_NAMES:
        return Trouble.DEVICE_LOST if code in _OF_ONE_DEVICE else Trouble.DRIVER_LOST
    return Trouble.PASSING


class DriverError(Exception):
    """A call of the driver's library failed.

    Attributes:
        code: Its return code.
        words: What the library says about it.
    """

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} (NVML error {code})")
        self.code = code
        self.words = words

    @property
    def trouble(self) -> Trouble:
        """What it means."""
        return trouble(self.code)

    @property
    def for_people(self) -> str:
        """A sentence about it."""
        if self.code == NO_LIBRARY:
            return "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"
        name = FATAL_NAMES.get(self.code)
        said = f"the NVIDIA driver says: {self.words}"
        return f"{name}: {said}" if name else said
