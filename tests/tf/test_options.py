"""Settings are checked when they are made, without TensorFlow."""

import subprocess
import sys

import pytest

from autotune.tf.options import DeviceOptions, StepOptions


def test_xla_without_graph_mode_is_refused() -> None:
    """The message says what is missing."""
    with pytest.raises(ValueError, match="graph mode"):
        StepOptions(graph=False, xla=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_gpu": 0}, "model_gpu is not set, but data_gpu is"),
        ({"model_gpu": 1}, "data_gpu is not set, but model_gpu is"),
        ({"model_gpu_memory_mb": 4096}, "model_gpu_memory_mb limits a GPU, but none is set"),
        ({"data_gpu": 0.5, "model_gpu": 1}, "data_gpu must be an integer, got 0.5"),
        ({"data_gpu": True, "model_gpu": 1}, "data_gpu must be an integer, got True"),
        ({"data_gpu": 0, "model_gpu": 1, "logical_cpu_devices": 2, "data_gpu_memory_mb": 9}, "logical_cpu_devices is"),
        ({"data_gpu": 1, "model_gpu": 1, "data_gpu_memory_mb": 1, "model_gpu_memory_mb": 2}, "both limit GPU 1"),
    ],
)
def test_half_a_pair_of_devices_is_refused(options: dict[str, int], said: str) -> None:
    """Both GPUs or none, and limits only of those that are named, once for each."""
    with pytest.raises(ValueError, match=said):
        DeviceOptions(**options)


def test_checking_settings_does_not_load_tensorflow() -> None:
    """A wrong setting is answered before the seconds that the import takes."""
    script = "import sys, autotune.tf.options; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
