"""Settings that are in force in this process: what the frameworks say of threads, precision, graphs and devices."""

from __future__ import annotations

import sys
from typing import Any, Callable


def settings_in_force() -> dict[str, Any]:
    """Return the settings by name, ``<framework>.<setting>``; numbers, texts and booleans."""
    found: dict[str, Any] = {}
    for name, readers in _READERS.items():
        framework = sys.modules.get(name)
        if framework is None:
            continue
        for setting, read in readers.items():
            try:
                value = read(framework)
            except Exception:  # noqa: S112 - another version, or another backend
                continue
            if isinstance(value, (bool, int, float, str)) and value != "":
                found[f"{name}.{setting}"] = value
    return found


def _memory_growth(tensorflow: Any) -> Any:
    gpus = tensorflow.config.list_physical_devices("GPU")
    return all(tensorflow.config.experimental.get_memory_growth(gpu) for gpu in gpus) if gpus else None


def _cuda_devices(torch: Any) -> int:
    return int(torch.cuda.device_count()) if torch.cuda.is_initialized() else 0


_READERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "tensorflow": {
        "intra_op_threads": lambda it: it.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": lambda it: it.config.threading.get_inter_op_parallelism_threads(),
        "runs_eagerly": lambda it: it.config.functions_run_eagerly(),
        "jit": lambda it: it.config.optimizer.get_jit(),
        "gpus": lambda it: len(it.config.list_logical_devices("GPU")),
        "memory_growth": _memory_growth,
        "tf32": lambda it: it.config.experimental.tensor_float_32_execution_enabled(),
    },
    "keras": {"precision": lambda it: it.config.dtype_policy().name, "backend": lambda it: it.config.backend()},
    "torch": {
        "threads": lambda it: it.get_num_threads(),
        "interop_threads": lambda it: it.get_num_interop_threads(),
        "gpus": _cuda_devices,
        "float32_matmul_precision": lambda it: it.get_float32_matmul_precision(),
        "cudnn_benchmark": lambda it: it.backends.cudnn.benchmark,
    },
}
"""Framework, by the name it is imported by → its settings and how each is read."""
