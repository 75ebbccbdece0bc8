"""Effects of the pipeline's functions: each where it helps and where it hurts, beside the same without.

Loads and steps mostly wait, as for storage or for a device, so that the result depends on what overlaps and not on who
else computes here. The second device is a second logical CPU.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from autotune.clock import SystemClock
from autotune.tf import pipeline
from autotune.tf.feed import staged_prefetch
from autotune.tf.options import PipelineOptions
from autotune.tf.pipeline import as_written, interleaved
from scripts.bench.dataset.spread import spread
from scripts.bench.markdown import markdown_table

_CLOCK = SystemClock()
_BANDS = 80
_FILES = 8
_RECORDS = 30


@dataclass(frozen=True, kw_only=True)
class _Case:
    """Function in one situation; each rate is of one turn, in a unit of its own per second."""

    function: str
    situation: str
    unit: str
    without: Callable[[], float]
    with_it: Callable[[], float]


def benchmark_pipeline_functions(*, turns: int) -> str:
    """Return the table; without and with take turns."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    rows = []
    with tempfile.TemporaryDirectory(prefix="autotune-bench-dataset-") as folder:
        for case in _cases(_write_shards(Path(folder))):
            without, with_it = [], []
            for _ in range(turns):
                without.append(case.without())
                with_it.append(case.with_it())
            ratios = [one / other for one, other in zip(with_it, without, strict=True)]
            cells = (f"{spread(without)} {case.unit}/s", f"{spread(with_it)} {case.unit}/s", f"{spread(ratios)} x")
            rows.append((case.function, case.situation, *cells))
    heads = ("function", "situation", "without", "with", "ratio of a turn")
    return f"median [least, most] of {turns} turns\n\n{markdown_table(heads, rows)}\n"


def _cases(shards: list[str]) -> Iterator[_Case]:
    yield _Case(
        function="throughput options",
        situation="loads wait 2 ms, every tenth 40 ms; 4 parallel calls",
        unit="examples",
        without=lambda: _examples_rate(_uneven, throughput=False),
        with_it=lambda: _examples_rate(_uneven, throughput=True),
    )
    yield _Case(
        function="throughput options",
        situation="all loads wait 4 ms; 4 parallel calls",
        unit="examples",
        without=lambda: _examples_rate(lambda _number: 0.004, throughput=False),
        with_it=lambda: _examples_rate(lambda _number: 0.004, throughput=True),
    )
    yield _Case(
        function="staged prefetch, 6 batches on the device instead of 1",
        situation="batches take 4 ms, every eighth 40 ms; a step 10 ms",
        unit="steps",
        without=lambda: _steps_rate(_stalling, device_batches=1),
        with_it=lambda: _steps_rate(_stalling, device_batches=6),
    )
    yield _Case(
        function="staged prefetch, 5 batches in host memory besides 1",
        situation="batches take 4 ms, every eighth 40 ms; a step 10 ms",
        unit="steps",
        without=lambda: _steps_rate(_stalling, device_batches=1),
        with_it=lambda: _steps_rate(_stalling, device_batches=1, host_batches=5),
    )
    yield _Case(
        function="staged prefetch, 6 batches on the device instead of 1",
        situation="batches take 4 ms each; a step 10 ms",
        unit="steps",
        without=lambda: _steps_rate(lambda _number: 0.004, device_batches=1),
        with_it=lambda: _steps_rate(lambda _number: 0.004, device_batches=6),
    )
    yield _Case(
        function="staged prefetch, 2 batches at hand besides 1",
        situation="batches take 4 ms each; a step 10 ms",
        unit="steps",
        without=lambda: _steps_rate(lambda _number: 0.004, device_batches=1),
        with_it=lambda: _steps_rate(lambda _number: 0.004, device_batches=1, ready_batches=2),
    )
    yield _Case(
        function="interleaved, 8 files instead of 1",
        situation="a record waits 2 ms, as on storage in a network",
        unit="records",
        without=lambda: _records_rate(shards, open_files=1, wait_s=0.002),
        with_it=lambda: _records_rate(shards, open_files=_FILES, wait_s=0.002),
    )
    yield _Case(
        function="interleaved, 8 files instead of 1",
        situation="files in memory, nothing waits",
        unit="records",
        without=lambda: _records_rate(shards, open_files=1, wait_s=0.0),
        with_it=lambda: _records_rate(shards, open_files=_FILES, wait_s=0.0),
    )
    yield _Case(
        function="fixed shapes",
        situation="the first 24 steps with XLA, 12 lengths",
        unit="steps",
        without=lambda: _shapes_rate(fixed=False, xla=True, counted=False),
        with_it=lambda: _shapes_rate(fixed=True, xla=True, counted=False),
    )
    yield _Case(
        function="fixed shapes",
        situation="later steps without XLA, examples half as long as the longest on average",
        unit="steps",
        without=lambda: _shapes_rate(fixed=False, xla=False, counted=True),
        with_it=lambda: _shapes_rate(fixed=True, xla=False, counted=True),
    )


