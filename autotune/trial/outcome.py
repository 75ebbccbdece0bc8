"""What the end of a run means: evidence in, name and detail out.

The evidence, in the order in which it counts:

1. who stopped it: if we did, our reason is the ending (but see 4);
2. exit status not 0 and the kernel's out-of-memory counter moved: out of host memory;
3. exit status not 0 and the last exception is one of memory: out of GPU, or of host, memory;
4. the losses stopped being numbers: diverged, also if the run was stopped because enough was known, or ended well;
5. exit status not 0: crashed;
6. exit status 0: completed, or no steps seen.

What a trainer prints is never proof of success, nor of failure: it only names a failure that the exit status proves.
"""

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.records import Ending, Stop, TraineeEvent, TrialExit


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What an ending means to a user, and what they can do about it."""

    sentence: str
    remedy: str


EXPLANATIONS: Mapping[Ending, Explanation] = {
    Ending.COMPLETED: Explanation(
        sentence="The trainer ran to its end.",
        remedy="Nothing to do; if it was too short to measure, let it train longer, e.g. more epochs under `set:`.",
    ),
    Ending.STOPPED: Explanation(
        sentence="The run was stopped because enough was known.",
        remedy="Nothing to do.",
    ),
    Ending.CRASHED: Explanation(
        sentence="The trainer ended with an error.",
        remedy="Read stderr.log in the run's folder; start the command by hand with the config.yaml beside it.",
    ),
    Ending.OUT_OF_HOST_MEMORY: Explanation(
        sentence="The machine's memory, or the limit on it, was used up.",
        remedy="Lower the upper ends of batch size, workers, buffers or caching, or free memory.",
    ),
    Ending.OUT_OF_GPU_MEMORY: Explanation(
        sentence="The GPU's memory was used up.",
        remedy="Lower the upper end of the batch size, or end whatever else uses the GPU.",
    ),
    Ending.GPU_LOST: Explanation(
        sentence="The GPU, or its driver, gave no answer any more.",
        remedy="See what the driver says (dmesg names it Xid); reset the GPU or reboot, then start the search again.",
    ),
    Ending.DIVERGED: Explanation(
        sentence="The loss became NaN or infinite.",
        remedy="Leave out the precision or batch sizes that do this, or lower the learning rate.",
    ),
    Ending.HUNG: Explanation(
        sentence="Steps came, then none for too long.",
        remedy="Read stderr.log in the run's folder; a loader with many workers can deadlock.",
    ),
    Ending.NEVER_STARTED: Explanation(
        sentence="No step was seen within the time allowed for starting.",
        remedy="Raise run.start_timeout_s if the trainer needs longer; else see that it reports its steps.",
    ),
    Ending.NO_STEPS: Explanation(
        sentence="The trainer ended by itself and no step of it was seen.",
        remedy="Call autotune.trainee.step() in the training loop; python -I, -E or -S hides steps too.",
    ),
    Ending.KILLED_BY_BUDGET: Explanation(
        sentence="The budget ended while it ran.",
        remedy="Give a larger --budget, or train less per run.",
    ),
    Ending.INTERRUPTED: Explanation(
        sentence="It was interrupted from outside.",
        remedy="Start the same search again; it goes on where it was.",
    ),
}
"""A sentence and a remedy for every ending."""

_OUR_CHOICE: Mapping[Stop, str] = {Stop.ENOUGH: "", Stop.HOPELESS: "far behind the fastest"}
_STOPPED: Mapping[Stop, Ending] = {
    Stop.GPU_LOST: Ending.GPU_LOST,
    Stop.DIVERGED: Ending.DIVERGED,
    Stop.HUNG: Ending.HUNG,
    Stop.NEVER_STARTED: Ending.NEVER_STARTED,
    Stop.DEADLINE: Ending.KILLED_BY_BUDGET,
    Stop.GUARD_LOST: Ending.INTERRUPTED,
}

_DETAIL_CHARS = 200
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
    r"ResourceExhaustedError|RESOURCE_EXHAUSTED|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|\bOutOfMemoryError\b"
)


def ending_of(trial_exit: TrialExit, events: Sequence[TraineeEvent]) -> tuple[Ending, str]:
    """Names the ending of a run.

    Args:
        trial_exit: How its processes ended.
        events: All that it reported.

    Returns:
        The ending, and one line of detail (at most 200 printable characters, perhaps empty), such as the class
        and message of the exception. Whether the run's numbers are good is decided elsewhere: a run that crashed
        after enough steps has been measured.
    """
    if trial_exit.stop is not None and trial_exit.stop not in _OUR_CHOICE:
        return _STOPPED[trial_exit.stop], _left(trial_exit)
    diverged = _diverged(events)
    if trial_exit.stop is None:
        if trial_exit.exit_code is None:
            return Ending.INTERRUPTED, _printable("its exit status could not be learned " + _left(trial_exit))
        if trial_exit.exit_code != 0:
            return _failure(trial_exit, trial_exit.exit_code, diverged)
    if diverged is not None:
        return Ending.DIVERGED, diverged
    if trial_exit.stop is not None:
        return Ending.STOPPED, _left(trial_exit) or _OUR_CHOICE[trial_exit.stop]
    if not any(event.kind == "step" for event in events):
        return Ending.NO_STEPS, ""
    return Ending.COMPLETED, ""


def _failure(trial_exit: TrialExit, exit_code: int, diverged: str | None) -> tuple[Ending, str]:
    error = last_error(trial_exit.stderr_tail)
    status = _status(exit_code)
    if trial_exit.oom_killed:
        # Not only for -9: a wrapper script passes it on as 137, and a killed worker fails the loop that needs it.
        return Ending.OUT_OF_HOST_MEMORY, f"{status}; the kernel's out-of-memory killer has struck"
    if _HOST_MEMORY.search(error):
        return Ending.OUT_OF_HOST_MEMORY, _printable(error)
    if _GPU_MEMORY.search(error):
        return Ending.OUT_OF_GPU_MEMORY, _printable(error)
    detail = f"{status}: {error}" if error else status
    if diverged is not None:
        return Ending.DIVERGED, _printable(f"{diverged}; {detail}")
    if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) and trial_exit.oom_killed is None:
        detail = f"{status}, perhaps by the kernel for want of memory"
    return Ending.CRASHED, _printable(detail)


def _diverged(events: Sequence[TraineeEvent]) -> str | None:
    losses = [event.loss for event in events if event.loss is not None]
    bad = sum(not math.isfinite(loss) for loss in losses)
    # Some losses (CTC on a short clip) are infinite for a batch now and then and training goes on well; a trainer
    # that swallows out-of-memory errors alternates. So it has to stay that way, or to be the rule.
    if losses and (not math.isfinite(losses[-1]) or 2 * bad > len(losses)):
        return f"{bad} of {len(losses)} reported losses were NaN or infinite"
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


def _message(traceback: str) -> str:
    """Class and message from the text after a traceback's first line."""
    lines = traceback.splitlines()
    for index, line in enumerate(lines):
        if line and not line[0].isspace():
            # A message may go on for many lines, and what names the allocator is often the last of them.
            return " ".join(part.strip() for part in lines[index:] if part.strip() not in _CHAINED)
    return ""


def _status(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit status {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-exit_code}"


def _left(trial_exit: TrialExit) -> str:
    if not trial_exit.left_pids:
        return ""
    return f"processes that cannot be killed are left: {', '.join(map(str, trial_exit.left_pids))}"


def _printable(text: str) -> str:
    line = " ".join(text.split())
    # Escape sequences in what a trainer prints must not reach the user's terminal.
    line = "".join(letter for letter in line if letter.isprintable())
    return line if len(line) <= _DETAIL_CHARS else line[: _DETAIL_CHARS - 1] + "…"
