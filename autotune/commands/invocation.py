"""One call of the command line: its single answer, and its watchdog."""

import contextlib
import faulthandler
import io
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import click

from autotune.clock import Clock
from autotune.commands.output import say, say_aside, say_object
from autotune.errors import AutotuneError, how_it_ended
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.trial.instruments import Simulator


class Invocation:
    """One call of the command line, with a single answer: with ``--json``, one object on stdout.

    The command, the watchdog and signal handlers may answer; the first wins.

    Args:
        started_s: Monotonic start of the process.
        simulator: Runs trials in virtual time; None for processes.

    Attributes:
        as_json: Whether to answer with an object.
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
        self._right = [object()]  # list.pop is atomic, also in a signal handler
        self._owner: int | None = None

    def answer(self, give: Callable[[], None]) -> None:
        """Print the answer, unless there was one, with signals held.

        Blocks until the process exits if another thread answers.
        """
        with signals_held():
            if self._take():
                give()

    def say(self, document: Mapping[str, Any], *lines: str) -> int:
        """Answer with the object or the lines; return exit code 0."""
        if self.as_json:
            self.answer(lambda: say_object(document, indent=2))
        else:
            for line in lines:
                say(line)
        return 0

    def fail(self, error: AutotuneError, *, kind: str | None = None, line: str | None = None) -> None:
        """Answer with an error; ``line`` replaces its usual text."""
        from autotune.report.json_answer import FORMAT

        texts = {"message": error.message, "where": error.where, "remedy": error.remedy}
        clean = {name: text and self.unsecret(text) for name, text in texts.items()}
        with signals_held():
            say_aside(self.unsecret(line or _line(error)))
            if self.as_json:
                self.answer(lambda: say_object({"format": FORMAT, "error": {"kind": kind or error.kind, **clean}}))

    def say_error(self, error: AutotuneError) -> None:
        """Print an error after an answer; a JSON answer contains it."""
        say_aside(self.unsecret(_line(error)))

    def misused(self, error: click.ClickException) -> None:
        shown = io.StringIO()
        error.show(shown)
        context = error.ctx if isinstance(error, click.UsageError) else None
        remedy = f"Try '{context.command_path} --help' for help." if context else None
        wrong = AutotuneError(error.format_message(), remedy=remedy)
        self.fail(wrong, kind="usage", line=shown.getvalue().removesuffix("\n"))

    def interrupted(self, interrupt: BaseException | None) -> int:
        """Report an interrupt; return the exit code."""
        word, code = how_it_ended(interrupt)
        self.ended_early(word)
        return code

    def ended_early(self, message: str) -> int:
        """Answer for a command that did not finish; return the exit code."""
        self.fail(AutotuneError(message), kind="interrupted")
        return 1

    def unsecret(self, text: str) -> str:
        from autotune.config.secrets import secrets_of, without

        return without(text, secrets_of(self._arguments))

    def _take(self) -> bool:
        try:
            self._right.pop()
        except IndexError:
            if self._owner != threading.get_ident():
                threading.Event().wait()  # the answering thread is about to exit the process
            return False
        self._owner = threading.get_ident()
        return True


def _line(error: AutotuneError) -> str:
    """Format an error; a long place gets its own line."""
    place = str(error.where or "")
    if len(place) <= 60:
        return f"autotune: {error}"
    return "\n".join(filter(None, (f"autotune: {error.message}", f"Where: {place}", error.remedy)))


# Watchdog: the main thread may hang in a driver call, on a network disk, or in an endless loop.


LATE_S = 1.5
"""Time from the end of the budget until the process is killed; it is gone half a second later."""

_PACKAGE = Path(__file__).parents[1]


def where_it_is() -> str:
    """Return the main thread's innermost function of autotune."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "outside of autotune's code"
    place = Path(frame.f_code.co_filename).relative_to(_PACKAGE.parent)
    return f"in {frame.f_code.co_name} ({place}, line {frame.f_lineno})"


class Watchdog:
    """Context that kills this process `LATE_S` after its budget; the guard then ends the trials.

    Args:
        ends_s: Monotonic end of the budget; infinity for none.
        end: Answers, in a separate thread; returns the exit code.
    """

    def __init__(self, ends_s: float, end: Callable[[], int], clock: Clock) -> None:
        self._left_s = ends_s - clock.now_s()
        self._end = end
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        if math.isfinite(self._left_s):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
            # A C thread also kills the process if a call holds the GIL. It needs a real stderr and a free thread.
            with contextlib.suppress(AttributeError, OSError, ValueError, OverflowError, RuntimeError):
                last_s = max(0.1, self._left_s + 4.0)  # after `end` had its time
                faulthandler.dump_traceback_later(last_s, exit=True, file=sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        self.stand_down()

    def stand_down(self) -> None:
        """Cancel: the answer is given, or about to be."""
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
