"""What the fake GPUs do, as dataclasses; `Scenario.text` writes the file that scenario.c reads.

Times are seconds since the scenario's origin. A quantity is a number, a signal, or a tuple of them that add up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import ClassVar

SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL = 2, 3, 5, 10  # NVML_GPM_METRIC_*
GRAPHICS_UTIL = 1


@dataclass(frozen=True)
class Signal:
    """A quantity as a function of time."""

    kind: ClassVar[str]

    def line(self) -> str:
        """As the scenario file has it."""
        return " ".join([self.kind, *(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self))])


@dataclass(frozen=True)
class Constant(Signal):
    """Always the same; NaN is a value too."""

    kind = "constant"
    low: float


@dataclass(frozen=True)
class Square(Signal):
    """``high`` for ``duty`` of every period, which begins at ``phase_s``, then ``low``."""

    kind = "square"
    low: float
    high: float
    period_s: float
    duty: float = 0.5
    phase_s: float = 0.0


@dataclass(frozen=True)
class Ramp(Signal):
    """``low`` until ``start_s``, then in a line to ``high`` at ``end_s``, which stays."""

    kind = "ramp"
    low: float
    high: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Noise(Signal):
    """One value for every period, evenly between ``low`` and ``high``; the same for everybody who asks."""

    kind = "noise"
    low: float
    high: float
    period_s: float
    seed: int = 0


@dataclass(frozen=True)
class Bursts(Signal):
    """``low``, but ``high`` for ``length_s`` at a seeded place in every period: on and off, not periodic."""

    kind = "bursts"
    low: float
    high: float
    period_s: float
    length_s: float
    seed: int = 0


@dataclass(frozen=True)
class OfBusy(Signal):
    """``factor`` times how busy the GPU is in percent: for everything but being busy itself."""

    kind = "of_busy"
    factor: float


@dataclass(frozen=True)
class Timeline(Signal):
    """The value of the latest (time, value) pair; before the first one, the value of that."""

    kind = "timeline"
    points: tuple[tuple[float, float], ...]

    def line(self) -> str:
        """See `Signal.line`."""
        return " ".join([self.kind, *(f"{t_s!r}={value!r}" for t_s, value in self.points)])


Quantity = float | Signal | tuple[float | Signal, ...]


class ProcessKind(Enum):
    """In which of NVML's lists a process stands."""

    COMPUTE = 0
    GRAPHICS = 1
    MPS = 2


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that holds a GPU without anybody writing its kernels.

    Attributes:
        pid: As the driver reports it; no such process need exist.
        share: Of the time in which the GPU is busy, 0..1, what this process causes.
        from_s: When it comes; None: it was always there.
        until_s: When it goes; None: never.
    """

    pid: int
    memory_bytes: int = 0
    share: float = 0.0
    kind: ProcessKind = ProcessKind.COMPUTE
    from_s: float | None = None
    until_s: float | None = None

    def line(self) -> str:
        """As the scenario file has it."""
        return _pairs(
            pid=self.pid,
            memory_bytes=self.memory_bytes,
            share=self.share,
            kind=self.kind.value,
            from_s=self.from_s,
            until_s=self.until_s,
        )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Calls that fail, or take long. All conditions have to hold.

    Attributes:
        function: Exported name, or a pattern of ``fnmatch(3)``. The one that is called: `nvmlInit` of pynvml calls
            ``nvmlInitWithFlags``, `nvmlDeviceGetMemoryInfo` and its like the ``_v2`` or ``_v3`` of that name.
        code: What the call answers instead; None: it is only delayed.
        gpu: NVML index; None: any, and calls that concern no GPU.
        after_calls: So many matching calls of a process are spared first. pynvml calls twice what gives lists.
        calls: So many calls are hit then; None: all.
        from_s: Since when.
        until_s: Until when: a GPU that comes back.
        delay_s: Real seconds that the call takes, whatever the scenario's clock does.
    """

    function: str = "nvml*"
    code: int | None = None
    gpu: int | None = None
    after_calls: int = 0
    calls: int | None = None
    from_s: float | None = None
    until_s: float | None = None
    delay_s: float = 0.0

    def line(self) -> str:
        """As the scenario file has it."""
        pairs = _pairs(
            code=self.code,
            gpu=self.gpu,
            after_calls=self.after_calls,
            calls=self.calls,
            from_s=self.from_s,
            until_s=self.until_s,
            delay_s=self.delay_s,
        )
        return f"{self.function} {pairs}"


