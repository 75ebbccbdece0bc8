"""Instrumentation of framework functions that fails open: no error of the observer reaches the user's code."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, NamedTuple, Optional

MOST_FAILURES = 3
"""Errors of the observer that switch it off."""

Begin = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Callback before a call, with its arguments; its result goes to the `End`, which is skipped if that is None."""

End = Callable[[Any, Any, Optional[BaseException]], None]
"""Callback after a call, with the result of the `Begin`, the function's result, and its exception or None."""


class Replaced(NamedTuple):
    """Record of one replaced function: its owner, its name, the original and the wrapper."""

    owner: Any
    name: str
    original: Callable[..., Any]
    ours: Callable[..., Any]


class Instrumentation:
    """Wrappers around framework functions; catches the observer's errors and switches it off after too many.

    Args:
        note: Called with the message of each error.

    Attributes:
        on: True until the observer is switched off.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._failures = 0
        self.on = True
        self.replaced: list[Replaced] = []

    def failed(self, error: Exception) -> None:
        """Count an error of the observer and report it; the user's code continues as if there were no observer."""
        with contextlib.suppress(Exception):
            self._failures += 1
            said = f"{type(error).__name__}: {error}"
            if self._failures >= MOST_FAILURES and self.on:
                self.on = False
                self._note(f"the observer has switched itself off: {said}")
            elif self.on:
                self._note(f"the observer may have missed steps: {said}")

    def guarded(self, action: Callable[..., object]) -> Callable[..., None]:
        """Return a function that calls this one, and raises nothing."""

        def call(*args: Any) -> None:
            try:
                action(*args)
            except Exception as error:
                self.failed(error)

        return call

    def attempt(self, what: str, action: Callable[..., object], *args: Any) -> None:
        """Call a function that some framework versions do not support: it may patch what they lack."""
        try:
            action(*args)
        except Exception as error:
            with contextlib.suppress(Exception):
                self._note(f"{what} cannot be observed: {type(error).__name__}: {error}")

    def put(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Replace a module's function or a class's method; the only place that patches anything."""
        original = getattr(owner, name)
        setattr(owner, name, ours)
        self.replaced.append(Replaced(owner, name, original, ours))

    def around(self, owner: Any, name: str, begin: Begin, end: Optional[End]) -> None:
        """Replace a module's function or a class's method by its observed version, see `observing`.

        Raises:
            AttributeError: There is no such function.
        """
        self.put(owner, name, self.observing(getattr(owner, name), begin, end))

    def observing(self, original: Callable[..., Any], begin: Begin, end: Optional[End]) -> Callable[..., Any]:
        """Return a wrapper that calls `begin` before the original and, unless it is None, `end` after it.

        Arguments, result and exceptions are the original's, and so is the reported signature.
        """

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(*args, **kwargs)
            try:
                token = begin(args, kwargs)
            except Exception as error:
                self.failed(error)
                token = None
            if token is None or end is None:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self.guarded(end)(token, None, error)
                raise
            try:
                end(token, result, None)
            except Exception as error:
                self.failed(error)
            return result

        return observed
