"""Folder of what is kept for a user on this machine, beside any project: the daemon's state, and real trainings.

Home folders may be shared between machines, so that each machine has a folder of its own in the user's.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.trial.folders import user_state_folder, why_exposed, why_not_ours

VARIABLE = "AUTOTUNE_DAEMON_DIR"
"""Variable that names the folder of all state of the daemon."""

TRAININGS = "trainings"
"""Folder in it of the real trainings that are counted."""

ELSEWHERE = f"Name a place that is yours alone, on a local disk, with {VARIABLE}."
"""Remedy where it cannot be used."""


def user_folder(environ: Mapping[str, str]) -> Path:
    """Locate this user's folder on this machine; nothing is made.

    Args:
        environ: The environment. It is ``$AUTOTUNE_DAEMON_DIR``, else ``autotune/daemon`` in ``$XDG_STATE_HOME`` or
            ``~/.local/state``, and in that a folder named like the machine.

    Raises:
        AutotuneError: Somebody else could put something into it, or replace it; or the variable names no absolute path.
    """
    named = environ.get(VARIABLE)
    if named and not os.path.isabs(named):
        raise AutotuneError(
            f"{VARIABLE} is {named!r}, which depends on where a command is typed",
            where=VARIABLE,
            remedy="Name an absolute path.",
        )
    place = _own(Path(named) if named else user_state_folder(environ) / "daemon")
    state = place / _machine(os.uname().nodename)
    require_ours(state)
    return state


def require_ours(folder: Path) -> None:
    """Raise an error if a folder exists and is not this user's alone."""
    if why := why_not_ours(folder, frozenset({os.geteuid()})):
        raise _not_ours(folder, why)


def unusable(folder: Path, why: str | None) -> AutotuneError:
    """Return the error of a folder that cannot be written."""
    return AutotuneError(f"the daemon's folder cannot be written: {why}", where=str(folder), remedy=ELSEWHERE)


def _own(place: Path) -> Path:
    """Return a folder with its links resolved, if nobody else could plant something in it or replace it.

    Raises:
        AutotuneError: Somebody could.
    """
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
    """Return a machine's name as part of a path; one that had to be changed ends in a hash of the original."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", node).lstrip(".")[:64]
    if safe == node and node:
        return node
    return f"{safe or 'machine'}-{hashlib.sha256(os.fsencode(node)).hexdigest()[:8]}"


def _not_ours(folder: Path, why: str) -> AutotuneError:
    return AutotuneError(
        f"the daemon's folder is not used: {why}",
        where=str(folder),
        remedy=f"Whoever may write to it could have code of theirs run. If it is yours, close it (chmod go-w). "
        f"{ELSEWHERE}",
    )
