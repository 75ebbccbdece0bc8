"""Text preparation: from lines to tokens, once before training, in parallel, each distinct line once.

Nothing here imports TensorFlow. Call `prepare` before importing it: the cores are then free, and mistakes show at once.
"""

from __future__ import annotations

import ast
import binascii
import hashlib
import importlib.util
import json
import logging
import multiprocessing
import operator
import os
import signal
import sys
import threading
import traceback
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.tf.options import TextOptions, write_atomically

Tokens = list[int]
PrepareLine = Callable[[str], Sequence[int]]
"""Deterministic function from a line to its tokens."""


def prepare(
    lines: Sequence[str],
    prepare_line: PrepareLine,
    options: TextOptions | None = None,
    *,
    cache: TokenCache | None = None,
) -> list[Tokens]:
    """Return the tokens of each line, in order; the options do not affect them.

    Args:
        prepare_line: For worker processes, a top-level function of an importable module.
        options: Workers; None prepares everything in this process.
        cache: Tokens of earlier calls; missing ones are added.

    Raises:
        ValueError: Worker processes cannot find the function by name.
        TextWorkerError: A worker process ended early, or the function failed in it.
    """
    distinct = list(dict.fromkeys(lines))
    known = cache.lookup(distinct) if cache else {}
    missing = [line for line in distinct if line not in known]
    known.update(zip(missing, _prepare_distinct(missing, prepare_line, options or TextOptions()), strict=True))
    if cache and missing:
        cache.store(known)
    return [known[line] for line in lines]