def _uneven(number: int) -> float:
    return 0.040 if number % 10 == 9 else 0.002


def _stalling(number: int) -> float:
    return 0.040 if number % 8 == 7 else 0.004


def _waiting(number: tf.Tensor, wait_s: Callable[[int], float]) -> tf.Tensor:
    """Return the number after it has waited, on a thread of the pipeline."""

    def wait(value: np.int64) -> np.int64:
        _CLOCK.wait(wait_s(int(value)))
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])


def _rate(items: Iterator[object], *, skipped: int, counted: int, step_s: float = 0.0) -> float:
    """Return items a second, with a step of that length after each."""
    for _ in itertools.islice(items, skipped):
        _CLOCK.wait(step_s)
    started_s = _CLOCK.now_s()
    number = 0
    for _ in itertools.islice(items, counted):
        number += 1
        _CLOCK.wait(step_s)
    return number / (_CLOCK.now_s() - started_s)


def _examples_rate(wait_s: Callable[[int], float], *, throughput: bool) -> float:
    def load(index: tf.Tensor) -> dict[str, tf.Tensor]:
        number = _waiting(index, wait_s)
        return {"values": tf.fill([number % 7 + 1], number)}

    options = PipelineOptions(batch_size=8, parallel_calls=4, throughput=throughput)
    batches = pipeline.build(200, load, options, maxima={"values": 7}, length_of="values")
    return 8 * _rate(iter(batches), skipped=10, counted=50)


def _steps_rate(
    wait_s: Callable[[int], float], *, device_batches: int, host_batches: int = 0, ready_batches: int = 0
) -> float:
    batches = tf.data.Dataset.range(10**6).map(lambda number: _waiting(number, wait_s)).with_options(as_written(1))
    staged = staged_prefetch(
        batches, "/CPU:1", host_batches=host_batches, device_batches=device_batches, ready_batches=ready_batches
    )
    return _rate(iter(staged), skipped=16, counted=80, step_s=0.010)


def _write_shards(folder: Path) -> list[str]:
    paths = [str(folder / f"{number}.tfrecord") for number in range(_FILES)]
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(_RECORDS):
                writer.write(bytes(1000))
    return paths


def _records_rate(shards: list[str], *, open_files: int, wait_s: float) -> float:
    def read(path: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(path)
        if not wait_s:
            return records.repeat(100)
        numbered = records.enumerate()
        return numbered.map(lambda number, record: (_waiting(number, lambda _number: wait_s), record))

    records = interleaved(shards, read, open_files=open_files).with_options(as_written(_FILES))
    counted = _FILES * _RECORDS * (1 if wait_s else 100)
    # In batches, so that the loop in Python is not what is measured.
    return 60 * _rate(iter(records.batch(60)), skipped=0, counted=counted // 60)


def _shapes_rate(*, fixed: bool, xla: bool, counted: bool) -> float:
    longest, size = 480, 8

    def load(index: tf.Tensor) -> dict[str, tf.Tensor]:
        # A batch of 8 in a row has one length: 12 lengths, from one twelfth of the longest up.
        length = (tf.cast(index, tf.int32) // size * 5 % 12 + 1) * longest // 12
        return {"mel": tf.ones([length, _BANDS])}

    examples = tf.data.Dataset.range(size * 12).repeat().map(load)
    options = PipelineOptions(batch_size=size, fixed_length=fixed)
    batches = pipeline.batched(examples, options, maxima={"mel": longest}, length_of="mel")
    kernels = [tf.random.stateless_normal([5, _BANDS, _BANDS], [0, number]) / 20.0 for number in range(3)]

    @tf.function(jit_compile=xla, input_signature=[batches.element_spec["mel"]], autograph=False)  # type: ignore[untyped-decorator]  # no stubs
    def step(mel: tf.Tensor) -> tf.Tensor:
        for kernel in kernels:
            mel = tf.nn.relu(tf.nn.conv1d(mel, kernel, 1, "SAME"))
        return tf.reduce_sum(mel)

    losses = (float(step(batch["mel"])) for batch in batches)
    return _rate(losses, skipped=24 if counted else 0, counted=48 if counted else 24)
