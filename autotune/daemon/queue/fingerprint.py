"""Fingerprint of what is to be searched, taken from the disk."""

import hashlib
from pathlib import Path

from autotune.daemon.queue.entry import Fingerprint
from autotune.files import open_regular
from autotune.process.git_state import git_state

_MOST_BYTES = 16 << 20  # of a config; what is longer counts by its beginning


def fingerprint(config: Path) -> Fingerprint:
    """Return the fingerprint of a config and of the git project that holds it."""
    git = git_state(config.parent)
    return Fingerprint(
        config_sha256=config_sha256(config),
        git_commit=git[0] if git else None,
        git_is_dirty=git[1] if git else None,
    )


def config_sha256(config: Path) -> str | None:
    """Return the hash of a config's bytes; None if it cannot be read."""
    try:
        with open_regular(config.resolve()) as file:
            return hashlib.sha256(file.read(_MOST_BYTES)).hexdigest()
    except (OSError, RuntimeError):  # the latter for a loop of links
        return None
