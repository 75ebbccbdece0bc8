"""Promises of the fake GPU: the unmodified `pynvml`, and monitors that nobody here wrote, see what a scenario says."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.scenario import (
    Gpu,
    Process,
    Scenario,
    Square,
)

SAMPLES = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)

def samples(since=0, kind=NVML_GPU_UTILIZATION_SAMPLES):
    value_type, rows = nvmlDeviceGetSamples(gpu, kind, since)
    assert value_type == NVML_VALUE_TYPE_UNSIGNED_INT
    return [(row.timeStamp, row.sampleValue.uiVal) for row in rows]
"""
PERCENTS = SAMPLES + "tell([percent for stamp, percent in samples()])"


def busy(signal, **options):
    """A machine's scenario with one GPU that is as busy as that."""
    return Scenario(gpus=(Gpu(busy_percent=signal),), **options)


def square_mean(square, t0_s, t1_s):
    """Mean of a square wave by adding up fine steps: another way than that of the library."""
    steps = 10_000
    times_s = (t0_s + (t1_s - t0_s) * (step + 0.5) / steps for step in range(steps))
    high = sum((t_s - square.phase_s) % square.period_s < square.duty * square.period_s for t_s in times_s)
    return square.low + (square.high - square.low) * high / steps


@pytest.mark.parametrize(
    "square",
    [
        Square(10, 90, period_s=2.0),
        Square(0, 100, period_s=0.1, duty=0.3),
        Square(5, 80, period_s=0.7, duty=0.8, phase_s=0.4),
        Square(0, 100, period_s=3.0, duty=0.0),
    ],
)
def test_a_square_wave_is_averaged_over_each_driver_window(fake_gpu, square):
    """Whatever period and phase do to the windows, each sample is the mean of the true function."""
    percents = fake_gpu(busy(square, window_s=1 / 6), at_s=10.01).run(PERCENTS)
    wanted = [square_mean(square, window / 6, (window + 1) / 6) for window in range(60)]
    assert percents == pytest.approx(wanted, abs=0.52)


USE = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)

def use(since=0):
    return [[row.pid, row.smUtil, row.timeStamp] for row in nvmlDeviceGetProcessUtilization(gpu, since)]
"""


ORIGIN_S = 1_000.0


def followed(**options):
    """A scenario in which two GPUs do what tenants write, with driver windows of one second."""
    return Scenario(gpus=(Gpu(), Gpu()), follow=True, window_s=1.0, **options)


def test_two_trainers_share_a_gpu(fake_gpu):
    """The GPU is busy when either runs, each process has its own share, and the other GPU stays idle."""
    machine = fake_gpu(followed(), at_s=10)
    one, two = BusyWriter(machine.tenants, pid=21), BusyWriter(machine.tenants, pid=22)
    for second in range(10):
        start_s = ORIGIN_S + second
        one.kernel(start_s, start_s + 0.4)
        two.kernel(start_s + 0.3, start_s + 0.5)
        two.kernel(start_s + 0.9, start_s + 1.1)
    one.close()
    two.close()
    told = machine.run(USE + "tell([[row[:2] for row in use()], nvmlDeviceGetUtilizationRates(gpu).gpu])")
    assert sorted(told[0]) == [[21, 40], [22, 39]]
    assert told[1] == 60
    assert machine.run(PERCENTS) == [60] * 10
    assert set(machine.run(PERCENTS.replace("ByIndex(0)", "ByIndex(1)"))) == {0}


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
