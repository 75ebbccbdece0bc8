"""Worker processes for text preparation: fresh interpreters that import one function by its name.

Neither a fork nor `multiprocessing`: a fork copies whatever threads TensorFlow or a numeric library has started, in an
unknown state; a spawned process of `multiprocessing` imports the trainer's main script again, TensorFlow included.
Lines and tokens travel as JSON, one chunk a line of the pipe.

A worker ends when the trainer does, however that ended: it sees its pipe hang up. One that is killed is an error that
says so.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, BinaryIO

from autotune.tf.text.packed_tokens import as_tokens, pack, unpack
from autotune.tf.text.source_fingerprint import name_of

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from autotune.tf.text.worker_processes import serve; serve(*sys.argv[2:])"
)
_TIME_TO_END_S = 5.0


class TextWorkerError(RuntimeError):
    """Failure of a worker process, or of the function in it; the message says which, and on which line."""


def in_processes(
    chunks: Sequence[Sequence[str]], function: Callable[[str], Sequence[int]], workers: int
) -> Iterator[list[list[int]]]:
    """Yield the tokens of each chunk of lines, in the order of the chunks.

    Args:
        chunks: Lines, so many at a time.
        function: Prepares one line; a function at the top of a module that can be imported.
        workers: Number of processes.

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
        """Return the tokens of these lines."""
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
            code = self._process.wait(_TIME_TO_END_S)
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
