"""Input pipeline: from the indices of examples to batches, a cache of loaded examples, times of the loading stages."""

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

from autotune.tf.options import PipelineOptions, cache_home, write_whole


def build(
    examples: int,
    load: Load,
    options: PipelineOptions,
    *,
    maxima: Mapping[str, int],
    length_of: str,
    store: Store | None = None,
) -> tf.data.Dataset:
    """Assemble the endless stream of batches: draw an order, load (or look up), batch, prefetch.

    Args:
        load: Function from an index below that to the features of the example, the first dimension of some unknown.
        maxima: Largest first dimension of each such feature.
        length_of: The feature whose first dimension is the length of an example, for buckets.
        store: Store of loaded examples; None loads everything anew in each pass.

    Returns:
        A dataset that never ends: passes follow each other, each in another order, also within a batch.
    """
    order = tf.data.Dataset.range(examples).shuffle(examples, seed=options.seed)
    loaded = order.repeat().map(
        cached(load, store) if store else load,
        num_parallel_calls=tf.data.AUTOTUNE if options.throughput else options.parallel_calls,
        # By default in order, so that the number of workers does not change what is trained on.
        deterministic=not options.throughput,
    )
    return batched(loaded, options, maxima=maxima, length_of=length_of)


def batched(
    loaded: tf.data.Dataset, options: PipelineOptions, *, maxima: Mapping[str, int], length_of: str
) -> tf.data.Dataset:
    """Return batches of loaded examples, from whatever source: the part of `build` behind the loading.

    Args:
        loaded: Features of single examples, e.g. from `autotune.tf.pipeline.interleaved`.
    """
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
        # A bucket pads its own length to the bucket's end; all other lengths are the same in every batch.
        one_shape = options.one_shape or options.buckets == 1
        shapes |= {name: shape for name, shape in fixed.items() if one_shape or name != length_of}
    if options.buckets == 1:
        return loaded.padded_batch(options.batch_size, shapes, drop_remainder=True)
    longest = maxima[length_of]
    # An example goes where its length is BELOW the boundary, and padding is to the boundary minus one.
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

    return batches.map(shaped)  # buckets could have batches of different sizes, as far as TensorFlow knows


# Parallel interleaved reading of data in several files, e.g. TFRecord shards.


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
    """Return one pass over the records of all files, read from several at the same time and in turn.

    The readers run on the threads of the pipeline: give it as many, `as_written`, or it has
    one for each core.

    Args:
        open_files: Files that records are taken from in turn.
        parallel_calls: Files that are read at the same time; None reads all that are open.
        in_order: Keep the turns, so that the order depends on the files and the seed alone; off, whichever file has a
            record ready gives it.
        seed: Seed of the order of the files, which differs in each pass; None keeps the order given.

    Raises:
        ValueError: There are no files, or one of the numbers is below 1.
    """
    parallel_calls = open_files if parallel_calls is None else parallel_calls
    if not files or min(open_files, parallel_calls, block_records) < 1:
        raise ValueError(
            f"needs files, and numbers of at least 1; got {len(files)} files, open_files={open_files}, "
            f"parallel_calls={parallel_calls}, block_records={block_records}"
        )
    paths = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    if seed is not None:
        paths = paths.shuffle(len(files), seed=seed)
    return paths.interleave(
        read_file,
        cycle_length=min(open_files, len(files)),
        block_length=block_records,
        num_parallel_calls=min(parallel_calls, open_files, len(files)),
        deterministic=in_order,
    )


def as_written(threads: int) -> tf.data.Options:
    """Return options that keep tf.data from changing a pipeline by itself: each setting has its own effect."""
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_optimization.inject_prefetch = False  # else no prefetch becomes one
    options.autotune.enabled = False  # else buffers and parallelism move by themselves
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1  # a worker is one thread
    return options


