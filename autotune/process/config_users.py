"""Processes that use a config: those whose command line names it."""

import os
from collections.abc import Collection
from pathlib import Path

import psutil


def users_of_config(config: Path, *, apart_from: Collection[int] = ()) -> list[int]:
    """Return the ids of the processes whose command line names a config, by any path.

    Those of other users are found where the kernel shows where they run.

    Args:
        config: The config, links resolved.
        apart_from: Processes that do not count.
    """
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        pid, words = process.info["pid"], process.info["cmdline"] or ()
        named = [word for word in words if word.endswith(config.name)]
        if pid not in apart_from and pid != os.getpid() and named and _is_among(config, named, process):
            found.append(pid)
    return found


def _is_among(config: Path, words: Collection[str], process: psutil.Process) -> bool:
    try:
        cwd = process.cwd()
    except psutil.Error:
        cwd = "/"
    paths = [word for text in words for word in (text, text.partition("=")[2]) if word]
    return any(os.path.realpath(os.path.join(cwd, path)) == str(config) for path in paths)
