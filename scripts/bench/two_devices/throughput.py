"""Throughput of the pipeline over two devices against its bound, on two logical CPU devices.

Features and steps are waits, of which each has its own time, drawn from a gamma distribution: so the two stages take
no cores from each other, as two GPUs would not, and whatever is missing to the bound is the pipeline's own. The bound
is 1/max(f, s): f and s are the means of the waits as they were in that run, since a busy machine ends them late, and
of what calling TensorFlow takes besides, which is measured with one stage after the other.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.clock import SystemClock
from scripts.bench.markdown import markdown_table
from scripts.bench.two_devices.throughput_plot import plot_throughput

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from autotune.tf.options import BufferOptions
from autotune.tf.runtime import Placement
from autotune.tf.two_stage import TwoStageFeed

_SLOWER_STAGE_S = 0.02
_FILLING = 20  # batches before the measurement, besides those that fill the buffer
_APART = Placement(data="/CPU:1", model="/CPU:0")
_SIGNATURE = [tf.TensorSpec([], tf.int64)]


def benchmark_throughput(
    ratios: Sequence[float], depths: Sequence[int], *, batches: int, variation: float, seed: int, out: Path
) -> None:
    """Measure each ratio with each depth, print a table, and write a picture.

    Args:
        ratios: Values of f/s, means of the waits.
        depths: Sizes of the buffer.
        batches: Batches to measure.
        variation: Standard deviation of each stage's time over its mean.
        seed: Seed of the times.
        out: The picture, a PNG file.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.experimental.set_device_policy("explicit")  # a hidden copy would be an error
    shares = []
    for ratio in ratios:
        work = _Work(ratio, batches=batches, variation=variation, seed=seed)
        shares.append([work.in_turn(), *(work.in_pipeline(depth) for depth in depths)])
    heads = ["f/s", "one after the other", *(f"buffer of {depth}" for depth in depths)]
    rows = [[f"{ratio:g}", *(f"{share:.1%}" for share in row)] for ratio, row in zip(ratios, shares, strict=True)]
    print(markdown_table(heads, rows))
    plot_throughput(ratios, dict(zip((0, *depths), zip(*shares, strict=True), strict=True)), out)
    print(f"\nThroughput as a share of 1/max(f, s), {batches} batches each; picture: {out}")


class _Work:
    """Work of both stages on the same batches, whichever way they are combined.

    Args:
        ratio: Value of f/s.
        batches: Batches to measure.
        variation: As for `benchmark_throughput`.
        seed: Likewise.
    """

    def __init__(self, ratio: float, *, batches: int, variation: float, seed: int) -> None:
        self._batches = batches
        self._means_s = (_SLOWER_STAGE_S * min(ratio, 1.0), _SLOWER_STAGE_S / max(ratio, 1.0))
        self._shape = 1.0 / variation**2
        self._seed = (seed, round(1000 * ratio))
        self._calls_s = (0.0, 0.0)

    def in_turn(self) -> float:
        """Return the throughput of one stage after the other, as a share of the bound; it measures the calls."""
        run = self._run(_FILLING)
        with tf.device(_APART.model):
            features, step = (tf.function(stage, input_signature=_SIGNATURE, autograph=False) for stage in run.stages)
            stamps_s = [_now_s()]
            for number in range(self._batches + _FILLING):
                made = features(tf.constant(np.array(number)))
                stamps_s.append(_now_s())
                step(made)
                stamps_s.append(_now_s())
        taken_s = np.diff(stamps_s).reshape(-1, 2)[_FILLING:]
        features_s, step_s = taken_s.mean(axis=0)
        self._calls_s = (features_s - run.features.mean_s(_FILLING), step_s - run.step.mean_s(_FILLING))
        return float(self._batches * max(features_s, step_s) / taken_s.sum())

    def in_pipeline(self, depth: int) -> float:
        """Return the throughput of the pipeline, as a share of the bound; see `in_turn`, which comes first."""
        skipped = _FILLING + 2 * depth
        run = self._run(skipped)
        with tf.device(_APART.model):
            step = tf.function(run.step, input_signature=_SIGNATURE, autograph=False)
        ends_s = []
        for number in _numbers(run.features, depth, self._batches + skipped):
            with tf.device(_APART.model):
                step(number)
            ends_s.append(_now_s())
        features_s, step_s = (
            stage.mean_s(skipped) + call_s for stage, call_s in zip(run.stages, self._calls_s, strict=True)
        )
        return self._batches * max(features_s, step_s) / (ends_s[-1] - ends_s[skipped - 1])

    def _run(self, skipped: int) -> "_Run":
        random = np.random.default_rng(self._seed)
        times_s = random.gamma(self._shape, 1.0 / self._shape, (self._batches + skipped, 2)) * self._means_s
        return _Run(features=_Waits(times_s[:, 0]), step=_Waits(times_s[:, 1]))


class _Waits:
    """Operation that takes the number of a batch, waits for as long as that takes, and returns the number.

    Args:
        times_s: Time of each batch.
    """

    def __init__(self, times_s: NDArray[np.float64]) -> None:
        self._times_s = times_s
        self._clock = SystemClock()
        self._waited_s = np.zeros_like(times_s)

    def __call__(self, number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._wait, [number], tf.int64), [])

    def mean_s(self, skipped: int) -> float:
        """Return the mean time that a batch took in fact, without the first ones."""
        return float(self._waited_s[skipped:].mean())

    def _wait(self, number: np.int64) -> np.int64:
        begun_s = self._clock.now_s()
        self._clock.wait(float(self._times_s[number]))
        self._waited_s[number] = self._clock.now_s() - begun_s
        return number


@dataclass(frozen=True, kw_only=True)
class _Run:
    features: _Waits
    step: _Waits

    @property
    def stages(self) -> tuple[_Waits, _Waits]:
        """The two in their order."""
        return self.features, self.step


def _numbers(features: _Waits, depth: int, batches: int) -> Iterator[tf.Tensor]:
    """Yield the number of each batch when its features are there."""
    dataset = tf.data.Dataset.range(batches).map(lambda number: {"number": number}).prefetch(2)
    options = BufferOptions(batches=depth)
    with TwoStageFeed(dataset, lambda _, number: {"number": features(number)}, _APART, options, work="number") as feed:
        for fetched in feed:
            yield fetched.batch["number"]


def _now_s() -> float:
    return SystemClock().now_s()
