"""Readings of one GPU: the questions to the driver, their intervals, and the consequences of a failure."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from autotune.clock import Clock
from autotune.measure.gpu.driver import Device, DriverError, GpmSample, Trouble, reasons_of
from autotune.measure.gpu.samples import (
    STATE_S,
    BusyWindows,
    CallBlocked,
    Capability,
    CapabilityOff,
    GpuState,
    ProcessShares,
    ReadingCounts,
    Record,
    UnitActivity,
)
from autotune.measure.gpu.windows import BusyWindow, PolledWindows, SampledWindows

DRAIN_S = 0.25
"""Interval between two drains of the driver's ring of samples, which holds some 16 s: none is lost at this pace."""

POLL_S = 0.1
"""Interval between two readings of a device that keeps no samples."""

BLOCKED_S = 2.0
"""A driver call that takes longer is recorded: the slow ones take milliseconds."""

Answer = TypeVar("Answer")


class Questions:
    """Questions to the driver, asked so that another thread can see which of them has no answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: tuple[str | None, str, float] | None = None  # about which device, what, since when
        self._told: tuple[str | None, str, float] | None = None

    def ask(self, uuid: str | None, about: str, question: Callable[[], Answer]) -> Answer:
        """Return the answer to a question; whatever that raises passes through."""
        self._open = (uuid, about, self._clock.now_s())
        try:
            return question()
        finally:
            self._open = None

    def blocked(self) -> CallBlocked | None:
        """Return the question that has been open for longer than `BLOCKED_S`, once; for another thread."""
        now_s, still_open = self._clock.now_s(), self._open
        if still_open is None or still_open == self._told or now_s - still_open[2] < BLOCKED_S:
            return None
        self._told = still_open
        uuid, about, since_s = still_open
        return CallBlocked(t_s=now_s, uuid=uuid, capability=about, since_s=since_s)


class DeviceReader:
    """Reader of one device: takes its readings when they are due, and emits them as records.

    Its methods raise `DriverError` where the device, or the driver, is lost, and only there.

    Args:
        clock: Stamps and paces the readings.
    """

    def __init__(
        self,
        uuid: str,
        device: Device,
        questions: Questions,
        tell: Callable[[Record], None],
        clock: Clock,
        *,
        left_out: Collection[Capability] = (),
    ) -> None:
        self._uuid = uuid
        self._device = device
        self._questions = questions
        self._tell = tell
        self._clock = clock
        self._began_s = clock.now_s()
        self._off = set(left_out)
        self._tried: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._sampled = SampledWindows()
        self._polled = PolledWindows()
        self._shares_from: tuple[int, float] | None = None  # driver's stamp, monotonic time
        self._gpm: tuple[GpmSample, float] | None = None
        self._busy_due_s = self._shares_due_s = self._state_due_s = clock.now_s()

    @property
    def due_s(self) -> float:
        """Monotonic time of the next reading."""
        return min(self._busy_due_s, self._state_due_s)

    def name(self) -> str | None:
        return self._answer(Capability.NAME, self._device.name)

    def memory_total_bytes(self) -> int | None:
        memory = self._answer(Capability.MEMORY, self._device.memory)
        return None if memory is None else memory.total_bytes

    def read(self) -> None:
        """Take the readings that are due."""
        now_s = self._clock.now_s()
        if now_s >= self._busy_due_s:
            self._busy_due_s = now_s + self._read_busy()
        if now_s >= self._shares_due_s:  # with what else is due: their stretches end with driver windows
            self._shares_due_s = now_s + DRAIN_S
            self._read_shares()
        if now_s >= self._state_due_s:
            self._state_due_s = now_s + STATE_S
            self._read_state()
            self._read_activity()
            self._tell_counts()

    def close(self) -> None:
        """Free the memory that the driver has lent."""
        if self._gpm is not None:
            self._gpm[0].free()
            self._gpm = None

    def _answer(
        self, capability: Capability, question: Callable[[], Answer], *, nothing: Answer | None = None
    ) -> Answer | None:
        """Return the driver's answer: `nothing` if it has nothing new, None if it does not answer, now or ever."""
        if capability in self._off:
            return None
        self._tried[capability] += 1
        try:
            return self._questions.ask(self._uuid, capability, question)
        except DriverError as error:
            if error.trouble.is_fatal:
                raise
            if error.trouble is Trouble.NOTHING_NEW:
                return nothing
            if error.trouble is Trouble.CAPABILITY_OFF:
                self._switch_off(capability, error.words)
            else:
                self._failed[capability] += 1
            return None

    def _switch_off(self, capability: Capability, why: str) -> None:
        self._off.add(capability)
        self._tell(CapabilityOff(t_s=self._clock.now_s(), uuid=self._uuid, capability=capability, why=why))

    def _read_busy(self) -> float:
        """Emit new driver windows; return the seconds until the next look."""
        if Capability.SAMPLES not in self._off:
            since_us = self._sampled.newest_us
            none: list[tuple[int, int]] = []
            samples = self._answer(Capability.SAMPLES, lambda: self._device.busy_samples(since_us), nothing=none)
            if samples is not None:
                self._tell_busy(Capability.SAMPLES, self._windows_of(samples))
            if Capability.SAMPLES not in self._off and not self._keeps_no_samples():
                return DRAIN_S
        percent = self._answer(Capability.RATES, self._device.busy_percent)
        if percent is not None:
            self._tell_busy(Capability.RATES, self._polled.of(percent, now_s=self._clock.now_s()))
        return math.inf if Capability.RATES in self._off else POLL_S

    def _keeps_no_samples(self) -> bool:
        # drivers make one in a second at most, also of an idle device
        return self._sampled.newest_end_s is None and self._clock.now_s() - self._began_s > 3.0

    def _windows_of(self, samples: Sequence[tuple[int, int]]) -> list[BusyWindow]:
        now_s, epoch_s = self._clock.now_s(), self._clock.utc().timestamp()
        windows = self._sampled.of(samples, now_s=now_s, epoch_s=epoch_s)
        if windows or not self._sampled.overdue(now_s):
            return windows
        is_idle = self._answer(Capability.RATES, self._device.busy_percent) == 0
        return self._sampled.idle(now_s) if is_idle else []

    def _tell_busy(self, source: Capability, windows: Iterable[BusyWindow]) -> None:
        rounded = tuple((round(end_s, 6), round(length_s, 6), busy) for end_s, length_s, busy in windows)
        if rounded:
            self._tell(BusyWindows(t_s=self._clock.now_s(), uuid=self._uuid, source=source, windows=rounded))

    def _read_state(self) -> None:
        device = self._device
        memory = self._answer(Capability.MEMORY, device.memory)
        mask = self._answer(Capability.REASONS, device.clock_reasons)
        holders = self._answer(Capability.HOLDERS, device.holders)
        self._tell(
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
                # Last, and the stamp right after it: energy over a stretch is the difference of two such pairs.
                energy_j=self._answer(Capability.ENERGY, device.energy_j),
                t_s=self._clock.now_s(),
            )
        )

    def _read_shares(self) -> None:
        """Emit the shares of processes since the last time, from driver window to driver window.

        The driver averages over these.
        """
        until_us, until_s = self._sampled.newest_us, self._sampled.newest_end_s
        if Capability.SAMPLES in self._off:  # nothing gives the driver's clock: most count from 1970
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
                return  # failed in passing: the next answer is about both stretches
            if not rows and until_s - since_s < STATE_S:
                return  # a driver may sample processes more rarely than the GPU, at least once a second
            shares: dict[int, list[float]] = {}
            for pid, share in rows:
                shares.setdefault(pid, []).append(share)
            means = tuple((pid, sum(some) / len(some)) for pid, some in sorted(shares.items()))
            self._tell(ProcessShares(t0_s=since_s, t_s=until_s, uuid=self._uuid, shares=means))
        self._shares_from = (until_us, until_s)

    def _read_activity(self) -> None:
        """Emit the activity of the units since the last time, from the counters at both ends."""
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
                self._tell(UnitActivity(t0_s=before[1], t_s=now_s, uuid=self._uuid, **activity._asdict()))
        before[0].free()

    def _tell_counts(self) -> None:
        self._tell(
            ReadingCounts(
                t_s=self._clock.now_s(),
                uuid=self._uuid,
                tried=tuple(sorted(self._tried.items())),
                failed=tuple(sorted((+self._failed).items())),
            )
        )
        self._tried.clear()
        self._failed.clear()
