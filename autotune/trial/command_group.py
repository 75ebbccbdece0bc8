"""Commands that run side by side until each has ended; the end of its input tells a command to leave."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from autotune.clock import Clock
from autotune.errors import CommandError


@dataclass(frozen=True, kw_only=True)
class OutputLine:
    """Line that a command printed, on stdout or stderr.

    Attributes:
        text: The line, without its end; what is not UTF-8 is replaced.
    """

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class CommandEnd:
    """End of a command, after its last line.

    Attributes:
        status: Its exit status, negative for a signal.
    """

    name: str
    status: int


class CommandGroup:
    """Commands that run side by side, none of them on the terminal's own ^C.

    To be used in a ``with`` block, whose end ends them all and waits for that.

    Args:
        leave_s: Time from the end of their input to SIGTERM.
    """

    def __init__(self, clock: Clock, leave_s: float) -> None:
        self._clock = clock
        self._leave_s = leave_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._lines: queue.SimpleQueue[OutputLine] = queue.SimpleQueue()
        self._running: dict[str, float | None] = {}  # when each was first seen to have ended

    def __enter__(self) -> "CommandGroup":
        return self

    def __exit__(self, *_: object) -> None:
        for _unread in self.leave():
            pass

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], cores: frozenset[int] = frozenset()
    ) -> None:
        """Start a command in a session of its own, on these cores; on those of this process where none are named.

        Raises:
            CommandError: It cannot be started.
        """
        own = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, cores or own)  # which the command inherits
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or error
            raise CommandError(
                f"{argv[0]} cannot be started: {words}", where=name, remedy="Is it installed?"
            ) from error
        finally:
            os.sched_setaffinity(0, own)
        assert process.stdout is not None, "it was asked for"
        reader = threading.Thread(target=self._read, args=(name, process.stdout), daemon=True)
        self._processes[name], self._readers[name], self._running[name] = process, reader, None
        reader.start()

    def output(self) -> Iterator[OutputLine | CommandEnd]:
        """Yield what they print as it comes, and their ends, until all have ended."""
        while self._running:
            yield from self._told()

    def leave(self) -> Iterator[OutputLine | CommandEnd]:
        """Tell them to leave, and yield what they still print, until all have ended, if need be by force."""
        for process in self._processes.values():
            assert process.stdin is not None, "it was asked for"
            with contextlib.suppress(OSError):
                process.stdin.close()
        began_s = self._clock.now_s()
        # between SIGTERM to a command that did not leave, and SIGKILL
        steps = [(self._leave_s, signal.SIGTERM), (self._leave_s + 3.0, signal.SIGKILL)]
        while self._running:
            if steps and self._clock.now_s() - began_s >= steps[0][0]:
                number = steps.pop(0)[1]
                for name in self._running:
                    self._processes[name].send_signal(number)  # sends nothing if it has ended
            yield from self._told()

    def _told(self) -> Iterator[OutputLine | CommandEnd]:
        """Yield the next line; or, if none comes for a moment, the ends of those that have no more to say."""
        ended = [name for name in self._running if self._has_ended(name)]
        try:
            yield self._lines.get(timeout=0.2)
        except queue.Empty:
            for name in ended:
                del self._running[name]
                yield CommandEnd(name=name, status=self._processes[name].wait())

    def _has_ended(self, name: str) -> bool:
        """Return whether a command is gone, and its output with it, unless a process that it left keeps that open."""
        if self._processes[name].poll() is None:
            return False
        now_s, seen_s = self._clock.now_s(), self._running[name]
        self._running[name] = now_s if seen_s is None else seen_s
        # for what is still in its output when it has ended
        return not self._readers[name].is_alive() or (seen_s is not None and now_s - seen_s >= 1.0)

    def _read(self, name: str, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(64 << 10):
                self._lines.put(OutputLine(name=name, text=line.decode("utf-8", "replace").rstrip("\r\n")))
