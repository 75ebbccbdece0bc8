"""The check of two real GPUs runs, on two logical CPUs; where there are no two GPUs it says so."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.services

CHECK = [sys.executable, "-m", "tests.gpu.two_devices"]


def test_it_makes_all_its_parts_on_two_logical_cpus() -> None:
    """The same batches under each placement, a table of the overlap, and no more steps under way than a few."""
    done = subprocess.run(
        [*CHECK, "--cpu", "--batches", "10", "--batch", "1", "--width", "64"],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    lines = done.stdout.splitlines()
    same = [line.split("|")[2:4] for line in lines if line.startswith("| /CPU") and line.count("|") == 4]
    assert [[cell.strip() for cell in cells] for cells in same] == [["30", "0"]] * 3
    assert len([line for line in lines if line.startswith("| /CPU") and line.count("|") == 9]) == 9
    (ahead,) = (line for line in lines if "steps were under way at a time" in line)
    assert int(ahead.split()[2]) <= 3


def test_one_gpu_or_none_is_said() -> None:
    """With the number that TensorFlow sees."""
    import tensorflow as tf

    if len(tf.config.list_physical_devices("GPU")) < 2:
        done = subprocess.run(CHECK, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 1
        assert "GPUs, this needs two" in done.stderr