def _of_busy() -> Mapping[int, Quantity]:
    return {
        GRAPHICS_UTIL: OfBusy(1.0),
        SM_UTIL: OfBusy(0.8),
        SM_OCCUPANCY: OfBusy(0.4),
        ANY_TENSOR_UTIL: OfBusy(0.25),
        DRAM_BW_UTIL: OfBusy(0.5),
    }


@dataclass(frozen=True, kw_only=True)
class MigInstance:
    """A slice of a GPU in MIG mode, with a handle and a UUID of its own.

    Attributes:
        uuid: None: one is made up.
        memory_used_bytes: Beyond what its processes hold.
        busy_percent: What its GPM metrics may be derived from; NVML itself reports no utilization of it.
        gpm: By number of the metric (``NVML_GPM_METRIC_*``), in percent.
    """

    name: str = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    uuid: str | None = None
    gpu_instance: int = 1
    compute_instance: int = 0
    memory_total_bytes: int = 10 << 30
    memory_used_bytes: Quantity = 0
    busy_percent: Quantity = 0
    gpm: Mapping[int, Quantity] = field(default_factory=_of_busy)
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. A quantity that is None is one that this GPU does not support.

    Attributes:
        uuid: None: one is made up from its index.
        pci_bus_id: Domain, bus and device in hexadecimal; None: one is made up from its index.
        memory_reserved_bytes: What the driver keeps for itself.
        memory_used_bytes: Beyond what its processes hold.
        busy_percent: Share of time in which a kernel runs; without meaning where the scenario follows tenants.
        event_reasons: Bit mask of why its clocks are held down (``nvmlClocksEventReason*``).
        compute_capability: Major and minor; decides the architecture, and with it whether there is GPM.
        mig: In MIG mode: no utilization but through GPM.
        gpm: By number of the metric (``NVML_GPM_METRIC_*``), in percent; others are not supported.
        gpm_supported: None: from Hopper on.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str | None = None
    pci_bus_id: str | None = None
    serial: str | None = None
    compute_capability: tuple[int, int] = (9, 0)
    memory_total_bytes: int = 80 << 30
    memory_reserved_bytes: int = 0
    memory_used_bytes: Quantity = 0
    busy_percent: Quantity | None = 0
    memory_busy_percent: Quantity | None = OfBusy(0.5)
    encoder_percent: Quantity | None = 0
    decoder_percent: Quantity | None = 0
    power_mw: Quantity | None = (70_000, OfBusy(6_000))
    power_limit_mw: int = 700_000
    default_power_limit_mw: int = 700_000
    persistence: int = 1
    temperature_c: Quantity | None = 40
    slowdown_c: int = 87
    shutdown_c: int = 92
    sm_clock_mhz: Quantity | None = 1_980
    max_sm_clock_mhz: int = 1_980
    memory_clock_mhz: Quantity | None = 2_619
    max_memory_clock_mhz: int = 2_619
    fan_percent: Quantity | None = None
    event_reasons: Quantity | None = 0
    pcie_generation: int = 5
    pcie_width: int = 16
    max_pcie_width: int = 16
    pcie_tx_kib_s: Quantity | None = 0
    pcie_rx_kib_s: Quantity | None = 0
    mig: bool = False
    mig_instances: tuple[MigInstance, ...] = ()
    gpm: Mapping[int, Quantity] = field(default_factory=_of_busy)
    gpm_supported: bool | None = None
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """All that a process which loads the fake driver will see.

    Attributes:
        cuda_version: Major and minor.
        window_s: Length of a driver window: what one utilization sample averages over.
        ring: How many windows the driver keeps.
        publish_delay_s: How long after its end a window can first be read.
        stamps_since_boot: Stamps count from boot, as on some drivers; else from 1970.
        dry_when_idle: The driver writes no samples of windows in which nothing ran.
        garbage: Every seventh sample, and two rows in every answer about processes, are not true.
        empty_size_is_success: Asked for the number of process rows when there are none, the driver says success,
            which pynvml raises as ``NVMLError(0)``.
        pid_offset: Added to the process ids of tenants, as if they were seen from another namespace.
        follow: Being busy, processes and their memory come from what tenants write with `BusyWriter`.
    """

    gpus: tuple[Gpu, ...] = (Gpu(),)
    driver_version: str = "565.57.01"
    nvml_version: str = "12.565.57.01"
    cuda_version: tuple[int, int] = (12, 7)
    window_s: float = 1 / 6
    ring: int = 100
    publish_delay_s: float = 0.0
    stamps_since_boot: bool = False
    dry_when_idle: bool = False
    garbage: bool = False
    empty_size_is_success: bool = False
    pid_offset: int = 0
    follow: bool = False
    faults: tuple[Fault, ...] = ()

    def text(self, *, origin_ns: int, epoch_ns: int, tenants_folder: str, clock_file: str | None) -> str:
        """The scenario file.

        Args:
            origin_ns: Monotonic time of the scenario's origin.
            epoch_ns: Nanoseconds since 1970 at its origin.
            tenants_folder: Where tenants write; used only if the scenario follows them.
            clock_file: File that holds the monotonic nanoseconds of now, as text; None: the machine's clock.
        """
        lines = [
            f"driver_version {self.driver_version}",
            f"nvml_version {self.nvml_version}",
            f"cuda_version {self.cuda_version[0] * 1000 + self.cuda_version[1] * 10}",
            f"origin_ns {origin_ns}",
            f"stamp_offset_ns {0 if self.stamps_since_boot else epoch_ns - origin_ns}",
            f"window_s {self.window_s!r}",
            f"publish_delay_s {self.publish_delay_s!r}",
            f"ring {self.ring}",
            f"dry_when_idle {self.dry_when_idle:d}",
            f"garbage {self.garbage:d}",
            f"empty_size_is_success {self.empty_size_is_success:d}",
            f"pid_offset {self.pid_offset}",
        ]
        if clock_file is not None:
            lines.append(f"clock_file {clock_file}")
        if self.follow:
            lines.append(f"tenants_folder {tenants_folder}")
        lines += [f"fault {fault.line()}" for fault in self.faults]
        for index, gpu in enumerate(self.gpus):
            lines += _gpu_lines(index, gpu)
        return "\n".join(lines) + "\n"


