"""Text preparation: from lines to tokens, once, before training; in order, in parallel, each distinct line once.

Nothing here imports TensorFlow, and no worker process does unless the function's own module does. Call `prepare`
before TensorFlow is imported: its threads then have the cores for themselves, and mistakes are named at once.
"""

from __future__ import annotations

import ast
import binascii
import contextlib
import hashlib
import importlib.util
import json
import logging
import operator
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from autotune.tf.options import TextOptions

Tokens = list[int]
PrepareLine = Callable[[str], Sequence[int]]
"""Function from a line to its tokens; the same line always gives the same tokens."""


def prepare(
    lines: Sequence[str],
    prepare_line: PrepareLine,
    options: TextOptions | None = None,
    *,
    cache: TokenCache | None = None,
) -> list[Tokens]:
    """Return the tokens of each line, in the order of the lines, the same whatever the options.

    Repeated lines are prepared once. `docs/tensorflow.md` has the numbers.

    Args:
        prepare_line: Prepares one line. For worker processes it must be a function of a module that can be imported.
        options: Workers; None prepares everything here.
        cache: Tokens of earlier calls; lines that are not in it are prepared and added to it.

    Raises:
        ValueError: The function cannot be found by name, which worker processes need.
        TextWorkerError: A worker process ended before its work was done, or the function failed in it.
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
    chunks = [lines[start : start + size] for start in range(0, len(lines), size)]
    workers = min(options.workers, len(chunks))
    if workers <= 1:
        yield from (as_tokens(prepare_line(line)) for line in lines)
    elif options.threads:
        with ThreadPoolExecutor(workers, thread_name_prefix="text") as pool:
            yield from pool.map(lambda line: as_tokens(prepare_line(line)), lines)
    else:
        for chunk in in_processes(chunks, prepare_line, workers):
            yield from chunk


FORMAT_VERSION = 1
_log = logging.getLogger(__name__)


class TokenCache:
    """Tokens by line, in a text file that is written aside and moved into place.

    Its name is a fingerprint of the function and of what it depends on: other code is another file. In it, each entry
    has the hash of its line and a checksum; one that is damaged, torn or foreign is treated as missing, and the file
    is replaced. Two processes that write at the same time each leave a whole file; the later one stays.

    Args:
        folder: Folder of such caches, e.g. `autotune.tf.cache.cache_home`; created if missing.
        prepare_line: The function whose results these are, see `fingerprint`.
        depends_on: JSON values that its results depend on besides its source: settings, versions of libraries.
    """

    def __init__(
        self, folder: Path, prepare_line: Callable[[str], Sequence[int]], depends_on: Mapping[str, Any] | None = None
    ) -> None:
        self._whose = fingerprint(
            prepare_line, {"format": FORMAT_VERSION, "byteorder": sys.byteorder, **(depends_on or {})}
        )
        self.path = folder / self._whose[:16] / "texts.tokens"
        self._others: list[bytes] = []

    def lookup(self, lines: Iterable[str]) -> dict[str, list[int]]:
        """Return the tokens of those lines that have an entry that can be trusted."""
        wanted = {_key(line): line for line in lines}
        found: dict[str, list[int]] = {}
        self._others = []
        for entry in self._entries():
            key, checksum, packed = (*entry.split(b" "), b"", b"")[:3]
            if checksum != self._checksum(key, packed):
                continue
            if key in wanted:
                found[wanted[key]] = unpack(packed)
            else:
                self._others.append(entry)
        return found

    def store(self, tokens: Mapping[str, Sequence[int]]) -> None:
        """Write a file with these entries, and those that the last look-up did not ask for.

        A failure to do so is logged and is not an error of the training.
        """
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.write(self._head() + b"\n")
                file.writelines(entry + b"\n" for entry in self._others)
                file.writelines(self._write(_key(line), values) + b"\n" for line, values in tokens.items())
            aside.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            _log.warning("the cache of prepared texts cannot be written, training goes on without: %s", error)

    def _entries(self) -> Iterator[bytes]:
        try:
            head, *entries = self.path.read_bytes().split(b"\n")
        except OSError:
            return
        if head == self._head():
            # Behind the last newline is nothing, or an entry that was cut off.
            yield from entries[:-1]

    def _head(self) -> bytes:
        return json.dumps({"tokens": FORMAT_VERSION, "of": self._whose}).encode()

    def _write(self, key: bytes, tokens: Sequence[int]) -> bytes:
        packed = pack(tokens)
        return b" ".join((key, self._checksum(key, packed), packed))

    def _checksum(self, key: bytes, packed: bytes) -> bytes:
        return b"%08x" % zlib.crc32(packed, zlib.crc32(key + self._whose.encode()))


def _key(line: str) -> bytes:
    # 128 bits: two lines of one key do not happen. Surrogates come from files that are no UTF-8.
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()


_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from autotune.tf.text import serve; serve(*sys.argv[2:])"
)


class TextWorkerError(RuntimeError):
    """Failure of a worker process, or of the function in it; the message says which, and on which line."""


def in_processes(
    chunks: Sequence[Sequence[str]], function: Callable[[str], Sequence[int]], workers: int
) -> Iterator[list[list[int]]]:
    """Yield the tokens of each chunk of lines, in the order of the chunks.

    Args:
        function: Prepares one line; a function at the top of a module that can be imported.

    Raises:
        ValueError: The function cannot be found by its name, see `name_of`.
        TextWorkerError: A worker ended before its work was done, or the function failed in it.
    """
    module, name = name_of(function)
    if module == "__main__":
        raise ValueError(f"{name} is in the main script, which no other process can import: move it to a module")
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    started: list[_Worker] = []

    def prepare(chunk: Sequence[str]) -> list[list[int]]:
        worker = idle.get()
        try:
            return worker.prepare(chunk)
        finally:
            idle.put(worker)  # also a dead one: the next use says so, and no thread waits for ever

    threads = ThreadPoolExecutor(workers, thread_name_prefix="text-worker")
    try:
        for _ in range(workers):
            started.append(_Worker(module, name))
            idle.put(started[-1])
        yield from threads.map(prepare, chunks)
    finally:
        # In this order: a thread that waits for a worker ends with it, also after ^C.
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in started:
            worker.kill()
        threads.shutdown()
        for worker in started:
            worker.close()


class _Worker:
    """One process, which prepares one chunk at a time."""

    def __init__(self, module: str, name: str) -> None:
        # -P: nothing in the working directory is taken for a module of the standard library.
        command = (sys.executable, "-P", "-c", _BOOT, json.dumps(list(map(str, sys.path))), module, name)
        # A process group of its own: ^C goes to the trainer alone, which ends its workers.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: BinaryIO = self._process.stdin  # type: ignore[assignment]  # buffered, of bytes
        self._output: BinaryIO = self._process.stdout  # type: ignore[assignment]

    def prepare(self, lines: Sequence[str]) -> list[list[int]]:
        try:
            self._input.write(json.dumps(lines).encode() + b"\n")
            self._input.flush()
            answer = self._output.readline()
        except OSError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise TextWorkerError(self._ending())
        content = json.loads(answer)
        if "error" in content:
            raise TextWorkerError(f"text preparation failed: {content['error']}")
        return [unpack(packed.encode()) for packed in content["tokens"]]

    def _ending(self) -> str:
        """Return how the process ended, after it has closed its pipe."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "a worker process for text preparation closed its pipe"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"a worker process for text preparation {how} before its work was done"

    def kill(self) -> None:
        """End it, whatever it is busy with, and reap it."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the pipes, once no thread uses them."""
        with contextlib.suppress(OSError):  # what was not written has no reader any more
            self._input.close()
        self._output.close()


