"""Settings are checked when they are made, without TensorFlow."""

import subprocess
import sys

import pytest

from autotune.tf.options import PipelineOptions, Precision, RuntimeOptions, StepOptions


def test_xla_without_graph_mode_is_refused() -> None:
    """The message says what is missing."""
    with pytest.raises(ValueError, match="graph mode"):
        StepOptions(graph=False, xla=True)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PipelineOptions(batch_size=0), "batch_size"),
        (lambda: PipelineOptions(batch_size=1, parallel_calls=0), "parallel_calls"),
        (lambda: PipelineOptions(batch_size=1, prefetch_batches=-1), "prefetch_batches"),
        (lambda: RuntimeOptions(intra_op_threads=-1), "intra_op_threads"),
    ],
)
def test_impossible_numbers_are_named(make: object, name: str) -> None:
    """An option out of range is refused by its name."""
    with pytest.raises(ValueError, match=name):
        make()


def test_checking_settings_does_not_load_tensorflow() -> None:
    """A wrong setting is answered before the seconds that the import takes."""
    script = "import sys, autotune.tf.options; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


def test_precisions_name_what_they_compute_in() -> None:
    """The names are Keras's, the dtype is what follows the prefix."""
    assert [precision.compute_dtype for precision in Precision] == ["float32", "float16", "bfloat16"]
