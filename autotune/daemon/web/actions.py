"""Actions of the page: what it may change, where the daemon was started with that permission."""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.daemon.queue.changes import CHANGES
from autotune.daemon.queue.queue import Queue
from autotune.errors import AutotuneError

_LONGEST_ID = 64


def act(queue: Queue, request: object) -> None:
    """Do what a request asks for.

    Args:
        queue: The queue.
        request: The request's JSON: ``action``, and the ``id`` of an entry.

    Raises:
        ValueError: It is no such request.
        AutotuneError: There is no such entry, it is in no state for that, or the queue cannot be written.
    """
    match request:
        case {"action": str() as action, "id": str() as id} if len(id) <= _LONGEST_ID:
            pass
        case _:
            raise ValueError("an action and the id of an entry are expected")
    if all(entry.id != id for entry in queue.entries()):
        raise AutotuneError("there is no such entry any more", remedy="Look at the queue again.")
    if action == "remove":
        queue.remove(id)
    elif action in CHANGES:
        queue.change(id, CHANGES[action])
    else:
        raise ValueError(f"there is no such action: {', '.join(('remove', *CHANGES))}")


def error_document(error: AutotuneError) -> Mapping[str, Any]:
    """Return an error as the page shows it."""
    return {"error": {"message": error.message, "remedy": error.remedy}}


Act = Callable[[object], None]
