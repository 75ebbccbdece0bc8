"""NVIDIA's driver: its answers as plain values, and the GPUs that a process sees.

``pynvml`` is imported with the first `Driver`. Calls raise `DriverError` if the driver refuses them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from autotune.errors import GpuError

_LIBRARY = "libnvidia-ml.so.1"
_MIG_PREFIX = "MIG-"


class DeviceMemory(NamedTuple):
    """Memory of a device, the driver's reserve included in use."""

    used_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """Process that holds a device. None is unknown.

    Attributes:
        pid: Process id on the host, even if queried from a container.
        computes: Whether it has a compute context.
    """

    pid: int
    memory_bytes: int | None
    computes: bool
    name: str | None = None


class Activity(NamedTuple):
    """Activity of a GPU's units between two GPM samples, 0..1.

    Attributes:
        sm: Share of the multiprocessors that were busy.
        tensor: Share of time in which tensor cores were busy.
        dram: Share of the memory's bandwidth.
    """

    sm: float | None
    tensor: float | None
    dram: float | None


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """Description of one GPU by its driver.

    Attributes:
        index: The driver's index, which may differ from CUDA's.
        pci_bus_id: Domain, bus, device and function in hexadecimal; may be empty.
        mig_uuids: Its instances in MIG mode; else None.
    """

    name: str
    uuid: str
    memory_bytes: int | None
    index: int = 0
    pci_bus_id: str = ""
    mig_uuids: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GpuInventory:
    """GPUs of this machine, in the order of the driver. Texts are for users.

    Attributes:
        why_none: Reason, with a remedy; None with a GPU.
        is_without_driver: Whether the driver's library is missing.
        silent: Sentences, with remedies, on GPUs that do not answer while others do.
    """

    gpus: tuple[GpuFacts, ...]
    why_none: str | None
    remedy: str | None = None
    is_without_driver: bool = False
    silent: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remedies, for users who know the reason."""
        if self.remedy is None or self.is_without_driver:
            return self.silent
        return (f"To measure the GPU: {self.remedy}",)


@contextlib.contextmanager
def _translated(pynvml: Any) -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        raise DriverError(error.value, str(error)) from error
    except pynvml.NVMLLibraryMismatchError as error:  # pynvml's error for a missing unversioned name
        raise DriverError(FUNCTION_NOT_FOUND, "Function Not Found") from error


class Driver:
    """Driver's library, in use until `close`; raises `DriverError` without a working one."""

    def __init__(self) -> None:
        import pynvml

        self._pynvml: Any = pynvml
        try:
            self._call("nvmlInit")
        except DriverError as error:
            if error.code == NO_LIBRARY and (why := _why_unfit()):  # pynvml reports no library for both
                raise DriverError(UNFIT_LIBRARY, why) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(self._pynvml.NVMLError):  # fails with a lost GPU; there is nothing to free then
            self._pynvml.nvmlShutdown()

    def version(self) -> str:
        return str(self._call("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def device_at(self, index: int) -> Device:
        return Device(self._pynvml, self._call("nvmlDeviceGetHandleByIndex", index))

    def device(self, uuid: str) -> Device:
        return Device(self._pynvml, self._call("nvmlDeviceGetHandleByUUID", uuid), is_mig=is_mig_uuid(uuid))

    def process_name(self, pid: int) -> str:
        try:
            return str(self._call("nvmlSystemGetProcessName", pid))
        except UnicodeDecodeError as error:  # pynvml decodes a path, which may be any bytes
            return error.object.decode(errors="replace")

    def _call(self, function: str, *arguments: Any) -> Any:
        with _translated(self._pynvml):
            return getattr(self._pynvml, function)(*arguments)


def _why_unfit() -> str | None:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        words = str(error)
        return None if words.startswith(f"{_LIBRARY}: ") and words.endswith(os.strerror(errno.ENOENT)) else words
    return None


class Device:
    """GPU or MIG instance, created by `Driver`; every method may raise `DriverError`."""

    def __init__(self, pynvml: Any, handle: Any, *, is_mig: bool = False) -> None:
        self._pynvml = pynvml
        self._handle = handle
        self._is_mig = is_mig
        self._metrics: Any = None  # 23 kB, made once

    def name(self) -> str:
        return str(self._call("nvmlDeviceGetName"))

    def uuid(self) -> str:
        return str(self._call("nvmlDeviceGetUUID"))

    def facts(self, index: int) -> GpuFacts:
        """Return the description of a GPU, which needs at least its name and UUID."""
        return GpuFacts(
            name=self.name(),
            uuid=self.uuid(),
            memory_bytes=if_known(lambda: self.memory().total_bytes),
            index=index,
            pci_bus_id=if_known(lambda: str(self._call("nvmlDeviceGetPciInfo").busId)) or "",  # sorts as text
            mig_uuids=tuple(self.mig_uuids()) if if_known(lambda: self._call("nvmlDeviceGetMigMode")[0]) else None,
        )

    def mig_uuids(self) -> Iterator[str]:
        """Yield the UUIDs of its MIG instances that answer."""
        for index in range(if_known(lambda: int(self._call("nvmlDeviceGetMaxMigDeviceCount"))) or 0):
            with contextlib.suppress(DriverError):  # indices may be missing
                instance = self._call("nvmlDeviceGetMigDeviceHandleByIndex", index)
                yield Device(self._pynvml, instance, is_mig=True).uuid()

    def busy_samples(self, since_us: int) -> list[tuple[int, int]]:
        """Return stamp and percent of each driver window after that stamp, even invalid ones."""
        kind, rows = self._call("nvmlDeviceGetSamples", self._pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
        # The field of the union that holds the value; known drivers use an unsigned int for a percentage.
        name = "ullVal" if kind == self._pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG else "uiVal"
        return [(int(row.timeStamp), int(getattr(row.sampleValue, name))) for row in rows]

    def busy_percent(self) -> int:
        return int(self._call("nvmlDeviceGetUtilizationRates").gpu)

    def memory(self) -> DeviceMemory:
        memory = self._call("nvmlDeviceGetMemoryInfo")
        return DeviceMemory(int(memory.used), int(memory.total))

    def memory_held_bytes(self) -> int:
        """Return the memory that processes hold, without the driver's reserve (driver 510 and later)."""
        memory = self._call("nvmlDeviceGetMemoryInfo", self._pynvml.nvmlMemory_v2)
        return int(memory.used)

    def power_w(self) -> float:
        """Return the power, on most devices averaged over the last second."""
        return float(self._call("nvmlDeviceGetPowerUsage")) / 1e3

    def power_limits_w(self) -> tuple[float, float]:
        """Return the present and the default power limit."""
        now = self._call("nvmlDeviceGetPowerManagementLimit")
        return float(now) / 1e3, float(self._call("nvmlDeviceGetPowerManagementDefaultLimit")) / 1e3

    def pcie_widths(self) -> tuple[int, int]:
        return int(self._call("nvmlDeviceGetCurrPcieLinkWidth")), int(self._call("nvmlDeviceGetMaxPcieLinkWidth"))

    def is_persistent(self) -> bool:
        """Return whether the driver stays loaded while unused."""
        return bool(self._call("nvmlDeviceGetPersistenceMode"))

    def energy_j(self) -> float:
        """Return the energy since the driver was loaded."""
        return float(self._call("nvmlDeviceGetTotalEnergyConsumption")) / 1e3

    def temperature_c(self) -> int:
        return int(self._call("nvmlDeviceGetTemperature", self._pynvml.NVML_TEMPERATURE_GPU))

    def sm_clock_mhz(self) -> int:
        return int(self._call("nvmlDeviceGetClockInfo", self._pynvml.NVML_CLOCK_SM))

    def clock_reasons(self) -> int:
        """Return the bit mask of reasons why the clocks are throttled (`REASONS`)."""
        try:
            return int(self._call("nvmlDeviceGetCurrentClocksEventReasons"))
        except DriverError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
            return int(self._call("nvmlDeviceGetCurrentClocksThrottleReasons"))  # its name before driver 535

    def holders(self) -> list[Occupant]:
        """Return the processes that hold it; a container may hide them."""
        found: dict[int, Occupant] = {}
        for function, computes in (
            ("nvmlDeviceGetGraphicsRunningProcesses", False),
            ("nvmlDeviceGetComputeRunningProcesses", True),
        ):
            try:
                rows = self._call(function)
            except DriverError as error:
                # A device without graphics may still have compute processes.
                if error.trouble is Trouble.NOTHING_NEW or (not computes and error.trouble is Trouble.CAPABILITY_OFF):
                    continue
                raise
            for row in rows:
                if row.pid:
                    found[row.pid] = Occupant(pid=row.pid, memory_bytes=row.usedGpuMemory, computes=computes)
        return list(found.values())

    def process_shares(self, since_us: int) -> list[tuple[int, float]]:
        """Return each process, and the share of the time since that stamp in which its kernels ran."""
        rows = self._call("nvmlDeviceGetProcessUtilization", since_us)
        # some drivers give 2147483632, with process id 0
        return [(int(row.pid), row.smUtil / 100.0) for row in rows if row.pid and row.smUtil <= 100]

    def has_gpm(self) -> bool:
        """Return whether it counts the activity of its units (GPM; Hopper and later)."""
        with _translated(self._pynvml):
            return bool(self._pynvml.nvmlGpmQueryDeviceSupport(self._gpu()).isSupportedDevice)

    def gpm_sample(self) -> GpmSample:
        with _translated(self._pynvml):
            sample = GpmSample(self._pynvml)
            try:
                if self._is_mig:
                    instance = self._call("nvmlDeviceGetGpuInstanceId")
                    self._pynvml.nvmlGpmMigSampleGet(self._gpu(), instance, sample.handle)
                else:
                    self._pynvml.nvmlGpmSampleGet(self._handle, sample.handle)
            except BaseException:
                sample.free()
                raise
            return sample

    def activity(self, first: GpmSample, second: GpmSample) -> Activity:
        """Return the activity between two samples more than 100 ms apart."""
        nvml = self._pynvml
        names = ("SM_UTIL", "ANY_TENSOR_UTIL", "DRAM_BW_UTIL")
        if self._metrics is None:
            self._metrics = nvml.c_nvmlGpmMetricsGet_t()
            self._metrics.version = nvml.NVML_GPM_METRICS_GET_VERSION
            self._metrics.numMetrics = len(names)
            for place, name in enumerate(names):
                self._metrics.metrics[place].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        self._metrics.sample1, self._metrics.sample2 = first.handle, second.handle
        with _translated(nvml):
            nvml.nvmlGpmMetricsGet(self._metrics)
        return Activity(*(_share(self._metrics.metrics[place]) for place in range(len(names))))

    def _gpu(self) -> Any:
        return self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle") if self._is_mig else self._handle

    def _call(self, function: str, *arguments: Any) -> Any:
        with _translated(self._pynvml):
            return getattr(self._pynvml, function)(self._handle, *arguments)


class GpmSample:
    """Counters of a GPU's units at one moment, in memory of the driver until `free`."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml
        self.handle = pynvml.nvmlGpmSampleAlloc()

    def free(self) -> None:
        with contextlib.suppress(self._pynvml.NVMLError):
            self._pynvml.nvmlGpmSampleFree(self.handle)


def _share(metric: Any) -> float | None:
    if metric.nvmlReturn != 0 or not math.isfinite(metric.value):
        return None
    return min(1.0, max(0.0, float(metric.value) / 100.0))


def is_mig_uuid(uuid: str) -> bool:
    """Return whether the UUID is that of a MIG instance."""
    return uuid.startswith(_MIG_PREFIX)


def gpus() -> GpuInventory:
    """Return the GPUs that the driver knows; takes milliseconds."""
    found: list[GpuFacts] = []
    errors: list[tuple[str, DriverError]] = []
    try:
        with Driver() as driver:
            for index in range(driver.count()):
                try:
                    found.append(driver.device_at(index).facts(index))
                except DriverError as error:  # one lost GPU must not hide the others
                    errors.append((f"GPU {index} cannot be used: {error.for_people}", error))
    except DriverError as error:
        errors.append((error.for_people, error))
    if found:
        silent = tuple(f"{why.removesuffix('.')}. {trouble.remedy}" for why, trouble in errors)
        return GpuInventory(gpus=tuple(found), why_none=None, silent=silent)
    if not errors:
        return GpuInventory(gpus=(), why_none="the NVIDIA driver sees no GPU", remedy=REMEDY)
    why, last = errors[-1]
    return GpuInventory(gpus=(), why_none=why, remedy=last.remedy, is_without_driver=last.code == NO_LIBRARY)


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
        return self in (Trouble.DEVICE_LOST, Trouble.DRIVER_LOST)


NO_LIBRARY, FUNCTION_NOT_FOUND = 12, 13
UNFIT_LIBRARY = -1
"""Code of autotune: the library exists and cannot be loaded."""

FATAL_NAMES: Mapping[int, str] = {
    UNFIT_LIBRARY: "the driver's library cannot be loaded",
    1: "driver library not initialized",
    9: "driver not loaded",
    NO_LIBRARY: "no driver library",
    15: "GPU lost",
    16: "GPU needs a reset",
    18: "driver and library differ in version",
    28: "GPU not found",
}
"""Names of the losses, as in the ending of a trial."""

REMEDY = "Check that `nvidia-smi` works in this shell."
"""Remedy, for users, of codes without a specific one."""

_OTHER_LIBRARY = (
    "check with `ldconfig -p | grep nvidia-ml` for several libraries, and keep those of other drivers off "
    "LD_LIBRARY_PATH"
)
_LOST = "Check `nvidia-smi` and `dmesg` (lines with Xid); the machine may need a reboot."
_REMEDIES: Mapping[int, str] = {
    UNFIT_LIBRARY: f"{_OTHER_LIBRARY[0].upper()}{_OTHER_LIBRARY[1:]}.",
    4: "Ask your administrator for access to /dev/nvidia*; start a container with `--gpus all`.",
    9: "Load it (`sudo modprobe nvidia`), then check that `nvidia-smi` works.",
    NO_LIBRARY: (
        "On a machine with a GPU, install NVIDIA's driver. Start a container with `--gpus all` (NVIDIA Container "
        "Toolkit). Under WSL2, install the driver in Windows and add /usr/lib/wsl/lib to LD_LIBRARY_PATH."
    ),
    15: _LOST,
    16: "Reset it with `sudo nvidia-smi --gpu-reset` once no process uses it, or reboot.",
    18: (
        "The driver may have been updated while in use: reboot, or unload and load its kernel modules. "
        f"Or the library may be another driver's: {_OTHER_LIBRARY}."
    ),
    28: _LOST,
}
_TROUBLES: Mapping[int, Trouble] = {
    # "success" (pynvml raises it if a query for the size finds no rows), not found, no data
    **dict.fromkeys((0, 6, 21), Trouble.NOTHING_NEW),
    # not supported, no permission, not in this version of the library, another version of a struct, deprecated
    **dict.fromkeys((3, 4, FUNCTION_NOT_FOUND, 25, 26), Trouble.CAPABILITY_OFF),
    **dict.fromkeys(FATAL_NAMES, Trouble.DRIVER_LOST),
    **dict.fromkeys((15, 16, 28), Trouble.DEVICE_LOST),
}


def trouble(code: int) -> Trouble:
    """Return the consequence of a return code of NVML; unknown codes are passing."""
    return _TROUBLES.get(code, Trouble.PASSING)


class DriverError(Exception):
    """Failed call of the driver's library, with NVML's return code and message."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} (NVML error {code})")
        self.code = code
        self.words = words

    @property
    def trouble(self) -> Trouble:
        return trouble(self.code)

    @property
    def for_people(self) -> str:
        """Sentence about the failure, for users."""
        if self.code == NO_LIBRARY:
            return "no NVIDIA driver was found (libnvidia-ml.so.1 is missing)"
        name = FATAL_NAMES.get(self.code)
        if self.code == UNFIT_LIBRARY:
            return f"{name}: {self.words}"
        reported = f"the NVIDIA driver reports: {self.words}"
        return f"{name}: {reported}" if name else reported

    @property
    def remedy(self) -> str:
        return _REMEDIES.get(self.code, REMEDY)


def remedy_of(name: str) -> str:
    """Return the remedy, for users, of one of `FATAL_NAMES`."""
    return next((_REMEDIES[code] for code, other in FATAL_NAMES.items() if other == name and code in _REMEDIES), REMEDY)


def if_known(query: Callable[[], Answer]) -> Answer | None:
    """Return an answer of the driver, None if it has none; raise `DriverError` if GPU or driver is lost."""
    try:
        return query()
    except DriverError as error:
        if error.trouble.is_fatal:
            raise
        return None


REASONS: Mapping[int, str] = {
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
"""Names of the bits, for users."""

THROTTLING = frozenset({"hardware slowdown", "heat (driver)", "heat (hardware)", "power brake"})
"""Reasons that make a GPU slower than in another run of the trial."""


def reasons_of(mask: int) -> tuple[str, ...]:
    """Return the names of the bits of a mask; bits of later drivers are named by number."""
    bits = (1 << place for place in range(mask.bit_length()))
    return tuple(REASONS.get(bit, f"reason {bit:#x}") for bit in bits if mask & bit)


TIME_LIMIT_S = 10.0
"""Longest wait for an answer of the driver."""


def look_for_gpus() -> GpuInventory:
    """Return the GPUs that the driver knows, within 10 s."""
    found = in_time(gpus)
    if found is not None:
        return found
    return GpuInventory(
        gpus=(),
        why_none=f"the NVIDIA driver has not answered for {TIME_LIMIT_S:.0f} s",
        remedy="Check `dmesg`. The driver may be hung in the kernel; then reboot.",
    )


def present_gpus() -> GpuInventory:
    """Return the GPUs that the driver knows; raise GpuError without any."""
    found = look_for_gpus()
    if found.why_none:
        raise GpuError(found.why_none, remedy=found.remedy or "")
    return found


def in_time(query: Callable[[], Answer]) -> Answer | None:
    """Return the result of a query, or None after 10 s; its thread is then left behind."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(query())
        except BaseException as error:  # noqa: BLE001 -- raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="gpu-discovery", daemon=True)
    thread.start()
    thread.join(TIME_LIMIT_S)
    if errors:
        raise errors[0]
    return answers[0] if answers else None


def cores_near(gpu: GpuFacts) -> frozenset[int]:
    """Return the cores of the processor that a GPU is attached to; empty if the kernel does not report it."""
    domain, _, rest = gpu.pci_bus_id.lower().partition(":")
    try:
        text = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/local_cpulist").read_text()
        ranges = [[int(end) for end in part.split("-")] for part in text.strip().split(",") if part]
    except (OSError, ValueError):
        return frozenset()
    return frozenset(core for ends in ranges for core in range(ends[0], ends[-1] + 1))


_NUMBER = re.compile(r"[+-]?\d+")
_UUID_KINDS = ("GPU-", "MIG-")
_PCI_ORDER = "PCI_BUS_ID"


@dataclass(frozen=True, kw_only=True)
class VisibleDevices:
    """Devices that a process with some environment will see, in CUDA's order. Texts are for users.

    Attributes:
        why_none: Reason; None with a device.
        cut: Sentence on a device in CUDA_VISIBLE_DEVICES that this machine lacks. CUDA silently uses only the devices
            before it.
        assumed: Sentence on a necessary assumption.
    """

    uuids: tuple[str, ...]
    why_none: str | None = None
    cut: str | None = None
    assumed: str | None = None


def visible_devices(gpus: Sequence[GpuFacts], environment: Mapping[str, str]) -> VisibleDevices:
    """Return the devices that a process with that environment will see."""
    ordered = sorted(gpus, key=lambda gpu: (gpu.pci_bus_id, gpu.index))
    # A GPU in MIG mode is visible as its instances only.
    devices = [uuid for gpu in ordered for uuid in ((gpu.uuid,) if gpu.mig_uuids is None else gpu.mig_uuids)]
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        why = None if devices else "all GPUs are in MIG mode and have no instance"
        return VisibleDevices(uuids=_one_instance(devices), why_none=why, assumed=_assumed(ordered, environment))

    by_uuid = setting.startswith(_UUID_KINDS)
    chosen: list[str] = []
    cut = None
    for entry in setting.split(","):
        if not entry.strip() or entry.strip().startswith("-"):  # ends the list
            break
        fitting = _begin_with(entry, setting, devices) if by_uuid else _numbered(entry, devices)
        if len(fitting) != 1:
            here = f"{len(fitting)} GPUs here have that prefix" if fitting else f"this machine has {_numbers(devices)}"
            cut = f"CUDA_VISIBLE_DEVICES={setting} names {entry.strip()}, but {here}"
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
        return None  # CUDA orders equal GPUs by bus, too
    return (
        "CUDA numbers different GPUs fastest first, which the driver does not report: PCI bus order is assumed "
        "(CUDA_DEVICE_ORDER=PCI_BUS_ID ensures it)"
    )


def _numbers(devices: Sequence[str]) -> str:
    return f"{len(devices)}, numbered 0 to {len(devices) - 1}" if len(devices) > 1 else "only one, number 0"
