"""Input pipeline: batches from example indices, a cache of loaded examples, times of loading stages."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from autotune.tf.options import PipelineOptions, cache_home, require_at_least, write_atomically


def build(
    examples: int,
    load: Load,
    options: PipelineOptions,
    *,
    maxima: Mapping[str, int],
    length_of: str,
    store: Store | None = None,
) -> tf.data.Dataset:
    """Assemble an endless dataset of batches; passes follow each other, also within a batch, each in another order.

    Args:
        load: Function from an example's index to its features.
        maxima: Largest first dimension of each feature in which it varies.
        length_of: Feature whose first dimension is an example's length, for buckets.
        store: Cache of loaded examples; None loads them in each pass.
    """
    order = tf.data.Dataset.range(examples).shuffle(examples, seed=options.seed)
    loaded = order.repeat().map(
        cached(load, store) if store else load,
        num_parallel_calls=tf.data.AUTOTUNE if options.throughput else options.parallel_calls,
        # In order by default, so that the number of workers does not change the training data.
        deterministic=not options.throughput,
    )
    return batched(loaded, options, maxima=maxima, length_of=length_of)


def batched(
    loaded: tf.data.Dataset, options: PipelineOptions, *, maxima: Mapping[str, int], length_of: str
) -> tf.data.Dataset:
    """Return batches of loaded examples from any source, e.g. `interleaved`; see `build`."""
    batches = _batch(loaded, options, maxima, length_of)
    if options.prefetch_batches > 0:
        batches = batches.prefetch(options.prefetch_batches)
    if options.throughput:
        return batches.prefetch(tf.data.AUTOTUNE).with_options(for_throughput(options.parallel_calls))
    return batches.with_options(as_written(options.parallel_calls))


def _batch(
    loaded: tf.data.Dataset, options: PipelineOptions, maxima: Mapping[str, int], length_of: str
) -> tf.data.Dataset:
    shapes = {name: spec.shape for name, spec in loaded.element_spec.items()}
    if options.fixed_length or options.one_shape:
        fixed = {name: [top, *shapes[name][1:]] for name, top in maxima.items()}
        # A bucket pads its length to the bucket's end; all other lengths are fixed.
        one_shape = options.one_shape or options.buckets == 1
        shapes |= {name: shape for name, shape in fixed.items() if one_shape or name != length_of}
    if options.buckets == 1:
        return loaded.padded_batch(options.batch_size, shapes, drop_remainder=True)
    longest = maxima[length_of]
    # An example's length is BELOW its bucket's boundary; padding is to the boundary minus one.
    boundaries = sorted({longest * bucket // options.buckets + 1 for bucket in range(1, options.buckets + 1)})
    batches = loaded.bucket_by_sequence_length(
        lambda features: tf.shape(features[length_of])[0],
        bucket_boundaries=boundaries,
        bucket_batch_sizes=[options.batch_size] * (len(boundaries) + 1),
        padded_shapes=shapes,
        pad_to_bucket_boundary=options.fixed_length and not options.one_shape,
        drop_remainder=True,
    )
    if not options.one_shape:
        return batches

    def shaped(batch: Features) -> Features:
        return {name: tf.ensure_shape(value, [options.batch_size, *shapes[name]]) for name, value in batch.items()}

    return batches.map(shaped)  # TensorFlow does not know that all buckets have one batch size


# Parallel interleaved reading of several files, e.g. TFRecord shards.


ReadFile = Callable[[tf.Tensor], tf.data.Dataset]
"""Function from the path of a file (string scalar) to its records, e.g. ``tf.data.TFRecordDataset``."""


def interleaved(
    files: Sequence[str | Path],
    read_file: ReadFile,
    *,
    open_files: int,
    parallel_calls: int | None = None,
    block_records: int = 1,
    in_order: bool = True,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Return one pass over the records of all files, interleaved; readers run on the pipeline's threads.

    Args:
        open_files: Files to interleave.
        parallel_calls: Files to read in parallel; None for all open ones.
        in_order: Whether the order depends on files and seed only; else any ready record comes next.
        seed: Seed of the order of files, which differs in each pass; None keeps the given order.
    """
    calls = open_files if parallel_calls is None else parallel_calls
    require_at_least(1, files=len(files), open_files=open_files, parallel_calls=calls, block_records=block_records)
    paths = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    if seed is not None:
        paths = paths.shuffle(len(files), seed=seed)
    return paths.interleave(
        read_file,
        cycle_length=min(open_files, len(files)),
        block_length=block_records,
        num_parallel_calls=min(calls, open_files, len(files)),
        deterministic=in_order,
    )


