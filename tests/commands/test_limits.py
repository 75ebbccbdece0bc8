"""Searches where the system gives too little: words and a remedy, never a bug, and never nothing at all."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SEARCH = (sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", "20s", "--json")
NO_OWNER = 54_321
"""User who has no other processes that would count."""


def searched(project: Path, remedy: str, *words: str, limit: Callable[[], object] | None = None) -> None:
    """Search under a limit: an expected error has the remedy, whatever does not fit; or there is an answer."""
    done = subprocess.run(
        words or SEARCH, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=limit,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    assert "baseline" in answer or remedy in answer["error"]["message"] + answer["error"]["remedy"]


@pytest.mark.parametrize("mebibytes", [48, 280, 500])
def test_too_little_address_space_is_an_expected_error(project: Path, mebibytes: int) -> None:
    """Not even the imports fit, or they do and a thread does not."""
    size = mebibytes << 20
    searched(project, "limit", limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)))


def test_too_few_open_files_are_an_expected_error(project: Path) -> None:
    """No trial can be started."""
    searched(project, "files", limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, whom this limit spares")
@pytest.mark.parametrize("processes", [2, 3, 4, 5])
def test_too_few_processes_are_an_expected_error(project: Path, processes: int) -> None:
    """No thread, no guard, no trial, no warm interpreter: each in turn is the one too many."""
    # As somebody else to the kernel's count, who may still read what root may: the interpreter may be root's own.
    script = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))\n"
        f"os.setresuid({NO_OWNER}, 0, 0)\n"
        f"os.execv(sys.executable, {SEARCH!r})\n"
    )
    drop = ("setpriv", "--bounding-set=-sys_resource,-sys_admin", "--inh-caps=-all")
    searched(project, "ulimit -a", *drop, sys.executable, "-c", script)
