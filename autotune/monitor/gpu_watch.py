"""Watch of GPUs for a monitor: their state now, and their last minute."""

import math
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autotune.clock import Clock
from autotune.gpu.availability import Silence, SilenceLimits
from autotune.gpu.collect.poller import GpuPoller
from autotune.gpu.collect.records import (
    STATE_S,
    Capability,
    CapabilityOff,
    GpuState,
    Record,
    StreamStarted,
)
from autotune.gpu.driver import is_mig_uuid
from autotune.gpu.timeline import GpuTimeline
from autotune.gpu.usage import DeviceUsage
from autotune.measure.oscillation import Segment
from autotune.measure.polling import Poller
from autotune.measure.utilization import LEAST_SAMPLES, Utilization, pooled_utilization
from autotune.monitor.totals import GpuTotals

MINUTE_S = 60.0
"""Stretch of time that the figures and the verdict are about."""

KEPT_S = 1.5 * MINUTE_S
"""Time for which readings are kept; the verdict looks back this far where driver windows are long and so are few."""

_NOW_S = 1.0
_STALE_S = 3.0  # a reading that old says nothing of now
_SILENT = SilenceLimits(start_s=3.0, record_s=3.0, answer_s=3.0)
_FIRST_S = 2.0  # for the first reading
_RETRY_S = 5.0  # until a driver that was lost is asked again
_FEW = 4  # GPUs; more are looked at half as often, so that to watch them takes less than 0.5 % of a core
# A little more than the second after which everything is due, so that all GPUs are read at once. The driver keeps its
# samples for 16 s; only a device that keeps none has to be read as often as it wants.
_LATE_S = 0.01
_POLLED_S = 0.05
_VERDICT_LOOKS = 10  # a verdict takes some milliseconds: more than all else of a look


@dataclass(frozen=True, kw_only=True)
class GpuNow:
    """One GPU at the moment of a look.

    Attributes:
        trouble: Reason, for people, why it gives no readings now; None while it does.
        busy: Share of the newest second, 0..1, in which a kernel ran; None where that is not known.
        state: The newest reading of everything else; None if that is too old to be called now.
        usage: Usage over the last minute.
        utilization: Verdict on the last minute, 20 s old at most.
    """

    trouble: str | None
    busy: float | None
    state: GpuState | None
    usage: DeviceUsage
    utilization: Utilization


