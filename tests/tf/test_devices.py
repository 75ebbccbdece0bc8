"""Devices that are not there are refused by their key and number; nothing falls back to fewer of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.tf.options import DeviceOptions
from autotune.tf.runtime import Placement, place


def test_devices_are_found_by_their_number() -> None:
    """Logical CPUs where these are asked for; none where nothing is said."""
    assert place(DeviceOptions()) is None
    assert place(DeviceOptions(data_gpu=1, model_gpu=0, logical_cpu_devices=2)) == Placement(
        data="/CPU:1", model="/CPU:0"
    )
    assert place(DeviceOptions(data_gpu=1, model_gpu=1, logical_cpu_devices=2)) == Placement(
        data="/CPU:1", model="/CPU:1"
    )


def test_a_device_that_is_not_there_is_refused() -> None:
    """The sentence says which key, and what TensorFlow sees."""
    with pytest.raises(ValueError, match="model_gpu is 2, but TensorFlow sees 2 CPU devices, numbered from 0"):
        place(DeviceOptions(data_gpu=1, model_gpu=2, logical_cpu_devices=2))
    with pytest.raises(ValueError, match=r"data_gpu is 97, but TensorFlow sees \d GPU devices"):
        place(DeviceOptions(data_gpu=97, model_gpu=98))


DRIVER = """
#include <stddef.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return number < 2 ? 0 : 101; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(24 - 12 * device) << 30; return 0; }
"""
LIMITED = """
from unittest import mock
import tensorflow as tf
from autotune.tf.options import DeviceOptions, RuntimeOptions
from autotune.tf.runtime import configure
cards = [tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(2)]
there = lambda kind=None: cards if kind == "GPU" else []
with mock.patch("tensorflow.config.list_physical_devices", there):
    configure(RuntimeOptions(), DeviceOptions(data_gpu=0, model_gpu=1, model_gpu_memory_mb=16384))
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with a driver of two cards, of 24 and 12 GiB."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    (tmp_path / "cuda.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "libcuda.so.1", "cuda.c"], cwd=tmp_path, check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.mark.services
def test_a_limit_above_the_cards_memory_is_refused(env: dict[str, str]) -> None:
    """Before TensorFlow takes any of it; the sentence has both numbers."""
    done = subprocess.run([sys.executable, "-c", LIMITED], env=env, capture_output=True, text=True, check=False)
    assert "the memory limit of GPU 1 is 16384 MiB, but it has 12288 MiB" in done.stderr
