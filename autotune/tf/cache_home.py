"""Folder of the caches: where the tuner says, beside the project's other state, or the user's own."""

import contextlib
import os
import stat
from pathlib import Path

CACHE_DIR_VARIABLE = "AUTOTUNE_CACHE_DIR"


def cache_home(near: Path) -> Path:
    """Return the folder in which each cache has a folder of its own.

    Args:
        near: A file of the project, e.g. its config. It is the folder that ``AUTOTUNE_CACHE_DIR`` names, else
            ``.autotune/cache`` of the nearest folder above this file that holds ``.autotune`` or ``.git``, else of the
            working directory; where that one is a link, another user's, or open to others, below ``$XDG_STATE_HOME``.
    """
    given = os.environ.get(CACHE_DIR_VARIABLE)
    if given:
        return Path(given)
    above = near.resolve().parents
    project = next((at for at in above if (at / ".autotune").is_dir() or (at / ".git").exists()), Path.cwd())
    state = project / ".autotune"
    with contextlib.suppress(OSError):  # it is there; or the store says that nothing can be written
        state.mkdir(mode=0o700)
        (state / ".gitignore").write_text("*\n")
    if not _is_ours_alone(state):  # another user with write access could put other features into it
        base = os.environ.get("XDG_STATE_HOME", "")
        state = (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "autotune"
        with contextlib.suppress(OSError):
            state.mkdir(mode=0o700, parents=True)
    return state / "cache"


def _is_ours_alone(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return True  # it cannot be made, and the store will say so
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
