"""Promises about process trees, on real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.measure.host import (
    ProcessTree,
    descendants,
    descendants_by_scan,
    files_being_written,
    holders_of,
    process_stat,
)
from tests.until import until

# A parent that ends at a line on stdin, and leaves a child in a session of its own; it says the child's id.
LEAVING = """
import os, sys, time
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
os._exit(0)
"""


@pytest.fixture
def leaving() -> Iterator[subprocess.Popen[str]]:
    """Process whose descendants outlive it; they are killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    tree = ProcessTree((process.pid,))
    until(lambda: len(tree.look()) == 3)
    yield process
    for pid in tree.look():
        if pid != process.pid:
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate(timeout=60)


def test_kernels_without_lists_of_children_see_the_same(leaving: subprocess.Popen[str]) -> None:
    """The scan of all processes finds the same descendants as the kernel's lists; of a gone process, none."""
    assert len(descendants(leaving.pid)) == 2
    assert sorted(descendants_by_scan(leaving.pid)) == sorted(descendants(leaving.pid))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=60)
    assert descendants(gone.pid) == descendants_by_scan(gone.pid) == []


def test_a_tree_keeps_what_has_lost_its_parent(leaving: subprocess.Popen[str]) -> None:
    """Descendants that were seen stay in the tree when their parent ends, whoever takes them over."""
    tree = ProcessTree((leaving.pid,))
    below = tree.look().keys() - {leaving.pid}
    assert len(below) == 2
    leaving.stdin.write("end\n")
    leaving.stdin.flush()
    leaving.wait(timeout=60)
    assert tree.known().keys() == tree.look().keys() == below


def test_the_dead_are_told_from_the_living(leaving: subprocess.Popen[str]) -> None:
    """A process that nobody has reaped is dead, and its children's CPU time is in their parent's account."""
    child = int(leaving.stdout.readline()) if leaving.stdout else 0
    stat = process_stat(child)
    assert not stat.is_dead
    assert not stat.is_kernel_thread
    assert stat.parent == leaving.pid
    assert stat.session == child
    os.kill(child, signal.SIGKILL)
    until(lambda: (process_stat(child) or stat).is_dead)
    assert process_stat(child) is not None


def test_holders_of_a_file_are_found(tmp_path, leaving: subprocess.Popen[str]) -> None:
    """Who has a file open whose name begins so; who is gone holds nothing."""
    with open(tmp_path / "device-uvm", "w"):
        assert holders_of((os.getpid(), leaving.pid, 2**22 + 1), str(tmp_path / "device")) == {os.getpid()}
    assert holders_of((os.getpid(),), str(tmp_path / "device")) == set()


def test_files_that_are_open_for_writing_are_found(tmp_path: Path) -> None:
    """Those that are only read, or closed again, are none."""
    names = ("written", "added to", "read", "closed")
    for name in names:
        (tmp_path / name).touch()
    with (tmp_path / "written").open("r+b"), (tmp_path / "added to").open("ab"), (tmp_path / "read").open("rb"):
        found = files_being_written()
    inodes = {(about.st_dev, about.st_ino): name for name in names for about in [(tmp_path / name).stat()]}
    assert sorted(name for file, name in inodes.items() if file in found) == ["added to", "written"]
