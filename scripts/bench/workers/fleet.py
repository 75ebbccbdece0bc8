"""Worker processes of a benchmark: started together, disturbed one by one, and ended."""

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.clock import Clock
from autotune.errors import TrialError
from scripts.bench.workers.worker_process import Announced, WorkerJob, announced_by, work

_LOOK_S = 0.2
_LEAVING_S = 30.0
_LAST_LINES, _LONGEST_LINE = 3, 300


class Fleet:
    """Workers of one study; to be used in a ``with`` statement, which leaves none behind.

    Args:
        clock: The machine's clock.
        jobs: What each is to do.
    """

    def __init__(self, clock: Clock, jobs: Sequence[WorkerJob]) -> None:
        self._clock = clock
        # A fork would copy the threads of this process in an unknown state.
        context = get_context("spawn")
        self.jobs = tuple(jobs)
        self._gone: set[int] = set()  # by what was done to them here
        self._processes = [context.Process(target=work, args=(job,), name=f"worker {job.number}") for job in jobs]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join(_LEAVING_S)

    def announced(self) -> list[list[Announced]]:
        """Return what each has announced so far."""
        return [announced_by(job) for job in self.jobs]

    def wait_until(self, holds: Callable[[list[list[Announced]]], bool], limit_s: float, what: str) -> None:
        """Wait until what was announced so far fulfils a condition.

        Args:
            holds: The condition.
            limit_s: Time limit.
            what: What is waited for, for the message.

        Raises:
            TrialError: It did not come to that in time, or one of them has ended by itself.
        """
        over_s = self._clock.now_s() + limit_s
        while not holds(self.announced()):
            ended = {number for number, process in enumerate(self._processes) if process.exitcode is not None}
            if ended - self._gone:
                raise self._error(f"workers ended by themselves before {what}")
            if self._clock.now_s() >= over_s:
                raise self._error(f"the workers did not come to that within {limit_s:g} s: {what}")
            self._clock.wait(_LOOK_S)

    def wait(self, seconds: float) -> None:
        """Let them work for a while."""
        self._clock.wait(seconds)

    def kill(self, number: int) -> None:
        """Kill a worker at once."""
        self._gone.add(number)
        self._processes[number].kill()

    def tell_to_leave(self, numbers: Sequence[int]) -> list[int | None]:
        """Send SIGTERM to some workers, and wait for their ends.

        Returns:
            The exit code of each; None for one that does not end.
        """
        self._gone.update(numbers)
        for number in numbers:
            self._processes[number].terminate()
        over_s = self._clock.now_s() + _LEAVING_S
        for number in numbers:
            self._processes[number].join(max(0.0, over_s - self._clock.now_s()))
        return [self._processes[number].exitcode for number in numbers]

    def freeze(self, number: int) -> None:
        """Stop a worker where it is; it knows nothing of it."""
        self._send(number, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """Let a worker go on."""
        self._send(number, signal.SIGCONT)

    def alive(self) -> list[int]:
        """Return the numbers of those that have not ended."""
        return [number for number, process in enumerate(self._processes) if process.is_alive()]

    def _error(self, message: str) -> TrialError:
        said = "\n".join(_tail(job.log) for job in self.jobs)
        return TrialError(
            message, where=str(self.jobs[0].folder.parent), remedy=f"See what the workers have said last:\n{said}"
        )

    def _send(self, number: int, what: signal.Signals) -> None:
        pid = self._processes[number].pid
        assert pid is not None, "they were started"
        os.kill(pid, what)  # it is not reaped yet: the number is still its own


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"{log}:", *(f"  {ascii(line[-_LONGEST_LINE:])[1:-1]}" for line in lines[-_LAST_LINES:])])
