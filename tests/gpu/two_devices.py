"""Does a pipeline over two real GPUs do what it does on two logical CPUs? ``scripts/gpu-check --two`` asks.

What only two real GPUs can show: that features and steps overlap although both are launched from one process, that the
copy between the cards runs beside both, that a batch is finished when it enters the buffer and a step when it is
counted (on a CPU every call returns when it is done), that a GPU's memory stays flat and within its limit, and which
share of the time each card is busy. ``--cpu`` goes through the same on two logical CPUs.
"""

import argparse
import itertools
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

from autotune.measure.gpu.driver import Driver, DriverError
from autotune.tf.options import BufferOptions, DeviceOptions, RuntimeOptions
from autotune.tf.runtime import Placement, configure, place
from autotune.tf.two_stage import TwoStageFeed
from autotune.workloads.tts.batches import log_mel_of_mirrored, mirrored_samples
from scripts.bench.results import markdown_table

FRAMES = 400
MEMORY_MB = 4096
_RUN_AHEAD = 20

Tensors = dict[str, tf.Tensor]


class Load:
    """Spectrograms as features, products of matrices as the step."""

    def __init__(self, placement: Placement, *, batch: int, width: int) -> None:
        self.placement = placement
        self._batch = batch
        with tf.device(placement.model):
            self._kernel = tf.Variable(tf.random.stateless_normal([width, width], [1, 2]) / width**0.5)
        self._width = width
        self._compiled = tf.function(self._compute, autograph=False)

    def feed(self, batches: int, depth: int) -> TwoStageFeed:
        """The pipeline."""
        sound = np.random.default_rng(0).integers(-20000, 20000, (self._batch, mirrored_samples(FRAMES)), np.int16)
        dataset = tf.data.Dataset.range(batches).map(lambda number: {"sound": sound, "work": number + 1}).prefetch(4)
        options = BufferOptions(batches=depth, warmup_batches=depth)
        return TwoStageFeed(dataset, self.features, self.placement, options, work="work")

    @staticmethod
    def features(batch: Tensors, number: tf.Tensor) -> Tensors:
        """Spectrograms with noise that depends on the number of the batch."""
        mel = log_mel_of_mirrored(batch["sound"])
        return {"mel": mel + tf.random.stateless_normal(tf.shape(mel), tf.stack([3, number]))}

    def step(self, batch: Tensors) -> tf.Tensor:
        """A step; its result is a promise on a GPU."""
        with tf.device(self.placement.model):
            return self._compiled(batch)

    def _compute(self, batch: Tensors) -> tf.Tensor:
        values = tf.reshape(batch["mel"], [-1])[: self._width**2]
        values = tf.reshape(tf.pad(values, [[0, self._width**2 - tf.size(values)]]), [self._width, self._width])
        for _ in range(12):
            values = tf.nn.relu(values @ self._kernel)
        return tf.reduce_mean(values)


def overlap(placements: list[Placement], size: dict[str, int], batches: int) -> str:
    """Throughput of each placement and depth, against its own bound, with what each GPU did meanwhile."""
    rows = []
    for placement, depth in itertools.product(placements, (1, 2, 4)):
        load = Load(placement, **size)
        with load.feed(batches + 20, depth) as feed:
            for fetched in itertools.islice(feed, 20):
                load.step(fetched.batch).numpy()
            before = feed.times()
            last = None
            for fetched in feed:
                last = load.step(fetched.batch)  # never looked at: as in a training that logs rarely
            seen = _utilization()
            last.numpy()
            times = feed.times() - before
        busy = [f"{times.data.busy_s / times.passed_s:.0%}", f"{times.model.busy_s / times.passed_s:.0%}"]
        reached = "" if times.reached is None else f"{times.reached:.0%}"
        cells = [f"{1000 * times.features_s:.2f}", f"{1000 * times.step_s:.2f}", reached, *busy, ", ".join(seen)]
        rows.append([f"{placement.data} -> {placement.model}", str(depth), *cells])
    return markdown_table(
        ["placement", "buffer", "f, ms", "s, ms", "of 1/max(f, s)", "data busy", "model busy", "driver's utilization"],
        rows,
    )


