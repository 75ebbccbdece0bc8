"""Throughput of the pipeline over two devices against its bound, on two logical CPU devices.

Features and steps are waits, of which each has its own time, drawn from a gamma distribution: so the two stages take
no cores from each other, as two GPUs would not, and whatever is missing to the bound is the pipeline's own. The bound
is 1/max(f, s), with f and s the means of the waits as they were, since a busy machine ends them late; one stage after
the other makes 1/(f + s).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.bench.markdown import markdown_table
from autotune.bench.two_devices.throughput_plot import plot_throughput
from autotune.clock import SystemClock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from autotune.tf.devices import Placement
from autotune.tf.options import BufferOptions
from autotune.tf.two_stage import TwoStageFeed

_SLOWER_STAGE_S = 0.02
_FILLING = 20  # batches before the measurement, besides those that fill the buffer
_APART = Placement(data="/CPU:1", model="/CPU:0")


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Throughput of one pipeline.

    Attributes:
        ratio: Mean time of features over that of a step, f/s.
        depth: Size of the buffer in batches; 0 means one stage after the other, without a pipeline.
        of_bound: Throughput as a share of 1/max(f, s).
        sequential_of_bound: Throughput of one stage after the other by calculation, 1/(f + s), as a share of it.
    """

    ratio: float
    depth: int
    of_bound: float
    sequential_of_bound: float


def benchmark_throughput(
    ratios: Sequence[float], depths: Sequence[int], *, batches: int, variation: float, seed: int, out: Path
) -> None:
    """Measure each ratio with each depth, print a table, and write a picture.

    Args:
        ratios: Values of f/s.
        depths: Sizes of the buffer; 0 measures one stage after the other.
        batches: Batches to measure.
        variation: Standard deviation of each stage's time over its mean.
        seed: Seed of the times.
        out: The picture, a PNG file.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.experimental.set_device_policy("explicit")  # a hidden copy would be an error
    measured = [
        _measure(ratio, depth, batches=batches, variation=variation, seed=seed) for ratio in ratios for depth in depths
    ]
    heads = ["f/s", *(f"buffer {depth}" if depth else "in turn" for depth in depths), "1/(f + s)"]
    print(markdown_table(heads, [_row([one for one in measured if one.ratio == ratio]) for ratio in ratios]))
    plot_throughput(ratios, {depth: [one.of_bound for one in measured if one.depth == depth] for depth in depths}, out)
    print(f"\nThroughput as a share of 1/max(f, s), {batches} batches each; picture: {out}")


def _row(measured: Sequence[Throughput]) -> list[str]:
    shares = (f"{one.of_bound:.1%}" for one in measured)
    return [f"{measured[0].ratio:g}", *shares, f"{measured[0].sequential_of_bound:.1%}"]


def _measure(ratio: float, depth: int, *, batches: int, variation: float, seed: int) -> Throughput:
    skipped = _FILLING + 2 * depth
    features_s, steps_s = _SLOWER_STAGE_S * min(ratio, 1.0), _SLOWER_STAGE_S / max(ratio, 1.0)
    random = np.random.default_rng((seed, round(1000 * ratio)))  # the same times for each depth
    shape = 1.0 / variation**2
    times_s = random.gamma(shape, 1.0 / shape, (2, batches + skipped)) * [[features_s], [steps_s]]
    features, step = _Waits(times_s[0]), _Waits(times_s[1])
    taken_s = _time(features, step, depth, batches=batches + skipped, skipped=skipped)
    f_s, s_s = features.waited_s[skipped:].mean(), step.waited_s[skipped:].mean()
    slower_s = float(max(f_s, s_s))
    return Throughput(
        ratio=ratio,
        depth=depth,
        of_bound=batches * slower_s / taken_s,
        sequential_of_bound=slower_s / (f_s + s_s),
    )


class _Waits:
    """Operation that takes the number of a batch, waits for as long as that takes, and returns the number.

    Args:
        times_s: Time of each batch.

    Attributes:
        waited_s: Time that each took in fact.
    """

    def __init__(self, times_s: NDArray[np.float64]) -> None:
        self._times_s = times_s
        self._clock = SystemClock()
        self.waited_s = np.zeros_like(times_s)

    def __call__(self, number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._wait, [number], tf.int64), [])

    def _wait(self, number: np.int64) -> np.int64:
        begun_s = self._clock.now_s()
        self._clock.wait(float(self._times_s[number]))
        self.waited_s[number] = self._clock.now_s() - begun_s
        return number


def _time(
    features: _Waits,
    step: _Waits,
    depth: int,
    *,
    batches: int,
    skipped: int,
) -> float:
    """Return the time in seconds from the end of the last skipped step to the end of the last one."""
    clock = SystemClock()
    with tf.device(_APART.model):
        train = tf.function(step, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    begun_s = 0.0
    for place, number in enumerate(_numbers(features, depth, batches)):
        with tf.device(_APART.model):
            train(number)
        if place == skipped - 1:
            begun_s = clock.now_s()
    return clock.now_s() - begun_s


def _numbers(features: _Waits, depth: int, batches: int) -> Iterator[tf.Tensor]:
    """Yield the number of each batch when its features are there."""
    dataset = tf.data.Dataset.range(batches).map(lambda number: {"number": number}).prefetch(2)
    if depth:
        options = BufferOptions(batches=depth)
        with TwoStageFeed(
            dataset, lambda _, number: {"number": features(number)}, _APART, options, work="number"
        ) as feed:
            for fetched in feed:
                yield fetched.batch["number"]
        return
    compute = tf.function(features, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    for batch in dataset:
        with tf.device(_APART.model):
            yield compute(tf.identity(batch["number"]))
