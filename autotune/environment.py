"""Environment that processes inherit from autotune: all of its own, but for what is between it and its user."""

import os
from collections.abc import Mapping
from pathlib import Path

STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""Variable that may hold the address of a storage, with its password. Only workers get it of what a search
starts."""


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without the address of the storage."""
    return {name: value for name, value in os.environ.items() if name != STORAGE_VARIABLE}


def settings_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's settings by the XDG Base Directory Specification; it need not exist.

    Args:
        environ: The environment, for ``XDG_CONFIG_HOME`` and ``HOME``.
    """
    base = environ.get("XDG_CONFIG_HOME") or ""
    if os.path.isabs(base):  # a relative one counts as not set
        return Path(base)
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".config"
