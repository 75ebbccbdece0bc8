"""Actions of the page: what it may change, where the daemon was started with that permission."""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.daemon.advice import Advices, AdviceState
from autotune.daemon.apply_rule import why_not_permitted
from autotune.daemon.queue.changes import ALL_SCOPES, CHANGES, accepted
from autotune.daemon.queue.queue import Queue
from autotune.errors import AutotuneError

_LONGEST_ID = 64

Act = Callable[[object], None]


def act(queue: Queue, advices: Advices, request: object) -> None:
    """Do what a request asks for.

    Args:
        queue: The queue.
        advices: The advice.
        request: The request's JSON: ``action``, and the ``id`` of an entry, or of an advice for ``apply``. An id is
            looked for among those there are, and is used for nothing else.

    Raises:
        ValueError: It is no such request.
        AutotuneError: There is no such entry or advice, it is in no state for that, or the queue cannot be written.
    """
    match request:
        case {"action": str() as action, "id": str() as id} if len(id) <= _LONGEST_ID:
            pass
        case _:
            raise ValueError("an action and the id of an entry or an advice are expected")
    if action == "apply":
        _apply(queue, advices, id)
    elif action != "remove" and action not in CHANGES:
        raise ValueError(f"there is no such action: {', '.join(('apply', 'remove', *CHANGES))}")
    elif all(entry.id != id for entry in queue.entries()):
        raise AutotuneError("there is no such entry any more", remedy="Look at the queue again.")
    elif action == "remove":
        queue.remove(id)
    else:
        queue.change(id, CHANGES[action])


def _apply(queue: Queue, advices: Advices, id: str) -> None:
    """Have the daemon apply an advice, by the way of one that was permitted when its search was asked for."""
    advice = next((one for one in advices.all() if one.id == id), None)
    if advice is None:
        raise AutotuneError("there is no such advice any more", remedy="Look at the advice again.")
    remedy = f"In a terminal: autotune apply --config {advice.config}"
    if advice.state is AdviceState.APPLIED:
        raise AutotuneError("it is applied already", remedy=f"To undo it: autotune revert --config {advice.config}")
    if why := why_not_permitted(advice, ALL_SCOPES):
        raise AutotuneError(why, remedy=remedy)
    of_it = [entry for entry in queue.entries() if entry.answer is not None and entry.answer.advice == id]
    if not of_it or queue.change(of_it[-1].id, accepted) is None:
        raise AutotuneError("the search that gave it is not in the queue any more", remedy=remedy)


def error_document(error: AutotuneError) -> Mapping[str, Any]:
    """Return an error as the page shows it."""
    return {"error": {"message": error.message, "remedy": error.remedy}}
