"""The queue as its commands need it: its entries, and the daemon that works on it, if one runs."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.clock import SystemClock
from autotune.commands.printing import say_aside
from autotune.daemon.control import ask
from autotune.daemon.home import DaemonHome, open_home
from autotune.daemon.queue import Entry, Queue
from autotune.errors import AutotuneError, DaemonAway

NO_DAEMON = "no daemon runs: `autotune daemon run` in a terminal, or `autotune daemon install`"
"""Sentence for whoever waits for nobody."""

_ASK_S = 10.0  # a search that is ended takes up to three


def open_queue() -> tuple[DaemonHome, Queue]:
    """Return the queue of this user on this machine.

    Raises:
        AutotuneError: Its folder cannot be used.
    """
    home = open_home(os.environ)
    return home, Queue(home.queue, SystemClock())


def reasons(home: DaemonHome) -> Mapping[str, str] | None:
    """Return by id what each entry waits for; None if no daemon runs, empty where it does not answer, which is said."""
    try:
        answer = ask(home, timeout_s=_ASK_S)["status"]
    except DaemonAway:
        return None
    except AutotuneError as error:  # what is in the queue can be shown all the same
        say_aside(f"autotune: {error}")
        return {}
    found = answer.get("reasons")
    return found if isinstance(found, Mapping) else {}


def settle(home: DaemonHome) -> bool:
    """Return once the daemon has taken account of a change to the queue; False if no daemon runs.

    Raises:
        AutotuneError: It gives no answer; the change stays.
    """
    try:
        ask(home, to_follow=True, timeout_s=_ASK_S)
    except DaemonAway:
        return False
    except AutotuneError as error:
        raise AutotuneError(
            f"the queue is changed, but the daemon has not followed yet: {error.message}",
            where=error.where,
            remedy="`autotune queue list` shows the queue. If it stays so, end the daemon and start it again.",
        ) from error
    return True


def entry_object(entry: Entry, reason: str | None) -> dict[str, Any]:
    """Return an entry as ``--json`` shows it: without its environment."""
    document = entry.document()
    for private in ("environment", "owner"):
        del document[private]
    return {**document, "left_s": entry.left_s, "reason": reason}


def entries_object(entries: Sequence[Entry], why: Mapping[str, str] | None) -> dict[str, Any]:
    """Return entries as ``--json`` shows them."""
    shown = [entry_object(entry, (why or {}).get(entry.id)) for entry in entries]
    return {"format": 1, "daemon": why is not None, "entries": shown}
