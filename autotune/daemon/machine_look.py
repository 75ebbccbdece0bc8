"""Look at the machine: when a reading is due, whether a search may start, and whether one has to leave."""

import math
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
    """Look at the machine for the queue.

    Args:
        policy: Limits and times of idle machines.
        clock: The machine's clock.

    Attributes:
        state: Verdict of the latest look while no search ran.
    """

    def __init__(self, policy: IdlePolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._watch = MachineWatch(clock)
        self._idleness = Idleness(policy)
        self._arrivals: Arrivals | None = None
        self._due_s = -math.inf
        self.state = _NOT_LOOKED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()

    def due_in_s(self) -> float:
        """Return the time until the next reading; never below 0."""
        return max(0.0, self._due_s - self._clock.now_s())

    def search_starts(self, entry: Entry) -> None:
        """Watch for arrivals from now on: on the GPUs; on the CPUs too where the search needs an idle machine."""
        policy = self._policy if entry.start.needs_idle else replace(self._policy, cpu_fraction=math.inf)
        self._arrivals = Arrivals(policy)
        self._due_s = -math.inf

    def search_ended(self, *, somebody_came: bool) -> None:
        """Watch for an idle machine again; it has been idle all the time, unless somebody came."""
        since_s = None if somebody_came else self.state.idle_since_s
        self._arrivals, self._idleness = None, Idleness(self._policy, idle_since_s=since_s)
        self._due_s = -math.inf

    def look(self, *, wants_idle: bool, orphan_pid: int | None) -> str | None:
        """Take a reading if one is due.

        Args:
            wants_idle: Whether an entry waits for nothing but an idle machine.
            orphan_pid: A search of ours that is not below this process; None if there is none.

        Returns:
            The reason for which the search that runs has to leave; None if it has not.
        """
        if self.due_in_s() > 0.0 and not (wants_idle and self._due_s - self._clock.now_s() > self.state.look_again_s):
            return None
        reading = self._watch.read(orphan_pid)
        why = None
        if self._arrivals is not None:
            why = self._arrivals.update(reading)
            again_s = self._policy.close_look_s
        else:
            self.state = self._idleness.update(reading)
            again_s = self.state.look_again_s if wants_idle else self._policy.look_s
        self._due_s = self._clock.now_s() + again_s
        return why