def as_written(threads: int) -> tf.data.Options:
    """Return options that keep tf.data from changing a pipeline: each setting has its own effect."""
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_optimization.inject_prefetch = False  # else tf.data adds a prefetch
    options.autotune.enabled = False  # else tf.data changes buffers and parallelism
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1  # a worker is one thread
    return options


def for_throughput(parallel_calls: int) -> tf.data.Options:
    """Return options that let tf.data reorder examples, batch in parallel, and tune ``tf.data.AUTOTUNE`` values.

    Args:
        parallel_calls: Least parallelism of each map; above the number of cores for loads that mostly wait, which the
            autotuner does not detect.
    """
    options = tf.data.Options()
    options.deterministic = False
    options.autotune.enabled = True
    options.autotune.min_parallelism = parallel_calls
    options.experimental_optimization.inject_prefetch = True
    options.experimental_optimization.parallel_batch = True
    options.threading.private_threadpool_size = max(parallel_calls, len(os.sched_getaffinity(0)))
    options.threading.max_intra_op_parallelism = 1
    return options


# Cache of loaded examples, by index.
#
# A lookup replaces the load *after* the order of a pass is drawn, so a cache changes neither examples nor their order,
# the first batch does not wait for a pass, and entries survive a killed process. (An incomplete first pass loses a
# `tf.data.Dataset.cache` in a file and leaves its lock; in memory it needs a shuffle buffer of the whole data.)


Features = dict[str, tf.Tensor]
Load = Callable[[tf.Tensor], Features]
"""Function from the index of an example (int64 scalar) to its features, as graph operations."""

CACHE_FORMAT_VERSION = 1
_log = logging.getLogger(__name__)


