"""Collector of GPU readings, in a thread of the monitor or as a process, because driver calls can hang forever.

``python -P -m autotune.measure.gpu.collector [UUID...]`` writes records to stdout. It ends when the driver or its
parent is gone, and when it cannot write.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from autotune.clock import Clock, SystemClock
from autotune.measure.gpu.driver import FATAL_NAMES, Device, Driver, DriverError, GpmSample, Trouble, gpus, reasons_of
from autotune.measure.gpu.records import (
    FORMAT,
    STATE_S,
    BusyWindow,
    BusyWindows,
    Capability,
    CapabilityOff,
    GpuFound,
    GpuLost,
    GpuState,
    PolledWindows,
    ProcessShares,
    Record,
    SampledWindows,
    StreamStarted,
    UnitActivity,
    to_line,
)

DRAIN_S = 0.25
"""Interval between two drains of the driver's ring of samples, which holds about 16 s."""

POLL_S = 0.1
"""Interval between two readings of a device that keeps no samples."""

Answer = TypeVar("Answer")


def collect(uuids: Sequence[str]) -> None:
    """Poll GPUs or MIG instances (if empty, all here) until the driver or the parent is gone; write records to stdout.

    Raises:
        OSError: The records cannot be written.
    """
    parent, clock = os.getppid(), SystemClock()
    present = uuids or [uuid for gpu in gpus().gpus for uuid in gpu.mig_uuids or (gpu.uuid,)]
    poller = GpuPoller(present, lambda record: os.write(1, to_line(record)), clock)
    # If it hangs in the driver, the kernel ends it with the guard (trial/guard_process.py).
    while os.getppid() == parent and (wait_s := poller.step()) is not None:
        clock.wait(wait_s)


