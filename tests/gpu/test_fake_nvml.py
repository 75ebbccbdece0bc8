"""Promise of the fake GPU: a monitor that nobody here wrote sees what a scenario says."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.fake_nvml.scenario import Gpu, Process, Scenario


def monitor(name):
    """The path of a GPU monitor in this environment."""
    path = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    return path or pytest.skip(f"{name} is not installed")


def watched():
    """Two GPUs, one with a process that exists."""
    process = Process(pid=os.getpid(), memory_bytes=3 << 30, share=1.0)
    busy_gpu = Gpu(busy_percent=73, temperature_c=61, power_mw=321_000, fan_percent=44, processes=(process,))
    return Scenario(gpus=(busy_gpu, Gpu(name="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0))))


def test_gpustat_shows_the_fake(fake_gpu):
    """Names, numbers and the process, as of a real machine."""
    command = [monitor("gpustat"), "--json"]
    machine = fake_gpu(watched(), began_s_ago=30)
    done = subprocess.run(command, env=machine.env, capture_output=True, text=True, timeout=60, check=True)
    shown = json.loads(done.stdout)
    first, second = shown["gpus"]
    assert shown["driver_version"] == "565.57.01"
    assert first["name"] == "NVIDIA H100 80GB HBM3"
    assert (first["utilization.gpu"], first["temperature.gpu"], first["fan.speed"]) == (73, 61, 44)
    assert (first["power.draw"], first["enforced.power.limit"]) == (321, 700)
    assert (first["memory.used"], first["memory.total"]) == (3 * 1024, 80 * 1024)
    assert [process["pid"] for process in first["processes"]] == [os.getpid()]
    assert second["name"] == "NVIDIA A100-SXM4-40GB"
    assert (second["utilization.gpu"], second["fan.speed"], second["processes"]) == (0, None, [])