def for_throughput(parallel_calls: int) -> tf.data.Options:
    """Return options that let tf.data reorder examples, assemble batches in parallel, and tune itself while it runs.

    Its autotuner moves what is written as ``tf.data.AUTOTUNE``, within the cores and half of the free memory. The
    pipeline has a thread for each core, or for each of the parallel calls if these are more.

    Args:
        parallel_calls: Least parallelism of each parallel map; above the number of cores for loads that wait more than
            they compute, which the autotuner does not know of.
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


# Cache of loaded examples, by their index: the next pass over the data need not compute them again.
#
# A lookup replaces the load, *after* the order of a pass is drawn. So a cache changes neither the examples nor their
# order, the first batch does not wait for a whole pass, and entries from a killed process serve the next. (A
# `tf.data.Dataset.cache` in a file is lost, and leaves a lock behind, if the first pass is not completed; in memory it
# needs a shuffle buffer of the whole data behind it to give the same order.)


Features = dict[str, tf.Tensor]
Load = Callable[[tf.Tensor], Features]
"""Function from the index of an example (int64 scalar) to its features, as graph operations."""

CACHE_FORMAT_VERSION = 1
_log = logging.getLogger(__name__)


class MemoryStore:
    """Entries in a hash table inside TensorFlow's runtime: a hit runs no Python."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, default_value="")

    def lookup(self, index: tf.Tensor) -> tf.Tensor:
        """Return the entry as a string scalar; empty if there is none that can be trusted."""
        return self._table.lookup(index)

    def insert(self, index: tf.Tensor, entry: tf.Tensor) -> None:
        self._table.insert(index, entry)


class DiskStore:
    """One file per entry, each written aside and moved into place.

    Several processes may fill one folder at the same time. A file that is torn, damaged, or was not written for this
    folder and index is treated as missing, and replaced.

    Args:
        folder: Named by what the entries depend on, see `cache_folder`; created if missing.
    """

    # Magic, whose, index, length, and the CRC-32 of all of these and the entry.
    _HEADER = struct.Struct("<8s16sqQI")
    _MAGIC = b"atcache%d" % CACHE_FORMAT_VERSION

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whose = hashlib.sha256(folder.name.encode()).digest()[:16]
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
            write_whole(self.path(int(index)), (self._header(int(index), memoryview(entry)), entry))
        except OSError as error:
            if not self._warned.is_set():
                self._warned.set()
                _log.warning("the feature cache cannot be written, training goes on without: %s", error)

    def _header(self, index: int, body: memoryview) -> bytes:
        start = self._HEADER.pack(self._MAGIC, self._whose, index, len(body), 0)[:-4]
        return start + struct.pack("<I", zlib.crc32(body, zlib.crc32(start)))


Store = MemoryStore | DiskStore
"""Byte strings by index; looked up and inserted inside graphs, from several threads at once."""


def cached(load: Load, store: Store) -> Load:
    """Return the same function with results from the store for examples that were loaded before."""
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
    """Return the folder for entries that depend on exactly these things.

    Args:
        depends_on: JSON values: the listing of the data with sizes and times, parameters, versions.
        near: A file of the project, e.g. its config; see `cache_home`.
    """
    key = {"format": CACHE_FORMAT_VERSION, "tensorflow": tf.__version__, "depends_on": depends_on}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_home(near) / name


# Stages of loading an example, such as reading a file, timed while a pipeline is profiled. A trainer wraps what each
# stage does, once, when it builds its pipeline. Under ``autotune profile pipeline`` the times of all calls are summed
# up in ``loading_stages.json`` in the trial's folder; anywhere else the function itself is returned.


STAGES_VARIABLE = "AUTOTUNE_PROFILE_STAGES"
"""Environment variable that asks for the times, in a trial of its own."""

STAGES_FILE = "loading_stages.json"
STAGES_VERSION = 1

_WRITE_EVERY_S = 0.5

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def in_python(name: str, function: AnyFunction) -> AnyFunction:
    """Return a stage that Python executes, timed where that is wanted.

    Args:
        name: Name of the stage for people: lower-case letters and spaces.
    """
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
    """Return a stage that TensorFlow executes, timed where that is wanted.

    Each call is reported to Python, which takes some 50 µs of the stage's thread beside its time.

    Args:
        name: Name of the stage for people: lower-case letters and spaces.
    """
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
    """Sums of the times of all stages of this process.

    Args:
        path: File that they are written to, again and again.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stages: dict[str, tuple[int, float]] = {}
        self._written_s = 0.0

    def add(self, name: str, duration_s: float) -> None:
        """Add a call; nothing is raised."""
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


@functools.cache
def _sums(path: str) -> _Sums:
    return _Sums(path)


def _wanted() -> _Sums | None:
    folder = os.environ.get("AUTOTUNE_TRIAL_DIR")
    return (
        _sums(os.path.join(os.path.abspath(folder), STAGES_FILE))
        if folder and os.environ.get(STAGES_VARIABLE)
        else None
    )
