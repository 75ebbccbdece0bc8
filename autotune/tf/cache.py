"""Cache of loaded examples, by their index: the next pass over the data need not compute them again.

A lookup replaces the load, *after* the order of a pass is drawn. So a cache changes neither the examples nor their
order, the first batch does not wait for a whole pass, and entries from a killed process serve the next. (A
`tf.data.Dataset.cache` in a file is lost, and leaves a lock behind, if the first pass is not completed; in memory it
needs a shuffle buffer of the whole data behind it to give the same order.)
"""

import hashlib
import json
import logging
import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from autotune.tf.options import cache_home, write_whole

Features = dict[str, tf.Tensor]
Load = Callable[[tf.Tensor], Features]
"""Function from the index of an example (int64 scalar) to its features, as graph operations."""

FORMAT_VERSION = 1
_log = logging.getLogger(__name__)


class Store(Protocol):
    """Byte strings by index; both methods are called inside graphs, from several threads at once."""

    def lookup(self, index: tf.Tensor) -> tf.Tensor:
        """Return the entry as a string scalar; empty if there is none that can be trusted."""
        ...

    def insert(self, index: tf.Tensor, entry: tf.Tensor) -> None:
        """Store an entry; a failure to do so is not an error of the training."""
        ...


class MemoryStore:
    """A hash table inside TensorFlow's runtime: a hit runs no Python."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, default_value="")

    def lookup(self, index: tf.Tensor) -> tf.Tensor:
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
    _MAGIC = b"atcache%d" % FORMAT_VERSION

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
    key = {"format": FORMAT_VERSION, "tensorflow": tf.__version__, "depends_on": depends_on}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_home(near) / name