def serve(module: str, name: str) -> None:
    """Prepare what comes through standard input: the whole life of a worker."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints is no answer
    threading.Thread(target=_end_with_trainer, daemon=True).start()
    function = None
    for request in sys.stdin.buffer:
        line = None
        try:
            function = function or getattr(import_module(module), name)
            tokens = []
            for line in json.loads(request):
                tokens.append(pack(as_tokens(function(line))).decode())
            answer: dict[str, Any] = {"tokens": tokens}
        except Exception:  # noqa: BLE001  # the top of a process: all of it is told to the trainer
            answer = {"error": f"{line!r}\n{traceback.format_exc()}" if line is not None else traceback.format_exc()}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _end_with_trainer() -> None:
    """End this process at once when the trainer has closed the pipe, whatever the function is busy with."""
    poll = select.poll()
    poll.register(0, 0)  # no event but the hang-up, which is always told
    poll.poll()
    os._exit(1)


# Fingerprint of a function by content: its source and that of the modules it is built on.


def fingerprint(function: Callable[..., Any], depends_on: Mapping[str, Any]) -> str:
    """Return a hash that changes when the function may give something else.

    It covers the sources of the function's module and of all modules that this one imports, at whatever remove, of
    the same package or beside it; the version of Python; and what is named. Installed packages are not looked into:
    name their versions.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: The function is not at the top of a module with a source.
    """
    module, name = name_of(function)
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or not file.endswith(".py"):
        raise ValueError(f"{name} of {module} cannot be cached: there is no source that tells what it does")
    sources = {}
    for imported, path in _modules(module, Path(file)):
        sources[imported] = hashlib.sha256(path.read_bytes()).hexdigest()
    content = {
        "function": f"{module}:{name}",
        "sources": sources,
        "python": sys.version_info[:3],
        "depends_on": depends_on,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and name of a function at the top of a module.

    Raises:
        ValueError: It is another thing: a lambda, a method, a function in a function.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or name is None or getattr(sys.modules.get(module), name, None) is not function:
        raise ValueError(
            f"{function!r} has no name by which it can be found again: make it a function at the top of a module"
        )
    return module, name


def _modules(module: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of this module and of those that it imports, as far as they belong to it."""
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
            if found is not None and (other.partition(".")[0] == package or _is_beside(found, root)):
                waiting.append((other, found))


def _is_beside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root) and not {"site-packages", "dist-packages"} & set(path.parts)


def _imported(name: str, path: Path) -> Iterator[str]:
    """Yield the names of what may be modules in the imports of a source, also of those inside functions."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            if node.level:  # relative: the package itself for its __init__, the package around for others
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
    except (ImportError, ValueError, AttributeError):  # a name in a module, not a module
        return None
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


# Tokens as text of one line, for pipes and files: some ten times faster to read than numbers in decimals.


def as_tokens(value: Sequence[int]) -> list[int]:
    """Return a list of plain ints, also of NumPy's.

    Raises:
        TypeError: There is something else in it.
    """
    return list(map(operator.index, value))


def pack(tokens: Sequence[int]) -> bytes:
    """Return base64 of the numbers in this machine's byte order, with the type of `array.array` ahead.

    Raises:
        OverflowError: A number has more than 64 bits.
    """
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