def _prepare_distinct(lines: Sequence[str], prepare_line: PrepareLine, options: TextOptions) -> Iterator[Tokens]:
    size = options.chunk_lines
    workers = min(options.workers, -(-len(lines) // size))
    if workers <= 1:
        yield from (as_tokens(prepare_line(line)) for line in lines)
    elif options.threads:
        with ThreadPoolExecutor(workers, thread_name_prefix="text") as pool:
            yield from pool.map(lambda line: as_tokens(prepare_line(line)), lines)
    else:
        yield from _in_processes(lines, prepare_line, workers, size)


FORMAT_VERSION = 1
_log = logging.getLogger(__name__)


class TokenCache:
    """Tokens by line, in a text file that is replaced atomically; damaged or foreign entries count as missing.

    Args:
        folder: Folder of such caches, e.g. `autotune.tf.options.cache_home`.
        depends_on: JSON values that the tokens also depend on, such as settings and library versions.
    """

    def __init__(
        self, folder: Path, prepare_line: Callable[[str], Sequence[int]], depends_on: Mapping[str, Any] | None = None
    ) -> None:
        self._fingerprint = fingerprint(
            prepare_line, {"format": FORMAT_VERSION, "byteorder": sys.byteorder, **(depends_on or {})}
        )
        self.path = folder / self._fingerprint[:16] / "texts.tokens"
        self._unused: list[bytes] = []

    def lookup(self, lines: Iterable[str]) -> dict[str, list[int]]:
        """Return the tokens of lines with an intact entry."""
        wanted = {_key(line): line for line in lines}
        found: dict[str, list[int]] = {}
        self._unused = []
        for entry in self._entries():
            key, checksum, packed = (*entry.split(b" "), b"", b"")[:3]
            if checksum != self._checksum(key, packed):
                continue
            if key in wanted:
                found[wanted[key]] = unpack(packed)
            else:
                self._unused.append(entry)
        return found

    def store(self, tokens: Mapping[str, Sequence[int]]) -> None:
        """Write these entries and those that the last lookup did not use; log a failure."""
        entries = [self._head(), *self._unused, *(self._entry(_key(line), values) for line, values in tokens.items())]
        try:
            write_atomically(self.path, (entry + b"\n" for entry in entries))
        except OSError as error:
            _log.warning("the text cache cannot be written, training continues without it: %s", error)

    def _entries(self) -> Iterator[bytes]:
        try:
            head, *entries = self.path.read_bytes().split(b"\n")
        except OSError:
            return
        if head == self._head():
            # The part after the last newline is empty, or a torn entry.
            yield from entries[:-1]

    def _head(self) -> bytes:
        return json.dumps({"tokens": FORMAT_VERSION, "of": self._fingerprint}).encode()

    def _entry(self, key: bytes, tokens: Sequence[int]) -> bytes:
        packed = pack(tokens)
        return b" ".join((key, self._checksum(key, packed), packed))

    def _checksum(self, key: bytes, packed: bytes) -> bytes:
        return b"%08x" % zlib.crc32(packed, zlib.crc32(key + self._fingerprint.encode()))


def _key(line: str) -> bytes:
    # 128 bits make collisions negligible. Surrogates come from files that are not UTF-8.
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()


class TextWorkerError(RuntimeError):
    """Failure of a worker process, or of the function on a line."""


def _in_processes(lines: Sequence[str], function: PrepareLine, workers: int, chunk_lines: int) -> Iterator[Tokens]:
    module, name = name_of(function)
    if module == "__main__":
        raise ValueError(f"{name} is in the main script, which worker processes cannot import: move it to a module")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _init_worker)
    main = sys.modules["__main__"]
    try:
        sys.modules["__main__"] = ModuleType("__main__")  # else each worker would execute the trainer's script
        try:
            prepared = pool.map(partial(_prepared, function), lines, chunksize=chunk_lines)
        finally:
            sys.modules["__main__"] = main
        yield from prepared
    except BrokenProcessPool as error:
        raise TextWorkerError("a worker process for text preparation ended early") from error
    finally:
        for worker in set(multiprocessing.active_children()) - before:
            worker.kill()  # it may be busy
        pool.shutdown(cancel_futures=True)


def _init_worker() -> None:
    """Make this process exit as soon as the trainer ends, and ignore ^C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trainer = multiprocessing.parent_process()
    assert trainer is not None
    threading.Thread(target=lambda: (connection.wait([trainer.sentinel]), os._exit(1)), daemon=True).start()


def _prepared(function: PrepareLine, line: str) -> Tokens:
    try:
        return as_tokens(function(line))
    except BaseException as error:  # also reports a SystemExit to the trainer
        raise TextWorkerError(f"text preparation failed: {line!r}\n{traceback.format_exc()}") from error


# Fingerprint of a function: its source and that of the modules it depends on.


def fingerprint(function: Callable[..., Any], depends_on: Mapping[str, Any]) -> str:
    """Return a hash of a function, the local modules that it imports, Python's version and `depends_on`.

    Raises:
        ValueError: The function is not at the top level of a module with a source.
    """
    module, name = name_of(function)
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or not file.endswith(".py"):
        raise ValueError(f"{name} of {module} cannot be cached: its source is not available")
    content = {
        "function": f"{module}:{name}",
        "sources": {one: hashlib.sha256(path.read_bytes()).hexdigest() for one, path in _modules(module, Path(file))},
        "python": sys.version_info[:3],
        "depends_on": depends_on,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and name of a top-level function; raise a ValueError for any other."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or name is None or getattr(sys.modules.get(module), name, None) is not function:
        raise ValueError(f"{function!r} cannot be found by name: make it a top-level function of a module")
    return module, name


def _modules(module: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of a module and of its imports from the same package or folder, recursively."""
    package = module.partition(".")[0]
    above = path.resolve().parents
    root = above[min(module.count(".") + (path.name == "__init__.py"), len(above) - 1)]
    waiting, seen = [(module, path)], {module}
    while waiting:
        name, source = waiting.pop()
        yield name, source
        for other in _imported(name, source):
            if other in seen:
                continue
            seen.add(other)
            found = _source_of(other)
            if found is not None and (other.partition(".")[0] == package or _is_local(found, root)):
                waiting.append((other, found))


def _is_local(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root) and not {"site-packages", "dist-packages"} & set(path.parts)


def _imported(name: str, path: Path) -> Iterator[str]:
    """Yield names in a source's imports, also inside functions, that may be modules."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            if node.level:  # relative to the package itself in its __init__, to the parent package elsewhere
                start = parts[: len(parts) - node.level + (path.name == "__init__.py")]
                base = ".".join([*start, *([node.module] if node.module else [])])
            else:
                base = node.module or ""
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _source_of(name: str) -> Path | None:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # not a module
        return None
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


# Tokens as one line of text, for pipes and files: about ten times faster to read than decimals.


def as_tokens(value: Sequence[int]) -> list[int]:
    """Return a list of plain ints, also from NumPy's; raise a TypeError for anything else."""
    return list(map(operator.index, value))


def pack(tokens: Sequence[int]) -> bytes:
    """Return base64 of the numbers, in native byte order, after their `array.array` type code."""
    try:
        numbers = array("i", tokens)
    except OverflowError:
        numbers = array("q", tokens)
    return numbers.typecode.encode() + binascii.b2a_base64(numbers.tobytes(), newline=False)


def unpack(packed: bytes) -> list[int]:
    """Return the tokens of `pack`."""
    numbers = array(packed[:1].decode())
    numbers.frombytes(binascii.a2b_base64(packed[1:]))
    return numbers.tolist()
