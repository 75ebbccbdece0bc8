"""Tests of the times of loading stages."""

import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from autotune.diagnose import profiles as reader
from autotune.diagnose.profiles import read_loading_stages
from autotune.tf import pipeline as writer
from autotune.tf.pipeline import in_graph, in_python
from tests.until import until


def double(value: tf.Tensor) -> tf.Tensor:
    """Twice the value."""
    return 2 * value


def test_nothing_is_timed_outside_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer gets its own functions back, also in the trials of a search."""
    assert in_graph("read", double) is double
    assert in_python("read", double) is double
    monkeypatch.setenv("AUTOTUNE_TRIAL_DIR", str(tmp_path))
    assert in_graph("read", double) is double


def test_stages_in_a_pipeline_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage of a pipeline has its calls and its time, whoever executes it; results are as they were."""
    monkeypatch.setenv("AUTOTUNE_TRIAL_DIR", str(tmp_path))
    monkeypatch.setenv(writer.STAGES_VARIABLE, "1")

    def nap(value: int) -> int:
        time.sleep(0.01)
        return value

    napping, doubled = in_python("nap", nap), in_graph("double it", double)

    def load(index: tf.Tensor) -> tf.Tensor:
        return doubled(tf.ensure_shape(tf.numpy_function(napping, [index], tf.int64), []))

    examples = iter(tf.data.Dataset.range(1 << 40).map(load, num_parallel_calls=2))
    assert [int(next(examples)) for _ in range(5)] == [0, 2, 4, 6, 8]

    def stages() -> dict[str, Any]:
        next(examples)
        named = {stage.name: stage for stage in read_loading_stages(tmp_path / writer.STAGES_FILE)}
        return named if len(named) == 2 else {}

    named = until(stages)
    assert named["nap"].mean_ms >= 10
    assert named["double it"].mean_ms < named["nap"].mean_ms
    assert sum(stage.fraction for stage in named.values()) == pytest.approx(1.0)


def test_both_sides_use_the_same_names() -> None:
    """What is written inside the trainer is looked for outside."""
    names = reader.STAGES_FILE, reader.STAGES_VERSION, reader.STAGES_VARIABLE
    assert names == (writer.STAGES_FILE, writer.STAGES_VERSION, writer.STAGES_VARIABLE)
