"""Folders of watched trainings: where they are, their names, and how one is made."""

import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from autotune.daemon.trainings.training_header import TrainingHeader
from autotune.errors import AutotuneError
from autotune.files import make_private_folder
from autotune.folders.observer_copy import copy_observer
from autotune.folders.ownership import why_exposed, why_not_ours

WATCH_VARIABLE = "AUTOTUNE_WATCH_DIR"
"""Variable that names a training's folder to the observer inside the training."""

TRIAL_VARIABLE = "AUTOTUNE_TRIAL_DIR"

_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]{1,10}-[0-9a-f]{8}")
_INJECT = "inject"


def is_training(name: str) -> bool:
    """Return whether a folder of that name is one of a watched training."""
    return _NAME.fullmatch(name) is not None


def make_training(trainings: Path, header: TrainingHeader, now: datetime) -> Path:
    """Make the folder of a training that this process is about to become.

    Args:
        trainings: Folder of all of them; made if it does not exist.
        header: What is about to be started.
        now: The time, in UTC.

    Returns:
        The folder, with the header and the observer's copy in it.

    Raises:
        AutotuneError: It cannot be made, or others could plant something there.
    """
    try:
        make_private_folder(trainings)
        why = why_not_ours(trainings, frozenset({os.geteuid()})) or why_exposed(trainings.parent.resolve())
        if why:
            raise AutotuneError(
                f"{trainings} is not used: {why}", remedy="Name a folder that is yours alone with AUTOTUNE_DAEMON_DIR."
            )
        folder = trainings / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}-{secrets.token_hex(4)}"
        make_private_folder(folder)
        copy_observer(folder / _INJECT)
        header.write(folder)
    except OSError as error:
        raise AutotuneError(
            f"no folder can be made for it in {trainings}: {error.strerror}",
            remedy="See to that (room, permissions), or name another place with AUTOTUNE_DAEMON_DIR.",
        ) from error
    return folder


def watched_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a training that is watched.

    Args:
        environ: Its environment without that.
        folder: Its folder.
    """
    # In front of the user's own path; an empty entry would mean the working directory.
    path = os.pathsep.join(filter(None, (str(folder / _INJECT), environ.get("PYTHONPATH"))))
    return {**environ, WATCH_VARIABLE: str(folder), "PYTHONPATH": path}
