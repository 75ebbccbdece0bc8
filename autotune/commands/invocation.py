"""One call of the command line: when it began, what it says in the end, once, and what ends it where it hangs."""

import contextlib
import faulthandler
import io
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from autotune.clock import Clock
from autotune.commands.output import say, say_aside, say_object
from autotune.errors import AutotuneError, how_it_ended
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.trial.instruments import Simulator


class Invocation:
    """One call of the command line, and the right to answer, which goes to the first who takes it.

    The command itself, the watchdog of a search, and whoever is interrupted may all want to answer; with ``--json``
    exactly one object must come of it.

    Args:
        arguments: What was typed after ``autotune``.
        started_s: When the process started, on the clock's monotonic time.
        clock: Clock of the command.
        simulator: Runs the trials of a search in virtual time; None for processes.

    Attributes:
        as_json: Whether the answer, or the error, is wanted as an object on stdout.
    """

    def __init__(
        self, arguments: Sequence[str], started_s: float, clock: Clock, simulator: "Simulator | None" = None
    ) -> None:
        self._arguments = tuple(arguments)
        self.started_s = started_s
        self.clock = clock
        self.simulator = simulator
        own = self._arguments[: self._arguments.index("--") if "--" in self._arguments else None]
        self.as_json = "--json" in own
        self._right = [object()]  # to take the last one off a list is one step, also for a signal's handler
        self._owner: int | None = None

    def answer(self, give: Callable[[], None]) -> None:
        """Gives the answer, whole, unless one was given already; signals wait meanwhile.

        In another thread than the one that has taken it, this waits for the end of the process.
        """
        with signals_held():
            if self._take():
                give()

    def say(self, document: Mapping[str, Any], *lines: str) -> int:
        """Answers with an object where that is asked for, else with these lines; returns the exit code of success."""
        if self.as_json:
            self.answer(lambda: say_object(document, indent=2))
        else:
            for line in lines:
                say(line)
        return 0

    def fail(self, error: AutotuneError) -> None:
        self._fail(error.kind, error.message, where=error.where, remedy=error.remedy, line=_line(error))

    def say_error(self, error: AutotuneError) -> None:
        """Says an error beside an answer, which holds it already where it is an object."""
        say_aside(self.unsecret(_line(error)))

    def misused(self, error: click.ClickException) -> None:
        """Says what is wrong with what was typed."""
        shown = io.StringIO()
        error.show(shown)
        context = error.ctx if isinstance(error, click.UsageError) else None
        remedy = f"Try '{context.command_path} --help' for help." if context else None
        self._fail("usage", error.format_message(), where=None, remedy=remedy, line=shown.getvalue().removesuffix("\n"))

    def interrupted(self, interrupt: BaseException | None) -> int:
        """Says that the command was interrupted.

        Returns:
            The exit code.
        """
        word, code = how_it_ended(interrupt)
        self.ended_early(word)
        return code

    def ended_early(self, message: str) -> None:
        """Says what ended the command, and what that means."""
        self._fail("interrupted", message, where=None, remedy=None, line=f"autotune: {message}")

    def unsecret(self, text: str) -> str:
        """A text as it may be shown and kept: it may quote a secret that was typed."""
        from autotune.config.secrets import secrets_of, without

        return without(text, secrets_of(self._arguments))

    def _fail(self, kind: str, message: str, *, where: str | None, remedy: str | None, line: str) -> None:
        from autotune.report.json_answer import error_object

        texts = {"message": message, "where": where, "remedy": remedy}
        clean: dict[str, Any] = {name: text and self.unsecret(text) for name, text in texts.items()}
        with signals_held():
            say_aside(self.unsecret(line))
            if self.as_json:
                self.answer(lambda: say_object(error_object(kind=kind, **clean)))

    def _take(self) -> bool:
        """Return True if the caller gives the answer."""
        try:
            self._right.pop()
        except IndexError:
            if self._owner != threading.get_ident():
                threading.Event().wait()  # who has it is about to end the process
            return False
        self._owner = threading.get_ident()
        return True


def _line(error: AutotuneError) -> str:
    """Return an error for people; a long place stands behind what is wrong, which nobody should have to look for."""
    place = str(error.where or "")
    if len(place) <= 60:
        return f"autotune: {error}"
    return "\n".join(filter(None, (f"autotune: {error.message}", f"Where: {place}", error.remedy)))


# A main thread that hangs: in a driver call, on a network disk, in an endless loop.


LATE_S = 1.5
"""Time after the end of the budget, when the process is ended by force; it is gone half a second later."""

_PACKAGE = Path(__file__).parents[1]


def where_it_is() -> str:
    """Return where the main thread of this process is, for people: the innermost function of autotune's own."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "in code that is not autotune's"
    place = Path(frame.f_code.co_filename).relative_to(_PACKAGE.parent)
    return f"in {frame.f_code.co_name} ({place}, line {frame.f_lineno})"


class Watchdog:
    """Ends this process if it is still at work some time after its budget; a context for that work.

    What guards the trials sees the process go, and ends them.

    Args:
        ends_s: When the budget ends, on the clock's monotonic time; infinity for never.
        end: Says what there is to say, in a thread of its own, and returns the exit code.
    """

    def __init__(self, ends_s: float, end: Callable[[], int], clock: Clock) -> None:
        self._left_s = ends_s - clock.now_s()
        self._end = end
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        if math.isfinite(self._left_s):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
            # A thread of C, if there is room for one and stderr is a file: it ends the process also if a call holds
            # the interpreter's lock.
            with contextlib.suppress(AttributeError, OSError, ValueError, OverflowError, RuntimeError):
                # after the end of the budget, also where no other thread of Python gets a turn
                last_s = max(0.1, self._left_s + 4.0)
                faulthandler.dump_traceback_later(last_s, exit=True, file=sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stand_down()

    def stand_down(self) -> None:
        """Lets the process take its time from now on: what it was to answer is answered, or about to be."""
        self._is_over.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        if self._is_over.wait(min(max(0.0, self._left_s + LATE_S), threading.TIMEOUT_MAX)):
            return
        code = 1
        try:
            code = self._end()
        finally:
            os._exit(code)
