"""Answer that the daemon gives later, while it goes on with its work."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from autotune.daemon.control.protocol import error_response, response_of, result_response
from autotune.errors import AutotuneError

_log = logging.getLogger(__name__)


class Deferred:
    """Answer to one request that is given later, e.g. when a search has stopped; the client waits meanwhile.

    All its methods belong to the thread that serves.

    Attributes:
        is_abandoned: Whether nobody waits for it any more: the client is gone, or the daemon ends.
    """

    def __init__(self) -> None:
        self.is_abandoned = False
        self._response: bytes | None = None
        self._deliver: Callable[[bytes], None] | None = None

    @property
    def is_given(self) -> bool:
        """True once there is an answer."""
        return self._response is not None

    def complete(self, result: Mapping[str, Any]) -> None:
        """Answer the request; nothing happens if it was answered already, or nobody waits."""
        self._give(response_for(result))

    def fail(self, error: AutotuneError) -> None:
        """Answer the request with an error; see `complete`."""
        self._give(response_of(error))

    def when_given(self, deliver: Callable[[bytes], None]) -> None:
        """Set the function that sends the response; it is called at once if there is one."""
        self._deliver = deliver
        if self._response is not None:
            deliver(self._response)

    def abandon(self) -> None:
        """Note that nobody waits any more."""
        self.is_abandoned = True
        self._deliver = None

    def _give(self, response: bytes) -> None:
        if self._response is not None:
            return
        self._response = response
        if self._deliver is not None:
            self._deliver(response)


def response_for(result: Mapping[str, Any]) -> bytes:
    """Return the response for a result; for one that JSON cannot hold, that this is a bug."""
    try:
        return result_response(result)
    except (TypeError, ValueError, RecursionError) as error:
        _log.exception("the answer to a request cannot be sent")
        return bug_response(error)


def bug_response(error: Exception) -> bytes:
    """Return the response for an error that nobody expected; the log has its traceback."""
    return error_response(
        "bug",
        f"this is a bug of the daemon: {type(error).__name__}: {str(error)[:500]}",
        remedy="The daemon goes on; its log has the details. Please report them.",
    )
