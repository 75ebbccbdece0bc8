"""What the NVIDIA driver says a GPU did: the only module that talks to NVML.

``pynvml`` is imported when a driver is asked for, never before. Without a driver, or where a device does not
report, the answer is "not measured" and why: never 0.
"""

import bisect
import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from autotune.clock import Clock, SystemClock
from autotune.measure.probe import GpuUse, Probe
from autotune.measure.sampler import Sampler

_DRAIN_S = 0.25  # the driver keeps about 100 samples, some 16 s: none is lost at this pace
_POLL_S = 0.1
_MEMORY_S = 1.0  # this call takes a lock of the whole driver
_LONGEST_DRIVER_WINDOW_S = 1.5  # drivers document 1/6 s to 1 s; more than this is a gap, not a window

# Return codes of nvml.h, which are part of its ABI.
_NOTHING_NEW = frozenset({0, 6, 21})  # 0: pynvml raises "success" when a size query finds no rows; not found; no data
_CAPABILITY_OFF = frozenset({3, 4, 13})  # not supported, no permission, function not found
_FATAL = frozenset({1, 9, 12, 15, 16, 18})  # uninitialized, no driver, no library, lost, reset, mismatch
_LIBRARY_NOT_FOUND = 12


class Trouble(Enum):
    """What an NVML error means for the one who reads on."""

    NOTHING_NEW = "nothing new"
    CAPABILITY_OFF = "this device never answers this"
    PASSING = "this one reading failed"
    FATAL = "no reading will succeed any more"


