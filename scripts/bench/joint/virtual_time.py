"""Virtual time of several machines: each has a clock of its own, and one of them is at work at a time.

A machine goes on until it uses what all share. There it waits until no other clock is behind its own. So everything
that is shared is used in the order of virtual time, by machines of equal time in the order of their numbers, and a
simulation repeats exactly. It is a conservative one, of a single process: K. M. Chandy and J. Misra, "Distributed
Simulation: A Case Study in Design and Verification of Distributed Programs", IEEE Trans. Software Eng. 5 (1979).
"""

import threading
from collections.abc import Callable

from autotune.clock import VirtualClock


class MachineClock(VirtualClock):
    """Clock of one simulated machine, with what it does at regular times.

    Args:
        number: Number of the machine.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self._regular: Callable[[], object] | None = None
        self._period_s = 0.0
        self._due_s = 0.0

    def do_every(self, period_s: float, regular: Callable[[], object]) -> None:
        """Call a function every so many seconds from now on, in the thread that waits on this clock."""
        self._regular, self._period_s, self._due_s = regular, period_s, self.now_s() + period_s

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`; takes no time."""
        super().wait(seconds)
        if self._regular is not None and self.now_s() >= self._due_s:
            self._due_s = self.now_s() + self._period_s
            self._regular()


class SharedTime:
    """Order of several machines in virtual time.

    Each machine has a thread, which takes a turn first of all, and before each use of what is shared, and leaves in the
    end. Other threads may take a turn for it.

    Args:
        machines: Their number.

    Attributes:
        clocks: Their clocks.
    """

    def __init__(self, machines: int) -> None:
        self.clocks = tuple(MachineClock(number) for number in range(machines))
        self._changed = threading.Condition()
        self._there = set(self.clocks)
        self._waiting: set[MachineClock] = set()
        self._at_work: MachineClock | None = None

    def turn(self, clock: MachineClock) -> None:
        """Wait until no other machine is behind this one; one that has left does not wait."""
        with self._changed:
            if clock not in self._there:
                return
            self._waiting.add(clock)
            self._at_work = None
            self._pass_on()
            self._changed.wait_for(lambda: self._at_work is clock)

    def leave(self, clock: MachineClock) -> None:
        """Let the others go on without this machine."""
        with self._changed:
            self._there.discard(clock)
            self._waiting.discard(clock)
            self._at_work = None
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the machine that is furthest behind go on, once all have said how far they are."""
        if self._there and self._waiting >= self._there:
            self._at_work = min(self._there, key=lambda clock: (clock.now_s(), clock.number))
            self._waiting.discard(self._at_work)
            self._changed.notify_all()
