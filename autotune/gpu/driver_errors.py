"""Error codes of the NVIDIA driver: their consequences for further readings, and remedies.

The codes are those of ``nvmlReturn_t`` in nvml.h, which are part of its binary interface (NVML API Reference Guide,
"nvmlDeviceEnumvs"). The rule behind the table: one error switches a reading off only if the code says that it will
never succeed.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

Answer = TypeVar("Answer")


class Trouble(StrEnum):
    """Consequence of a failed reading."""

    NOTHING_NEW = "nothing new"
    CAPABILITY_OFF = "this device never answers this"
    PASSING = "this one reading failed"
    DEVICE_LOST = "this device is of no use any more"
    DRIVER_LOST = "the driver is of no use any more"

    @property
    def is_fatal(self) -> bool:
        """True if no reading of the device will succeed any more."""
        return self in (Trouble.DEVICE_LOST, Trouble.DRIVER_LOST)


NO_LIBRARY, FUNCTION_NOT_FOUND = 12, 13
UNFIT_LIBRARY = -1
"""A code of our own: there is a file of the library's name, and it cannot be loaded."""

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
        UNFIT_LIBRARY: "the driver's library cannot be loaded",
        1: "driver library not initialized",
        9: "driver not loaded",
        NO_LIBRARY: "no driver library",
        15: "GPU lost",
        16: "GPU needs a reset",
        18: "driver and library differ in version",
        28: "GPU not found",
    }
)
"""Names of the losses, as the ending of a trial shows them."""

REMEDY = "See whether `nvidia-smi` works in this very shell."
"""Remedy where none is known for the code itself, for people."""

_OTHER_LIBRARY = (
    "see with `ldconfig -p | grep nvidia-ml` whether there are several libraries, and keep LD_LIBRARY_PATH from naming "
    "one that is not the driver's"
)
_LOST = "`nvidia-smi` and `dmesg` (lines with Xid) say more; the machine may need a reboot."
_REMEDIES: Mapping[int, str] = MappingProxyType(
    {
        UNFIT_LIBRARY: f"{_OTHER_LIBRARY[0].upper()}{_OTHER_LIBRARY[1:]}.",
        4: "Ask whoever runs the machine for access to /dev/nvidia*; in a container, start it with `--gpus all`.",
        9: "Load it (`sudo modprobe nvidia`), and see with `nvidia-smi` whether that worked.",
        NO_LIBRARY: (
            "On a machine with a GPU, install NVIDIA's driver. A container has to be started with `--gpus all` (NVIDIA "
            "Container Toolkit). Under WSL2, install the driver in Windows and put /usr/lib/wsl/lib on LD_LIBRARY_PATH."
        ),
        15: _LOST,
        16: "Reset it with `sudo nvidia-smi --gpu-reset`, once nobody uses it; else reboot.",
        18: (
            "It may be that the driver was updated while it was in use: reboot, or unload and load its kernel modules. "
            f"Or that it is not the library of this driver: {_OTHER_LIBRARY}."
        ),
        28: _LOST,
    }
)

_OF_ONE_DEVICE = frozenset({15, 16, 28})


def trouble(code: int) -> Trouble:
    """Return the consequence of a return code of NVML; an unknown code is taken as passing."""
    if code in _NOTHING_NEW:
        return Trouble.NOTHING_NEW
    if code in _CAPABILITY_OFF:
        return Trouble.CAPABILITY_OFF
    if code in FATAL_NAMES:
        return Trouble.DEVICE_LOST if code in _OF_ONE_DEVICE else Trouble.DRIVER_LOST
    return Trouble.PASSING


class DriverError(Exception):
    """Failed call of the driver's library.

    Attributes:
        code: Return code of NVML.
        words: The library's own text for it.
    """

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} (NVML error {code})")
        self.code = code
        self.words = words

    @property
    def trouble(self) -> Trouble:
        """Consequence for further readings."""
        return trouble(self.code)

    @property
    def for_people(self) -> str:
        """Sentence about the failure."""
        if self.code == NO_LIBRARY:
            return "no NVIDIA driver was found (there is no libnvidia-ml.so.1 here)"
        name = FATAL_NAMES.get(self.code)
        if self.code == UNFIT_LIBRARY:
            return f"{name}: {self.words}"
        said = f"the NVIDIA driver says: {self.words}"
        return f"{name}: {said}" if name else said

    @property
    def remedy(self) -> str:
        """Remedy, for people."""
        return _REMEDIES.get(self.code, REMEDY)


def remedy_of(name: str) -> str:
    """Return the remedy for one of `FATAL_NAMES`, for people."""
    return next((_REMEDIES[code] for code, other in FATAL_NAMES.items() if other == name and code in _REMEDIES), REMEDY)


def if_known(ask: Callable[[], Answer]) -> Answer | None:
    """Return an answer of the driver, None where it has none.

    Raises:
        DriverError: The GPU, or the driver, is gone.
    """
    try:
        return ask()
    except DriverError as error:
        if error.trouble.is_fatal:
            raise
        return None
