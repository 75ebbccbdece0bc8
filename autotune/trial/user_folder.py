"""Per-user folder with a subfolder per machine: the daemon's state, and real trainings."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.trial.folders import user_state_folder, why_exposed, why_not_ours

VARIABLE = "AUTOTUNE_DAEMON_DIR"
"""Variable with the folder of the daemon's state."""

TRAININGS = "trainings"
"""Subfolder of the real trainings."""

ELSEWHERE = f"Set {VARIABLE} to a folder on a local disk that only you can write to."
"""Remedy if the folder cannot be used."""


def user_folder(environ: Mapping[str, str]) -> Path:
    """Return ``$AUTOTUNE_DAEMON_DIR/<machine>``, else ``autotune/daemon/<machine>`` in the user's state folder.

    Raises:
        AutotuneError: Other users could write to it, or the variable holds a relative path.
    """
    named = environ.get(VARIABLE)
    if named and not os.path.isabs(named):
        raise AutotuneError(f"{VARIABLE} is a relative path: {named!r}", remedy="Set it to an absolute path.")
    place = _own(Path(named) if named else user_state_folder(environ) / "daemon")
    state = place / _machine(os.uname().nodename)
    require_ours(state)
    return state


def require_ours(folder: Path) -> None:
    """Raise an error if a folder exists and is open to other users."""
    if why := why_not_ours(folder, frozenset({os.geteuid()})):
        raise _not_ours(folder, why)


def unusable(folder: Path, why: str | None) -> AutotuneError:
    """Return the error for a folder that cannot be written."""
    return AutotuneError(f"the daemon's folder cannot be written: {why}", where=str(folder), remedy=ELSEWHERE)


def _own(place: Path) -> Path:
    try:
        is_planted = place.is_symlink() and place.lstat().st_uid not in (os.geteuid(), 0)
        real = Path(os.path.realpath(place))
    except (OSError, RuntimeError) as error:
        raise unusable(place, getattr(error, "strerror", None) or str(error)) from error
    if is_planted:
        raise _not_ours(place, "it is a link that another user made")
    if why := why_exposed(real.parent):
        raise _not_ours(real, why)
    require_ours(real)
    return real


def _machine(node: str) -> str:
    """Return a machine's name as a path component, with a hash of the original if characters were replaced."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", node).lstrip(".")[:64]
    if safe == node and node:
        return node
    return f"{safe or 'machine'}-{hashlib.sha256(os.fsencode(node)).hexdigest()[:8]}"


def _not_ours(folder: Path, why: str) -> AutotuneError:
    return AutotuneError(
        f"the daemon's folder is not used: {why}",
        where=str(folder),
        remedy=f"Anyone who can write to it could run their code as you. If it is yours, run chmod go-w on it. "
        f"{ELSEWHERE}",
    )
