"""Environment that processes inherit from autotune: all of its own, but for what is between it and its user."""

import os

STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""Variable that may hold the address of a storage, with its password. No other process gets it."""


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without the address of the storage."""
    return {name: value for name, value in os.environ.items() if name != STORAGE_VARIABLE}
