"""Error extraction from a trainer's output: the exception that it ended with, and complaints about memory.

The text only names a failure that other evidence proves; it never proves a failure or a success itself
(`autotune.trial.outcome`).
"""

import re
from collections.abc import Callable

from autotune.records import Ending

LONGEST_LINE = 200

_LAST_LINES = 5  # looked at where a program in C++ ended without a Python exception

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# torchrun prefixes each line with the rank.
_RANK = re.compile(r"^\[[\w-]+\]:\s?", re.MULTILINE)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exhausted|Exit|Interrupt)(?::.*)?")

# Allocators first: TensorFlow's ResourceExhaustedError is raised for the host's memory too, and says which it was.
_HOST_MEMORY = re.compile(
    r"\bMemoryError\b|_ArrayMemoryError|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator"
    r"|by allocator (?:mkl)?cpu\b"
)
_GPU_MEMORY = re.compile(
    r"ResourceExhaustedError|RESOURCE_EXHAUSTED|CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|\bOutOfMemoryError\b"
)
# Libraries that cannot allocate their workspace report other errors instead.
_PERHAPS_GPU_MEMORY = re.compile(
    r"CU(?:DNN|BLAS|SOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)|cudnn ?handle"
    r"|Failed to get convolution algorithm|No algorithm worked|cuDNN failed to initialize",
    re.IGNORECASE,
)
_SAYS_OUT_OF_MEMORY = re.compile(r"\b(?:ran )?out of memory\b|\bOOM\b", re.IGNORECASE)
_HARMLESS = "not a failure"  # TensorFlow's allocator prints it when a smaller workspace suffices


def memory_that_ran_out(error: str, *, gpu_memory_full: Callable[[], bool] = lambda: False) -> Ending | None:
    """Return which memory ran out according to an error message; None if the message is about something else.

    Args:
        error: Class and message of an exception.
        gpu_memory_full: Returns whether the GPU's memory was seen to be full: only then do errors count that GPU
            libraries raise when they cannot allocate a workspace. Called only for such an error, since the answer may
            have to wait for the driver.
    """
    if _HOST_MEMORY.search(error):
        return Ending.OUT_OF_HOST_MEMORY
    if _GPU_MEMORY.search(error) or (_PERHAPS_GPU_MEMORY.search(error) and gpu_memory_full()):
        return Ending.OUT_OF_GPU_MEMORY
    return None


def complaint_of_memory(*outputs: str) -> tuple[Ending, str] | None:
    """Return the first line in these outputs that says that memory ran out, and which memory; None if there is none."""
    for text in outputs:
        for line in text.splitlines():
            memory = memory_that_ran_out(line)
            if memory is None and _SAYS_OUT_OF_MEMORY.search(line):
                memory = Ending.OUT_OF_GPU_MEMORY  # the kind that trainers catch, and continue
            if memory is not None and _HARMLESS not in line:
                return memory, line.strip()
    return None


def last_error(stderr: str) -> str:
    """Return the exception that a program ended with and those that caused it; without one, the last lines.

    Args:
        stderr: The tail of its stderr.

    Returns:
        The lines with class and message, the last exception first; empty if nothing was written.
    """
    text = _RANK.sub("", stderr)
    parts = text.split(_TRACEBACK)
    if len(parts) == 1:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        named = [line for line in lines if _EXCEPTION.fullmatch(line)]
        return "\n".join(named[-1:] or reversed(lines[-_LAST_LINES:]))
    chain = [_message(parts[-1])]
    for part in reversed(parts[1:-1]):
        if not part.rstrip().endswith(_CHAINED):
            break
        chain.append(_message(part))
    return "\n".join(message for message in chain if message)


def one_line(text: str) -> str:
    """Shorten text from a trainer to one printable line, free of terminal escape sequences."""
    line = " ".join(text.split())
    line = "".join(letter for letter in line if letter.isprintable())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _message(traceback: str) -> str:
    """Return class and message from the text after a traceback's first line."""
    lines = traceback.splitlines()
    for index, line in enumerate(lines):
        if line and not line[0].isspace():
            # A message may have many lines, and the one that names the allocator is often the last.
            return " ".join(part.strip() for part in lines[index:] if part.strip() not in _CHAINED)
    return ""
