"""Identity of a process across machines, and whether it is gone; git commit; users of a config."""

import os
import re
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import psutil

from autotune.files import read_beginning
from autotune.records import Scalar


def this_process() -> dict[str, Scalar]:
    """Return the identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> dict[str, Scalar]:
    """Return the identity of a process of this machine, possibly a zombie."""
    return {**_machine(), "pid": pid, "started_s": psutil.Process(pid).create_time()}


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Return whether a process of this machine's current boot is known to have ended."""
    if not is_here(owner):
        return False
    pid, started_s = owner.get("pid"), owner.get("started_s")
    if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 1 << 31:
        return False
    try:
        process = psutil.Process(pid)
        # the kernel derives the start time from ticks
        another = isinstance(started_s, float) and abs(process.create_time() - started_s) > 1.0
        return another or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def is_here(owner: Mapping[str, Any]) -> bool:
    """Return whether a process is of this machine's current boot, and visible in this PID namespace."""
    return all(value is not None and owner.get(name) == value for name, value in _machine().items())


def same_boot(owner: Mapping[str, Any]) -> bool:
    """Return whether a process is of this machine's current boot, in any container; True if unknown."""
    here, there = _machine()["boot_id"], owner.get("boot_id")
    return here is None or there is None or here == there


def _machine() -> dict[str, Scalar]:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")  # containers share the boot, not the process ids
    except OSError:
        return {"host": socket.gethostname(), "boot_id": None}
    return {"host": socket.gethostname(), "boot_id": boot_id, "pid_namespace": namespace}


# Commit of a git project, read from its files: git itself may start programs that a repository names.


_REF = re.compile(r"ref: (refs/[^\x00-\x20~^:?*\[\\]+)")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def git_commit(folder: Path) -> str | None:
    """Return the checked-out commit of a folder; None outside a repository."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():  # a worktree, or a submodule
            git = place / _line(git).removeprefix("gitdir: ")
        if git.is_dir():
            return _head(git)
    return None


def _head(git: Path) -> str | None:
    head = _line(git / "HEAD")
    if (match := _REF.fullmatch(head)) is None:
        return head if _COMMIT.fullmatch(head) else None
    common = git / _line(git / "commondir") if (git / "commondir").is_file() else git
    for place in (git, common):
        commit = _line(place / match[1])
        if _COMMIT.fullmatch(commit):
            return commit
    for line in read_beginning(common / "packed-refs", 1 << 20).decode(errors="replace").splitlines():
        commit, _, name = line.partition(" ")
        if name == match[1] and _COMMIT.fullmatch(commit):
            return commit
    return None


def _line(path: Path) -> str:
    return read_beginning(path, 4096).decode(errors="replace").partition("\n")[0].strip()


# Processes whose command line names a config.


def users_of_config(config: Path) -> list[int]:
    """Return the ids of other processes whose command line names a config, by any path."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        pid, words = process.info["pid"], process.info["cmdline"] or ()
        named = [word for word in words if word.endswith(config.name)]
        if pid != os.getpid() and named and _is_among(config, named, process):
            found.append(pid)
    return found


def _is_among(config: Path, words: Collection[str], process: psutil.Process) -> bool:
    try:
        cwd = process.cwd()
    except psutil.Error:
        cwd = "/"
    paths = [word for text in words for word in (text, text.partition("=")[2]) if word]
    return any(os.path.realpath(os.path.join(cwd, path)) == str(config) for path in paths)