class MemoryStore:
    """Hash table in TensorFlow's runtime: a hit runs no Python."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, default_value="")

    def lookup(self, index: tf.Tensor) -> tf.Tensor:
        """Return the entry as a string scalar; empty if missing."""
        return self._table.lookup(index)

    def insert(self, index: tf.Tensor, entry: tf.Tensor) -> None:
        self._table.insert(index, entry)


class DiskStore:
    """One file per entry, written atomically; damaged or foreign files count as missing.

    Args:
        folder: Named by what the entries depend on, as by `cache_folder`.
    """

    # Magic, owner, index, length, and the CRC-32 of all of these and the entry.
    _HEADER = struct.Struct("<8s16sqQI")
    _MAGIC = b"atcache%d" % CACHE_FORMAT_VERSION

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owner = hashlib.sha256(folder.name.encode()).digest()[:16]
        self._warned = threading.Event()

    def path(self, index: int) -> Path:
        return self._folder / f"{index:08d}.features"

    def lookup(self, index: tf.Tensor) -> tf.Tensor:
        entry = tf.numpy_function(self._read, [index], tf.string)
        return tf.ensure_shape(entry, [])

    def insert(self, index: tf.Tensor, entry: tf.Tensor) -> None:
        tf.numpy_function(self._write, [index, entry], [])

    def _read(self, index: np.int64) -> bytes:
        try:
            data = self.path(int(index)).read_bytes()
        except OSError:
            return b""
        body = memoryview(data)[self._HEADER.size :]
        intact = data[: self._HEADER.size] == self._header(int(index), body)
        return bytes(body) if intact else b""

    def _write(self, index: np.int64, entry: bytes) -> None:
        try:
            write_atomically(self.path(int(index)), (self._header(int(index), memoryview(entry)), entry))
        except OSError as error:
            if not self._warned.is_set():
                self._warned.set()
                _log.warning("the feature cache cannot be written, training continues without it: %s", error)

    def _header(self, index: int, body: memoryview) -> bytes:
        start = self._HEADER.pack(self._MAGIC, self._owner, index, len(body), 0)[:-4]
        return start + struct.pack("<I", zlib.crc32(body, zlib.crc32(start)))


Store = MemoryStore | DiskStore
"""Byte strings by index; used in graphs, from several threads."""


def cached(load: Load, store: Store) -> Load:
    """Return the function with a store for its results."""
    traced = tf.function(load, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False).get_concrete_function()
    specs: dict[str, tf.TensorSpec] = traced.structured_outputs
    names = sorted(specs)

    def look_up(index: tf.Tensor) -> Features:
        entry = store.lookup(index)

        def hit() -> Features:
            parts = tf.ensure_shape(tf.io.parse_tensor(entry, tf.string), [len(names)])
            return {
                name: tf.ensure_shape(tf.io.parse_tensor(part, specs[name].dtype), specs[name].shape)
                for name, part in zip(names, tf.unstack(parts), strict=True)
            }

        def miss() -> Features:
            features: Features = traced(index)
            parts = tf.stack([tf.io.serialize_tensor(features[name]) for name in names])
            store.insert(index, tf.io.serialize_tensor(parts))
            return features

        found: Features = tf.cond(tf.strings.length(entry) > 0, hit, miss)
        return found

    return look_up


def cache_folder(depends_on: Mapping[str, Any], near: Path) -> Path:
    """Return the folder, by `cache_home`, for entries that depend on exactly these JSON values."""
    key = {"format": CACHE_FORMAT_VERSION, "tensorflow": tf.__version__, "depends_on": depends_on}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_home(near) / name


# Stages of loading an example, such as reading a file. A trainer wraps the function of each stage. Under ``autotune
# profile pipeline`` the call times are summed in ``loading_stages.json`` in the trial's folder; otherwise the wrapper
# returns the function itself.


STAGES_VARIABLE = "AUTOTUNE_PROFILE_STAGES"
"""Environment variable that enables timing."""

STAGES_FILE = "loading_stages.json"
STAGES_VERSION = 1

_WRITE_EVERY_S = 0.5

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def in_python(name: str, function: AnyFunction) -> AnyFunction:
    """Return a Python stage, timed if profiling; its name has lower-case letters and spaces."""
    sums = _wanted()
    if sums is None:
        return function

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began_s = time.monotonic()
        result = function(*args, **kwargs)
        sums.add(name, time.monotonic() - began_s)
        return result

    return timed  # type: ignore[return-value]  # of the same signature


def in_graph(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a TensorFlow stage, timed if profiling, which takes about 50 µs per call."""
    sums = _wanted()
    if sums is None:
        return function

    def add(duration_s: Any) -> None:
        sums.add(name, float(duration_s))

    def timed(*args: Any) -> Any:
        with tf.control_dependencies(tf.nest.flatten(args)):
            began_s = tf.timestamp()
        with tf.control_dependencies([began_s]):
            result = function(*tf.nest.map_structure(tf.identity, args))
        with tf.control_dependencies(tf.nest.flatten(result)):
            duration_s = tf.timestamp() - began_s
        with tf.control_dependencies([tf.numpy_function(add, [duration_s], [])]):
            return tf.nest.map_structure(tf.identity, result)

    return timed


class _Sums:
    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stages: dict[str, tuple[int, float]] = {}
        self._written_s = 0.0

    def add(self, name: str, duration_s: float) -> None:
        """Add a call; never raises."""
        with self._lock:
            calls, busy_s = self._stages.get(name, (0, 0.0))
            self._stages[name] = calls + 1, busy_s + max(0.0, duration_s)
            if time.monotonic() < self._written_s + _WRITE_EVERY_S:
                return
            self._written_s = time.monotonic()
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        stages = {name: {"calls": calls, "busy_s": busy_s} for name, (calls, busy_s) in self._stages.items()}
        part = f"{self._path}.{os.getpid()}"
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"v": STAGES_VERSION, "stages": stages}, file)
        os.replace(part, self._path)


_sums = functools.cache(_Sums)  # one for all stages


def _wanted() -> _Sums | None:
    folder = os.environ.get("AUTOTUNE_TRIAL_DIR")
    if not folder or not os.environ.get(STAGES_VARIABLE):
        return None
    return _sums(os.path.join(os.path.abspath(folder), STAGES_FILE))
