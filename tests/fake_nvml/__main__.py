"""Runs a command on a machine with fake GPUs: ``python -m tests.fake_nvml starved -- autotune monitor``.

To look at what a program shows, and for benchmarks of the measuring side. ``follow`` is for trainers that write
their kernels with busy_writer.py into the folder that AUTOTUNE_FAKE_NVML_TENANTS names.
"""

import argparse
import os
import subprocess
import sys

from tests.fake_nvml.library import machine_of
from tests.fake_nvml.scenario import Gpu, Process, Scenario, Square

MACHINES = {
    "idle": Scenario(gpus=(Gpu(),)),
    "busy": Scenario(
        gpus=(Gpu(busy_percent=97, processes=(Process(pid=os.getpid(), share=1.0, memory_bytes=30 << 30),)),)
    ),
    "starved": Scenario(gpus=(Gpu(busy_percent=Square(2, 40, period_s=2.1)),)),
    "eight": Scenario(gpus=tuple(Gpu(busy_percent=Square(5, 95, period_s=1.0 + place)) for place in range(8))),
    "follow": Scenario(gpus=(Gpu(), Gpu()), follow=True),
}


def main() -> int:
    """Runs the command, and ends as it does."""
    parser = argparse.ArgumentParser(prog="python -m tests.fake_nvml", description=__doc__)
    parser.add_argument("machine", choices=MACHINES)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    with machine_of(MACHINES[arguments.machine]) as machine:
        return subprocess.run(arguments.command, env=machine.env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
