"""Searches where the system gives too little: words and a remedy, never a bug, and never nothing at all."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SEARCH = ("-m", "autotune", "search", "--config", "config.yaml", "--budget", "20s", "--json")


def limited(project: Path, what: int, limit: int) -> "subprocess.CompletedProcess[str]":
    """Search shortly under a limit."""
    return subprocess.run(
        [sys.executable, *SEARCH],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        preexec_fn=lambda: resource.setrlimit(what, (limit, limit)),
    )


@pytest.mark.parametrize("mebibytes", [48, 280, 500])
def test_too_little_address_space_is_an_expected_error(project: Path, mebibytes: int) -> None:
    """An expected error says so, whatever it is that does not fit; or all of it does, and there is an answer."""
    done = limited(project, resource.RLIMIT_AS, mebibytes << 20)
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    assert "baseline" in answer or "limit" in answer["error"]["message"] + answer["error"]["remedy"]


@pytest.mark.parametrize("files", [8, 16])
def test_too_few_open_files_are_an_expected_error(project: Path, files: int) -> None:
    """An expected error says so, or there is an answer."""
    done = limited(project, resource.RLIMIT_NOFILE, files)
    assert done.returncode in (0, 1), done.stderr
    assert "this is a bug" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, whom this limit spares")
@pytest.mark.parametrize("processes", [2, 3, 4, 5])
def test_too_few_processes_are_an_expected_error(project: Path, processes: int) -> None:
    """No thread, no guard, no trial, no warm interpreter: each in turn is the one too many."""
    # As somebody else to the kernel's count, who may still read what root may: the interpreter may be root's own.
    script = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))\n"
        f"os.setresuid({NOBODY}, 0, 0)\n"
        f"os.execv(sys.executable, [sys.executable, *{SEARCH!r}])\n"
    )
    drop = ["setpriv", "--bounding-set=-sys_resource,-sys_admin", "--inh-caps=-all"]
    done = subprocess.run(
        [*drop, sys.executable, "-c", script],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    assert "baseline" in answer or "ulimit -a" in answer["error"]["remedy"]


NOBODY = 54_321  # has no other processes that would count
