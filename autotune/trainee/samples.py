"""Fingerprints of the fetched samples, which show whether two trials train on the same data.

Each process writes ``data.<pid>.<n>.jsonl`` in the trial's folder, with a line per batch:

    {"v": 1, "pid": 4711}
    {"k": "batch", "t_s": 83.1, "set": 0, "pass": 0, "at": 17, "n": 8, "content": "...", "labels": "...",
     "moments": "...", "trained": true}
    {"k": "unseen", "set": 0, "trained": true}

``set`` is the dataset, ``pass`` the pass over it (omitted if not seen), ``at`` the batch's number in it. In base64,
``content`` and ``labels`` hold an 8-byte hash per sample, ``moments`` its sum and sum of squares as float32. Labels are
fields of at most 8 elements: classes, ids, lengths. The hashes' key is ``AUTOTUNE_DATA_KEY``; nothing else of the data
is written.

A hash is a sum over elements at fixed places, ever sparser, so it costs the same for any size. Zeros, as in padding,
add nothing. If `SHARE` of the time isn't enough, only every 2nd, 4th, 8th batch and so on is used, the same ones in two
trials. Arrays on an accelerator are ignored, not copied.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import sys
import time
from binascii import b2a_base64
from functools import reduce
from hashlib import blake2b
from operator import add, getitem
from typing import Any, Callable, Optional

from autotune.trainee.batch import BatchSizes, Path, leading_size, leaves

KEY_VARIABLE = "AUTOTUNE_DATA_KEY"
SHARE = 0.005
"""Share of the time that fingerprints may take."""

START_S = 0.015
"""Seconds that they may take at first."""

MOST_BYTES = 2_000_000
MOST_LABEL_ELEMENTS = 8

_FLUSH_EVERY_S = 0.5
_FIRST_COST_S = 0.001
_FIRST_PLACES, _RATIO = 64, 1.07
_MOST_SHAPES = 1000  # that are cached
_MIX_1, _MIX_2 = 0x3F58476D1CE4E5B9, 0x14D049BB133111EB  # odd
_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}  # by an element's size in bytes


class Pass:
    """Pass over a dataset.

    Args:
        number: Number of the pass; None if ends of passes aren't seen.

    Attributes:
        batches: Number so far.
        fields: Paths of the fields used.
    """

    __slots__ = ("batches", "dataset", "fields", "is_trained", "number")

    def __init__(self, dataset: int, number: Optional[int], is_trained: Callable[[], bool]) -> None:
        self.dataset, self.number, self.is_trained = dataset, number, is_trained
        self.batches = 0
        self.fields: Optional[list[Path]] = None


class Fingerprints:
    """Fingerprints of this process's batches, with hashes keyed by `key`."""

    def __init__(self, folder: str, key: str) -> None:
        self._folder = os.path.abspath(folder)
        self._key = key.encode()
        self._places: dict[Any, Any] = {}
        self.forget()

    def forget(self) -> None:
        self._path: Optional[str] = None
        self._held: list[tuple[Callable[[], bool], dict[str, Any]]] = []
        self._datasets: list[int] = []  # number of passes over each
        self._unseen: set[int] = set()
        self._written = 0
        self._credit_s, self._cost_s = START_S, 0.0
        self._credited_s: Optional[float] = None  # time before the first batch gives no credit
        self._flushed_s = 0.0
        self.is_on = True
        self.stride = 1

    def spend(self, more_s: float) -> None:
        self._credit_s += more_s

    def dataset(self) -> int:
        self._datasets.append(0)
        return len(self._datasets) - 1

    def begin(self, dataset: int, is_trained: Callable[[], bool]) -> Pass:
        self._datasets[dataset] += 1
        return Pass(dataset, self._datasets[dataset] - 1, is_trained)

    def take(self, current_pass: Pass, batch: Any, samples: Optional[float]) -> None:
        """Take a batch's fingerprint unless it is skipped; raises nothing."""
        at, current_pass.batches = current_pass.batches, current_pass.batches + 1
        if samples is None or at % self.stride or not self.is_on:
            return
        now_s = time.monotonic()
        passed_s, self._credited_s = now_s - (self._credited_s or now_s), now_s
        self._credit_s += SHARE * passed_s
        if self._credit_s < self._cost_s:
            if SHARE * passed_s < self._cost_s:  # nor would it be enough for the next ones
                self.stride *= 2
            return
        try:
            self._add(current_pass, at, batch, int(samples), now_s)
            if now_s - self._flushed_s > _FLUSH_EVERY_S:
                self.flush()
        except Exception:
            self.is_on = False
        took_s = time.monotonic() - now_s
        self._credit_s -= took_s
        self._cost_s = min(took_s, 2.0 * self._cost_s or _FIRST_COST_S)  # the first one includes setup

    def flush(self) -> None:
        self._flushed_s = time.monotonic()
        held, self._held = self._held, []
        if held and self.is_on:
            with contextlib.suppress(Exception):
                self._append("".join(json.dumps({**line, "trained": is_trained()}) + "\n" for is_trained, line in held))

    def _append(self, text: str) -> None:
        if self._path is None:
            for number in range(100):  # exec keeps the pid
                path = os.path.join(self._folder, f"data.{os.getpid()}.{number}.jsonl")
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                    self._path = path
                    break
            text = json.dumps({"v": 1, "pid": os.getpid()}) + "\n" + text
        assert self._path is not None, "not a hundred files of one process"
        data = text.encode()
        self._written += len(data)
        self.is_on = False  # unless all of it is written
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self.is_on = os.write(fd, data) == len(data) and self._written < MOST_BYTES
        finally:
            os.close(fd)

    def _add(self, current_pass: Pass, at: int, batch: Any, samples: int, now_s: float) -> None:
        if current_pass.fields is None:
            paths = (path for path, leaf in leaves(batch) if _length(leaf) == samples)
            current_pass.fields = sorted(paths, key=_place_in_order)
        fields = [reduce(getitem, path, batch) for path in current_pass.fields]
        arrays = [on_host for leaf in fields if (on_host := _on_host(leaf)) is not None]
        if len(arrays) < len(fields) or not arrays:
            if current_pass.dataset not in self._unseen:
                self._unseen.add(current_pass.dataset)
                self._held.append((current_pass.is_trained, {"k": "unseen", "set": current_pass.dataset}))
            return
        line: dict[str, Any] = {"k": "batch", "t_s": now_s, "set": current_pass.dataset}
        line.update({"pass": current_pass.number, "at": at, "n": samples})
        content, moments = None, None
        labels: list[int] = []
        for place, array in enumerate(arrays):
            selected, is_label = (array, True) if isinstance(array, list) else self._selected(array)
            hashes = list(map(self._of_text, array)) if isinstance(array, list) else self._hashes(selected, place)
            if is_label:
                numbers = hashes if isinstance(hashes, list) else hashes.tolist()
                labels = list(map(add, labels, numbers)) if labels else numbers
            else:
                content = hashes if content is None else content + hashes
                moments = _moments(selected) if moments is None else moments
        held = {"content": content, "labels": labels or None, "moments": moments}
        line.update({name: _base64(values) for name, values in held.items() if values is not None})
        self._held.append((current_pass.is_trained, line))

    def _selected(self, array: Any) -> tuple[Any, bool]:
        """Return each sample's hashed elements, ``(n_samples, n_places)``, and whether they are all."""
        shape = tuple(array.shape[1:])
        size = reduce(lambda one, other: one * int(other), shape, 1)
        if size <= MOST_LABEL_ELEMENTS:
            return array.reshape(len(array), size), True
        module = _module_of(array)
        known = self._places.get((module, shape))
        if known is None:
            if len(self._places) > _MOST_SHAPES:
                self._places.clear()
            columns, within = [], size
            for length in shape:
                within //= int(length)
                columns.append([place // within % int(length) for place in _places(size)])
            make = sys.modules["torch"].tensor if module == "torch" else sys.modules["numpy"].array
            known = self._places[module, shape] = tuple(make(column) for column in columns)
        return array[(slice(None), *known)], False

    def _hashes(self, selected: Any, field: int) -> Any:
        module, places = _module_of(selected), int(selected.shape[1])
        weights = self._places.get((module, field, places))
        if weights is None:
            seed = blake2b(f"{field}".encode(), key=self._key, digest_size=7).digest()
            numbers = [int.from_bytes(seed, "big") + place for place in range(places)]
            made = sys.modules["torch"].tensor(numbers) if module == "torch" else sys.modules["numpy"].array(numbers)
            weights = self._places[module, field, places] = _mixed(made) | 1
        return (_mixed(_as_integers(selected)) * weights).sum(1)

    def _of_text(self, text: Any) -> int:
        data = text if isinstance(text, bytes) else str(text).encode()
        return int.from_bytes(blake2b(data[:4096], key=self._key, digest_size=8).digest(), "big")


def fingerprints_of_trial(folder: Optional[str]) -> Optional[Fingerprints]:
    """Return the trial's fingerprints; None outside a trial or without a key."""
    key = os.environ.get(KEY_VARIABLE)
    return Fingerprints(folder, key) if folder and key else None


class ReportedBatches:
    """Batches that the trainer reports with its steps."""

    def __init__(self, folder: Optional[str]) -> None:
        self._sizes = BatchSizes()
        self._fingerprints = fingerprints_of_trial(folder)
        if self._fingerprints is not None:
            self._pass = self._fingerprints.begin(self._fingerprints.dataset(), lambda: True)
            self._pass.number = None  # ends of passes are reported separately
            atexit.register(self._fingerprints.flush)

    def take(self, batch: Any) -> Optional[int]:
        """Take a batch's fingerprint; return its samples, or None without arrays."""
        samples = self._sizes.of(batch)
        if self._fingerprints is not None:
            self._fingerprints.take(self._pass, batch, samples)
        return samples


def _places(size: int) -> list[int]:
    """Return the indices of a sample's hashed elements; a larger size only adds some."""
    places, place = list(range(min(size, _FIRST_PLACES))), float(_FIRST_PLACES)
    while place < size:
        places.append(int(place))
        place = max(place + 1.0, place * _RATIO)
    return places


def _mixed(numbers: Any) -> Any:
    """Return 64-bit integers, scrambled invertibly; 0 stays 0 (splitmix64's last steps)."""
    numbers = (numbers ^ (numbers >> 30)) * _MIX_1
    numbers = (numbers ^ (numbers >> 27)) * _MIX_2
    return numbers ^ (numbers >> 31)


def _as_integers(selected: Any) -> Any:
    """Return elements' bits as 64-bit integers."""
    if _module_of(selected) == "torch":
        torch = sys.modules["torch"]
        if selected.dtype.is_floating_point:
            selected = selected.contiguous().view(getattr(torch, _INTEGERS[selected.element_size()]))
        return selected.to(torch.int64)
    numpy = sys.modules["numpy"]
    if selected.dtype.kind not in "iub":
        selected = numpy.ascontiguousarray(selected).view(_INTEGERS[selected.dtype.itemsize])
    return selected.astype(numpy.int64)


def _moments(selected: Any) -> Any:
    """Return each row's sum and sum of squares, ``(n_samples, 2)``; zero padding adds nothing."""
    if _module_of(selected) == "torch":
        torch = sys.modules["torch"]
        numbers = selected.to(torch.float32)
        return torch.stack((numbers.sum(1), (numbers * numbers).sum(1)), 1)
    numpy = sys.modules["numpy"]
    numbers = selected.astype(numpy.float32)
    return numpy.stack((numbers.sum(1), (numbers * numbers).sum(1)), 1)


def _base64(values: Any) -> str:
    if isinstance(values, list):
        data = b"".join((value % 2**64).to_bytes(8, "little") for value in values)
    elif _module_of(values) == "torch":  # NumPy may be missing
        values = values.contiguous()
        data = ctypes.string_at(values.data_ptr(), values.numel() * values.element_size())
    else:
        data = values.tobytes()
    return b2a_base64(data, newline=False).decode()


def _module_of(array: Any) -> str:
    return "torch" if type(array).__module__.partition(".")[0] == "torch" else "numpy"


def _place_in_order(path: Path) -> tuple[tuple[bool, Any], ...]:
    """Return a sort key for paths: equal mappings may be ordered differently."""
    return tuple((isinstance(part, str), part if isinstance(part, (int, str)) else str(part)) for part in path)


def _length(leaf: Any) -> Optional[int]:
    return len(leaf) if isinstance(leaf, (list, tuple)) else leading_size(leaf)


def _on_host(leaf: Any) -> Any:
    """Return a leaf as an array in host memory, uncopied, or a list of texts; None if it lies elsewhere."""
    if isinstance(leaf, (list, tuple)):
        return list(leaf)
    if _module_of(leaf) == "torch":
        return leaf.detach() if leaf.device.type == "cpu" and not leaf.is_sparse and not leaf.is_quantized else None
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if not isinstance(leaf, numpy.ndarray):
        if "CPU" not in str(getattr(leaf, "device", "")).upper():
            return None
        leaf = leaf._numpy() if hasattr(leaf, "_numpy") else numpy.asarray(leaf)  # TensorFlow; JAX
    if leaf.dtype.kind == "O":
        return list(leaf.tolist()) if leaf.ndim == 1 else None
    return leaf if leaf.dtype.itemsize in _INTEGERS else None