class GpuPoller:
    """Poller of some devices, driven by `step`, that emits records in order.

    Args:
        left_out: Capabilities that are not queried.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        emit: Callable[[Record], object],
        clock: Clock,
        *,
        left_out: Collection[Capability] = (),
    ) -> None:
        self._uuids = tuple(uuids)
        self._left_out = tuple(left_out)
        self._emit = emit
        self._clock = clock
        self._driver: Driver | None = None
        self._readers: dict[str, DeviceReader] = {}
        self._retry_at_s = dict.fromkeys(self._uuids, -math.inf)
        self._reported_lost: set[str] = set()
        self._failing_since_s: dict[str | None, float] = {}

    def step(self) -> float | None:
        """Take the due readings; return the seconds until the next call, None if further calls are useless."""
        try:
            if self._driver is None:
                self._driver = self._open()
            for uuid in self._uuids:
                self._read(self._driver, uuid)
        except DriverError as error:
            if self._driver is None and self._may_recover(None, error):
                return DRAIN_S
            self._emit_lost(None, error)
            return None
        dues_s = [*self._retry_at_s.values(), *(reader.due_s for reader in self._readers.values())]
        return max(0.0, min(dues_s) - self._clock.now_s()) if dues_s else None

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _open(self) -> Driver:
        driver = Driver()
        try:
            version = driver.version()
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                driver.close()
                raise
            version = ""
        self._emit(StreamStarted(t_s=self._clock.now_s(), v=FORMAT, pid=os.getpid(), driver=version))
        return driver

    def _read(self, driver: Driver, uuid: str) -> None:
        reader = self._readers.get(uuid)
        try:
            if reader is None:
                if self._clock.now_s() < self._retry_at_s[uuid]:
                    return
                reader = self._find(driver, uuid)
            if reader is not None and self._clock.now_s() >= reader.due_s:
                reader.read()
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                raise
            self._lose(uuid, error)

    def _find(self, driver: Driver, uuid: str) -> DeviceReader:
        reader = DeviceReader(uuid, driver.device(uuid), self._emit, self._clock, left_out=self._left_out)
        found = reader.found()
        self._readers[uuid] = reader
        self._retry_at_s.pop(uuid)
        self._reported_lost.discard(uuid)
        self._failing_since_s.pop(uuid, None)
        self._emit(found)
        return reader

    def _lose(self, uuid: str, error: DriverError) -> None:
        reader = self._readers.pop(uuid, None)
        if reader is not None:
            reader.close()
        elif self._may_recover(uuid, error):
            self._retry_at_s[uuid] = self._clock.now_s() + DRAIN_S
            return
        self._retry_at_s[uuid] = self._clock.now_s() + 5.0  # until the next search for a lost GPU
        if uuid not in self._reported_lost:
            self._reported_lost.add(uuid)
            self._emit_lost(uuid, error)

    def _may_recover(self, uuid: str | None, error: DriverError) -> bool:
        """Return whether to retry a failing driver or device before it counts as lost."""
        now_s = self._clock.now_s()
        since_s = self._failing_since_s.setdefault(uuid, now_s)
        # for a driver, or a GPU, whose first query fails in passing
        return error.trouble is Trouble.PASSING and now_s - since_s < 2.0

    def _emit_lost(self, uuid: str | None, error: DriverError) -> None:
        if uuid is None:
            name, why = FATAL_NAMES.get(error.code, "driver fails"), error.for_people
        else:
            unnamed = "GPU not found" if error.trouble is Trouble.NOTHING_NEW else "GPU fails"
            name, why = FATAL_NAMES.get(error.code, unnamed), f"{uuid}: {error.for_people}"
        self._emit(GpuLost(t_s=self._clock.now_s(), uuid=uuid, name=name, why=why))


class DeviceReader:
    """Reader of one device that emits due readings; raises `DriverError` only if device or driver is lost."""

    def __init__(
        self,
        uuid: str,
        device: Device,
        emit: Callable[[Record], object],
        clock: Clock,
        *,
        left_out: Collection[Capability] = (),
    ) -> None:
        self._uuid = uuid
        self._device = device
        self._emit = emit
        self._clock = clock
        self._began_s = clock.now_s()
        self._off = set(left_out)
        self._sampled = SampledWindows()
        self._polled = PolledWindows()
        self._shares_from: tuple[int, float] | None = None  # driver's stamp, monotonic time
        self._gpm: tuple[GpmSample, float] | None = None
        self._busy_due_s = self._shares_due_s = self._state_due_s = clock.now_s()

    @property
    def due_s(self) -> float:
        return min(self._busy_due_s, self._state_due_s)

    def found(self) -> GpuFound:
        name = self._answer(Capability.NAME, self._device.name) or self._uuid
        memory = self._answer(Capability.MEMORY, self._device.memory)
        total_bytes = None if memory is None else memory.total_bytes
        return GpuFound(t_s=self._clock.now_s(), uuid=self._uuid, name=name, memory_bytes=total_bytes)

    def read(self) -> None:
        now_s = self._clock.now_s()
        if now_s >= self._busy_due_s:
            self._busy_due_s = now_s + self._read_busy()
        if now_s >= self._shares_due_s:  # after the others, because their stretches end with driver windows
            self._shares_due_s = now_s + DRAIN_S
            self._read_shares()
        if now_s >= self._state_due_s:
            self._state_due_s = now_s + STATE_S
            self._read_state()
            self._read_activity()

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm[0].free()
            self._gpm = None

    def _answer(
        self, capability: Capability, query: Callable[[], Answer], *, nothing: Answer | None = None
    ) -> Answer | None:
        """Return the driver's answer; `nothing` if it has nothing new, None if the query fails."""
        if capability in self._off:
            return None
        try:
            return query()
        except DriverError as error:
            if error.trouble.is_fatal:
                raise
            if error.trouble is Trouble.NOTHING_NEW:
                return nothing
            if error.trouble is Trouble.CAPABILITY_OFF:
                self._switch_off(capability, error.words)
            return None

    def _switch_off(self, capability: Capability, why: str) -> None:
        self._off.add(capability)
        self._emit(CapabilityOff(t_s=self._clock.now_s(), uuid=self._uuid, capability=capability, why=why))

    def _read_busy(self) -> float:
        """Emit new driver windows; return the seconds until the next reading."""
        if Capability.SAMPLES not in self._off:
            since_us = self._sampled.newest_us
            none: list[tuple[int, int]] = []
            samples = self._answer(Capability.SAMPLES, lambda: self._device.busy_samples(since_us), nothing=none)
            if samples is not None:
                self._emit_busy(Capability.SAMPLES, self._windows_of(samples))
            # drivers make at least one per second, even of an idle device
            keeps_none = self._sampled.newest_end_s is None and self._clock.now_s() - self._began_s > 3.0
            if Capability.SAMPLES not in self._off and not keeps_none:
                return DRAIN_S
        percent = self._answer(Capability.RATES, self._device.busy_percent)
        if percent is not None:
            self._emit_busy(Capability.RATES, self._polled.of(percent, now_s=self._clock.now_s()))
        return math.inf if Capability.RATES in self._off else POLL_S

    def _windows_of(self, samples: Sequence[tuple[int, int]]) -> list[BusyWindow]:
        now_s, epoch_s = self._clock.now_s(), self._clock.utc().timestamp()
        windows = self._sampled.of(samples, now_s=now_s, epoch_s=epoch_s)
        if windows or not self._sampled.overdue(now_s):
            return windows
        is_idle = self._answer(Capability.RATES, self._device.busy_percent) == 0
        return self._sampled.idle(now_s) if is_idle else []

    def _emit_busy(self, source: Capability, windows: Iterable[BusyWindow]) -> None:
        rounded = tuple((round(end_s, 6), round(length_s, 6), busy) for end_s, length_s, busy in windows)
        if rounded:
            self._emit(BusyWindows(t_s=self._clock.now_s(), uuid=self._uuid, source=source, windows=rounded))

    def _read_state(self) -> None:
        device = self._device
        memory = self._answer(Capability.MEMORY, device.memory)
        mask = self._answer(Capability.REASONS, device.clock_reasons)
        holders = self._answer(Capability.HOLDERS, device.holders)
        self._emit(
            GpuState(
                uuid=self._uuid,
                memory_bytes=None if memory is None else memory.used_bytes,
                power_w=self._answer(Capability.POWER, device.power_w),
                temperature_c=self._answer(Capability.TEMPERATURE, device.temperature_c),
                sm_clock_mhz=self._answer(Capability.CLOCK, device.sm_clock_mhz),
                reasons=None if mask is None else reasons_of(mask),
                holders=None
                if holders is None
                else tuple((one.pid, one.memory_bytes, one.computes) for one in holders),
                # Last, right before the stamp: energy over a stretch is the difference of two such pairs.
                energy_j=self._answer(Capability.ENERGY, device.energy_j),
                t_s=self._clock.now_s(),
            )
        )

    def _read_shares(self) -> None:
        """Emit the shares of processes since the last time, between ends of driver windows."""
        until_us, until_s = self._sampled.newest_us, self._sampled.newest_end_s
        if Capability.SAMPLES in self._off:  # the driver's clock is unknown; most count from 1970
            until_us, until_s = int(self._clock.utc().timestamp() * 1e6), self._clock.now_s()
        if until_s is None:
            return
        if self._shares_from is not None and until_us >= self._shares_from[0]:  # else the wall clock was set back
            since_us, since_s = self._shares_from
            if until_us == since_us:
                return
            none: list[tuple[int, float]] = []
            rows = self._answer(Capability.SHARES, lambda: self._device.process_shares(since_us), nothing=none)
            if rows is None:
                return  # failed in passing: the next answer covers both stretches
            if not rows and until_s - since_s < STATE_S:
                return  # drivers may sample processes less often than the GPU, at least once per second
            shares: dict[int, list[float]] = {}
            for pid, share in rows:
                shares.setdefault(pid, []).append(share)
            means = tuple((pid, sum(values) / len(values)) for pid, values in sorted(shares.items()))
            self._emit(ProcessShares(t0_s=since_s, t_s=until_s, uuid=self._uuid, shares=means))
        self._shares_from = (until_us, until_s)

    def _read_activity(self) -> None:
        if self._gpm is None and Capability.ACTIVITY not in self._off:
            supported = self._answer(Capability.ACTIVITY, self._device.has_gpm)
            if supported is False:
                self._switch_off(Capability.ACTIVITY, "Not Supported")
        sample = self._answer(Capability.ACTIVITY, self._device.gpm_sample)
        now_s = self._clock.now_s()
        before, self._gpm = self._gpm, None if sample is None else (sample, now_s)
        if before is None:
            return
        if sample is not None:
            activity = self._answer(Capability.ACTIVITY, lambda: self._device.activity(before[0], sample))
            if activity is not None and activity != (None, None, None):
                self._emit(UnitActivity(t0_s=before[1], t_s=now_s, uuid=self._uuid, **activity._asdict()))
        before[0].free()


if __name__ == "__main__":
    try:
        collect(sys.argv[1:])
    except OSError as error:
        sys.exit(f"the GPU collector cannot write: {error}")
