"""Memory of a GPU, asked of the CUDA driver: TensorFlow says it only when it is too late to set limits."""

import contextlib
import ctypes


def gpu_memory_mb(number: int) -> int | None:
    """Return the memory of a GPU in MiB; None if the driver does not say.

    Args:
        number: Number of the GPU as CUDA counts them, and TensorFlow with it: ``CUDA_VISIBLE_DEVICES`` applies.
    """
    with contextlib.suppress(OSError, AttributeError):  # no driver, or one without these functions
        cuda = ctypes.CDLL("libcuda.so.1")
        device, memory_bytes = ctypes.c_int(), ctypes.c_size_t()
        if (
            cuda.cuInit(0) == 0
            and cuda.cuDeviceGet(ctypes.byref(device), number) == 0
            and cuda.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device) == 0
        ):
            return memory_bytes.value >> 20
    return None
