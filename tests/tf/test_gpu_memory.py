"""The memory of a GPU is the CUDA driver's word; without a driver nothing is claimed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert "the memory of GPU 1 is limited to 16384 MiB, but it has 12288 MiB" in done.stderr
