"""Orphan cleanup: kills processes of trials whose guard was killed."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.clock import Clock
from autotune.trial.folder import TrialFolder

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OrphanCleanup:
    """Result of an orphan cleanup: process ids.

    Attributes:
        left: Processes that did not end within 2 s, or may not be signalled.
    """

    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


def end_orphans(trials: Path, clock: Clock) -> OrphanCleanup:
    """Kill the processes of earlier trials of a study.

    A process belongs to a trial if its environment says so (``AUTOTUNE_TRIAL_ID``, and ``AUTOTUNE_TRIAL_DIR`` with a
    folder of ours directly inside `trials`, links resolved), if it is this user's, and if it is not older than that
    folder. Names and command lines mean nothing. A process that wiped its environment is not found.

    To be called by the holder of the study's lock, while none of its own trials is going on.

    Args:
        trials: The folder that holds the trials of the study.

    Returns:
        The killed processes, and those that could not be killed.
    """
    inside = os.path.realpath(trials)
    me = psutil.Process()
    spared = {me.pid, *(parent.pid for parent in me.parents())}
    uid = os.getuid()
    give_up_s = clock.now_s() + 2.0
    signalled: set[int] = set()
    while True:
        found = [
            process for process in psutil.process_iter() if process.pid not in spared and _belongs(process, inside, uid)
        ]
        for process in found:
            try:
                process.kill()  # refuses if the id has come to mean another process
            except psutil.Error:
                continue
            signalled.add(process.pid)
        left = {process.pid for process in found}
        # Until a look finds none, since a killed process may have forked in between.
        if not left or clock.now_s() >= give_up_s:
            break
        clock.wait(0.02)
    cleanup = OrphanCleanup(killed=tuple(sorted(signalled - left)), left=tuple(sorted(left)))
    if signalled or left:
        _log.warning(
            "ended %d processes that an earlier trial had left; could not end: %s", len(cleanup.killed), cleanup.left
        )
    return cleanup


def _belongs(process: psutil.Process, inside: str, uid: int) -> bool:
    try:
        if process.uids().real != uid:
            return False
        environ = process.environ()  # a zombie has none, it is beyond killing
        folder = environ.get("AUTOTUNE_TRIAL_DIR")
        if not folder or not environ.get("AUTOTUNE_TRIAL_ID"):
            return False
        real = os.path.realpath(folder)
        if os.path.dirname(real) != inside:
            return False
        created_s = TrialFolder(Path(real)).created_s()
        # A process's start counts from the boot time, which the kernel tells in whole seconds.
        return created_s is not None and process.create_time() >= created_s - 2.0
    except (psutil.Error, OSError, ValueError):  # ended while we looked, or not ours to read; a NUL in a path
        return False
