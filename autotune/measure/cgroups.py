"""Limits that cgroups set to this process: quotas of CPU time, and memory, of the first and the second version."""

from collections.abc import Iterator
from pathlib import Path


def cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the limits in cores; a limit of any ancestor binds as well.

    Args:
        root: Folder in which ``proc`` and ``sys`` are mounted.
    """
    for folder in cgroup_folders(root):
        quota = cpu_quota(folder)
        if quota is not None:
            yield quota


def cpu_quota(folder: Path) -> float | None:
    """Return the limit in cores that one cgroup sets; None if it sets none."""
    quota, _, period = (text_of(folder / "cpu.max") or "max").partition(" ")  # v2: one file
    if quota == "max":
        quota = text_of(folder / "cpu.cfs_quota_us") or "-1"  # v1: two
        period = text_of(folder / "cpu.cfs_period_us") or ""
    return int(quota) / int(period) if int(quota) > 0 and period else None


def memory_limits(root: Path) -> Iterator[int]:
    """Yield the limits in bytes; v1 writes a number beyond any machine's memory for none."""
    for folder in cgroup_folders(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = text_of(folder / name)
            if limit is not None and limit.isdecimal():
                yield int(limit)


def cgroup_folders(root: Path) -> list[Path]:
    """Return the folders of our cgroups in every hierarchy, each before its ancestors.

    A container may see the host's path in ``/proc/self/cgroup`` while its own cgroup is mounted at the top:
    folders that do not exist are left out, and the walk to the top finds it.
    """
    folders = []
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = [controllers, *controllers.split(",")] if controllers else [".", "unified"]
        for mount in dict.fromkeys(mounts):
            top = root / "sys/fs/cgroup" / mount
            own = top / path.lstrip("/")
            ancestors = [own, *own.parents]
            folders += [folder for folder in ancestors if folder.is_relative_to(top) and folder.is_dir()]
    return folders


def text_of(path: Path | str) -> str | None:
    """Return the text of a file of the kernel, without space around it; None if it cannot be read."""
    try:
        # Not Path.read_text: some are read many times a second. Names may hold any bytes.
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
