"""The GPU that the trainers of the evidence run use: PyTorch's, or the tests' fake one beside training on the CPU.

On a fake GPU the sizes are a CPU's, `kernels` keeps the fake GPU busy for as long as a step is meant to take, and
`holds` raises PyTorch's own error where a step is meant to need more memory than the fake GPU has. On a real GPU both
do nothing: kernels and memory are real there.
"""

import ctypes
import os
import time

import torch

TENANTS = os.environ.get("AUTOTUNE_FAKE_NVML_TENANTS")
IS_FAKE = TENANTS is not None
NAME = "cpu" if IS_FAKE else "cuda"
_writers = []


def _writer():
    if not _writers:  # by the process that trains: the loader's workers are forks of it
        from busy_writer import BusyWriter

        _writers.append(BusyWriter(TENANTS))
    return _writers[0]


def kernels(busy_s):
    """Keep the fake GPU busy for that long."""
    if IS_FAKE:
        begin_s = time.monotonic()
        _writer().kernel(begin_s, begin_s + busy_s)
        time.sleep(busy_s)


def total_bytes():
    """Return the memory of the GPU: the fake driver is asked like any other."""
    if not IS_FAKE:
        return torch.cuda.get_device_properties(0).total_memory
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # total, free, used
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    nvml.nvmlShutdown()
    return memory[0]


def holds(memory_bytes):
    """Hold that much memory of the fake GPU.

    Raises:
        torch.OutOfMemoryError: It has less.
    """
    if not IS_FAKE:
        return
    if memory_bytes > total_bytes():
        gib = 1 << 30
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {memory_bytes / gib:.2f} GiB. GPU 0 has a total capacity of "
            f"{total_bytes() / gib:.2f} GiB."
        )
    _writer().memory(memory_bytes)


class Pace:
    """Samples per second of a plain training that ends at a time; printed at that end, without its first 2 s.

    The first seconds also hold batches that were prepared before the first step, and what is done once.
    """

    def __init__(self, until_s):
        self._until_s = until_s
        self._first_s = self._since_s = None
        self._samples = 0

    def is_over(self, samples):
        """Count a step of so many samples; return whether training is over."""
        now_s = time.monotonic()
        self._first_s = self._first_s or now_s
        if self._since_s is not None:
            self._samples += samples
        elif now_s - self._first_s > 2.0:
            self._since_s = now_s
        if now_s >= self._until_s:
            if not IS_FAKE:
                torch.cuda.synchronize()
            took_s = time.monotonic() - (self._since_s or now_s)
            print(f"samples_per_s {self._samples / took_s if took_s else 0:.1f}", flush=True)
            return True
        return False