class GpuWatch:
    """Poller of GPUs in a thread until `close`; looks again for a driver that was lost.

    A driver call that hangs does so in that thread, which is then left to the end of the process: nothing here waits
    for it.

    Args:
        uuids: The devices, at least one; MIG instances are allowed.
        clock: Stamps and paces the readings.
        by_process: True to tell kernels apart by process, which costs as much as all else.

    Attributes:
        driver: The driver's version; empty where it does not say, and before the first reading.
    """

    def __init__(self, uuids: Sequence[str], clock: Clock, *, by_process: bool = False) -> None:
        self._uuids = tuple(uuids)
        self._clock = clock
        self._left_out = _left_out(self._uuids, by_process=by_process)
        self._every_s = look_every_s(len(self._uuids))
        began_s = clock.now_s()
        self.driver = ""
        self._readings = GpuTimeline(uuids, since_s=began_s)
        self._states: dict[str, GpuState] = {}
        self._totals = {uuid: GpuTotals(since_s=began_s) for uuid in self._uuids}
        self._judged: dict[str, tuple[float, Utilization]] = {}
        self._poller = self._new_poller()
        self._polls = False
        self._has_read = threading.Event()
        self._threads = (
            Poller(self._read, name="gpu-watch"),
            Poller(self._watch_the_reader, name="gpu-watch-blocked"),
        )

    def start(self) -> None:
        """Start the readings; return with the first one, or without it after two seconds."""
        for thread in self._threads:
            thread.start()
        self._has_read.wait(_FIRST_S)

    def close(self) -> None:
        """End the readings and close the driver."""
        ended = [thread.stop(deadline_s=_NOW_S) for thread in self._threads]
        if all(ended):  # else a call hangs, and still uses the driver
            self._poller.close()

    def totals(self, uuid: str) -> GpuTotals:
        """Return the totals of a device over all the time it was watched."""
        return self._totals[uuid]

    def look(self, *, own_pids: Collection[int] = (), step_s: float | None = None) -> dict[str, GpuNow]:
        """Return the devices as they are now, by UUID.

        Args:
            own_pids: Processes whose kernels are not called foreign; also those that have ended.
            step_s: See `oscillation`.
        """
        now_s = self._clock.now_s()
        self._readings.forget(now_s - KEPT_S)
        minute = self._readings.between(now_s - MINUTE_S, now_s, own_pids=own_pids)
        silence = self._readings.availability.silence(now_s, _SILENT)
        found = {}
        for usage in minute.devices:
            state = self._states.get(usage.figures.uuid)
            found[usage.figures.uuid] = GpuNow(
                trouble=self._trouble(usage.figures.uuid, silence),
                busy=None if usage.figures.utilization is None else _newest(usage, now_s),
                state=state if state is not None and now_s - state.t_s <= _STALE_S else None,
                usage=usage,
                utilization=self._judge(usage, now_s, step_s),
            )
        return found

    def _trouble(self, uuid: str, silence: Silence | None) -> str | None:
        """Return the reason why a device gives no readings now; other devices, which all wait for, are named in it."""
        if losses := self._readings.availability.losses([uuid]):
            return losses[0].why.removeprefix(f"{uuid}: ")
        if silence is None:
            return None
        return silence.why if silence.uuid in (None, uuid) else f"{silence.uuid}: {silence.why}"

    def _judge(self, usage: DeviceUsage, now_s: float, step_s: float | None) -> Utilization:
        judged_s, judged = self._judged.get(usage.figures.uuid, (-math.inf, None))
        if judged is None or judged.missing or now_s - judged_s >= _VERDICT_LOOKS * self._every_s:
            windows = usage.windows
            if len(windows) < LEAST_SAMPLES:
                longer = {
                    device.figures.uuid: device for device in self._readings.between(now_s - KEPT_S, now_s).devices
                }
                windows = longer[usage.figures.uuid].windows[-LEAST_SAMPLES:]
            since_s, until_s = usage.t0_s, now_s
            if windows:  # the driver may have begun to tell only now, and may be late by some windows
                since_s = windows[0][0] - windows[0][1]
                until_s = max(windows[-1][0], now_s - _STALE_S)
            judged = pooled_utilization([Segment.within(since_s, until_s, windows)], step_s=step_s)
            self._judged[usage.figures.uuid] = (now_s, judged)
        return judged

    def _new_poller(self) -> GpuPoller:
        return GpuPoller(self._uuids, self._take, self._clock, left_out=self._left_out)

    def _read(self) -> float:
        wait_s = self._poller.step()
        self._has_read.set()
        if wait_s is None:  # the driver is gone; perhaps it is being replaced
            self._poller.close()
            self._poller = self._new_poller()
            return _RETRY_S
        return max(wait_s, _POLLED_S if self._polls else self._every_s + _LATE_S)

    def _watch_the_reader(self) -> float:
        self._poller.tell_if_blocked()
        return _NOW_S

    def _take(self, record: Record) -> None:
        self._readings.add(record)
        match record:
            case StreamStarted():
                self.driver = record.driver
            case CapabilityOff(capability=Capability.SAMPLES):
                self._polls = True
            case GpuState():
                self._states[record.uuid] = record
            case _:
                pass
        uuid = getattr(record, "uuid", None)
        if uuid is not None:
            self._totals[uuid].keep(record)


def look_every_s(gpus: int) -> float:
    """Return the seconds between two looks at so many GPUs."""
    return STATE_S if gpus <= _FEW else 2 * STATE_S


def _left_out(uuids: Sequence[str], *, by_process: bool) -> frozenset[Capability]:
    """Return the readings that are left out: they cost as much as all else and would not be shown."""
    processes = () if by_process else (Capability.HOLDERS, Capability.SHARES)
    # The activity of its units is all that is known of an instance of a GPU; of others there is utilization.
    units = () if any(map(is_mig_uuid, uuids)) else (Capability.ACTIVITY,)
    return frozenset((*processes, *units))


def _newest(usage: DeviceUsage, now_s: float) -> float | None:
    """Return the utilization of the newest second; windows may end a second ago, and be a second long."""
    if not usage.windows or now_s - usage.windows[-1][0] > _STALE_S:
        return None
    since_s = usage.windows[-1][0] - _NOW_S
    recent = [(length_s, busy) for end_s, length_s, busy in usage.windows if end_s > since_s]
    return math.fsum(length_s * busy for length_s, busy in recent) / math.fsum(length_s for length_s, _ in recent)
