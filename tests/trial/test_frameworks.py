"""Frameworks in real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.trial.stop_rule import uses_a_framework

CHILD = """\
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("library", "uses"),
    [("torch/lib/libtorch_cpu.so", True), ("jaxlib/libjax common.so.1", True), ("mytorch/lib/other.so", False)],
)
def test_frameworks_are_seen_in_the_processes_below_a_launcher(tmp_path: Path, library: str, uses: bool) -> None:
    """By the libraries that they have mapped; the launcher itself has none."""
    path = tmp_path / library
    path.parent.mkdir(parents=True)
    path.write_bytes(b"library")
    launcher = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}, {str(path)!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", launcher], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        assert uses_a_framework(process.pid) is uses
        process.stdin.close()
