"""Promises about whose processes are on a GPU."""

import os
import subprocess
import sys

import pytest

from autotune.daemon.machine_watch import GpuAttribution
from autotune.measure.gpu.driver import Occupant
from autotune.measure.gpu.occupancy import GpuOccupancy, GpusSeen
from autotune.measure.host import ProcessTree
from tests.daemon.idle.readings import UUID

NOWHERE = 2**22 + 7
HOLDS_A_FILE = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"


def seen(t_s, *pids, held_bytes=None, listed_bytes=1 << 30, computes=True):
    """A look at one GPU."""
    occupants = tuple(Occupant(pid=pid, memory_bytes=listed_bytes, name="python", computes=computes) for pid in pids)
    held_bytes = (listed_bytes or 0) * len(pids) if held_bytes is None else held_bytes
    gpu = GpuOccupancy(uuid=UUID, name="H100", occupants=occupants, utilization=0.0, memory_held_bytes=held_bytes)
    return GpusSeen(t_s=t_s, gpus=(gpu,))


@pytest.fixture
def tree():
    """Tree of this process."""
    return ProcessTree((os.getpid(),))


@pytest.fixture
def child(start, tmp_path):
    """Process of ours that has a file open as if it used CUDA."""
    device = tmp_path / "nvidia-uvm"
    device.touch()
    process = start(HOLDS_A_FILE, str(device))
    process.stdout.readline()
    return process


def test_ours_are_told_from_others(tree, child):
    """Ours are this process and all below it, also a child that has just been made."""
    (gpu,) = GpuAttribution(shares_pids=True).of(seen(1.0, os.getpid(), child.pid, 1), tree)
    assert [one.pid for one in gpu.foreign] == [1]
    assert gpu.has_own
    assert gpu.unlisted_bytes == 0


def test_one_of_ours_that_has_just_ended_is_not_somebody(tree):
    """The driver listed it, and it is gone; a process that is nowhere twice is one of another namespace."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=60)
    attribution = GpuAttribution(shares_pids=True)
    assert attribution.of(seen(1.0, gone.pid), tree)[0].foreign == ()
    assert attribution.of(seen(1.5), tree)[0].foreign == ()
    assert attribution.of(seen(2.0, NOWHERE), tree)[0].foreign == ()
    assert [one.pid for one in attribution.of(seen(2.5, NOWHERE), tree)[0].foreign] == [NOWHERE]


def test_memory_without_a_process_is_told(tree):
    """In a container the driver may hide the processes; where it does not say what they hold, nothing is known."""
    attribution = GpuAttribution(shares_pids=True)
    assert attribution.of(seen(1.0, held_bytes=3 << 30), tree)[0].unlisted_bytes == 3 << 30
    assert attribution.of(seen(2.0, 1, held_bytes=3 << 30), tree)[0].unlisted_bytes == 2 << 30
    assert attribution.of(seen(3.0, 1, held_bytes=3 << 30, listed_bytes=None), tree)[0].unlisted_bytes is None


def test_in_a_container_ours_are_counted(tree, child, tmp_path):
    """The driver's ids are those of the host: as many as use CUDA are ours, the rest are not."""
    attribution = GpuAttribution(shares_pids=False, cuda_device=str(tmp_path / "nvidia-uvm"))
    (gpu,) = attribution.of(seen(1.0, NOWHERE), tree)
    assert (gpu.foreign, gpu.has_own, gpu.unlisted_bytes) == ((), True, None)
    (gpu,) = attribution.of(seen(2.0, NOWHERE, NOWHERE + 1), tree)
    assert len(gpu.foreign) == 1
    child.communicate(timeout=60)
    (gpu,) = attribution.of(seen(3.0, NOWHERE), tree)
    assert (len(gpu.foreign), gpu.has_own) == (1, False)


def test_memory_of_hidden_processes_of_ours_is_not_somebodys(tree, child, tmp_path):
    """The driver shows no process at all, and one of ours uses CUDA."""
    attribution = GpuAttribution(shares_pids=True, cuda_device=str(tmp_path / "nvidia-uvm"))
    (gpu,) = attribution.of(seen(1.0, held_bytes=3 << 30), tree)
    assert (gpu.has_own, gpu.unlisted_bytes) == (True, None)
    child.communicate(timeout=60)
    assert attribution.of(seen(2.0, held_bytes=3 << 30), tree)[0].unlisted_bytes == 3 << 30