_NOT_A_SETTING = {"mig", "mig_instances", "compute_capability", "gpm", "gpm_supported", "processes"}


def _gpu_lines(index: int, gpu: Gpu) -> Iterator[str]:
    major, minor = gpu.compute_capability
    has_gpm = major >= 9 if gpu.gpm_supported is None else gpu.gpm_supported
    yield "gpu"
    yield f"uuid GPU-{index:08x}-0000-4000-8000-000000000000"
    yield f"pci_bus_id 00000000:{index + 1:02X}:00.0"
    yield f"compute_major {major}"
    yield f"compute_minor {minor}"
    yield f"architecture {_architecture(major, minor)}"
    yield f"mig_mode {gpu.mig:d}"
    yield f"gpm_supported {has_gpm:d}"
    yield from _settings(gpu)
    for number, instance in enumerate(gpu.mig_instances):
        yield "mig"
        yield f"uuid MIG-{index:08x}-{number:04x}-4000-8000-000000000000"
        yield f"architecture {_architecture(major, minor)}"
        yield f"gpm_supported {has_gpm:d}"
        yield from _settings(instance)


def _settings(device: Gpu | MigInstance) -> Iterator[str]:
    for item in fields(device):
        value = getattr(device, item.name)
        if value is None or item.name in _NOT_A_SETTING:
            continue
        for part in value if isinstance(value, tuple) else (value,):
            yield f"{item.name} {_as_written(item.name, part)}"
    for number, quantity in device.gpm.items():
        for part in quantity if isinstance(quantity, tuple) else (quantity,):
            yield f"gpm {number} {_signal(part).line()}"
    for process in device.processes:
        yield f"process {process.line()}"


_QUANTITIES = {item.name for item in fields(Gpu) if item.type in (Quantity, Quantity | None)}


def _as_written(name: str, value: str | float | Signal) -> str:
    return _signal(value).line() if name in _QUANTITIES and not isinstance(value, str) else str(value)


def _signal(value: float | Signal) -> Signal:
    return value if isinstance(value, Signal) else Constant(value)


def _architecture(major: int, minor: int) -> int:
    """NVML_DEVICE_ARCH_* of a compute capability."""
    if major in (7, 8):
        return {(7, 5): 6, (8, 9): 8}.get((major, minor), major - 2 if major == 7 else 7)
    return {3: 2, 5: 3, 6: 4, 9: 9}.get(major, 10)


def _pairs(**values: float | None) -> str:
    return " ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
