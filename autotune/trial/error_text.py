"""What a trainer said last: the exception that it ended with, and the memory that it complained of.

Words name a failure that other evidence proves; they never prove one, nor a success (`autotune.trial.outcome`).
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
# torchrun writes the rank before each line.
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
# Libraries that cannot get their workspace say anything but that.
_PERHAPS_GPU_MEMORY = re.compile(
    r"CU(?:DNN|BLAS|SOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)|cudnn ?handle"
    r"|Failed to get convolution algorithm|No algorithm worked|cuDNN failed to initialize",
    re.IGNORECASE,
)
_SAYS_OUT_OF_MEMORY = re.compile(r"\b(?:ran )?out of memory\b|\bOOM\b", re.IGNORECASE)
_HARMLESS = "not a failure"  # what TensorFlow's allocator says when a smaller workspace will do


def memory_that_ran_out(error: str, *, gpu_memory_full: Callable[[], bool] = lambda: False) -> Ending | None:
    """Which memory an error says has run out; None if it speaks of something else.

    Args:
        error: Class and message of an exception.
        gpu_memory_full: Answers whether the GPU's memory was seen to be full: then errors count that its libraries
            raise for want of a workspace. Asked for such an error alone: the answer may have to wait for the driver.
    """
    if _HOST_MEMORY.search(error):
        return Ending.OUT_OF_HOST_MEMORY
    if _GPU_MEMORY.search(error) or (_PERHAPS_GPU_MEMORY.search(error) and gpu_memory_full()):
        return Ending.OUT_OF_GPU_MEMORY
    return None


def complaint_of_memory(*outputs: str) -> tuple[Ending, str] | None:
    """The first line of a trainer's outputs that says that memory ran out, wherever it stands, and which memory."""
    for text in outputs:
        for line in text.splitlines():
            memory = memory_that_ran_out(line)
            if memory is None and _SAYS_OUT_OF_MEMORY.search(line):
                memory = Ending.OUT_OF_GPU_MEMORY  # what trainers catch and go on after
            if memory is not None and _HARMLESS not in line:
                return memory, line.strip()
    return None


def last_error(stderr: str) -> str:
    """The exception a program ended with, and those it came from; else its last lines.

    Args:
        stderr: The end of what it wrote there.

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
    """A trainer's words as one short line that cannot steer the terminal."""
    line = " ".join(text.split())
    line = "".join(letter for letter in line if letter.isprintable())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _message(traceback: str) -> str:
    """Class and message from the text after a traceback's first line."""
    lines = traceback.splitlines()
    for index, line in enumerate(lines):
        if line and not line[0].isspace():
            # A message may go on for many lines, and what names the allocator is often the last of them.
            return " ".join(part.strip() for part in lines[index:] if part.strip() not in _CHAINED)
    return ""
