"""The model of this training: it computes nothing, and lets the stand-in for a GPU be busy instead."""

import os
import time

from busy_writer import BusyWriter  # of the tests' GPU

_KERNELS_S, _SAMPLE_S = 0.002, 0.0003
_writer = BusyWriter(os.environ["AUTOTUNE_FAKE_NVML_TENANTS"], memory_bytes=9 << 30)


def train_on(batch):
    """One step: the GPU works for a moment, and for each sample."""
    begin_s = time.monotonic()
    end_s = begin_s + _KERNELS_S + _SAMPLE_S * int(batch.shape[0])
    _writer.kernel(begin_s, end_s)
    time.sleep(max(0.0, end_s - time.monotonic()))
