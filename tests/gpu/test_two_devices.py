"""The check of two real GPUs runs, on two logical CPUs."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.services


def test_it_makes_all_its_parts_on_two_logical_cpus() -> None:
    """A table of the overlap under each placement, and no more steps under way than a few."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.two_devices", "--cpu", "--batches", "10", "--batch", "1", "--width", "64"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.startswith("| /CPU") and line.count("|") == 9]) == 9
    (ahead,) = (line for line in lines if "steps were under way at a time" in line)
    assert int(ahead.split()[2]) <= 3
