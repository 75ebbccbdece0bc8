"""Puts our calls around functions of others so that nothing of ours can break them."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, NamedTuple, Optional

MOST_FAILURES = 3
"""Errors of our own, after which nothing is observed any more."""

Begin = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Called before, with the arguments; what it returns goes to the `End`, which is not called if that is None."""

End = Callable[[Any, Any, Optional[BaseException]], None]
"""Called after, with what the `Begin` returned, the function's result, and the exception that it raised or None."""


class Replaced(NamedTuple):
    """A function of somebody else's that one of ours stands in the place of."""

    owner: Any
    name: str
    original: Callable[..., Any]
    ours: Callable[..., Any]


class Shield:
    """Catches all errors of the observer, and switches it off when there are too many.

    Args:
        note: Told, once each, what went wrong.

    Attributes:
        on: Whether anything is observed.
        replaced: All that was replaced.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._failures = 0
        self.on = True
        self.replaced: list[Replaced] = []

    def failed(self, error: Exception) -> None:
        """Counts an error and says it; the user's code goes on as if there were no observer."""
        with contextlib.suppress(Exception):
            self._failures += 1
            said = f"{type(error).__name__}: {error}"
            if self._failures >= MOST_FAILURES and self.on:
                self.on = False
                self._note(f"the observer has switched itself off: {said}")
            elif self.on:
                self._note(f"the observer may have missed steps: {said}")

    def put(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Puts a function of ours in the place of a module's function or a class's method; nothing else does so."""
        original = getattr(owner, name)
        setattr(owner, name, ours)
        self.replaced.append(Replaced(owner, name, original, ours))

    def attempt(self, what: str, action: Callable[[], object]) -> None:
        """Does something that a version of a framework may not allow, such as to patch what it does not have."""
        try:
            action()
        except Exception as error:
            with contextlib.suppress(Exception):
                self._note(f"{what} cannot be observed: {type(error).__name__}: {error}")

    def around(self, owner: Any, name: str, begin: Begin, end: Optional[End]) -> None:
        """Replaces a function of a module, or a method of a class: see `observing`.

        Raises:
            AttributeError: There is no such function.
        """
        self.put(owner, name, self.observing(getattr(owner, name), begin, end))

    def observing(self, original: Callable[..., Any], begin: Begin, end: Optional[End]) -> Callable[..., Any]:
        """A function that does the same as another, with `begin` and `end` around it, or `begin` alone before it.

        Its arguments, result and exceptions are the same. Whoever asks for its signature gets the original's.
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
                self.end(end, token, None, error)
                raise
            try:
                end(token, result, None)
            except Exception as error:
                self.failed(error)
            return result

        return observed

    def end(self, end: End, token: Any, result: Any, error: BaseException) -> None:
        """Calls an `End` because of an error of theirs."""
        try:
            end(token, result, error)
        except Exception as own_error:
            self.failed(own_error)
