"""End of trial processes that the guard can't reach: ranks on other nodes, or processes that a daemon started.

Such a process isn't a descendant of the guard. It creates ``away.<name>`` in the trial's folder and kills itself once
the guard has written ``over`` at the trial's end, or that file is gone because the trainer is started again in this
folder. The guard also cancels Slurm's steps.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from autotune.trainee.ranks import has_own_clock, node_in_file_names

_POLL_EVERY_S = 0.5


def end_with_trial(folder: str) -> None:
    """Make this process end with its trial if the guard can't reach it."""
    if not _is_out_of_reach():
        return
    job, step = (os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    is_of_slurm = job.isdecimal() and step.isdecimal()
    name = f"slurm.{job}.{step}" if is_of_slurm else f"{node_in_file_names()}.{os.getpid()}"
    own = os.path.join(folder, f"away.{name}")
    try:
        os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    except OSError:
        own = folder
    threading.Thread(target=_kill_self_when_over, args=(folder, own), daemon=True).start()


def _is_out_of_reach() -> bool:
    """Return whether this process isn't a descendant of the guard."""
    guard, pid = os.environ.get("AUTOTUNE_GUARD", ""), os.getpid()
    if not guard or has_own_clock():
        return bool(guard)
    try:
        while pid > 1:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # the command's name, in parentheses, may itself contain parentheses and spaces
                pid = int(file.read().rpartition(b")")[2].split()[1])
            if str(pid) == guard:
                return False
    except OSError:
        return False
    return True


def _kill_self_when_over(folder: str, own: str) -> None:
    over = os.path.join(folder, "over")
    while not os.path.exists(over) and os.path.exists(own):
        time.sleep(_POLL_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)
