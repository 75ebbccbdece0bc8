"""Entries of a queue for tests."""

from typing import Any

from autotune.daemon.queue import Fingerprint, QueueEntry, StartRule

IDLE = StartRule(kind="idle")
NOW = StartRule(kind="now")


def entry(number: int = 1, **changes: Any) -> QueueEntry:
    """Return an entry that waits for an idle machine, with these changes."""
    fields: dict[str, Any] = {
        "id": f"{number:016x}",
        "number": number,
        "config": f"/project/{number}.yaml",
        "cwd": "/project",
        "budget_s": 600.0,
        "start": IDLE,
        "fingerprint": Fingerprint(config_sha256="a" * 64, git_commit="b" * 40),
        "added_utc": "2030-01-01T00:00:00+00:00",
    }
    return QueueEntry(**{**fields, **changes})
