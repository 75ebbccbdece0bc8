"""Promises of the collector's process: light, never an orphan, and without a word where it cannot write."""

import os
import select
import subprocess
import sys

from autotune.measure.gpu.samples import of_line
from tests.fake_nvml.scenario import Fault, Scenario

UUID = "GPU-00000000-0000-4000-8000-000000000000"
COLLECTOR = (sys.executable, "-P", "-m", "autotune.measure.gpu.process")
PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:])
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_when_its_parent_is_gone(fake_gpu, tmp_path):
    """Also without a guard: whoever started it need not end it."""
    command = [sys.executable, "-c", PARENT, *COLLECTOR, str(tmp_path / "gpu.jsonl"), UUID]
    with subprocess.Popen(
        command, env=fake_gpu(Scenario()).env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        while not (tmp_path / "gpu.jsonl").exists():
            assert not select.select([descriptor], [], [], 0.01)[0]
        assert parent.poll() is None
        parent.communicate()
        assert select.select([descriptor], [], [], 60.0)[0]
        os.close(descriptor)


def test_a_file_that_cannot_be_written_is_one_line(fake_gpu, tmp_path):
    """For the log; the search is told by the silence."""
    done = subprocess.run(
        [*COLLECTOR, str(tmp_path / "nowhere" / "gpu.jsonl"), UUID],
        env=fake_gpu(Scenario()).env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("the GPU collector cannot write: ")
    assert done.stderr.count("\n") == 1


def test_a_driver_that_is_not_there_ends_it_with_the_reason(fake_gpu, tmp_path):
    """The reader hears of it, and nobody else does."""
    file = tmp_path / "gpu.jsonl"
    env = fake_gpu(Scenario(faults=(Fault(function="nvmlInit*", code=9),))).env
    done = subprocess.run([*COLLECTOR, str(file), UUID], env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    (lost,) = [of_line(line) for line in file.read_text().splitlines()]
    assert lost.name == "driver not loaded"


def test_it_imports_next_to_nothing():
    """It starts in the time of a bare interpreter: nothing of numpy, msgspec or the rest of autotune."""
    code = (
        "import sys, autotune.measure.gpu.process; "
        "heavy = {'numpy', 'msgspec', 'psutil', 'rich', 'optuna', 'yaml', 'autotune.records', 'pynvml'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""
