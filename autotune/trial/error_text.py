"""Error extraction from a trainer's output: its last exception, and complaints about memory.

The text only names a failure that other evidence proves (`autotune.trial.outcome`).
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from autotune.records import Ending

# Allocators first: TensorFlow's ResourceExhaustedError covers host memory too, and names the allocator.
_HOST_MEMORY = re.compile(
    r"\bMemoryError\b|_ArrayMemoryError|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator"
    r"|DataLoader worker \(pid[^)]*\) is killed by signal: Killed|exitcode *: *-9\b"
    r"|by allocator (?:mkl)?cpu\b"
)

_GPU_MEMORY = re.compile(
    r"ResourceExhaustedError|RESOURCE_EXHAUSTED|CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|\bOutOfMemoryError\b"
)

_SHARED_MEMORY = re.compile(
    r"(?:insufficient|out of|not enough|no space left in) shared memory|\(shm\)|/dev/shm\b|killed by signal: Bus error"
    r"|shared memory object|unable to mmap|\bshm_open\b|unable to write to file </torch_|exitcode *: *-7\b",
    re.IGNORECASE,
)
LONGEST_LINE = 200
_LAST_LINES = 5  # quoted from a program that ended without a Python exception
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exhausted|Exit|Interrupt|ExceptionGroup)(?::.*)?")


# Raised while the interpreter ends, or caught and printed: the program did not end with them.
_IGNORED = ("Exception ignored in", "Error in atexit", "Error in sys.excepthook", "--- Logging error ---")


# Launchers only report that one of their processes failed; that process printed why.
_LAUNCHERS = re.compile(r"(?:[\w.]*\.)?(?:ChildFailedError|CalledProcessError|ProcessExitedException)\b")
# Ranks that lose another rank during an exchange; that rank printed why.
_LOST_RANK = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|remote process exited|ncclRemoteError"
    r"|collective operation timeout|Timed out waiting \d+ ?ms for (?:send|recv) operation"
    r"|Gloo (?:all-?reduce|AllReduce) failed"
)
_LOGGED = re.compile(
    r"^\[?\d{4}-\d\d-\d\d[ T,]|^[IWEF]\d{4} \d\d:\d\d|^\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b\]?[\s:|-]"
)
_LOGGED_ERROR = re.compile(r"^(?=.*\b(?:ERROR|CRITICAL|FATAL)\b)|^[EF]\d{4} \d\d:\d\d|^\S+: error: |\b[Ff]atal error\b")
_GLOG_HEAD = re.compile(r"^[EF]\d{4} [^\]]*\]\s*")
_ABORTED = re.compile(r"^(?:terminate called |Fatal Python error: |F\d{4} \d\d:\d\d)")
_FRAME = re.compile(
    r"^\s+File \"|^\s*frame #\d+:|most recent call (?:first|last)\)|^Extension modules: |^Exception raised from "
    r"|^\s*Detected at node |^\s*\[\[\{\{node |^\s*\[\[\w+\]\] \[Op:"
)
_IN_USER_CODE = "in user code:"


# Libraries that cannot allocate their workspace report other errors instead.
_PERHAPS_GPU_MEMORY = re.compile(
    r"CU(?:DNN|BLAS|SOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)|cudnn ?handle"
    r"|Failed to get convolution algorithm|No algorithm worked|cuDNN failed to initialize",
    re.IGNORECASE,
)
_SAYS_OUT_OF_MEMORY = re.compile(r"\b(?:ran )?out of memory\b|\bOOM\b", re.IGNORECASE)
_HARMLESS = "not a failure"  # TensorFlow's allocator prints it when a smaller workspace suffices


def memory_that_ran_out(error: str, *, gpu_memory_full: Callable[[], bool] = lambda: False) -> Ending | None:
    """Return which memory ran out according to an exception's class and message, if any.

    Args:
        gpu_memory_full: Called for other errors of GPU libraries, which count if the GPU's memory was full; may wait
            for the driver.
    """
    if _HOST_MEMORY.search(error):
        return Ending.OUT_OF_HOST_MEMORY
    if _GPU_MEMORY.search(error) or (_PERHAPS_GPU_MEMORY.search(error) and gpu_memory_full()):
        return Ending.OUT_OF_GPU_MEMORY
    return None


def is_of_shared_memory(error: str) -> bool:
    """Return whether an error message is about /dev/shm."""
    return _SHARED_MEMORY.search(error) is not None


def complaint_of_memory(*outputs: str) -> tuple[Ending, str] | None:
    """Return the first line that says that memory ran out, and which memory."""
    for text in outputs:
        for line in text.splitlines():
            memory = memory_that_ran_out(line)
            if memory is None and _SAYS_OUT_OF_MEMORY.search(line):
                memory = Ending.OUT_OF_GPU_MEMORY  # the kind that trainers catch
            if memory is not None and _HARMLESS not in line:
                return memory, line.strip()
    return None


def last_error(stderr: str, stdout: str = "") -> str:
    """Return class and message of the exception that ended a program, then of its causes; else the last lines."""
    errors, printed = output_lines(stderr), output_lines(stdout)
    found, printed_error = _exception(errors), _exception(printed)
    if found and (not printed_error or _is_at_the_end(errors)):
        return found
    return printed_error or found or _last_lines(errors) or _last_lines(printed, only_errors=True)


def quoted_output(stderr: str, stdout: str) -> str:
    """Return the readable stderr, or stdout if only that holds the error."""
    if not _exception(output_lines(stderr)) and _exception(output_lines(stdout)):
        return readable(stdout)
    return readable(stderr) or readable(stdout)


def one_line(text: str) -> str:
    """Shorten text to one printable line, without terminal escape sequences."""
    line = " ".join(text.split())
    line = "".join(letter for letter in line if letter.isprintable())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _exception(lines: Sequence[str]) -> str:
    starts = [place for place, line in enumerate(lines) if TRACEBACK in line]
    chains: list[list[str]] = []
    for start, end in pairwise([*starts, len(lines)]):
        before = next((line for line in reversed(lines[:start]) if line.strip()), "")
        message = _message(lines[start + 1 : end])
        if before.strip() in _CHAINED and chains:
            chains[-1].insert(0, message)
        elif message and not before.startswith(_IGNORED):
            chains.append([message])
    if not chains:
        named = [line.strip() for line in lines if _EXCEPTION.fullmatch(line.strip())]
        return named[-1] if named else ""
    own = [chain for chain in chains if not _LAUNCHERS.match(chain[0])] or chains
    causes = [chain for chain in own if not any(map(_LOST_RANK.search, chain))] or own
    return "\n".join(message for message in causes[-1] if message)


def _is_at_the_end(lines: Sequence[str]) -> bool:
    """Return whether a program ended soon after its last traceback, judged by its progress bars."""
    starts = [place for place, line in enumerate(lines) if TRACEBACK in line]
    # two may be closed because the program ends
    return not starts or lines[starts[-1] :].count(PROGRESS) <= 2


def _last_lines(lines: Sequence[str], *, only_errors: bool = False) -> str:
    meaningful = [line.strip() for line in lines if line.strip() and line != PROGRESS and not _FRAME.search(line)]
    starts = [place for place, line in enumerate(meaningful) if _ABORTED.match(line)]
    if starts and not only_errors:
        return "\n".join(_GLOG_HEAD.sub("", line) for line in meaningful[starts[0] :][:_LAST_LINES])
    marked = [_GLOG_HEAD.sub("", line) for line in meaningful if _LOGGED_ERROR.search(line)]
    if marked:
        return marked[-1]
    return "" if only_errors else "\n".join(meaningful[-_LAST_LINES:])


def _message(lines: Sequence[str]) -> str:
    start = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    # A message may have many lines, and the one that names the allocator is often the last.
    message = list(lines[start : start + 1])
    for line in lines[start + 1 :]:
        if _LOGGED.match(line) or line.startswith(_IGNORED):
            break
        message.append(line)
    if message and message[0].endswith(_IN_USER_CODE):
        inner = [place for place, line in enumerate(message) if place and _EXCEPTION.fullmatch(line.strip())]
        message = message[inner[-1] :] if inner else message
    meaningful = (line.strip() for line in message if line != PROGRESS and not _FRAME.search(line))
    return " ".join(line for line in meaningful if line and line not in _CHAINED)


# Lines of a trainer's output to quote: without progress bars, boxes, warnings and colours.


PROGRESS = "\0"
"""Line for an update of a progress bar; `output_lines` leaves no NUL in real lines."""

TRACEBACK = "Traceback (most recent call last):"
_MOST_LETTERS = 1000
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_=>])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_RANK = re.compile(r"^\[(?:rank\d+|[\w-]+\d+)\]:\s?")  # torchrun's prefix


# tqdm's bar, with or without a total; other output may follow on the same line.
_TQDM = re.compile(
    r"(?:[^|\n]{0,80}:\s*)?\s*\d{1,3}%\|[^|]{0,400}\|\s*[\d.,]+\w*/[\d.,]+\w*\s\[[^\]]*\]"
    r"|(?:[^|\n:]{0,80}:\s*)?\b\d+\w*it\s\[\d+:\d+[^\]]*\]"
)
_BAR = re.compile(r"[━╸╺█▏▎▍▌▋▊▉]{2,}|\[[=>.#\- ]{8,}\]")
_COUNT = re.compile(r"\b\d+/(?:\d+|Unknown|--)(?:\s|$)|\d{1,3}\s?%")
_BOX_HEAD = re.compile(r"^[╭┌+][─-]+\s*Traceback \(most recent call last\)")
_BOX = re.compile(r"^[╭╰│┃┏┗┡├└┌╞╘┠]")
_BOX_ASCII = re.compile(r"^(?:\|.*\||\+[-─ ]{10,}\+)\s*$")
_GROUP_RULE = re.compile(r"^\s+\+(?:-\+)?-{4,}.*$")
_GROUP = re.compile(r"^(?:  )+[|+] ")
_GLOG_REMARK = re.compile(r"^(?:\[\w+\]:)?\[?[IW]\d{4}\s+\d\d:\d\d:\d\d")
_NOISE = re.compile(
    r"^\S*[^:\s]*:\d+: \w*Warning: "
    r"|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] \S+\.cc:\d+\]"
    r"|^E\d{4} .*(?:failed call to cuInit|Unable to register cu|computation placer already registered)"
    r"|^WARNING: All log messages before absl::InitializeLog"
    r"|^To enable the following instructions: "
    r"|^Set the environment variable HYDRA_FULL_ERROR=1|^Error executing job with overrides: "
    r"|^For simplicity, JAX has removed its internal frames"
    r"|^-{20}$"
    r"|^\s*[\^~]+\s*$"  # marks under a line of code
    r"|^wandb: "
    r"|^\[W\d+ "
)
_WARNED_CODE = re.compile(r"^\s+\S")  # the line of code that a warning quotes


def output_lines(text: str) -> list[str]:
    """Return the meaningful lines of an output.

    Updates of a progress bar become `PROGRESS`, the head of a boxed traceback `TRACEBACK`.
    """
    lines: list[str] = []
    after_warning = False
    for written in text.split("\n"):
        for part in written.split("\r"):
            if len(part) > 2 * _MOST_LETTERS:  # patterns take time, and the rest is never quoted
                part = f"{part[:_MOST_LETTERS]} {part[-_MOST_LETTERS:]}"
            line = _CONTROL.sub("", _ESCAPE.sub("", part)).rstrip()
            kept = _kept(line)
            quotes_code = after_warning and _WARNED_CODE.match(line)
            after_warning = "Warning: " in line and kept is None
            if kept is not None and not quotes_code:
                lines.append(kept)
    return lines


def readable(text: str) -> str:
    """Return an output without lines that are not worth quoting."""
    return "".join(f"{line}\n" for line in output_lines(text) if line.strip() and line != PROGRESS)


def _kept(line: str) -> str | None:
    """Return a line without its decoration; None if nothing meaningful is left."""
    line = _RANK.sub("", line)
    if ("%|" in line or "it [" in line) and _TQDM.search(line):
        rest = _TQDM.sub("", line).strip(" ,")
        return _kept(rest) or PROGRESS if rest else PROGRESS
    if _BOX_HEAD.match(line):
        return TRACEBACK
    if _BOX.match(line) or _BOX_ASCII.match(line) or _GROUP_RULE.match(line):
        return None
    if _BAR.search(line) and _COUNT.search(line):
        return PROGRESS
    if _GLOG_REMARK.match(line) or _NOISE.match(line):
        return None
    return _GROUP.sub("", line)