def trouble(code: int) -> Trouble:
    """Sorts a return code of NVML; a code nobody knows is taken as passing."""
    if code in _NOTHING_NEW:
        return Trouble.NOTHING_NEW
    if code in _CAPABILITY_OFF:
        return Trouble.CAPABILITY_OFF
    return Trouble.FATAL if code in _FATAL else Trouble.PASSING


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU, as its driver describes it."""

    name: str
    uuid: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class GpuInventory:
    """The GPUs of this machine.

    Attributes:
        gpus: In the order of the driver (PCI bus), which need not be CUDA's.
        why_none: Why there is none, for people; None if there is one.
    """

    gpus: tuple[GpuFacts, ...]
    why_none: str | None


def gpus() -> GpuInventory:
    """Lists the GPUs that the driver knows; takes milliseconds, so ask once."""
    import pynvml

    found: list[GpuFacts] = []
    why = "the NVIDIA driver sees no GPU"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuInventory(gpus=(), why_none=_words(error))
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(
                    GpuFacts(
                        name=pynvml.nvmlDeviceGetName(handle),
                        uuid=pynvml.nvmlDeviceGetUUID(handle),
                        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                    )
                )
            except pynvml.NVMLError as error:  # one lost GPU must not hide the others
                why = f"GPU {index} does not answer: {_words(error)}"
    except pynvml.NVMLError as error:
        why = _words(error)
    finally:
        _shut_down(pynvml)
    return GpuInventory(gpus=tuple(found), why_none=None if found else why)


def _words(error: Any) -> str:
    if error.value == _LIBRARY_NOT_FOUND:
        return "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"
    return f"the NVIDIA driver says: {error}"


def _shut_down(pynvml: Any) -> None:
    with contextlib.suppress(pynvml.NVMLError):  # a lost GPU makes this fail too, and nothing is left to free
        pynvml.nvmlShutdown()


def clock_offset_s(newest_us: int, *, now_s: float, epoch_s: float) -> float:
    """What to add to a driver's stamp in seconds to put it on the monotonic clock.

    Most drivers stamp in microseconds since 1970, some since boot. A sample was taken within the last few
    seconds, which tells the two apart. A stamp near neither (boot time that counts suspension) is taken as now: it
    is off by the age of the sample, at most a driver window.

    Args:
        newest_us: Stamp of the newest sample, just read.
        now_s: Monotonic time of that reading.
        epoch_s: Time of that reading in seconds since 1970.
    """
    stamp_s = newest_us / 1e6
    for offset_s in (now_s - epoch_s, 0.0):
        if -1.0 <= now_s - (stamp_s + offset_s) <= 20.0:
            return offset_s
    return now_s - stamp_s


class BusySeries:
    """How busy a GPU was, sample by sample, on the monotonic clock.

    Each sample stands for the time since the one before it. One after a gap, or the very first, has no known
    window and never counts.
    """

    def __init__(self) -> None:
        self.newest_us = 0  # stamp of the newest driver sample: what to ask the driver to go on from
        self._offset_s: float | None = None
        self._ends_s: list[float] = []
        self._busy: list[float] = []

    def add_driver_samples(self, rows: Sequence[tuple[int, int]], *, now_s: float, epoch_s: float) -> None:
        """Adds what is new among the samples that a driver gave.

        Args:
            rows: Stamp in the driver's microseconds and percent, in any order, with any of the earlier ones among
                them; what is above 100 % is garbage that drivers are known to give.
            now_s: Monotonic time of the reading.
            epoch_s: Seconds since 1970 of the reading.
        """
        new = sorted({stamp_us: percent for stamp_us, percent in rows if stamp_us > self.newest_us}.items())
        if not new:
            return
        if self._offset_s is None:  # found once: the wall clock may be set while we run
            self._offset_s = clock_offset_s(new[-1][0], now_s=now_s, epoch_s=epoch_s)
        self.newest_us = new[-1][0]
        for stamp_us, percent in new:
            if percent <= 100:
                self.add(stamp_us / 1e6 + self._offset_s, percent)

    def add(self, end_s: float, percent: int) -> None:
        """Adds one sample whose window ended then; in order of time."""
        self._ends_s.append(end_s)
        self._busy.append(percent / 100.0)

    def between(self, t0_s: float, t1_s: float, *, errors: int = 0) -> GpuUse | None:
        """Averages over time the samples whose whole window lies inside; None if there is none."""
        first = bisect.bisect_left(self._ends_s, t0_s)
        last = bisect.bisect_right(self._ends_s, t1_s)
        covered_s = busy_s = 0.0
        samples = 0
        for index in range(first + 1, last):
            window_s = self._ends_s[index] - self._ends_s[index - 1]
            if 0.0 < window_s <= _LONGEST_DRIVER_WINDOW_S:
                covered_s += window_s
                busy_s += window_s * self._busy[index]
                samples += 1
        if not samples:
            return None
        return GpuUse(
            utilization=min(1.0, busy_s / covered_s),
            samples=samples,
            covered_fraction=min(1.0, covered_s / (t1_s - t0_s)),
            errors=errors,
        )


class NvmlProbe:
    """Utilization of one GPU, from the driver's own samples; see `Probe`.

    It drains `nvmlDeviceGetSamples` and keeps each sample once. Where a device does not have it, it polls
    `nvmlDeviceGetUtilizationRates`, which repeats the last driver window.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._series = BusySeries()
        self._errors = 0
        self._peak_memory_bytes: int | None = None
        self._next_memory_s = -math.inf
        self._why_none: str | None = "the GPU probe was not opened"
        self._nvml: Any = None
        self._handle: Any = None
        self._read: Callable[[], float] = self._drain
        self._sampler: Sampler | None = None

    @property
    def why_none(self) -> str | None:
        """Why nothing is measured, for people; None while it is."""
        return self._why_none

    def open(self, device: str) -> None:
        """Starts watching the GPU of a UUID; if it cannot, `why_none` says so."""
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._why_none = _words(error)
            return
        self._nvml = pynvml
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(device)
        except pynvml.NVMLError as error:
            self._why_none = f"GPU {device}: {_words(error)}"
            return
        self._why_none = None
        self._sampler = Sampler(self._sample, name="nvml-probe")
        self._sampler.start()

    def between(self, t0_s: float, t1_s: float) -> GpuUse | None:
        """See `Probe.between`; None also once the GPU was lost, and `why_none` says so."""
        with self._lock:
            if self._why_none is not None:
                return None
            use = self._series.between(t0_s, t1_s, errors=self._errors)
            return use and replace(use, peak_memory_bytes=self._peak_memory_bytes)

    def close(self) -> None:
        """See `Probe.close`."""
        if self._sampler is not None and not self._sampler.stop():
            return  # a driver call hangs, and still uses the library
        self._sampler = None
        if self._nvml is not None:
            _shut_down(self._nvml)
            self._nvml = None

    def _sample(self) -> float | None:
        """One reading; answers when the next is due, None if there is no point in one."""
        try:
            self._note_memory()
            return self._read()
        except self._nvml.NVMLError as error:
            return self._after(error)

    def _after(self, error: Any) -> float | None:
        kind = trouble(error.value)
        if kind is Trouble.CAPABILITY_OFF and self._read == self._drain:
            self._read = self._poll
            return 0.0
        with self._lock:
            if kind is Trouble.PASSING:
                self._errors += 1
            elif kind is not Trouble.NOTHING_NEW:
                self._why_none = _words(error)
                return None
        return _DRAIN_S

    def _note_memory(self) -> None:
        now_s = self._clock.now_s()
        if now_s < self._next_memory_s:
            return
        self._next_memory_s = now_s + _MEMORY_S
        try:
            used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except self._nvml.NVMLError as error:
            if trouble(error.value) is not Trouble.CAPABILITY_OFF:
                raise
            self._next_memory_s = math.inf
            return
        with self._lock:
            self._peak_memory_bytes = max(used, self._peak_memory_bytes or 0)

    def _drain(self) -> float:
        kind, rows = self._nvml.nvmlDeviceGetSamples(
            self._handle, self._nvml.NVML_GPU_UTILIZATION_SAMPLES, self._series.newest_us
        )
        # Which field of the union holds the value; a percentage is an unsigned int in the drivers we know of.
        name = "ullVal" if kind == self._nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG else "uiVal"
        percents = [(row.timeStamp, getattr(row.sampleValue, name)) for row in rows]
        now_s, epoch_s = self._clock.now_s(), self._clock.utc().timestamp()
        with self._lock:
            self._series.add_driver_samples(percents, now_s=now_s, epoch_s=epoch_s)
        return _DRAIN_S

    def _poll(self) -> float:
        percent = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        with self._lock:
            self._series.add(self._clock.now_s(), percent)
        return _POLL_S


_is_a_probe: type[Probe[str, GpuUse]] = NvmlProbe
