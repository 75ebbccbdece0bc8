"""Frameworks in the processes of a trial, as their mapped libraries tell."""

import re
from pathlib import Path

import psutil

FRAMEWORKS = ("torch", "tensorflow", "jaxlib")
"""Packages with a library of their own that the observer of steps knows; Keras trains with one of them."""

_MAPPED = re.compile(rf"/({'|'.join(FRAMEWORKS)})/[^\n]*\.so")


def uses_a_framework(pid: int) -> bool | None:
    """Return whether a process or a descendant of it has loaded a framework whose steps are observed.

    Args:
        pid: The process.

    Returns:
        None if that cannot be known: it has ended, or one of them is another user's.
    """
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
        return any(_MAPPED.search(Path(f"/proc/{member.pid}/maps").read_text(errors="replace")) for member in members)
    except (psutil.Error, OSError):
        return None
