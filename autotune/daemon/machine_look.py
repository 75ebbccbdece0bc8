"""Look at the machine: when a reading is due, whether a search may start, and whether one has to leave."""

import math
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Self

from autotune.clock import Clock
from autotune.daemon.idle.arrivals import Arrivals
from autotune.daemon.idle.idleness import Idleness, IdleState
from autotune.daemon.idle.machine_watch import MachineWatch
from autotune.daemon.idle.policy import IdlePolicy
from autotune.daemon.queue.entry import Entry

_NOT_LOOKED = IdleState(is_idle=False, idle_since_s=None, reason="not looked at yet", look_again_s=0.0)


class MachineLook(AbstractContextManager["MachineLook"]):
    """Look at the machine for the queue: at the CPUs, and at each GPU by itself, as entries use different ones.

    Args:
        policy: Limits and times of idle machines.
        clock: The machine's clock.
    """

    def __init__(self, policy: IdlePolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._watch = MachineWatch(clock)
        self._idleness: dict[str | None, Idleness] = {None: Idleness(policy, uuids=())}  # by GPU; None without any
        self._states: dict[str | None, IdleState] = {}
        self._arrivals: Arrivals | None = None
        self._searched: tuple[str | None, ...] = ()  # what the running search uses
        self._due_s = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()

    @property
    def reason(self) -> str:
        """State of the whole machine, in words."""
        states = list(self._states.values()) or [_NOT_LOOKED]
        return next((state for state in states if state.idle_since_s is None), states[0]).reason

    def why_not_idle(self, entry: Entry) -> str | None:
        """Return why the machine is not idle for an entry; None if it is: the CPUs, and the GPUs that it uses."""
        return next((state.reason for state in self._states_of(entry) if not state.is_idle), None)

    def due_in_s(self) -> float:
        """Return the time until the next reading; never below 0."""
        return max(0.0, self._due_s - self._clock.now_s())

    def search_starts(self, entry: Entry) -> None:
        """Watch for arrivals from now on: on its GPUs; on the CPUs too where it needs an idle machine."""
        policy = self._policy if entry.start.needs_idle else replace(self._policy, cpu_fraction=math.inf)
        self._arrivals, self._searched = Arrivals(policy, uuids=entry.gpus), (None, *entry.gpus)
        self._due_s = -math.inf

    def search_ended(self, *, somebody_came: bool) -> None:
        """Watch for an idle machine again; what the search used has been idle all the time, unless somebody came."""
        known = {} if somebody_came else {key: self._states[key] for key in self._searched if key in self._states}
        for key in self._idleness:
            since_s = known[key].idle_since_s if key in known else None
            self._idleness[key] = Idleness(self._policy, uuids=_uuids(key), idle_since_s=since_s)
        self._arrivals, self._searched = None, ()
        self._due_s = -math.inf

    def look(self, waiting: Collection[Entry], *, orphan_pid: int | None) -> str | None:
        """Take a reading if one is due.

        Args:
            waiting: Entries, some of which wait for nothing but an idle machine; empty if none does.
            orphan_pid: A search of ours that is not below this process; None if there is none.

        Returns:
            The reason for which the search that runs has to leave; None if it has not.
        """
        if 0.0 < self.due_in_s() <= self._look_again_s(waiting):
            return None
        reading = self._watch.read(orphan_pid)
        why = None
        if self._arrivals is not None:
            why = self._arrivals.update(reading)
            self._due_s = self._clock.now_s() + self._policy.close_look_s
            return why
        for gpu in reading.gpus:
            self._idleness.setdefault(gpu.uuid, Idleness(self._policy, uuids=_uuids(gpu.uuid)))
        self._states = {key: idleness.update(reading) for key, idleness in self._idleness.items()}
        self._due_s = self._clock.now_s() + min(self._look_again_s(waiting), self._policy.look_s)
        return None

    def _look_again_s(self, waiting: Collection[Entry]) -> float:
        """Return the time between readings that entries need; infinity for none."""
        return min((state.look_again_s for one in waiting for state in self._states_of(one)), default=math.inf)

    def _states_of(self, entry: Entry) -> list[IdleState]:
        """Return the states that an entry depends on: of its GPUs, which hold that of the CPUs, else of these."""
        return [self._states.get(key) or _unknown(key, self._states) for key in entry.gpus or (None,)]


def _uuids(key: str | None) -> tuple[str, ...]:
    return () if key is None else (key,)


def _unknown(key: str | None, states: Mapping[str | None, IdleState]) -> IdleState:
    """Return the state of a GPU that no reading has shown."""
    if key is None or not states:
        return _NOT_LOOKED
    return replace(_NOT_LOOKED, reason=f"{key} is not among the GPUs of this machine", look_again_s=math.inf)
