"""Identity of a process across machines: who has claimed something, and whether that one is known to be gone."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from autotune.records import Scalar

_STAMPS_DIFFER_S = 1.0  # the kernel's time of a start is worked out from ticks
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def this_process() -> dict[str, Scalar]:
    """Return the identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> dict[str, Scalar]:
    """Return the identity of a process of this machine that is there, dead or alive: a child that was not reaped."""
    return {**_machine(), "pid": pid, "started_s": psutil.Process(pid).create_time()}


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Return whether a process is known to have ended: one of this machine, since its last boot, that is not there."""
    if not is_here(owner):
        return False
    pid, started_s = owner.get("pid"), owner.get("started_s")
    if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 1 << 31:
        return False
    try:
        process = psutil.Process(pid)
        another = isinstance(started_s, float) and abs(process.create_time() - started_s) > _STAMPS_DIFFER_S
        return another or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def is_here(owner: Mapping[str, Any]) -> bool:
    """Return whether a process is one of this machine, since its last boot, and can be seen from here."""
    return all(value is not None and owner.get(name) == value for name, value in _machine().items())


def same_boot(owner: Mapping[str, Any]) -> bool:
    """Return whether a process is one of this machine since its last boot, in whichever container; also if unknown."""
    here, there = _machine()["boot_id"], owner.get("boot_id")
    return here is None or there is None or here == there


def _machine() -> dict[str, Scalar]:
    try:
        boot_id = _BOOT_ID.read_text().strip()
        namespace = os.readlink(_PID_NAMESPACE)  # containers share the boot, and perhaps the name, but not the ids
    except OSError:
        return {"host": socket.gethostname(), "boot_id": None}
    return {"host": socket.gethostname(), "boot_id": boot_id, "pid_namespace": namespace}