def _utilization() -> list[str]:
    """The driver's utilization of each GPU in its last window; empty without a driver."""
    try:
        with Driver() as driver:
            return [f"{driver.device_at(index).busy_percent()} %" for index in range(driver.count())]
    except DriverError:
        return []


def run_ahead(placement: Placement, size: dict[str, int]) -> str:
    """Batches that a training which never waits for its steps was given before the first of these steps was done."""
    load = Load(placement, **size)
    with load.feed(60, 2) as feed:
        for fetched in itertools.islice(feed, 10):
            load.step(fetched.batch).numpy()
        begun_s, ahead = time.monotonic(), 0
        done = feed.times().model.batches
        for fetched in itertools.islice(feed, _RUN_AHEAD):
            load.step(fetched.batch)
            ahead = max(ahead, 10 + 1 + int(fetched.work) - 11 - feed.times().model.batches)
        passed_s = time.monotonic() - begun_s
    return (
        f"at most {ahead} steps were under way at a time ({_RUN_AHEAD} steps in {passed_s:.2f} s, {done} before them)."
    )


def memory(placement: Placement, size: dict[str, int], batches: int) -> str:
    """Memory of each GPU over many batches, as TensorFlow has it."""
    rows = []
    load = Load(placement, **size)
    with load.feed(batches, 4) as feed:
        for place_, fetched in enumerate(feed, start=1):
            load.step(fetched.batch)
            if place_ in (batches // 10, batches // 2, batches):
                rows.append([str(place_), *(_memory(device) for device in (placement.data, placement.model))])
    return markdown_table(["batches", f"in use on {placement.data}, MiB", f"on {placement.model}, MiB"], rows)


def _memory(device: str) -> str:
    if "CPU" in device:
        return "not known"
    return f"{tf.config.experimental.get_memory_info(device)['current'] / 2**20:.1f}"


def main() -> int:
    """Checks two GPUs, and prints a report."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check --two", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="on two logical CPU devices")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32, help="clips of 4.6 s in a batch")
    parser.add_argument("--width", type=int, default=4096, help="of the step's matrices")
    parser.add_argument("--out", type=Path, help="file of the report (default: the terminal)")
    arguments = parser.parse_args()
    if not arguments.cpu and len(tf.config.list_physical_devices("GPU")) < 2:
        count = len(tf.config.list_physical_devices("GPU"))
        print(f"gpu-check: TensorFlow {tf.__version__} sees {count} GPUs, this needs two.", file=sys.stderr)
        return 1
    limits = {} if arguments.cpu else {"data_gpu_memory_mb": MEMORY_MB, "model_gpu_memory_mb": MEMORY_MB}
    devices = DeviceOptions(data_gpu=0, model_gpu=1, logical_cpu_devices=2 if arguments.cpu else 0, **limits)
    configure(RuntimeOptions(), devices)
    apart = place(devices)
    back = Placement(data=apart.model, model=apart.data)
    together = Placement(data=apart.data, model=apart.data)
    size = {"batch": arguments.batch, "width": arguments.width}
    names = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    lines = [
        f"# Two devices, {datetime.now(UTC):%Y-%m-%d}, TensorFlow {tf.__version__}",
        f"{names or 'two logical CPUs'}, {limits or 'no limit of memory'}, {size}",
        "What users state for two RTX 4090 that share the work well: data GPU busy 60-80 %, model GPU 85-95 %.",
        "## Overlap",
        overlap([apart, back, together], size, arguments.batches),
        "## Running ahead",
        run_ahead(apart, size),
        "## Memory",
        memory(apart, size, arguments.batches),
    ]
    text = "\n\n".join(lines) + "\n"
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
