"""Ending of a trial, derived from the evidence. Whether its numbers are good is decided elsewhere.

The evidence, in the order in which it counts:

1. the reason for which we stopped it, if we did, is the ending (but see 6 and 7);
2. exit status not 0 and the kernel's out-of-memory counter moved: out of host memory;
3. a signal from another process (SIGTERM, SIGINT, SIGHUP): interrupted;
4. exit status not 0 and the last exception is one of memory, or one of those that a GPU's libraries raise when the
   driver shows its memory full: out of GPU, or of host, memory;
5. exit status not 0, and the losses had stopped being numbers: diverged; else crashed;
6. the losses stopped being numbers, while those of today's config are, also if the trial was stopped because enough was
   known, or ended well: diverged, or out of memory if it said so, caught the error and went on;
7. it said that memory ran out and went on much faster than before: out of memory, caught. Steps that are left out
   cost nothing, so speed alone would crown such a trial;
8. exit status 0: completed, or no steps seen.

A trainer's output is never evidence of success or of failure: it only names a failure that other evidence shows.
"""

import math
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import median

from autotune.measure.window import PAUSES
from autotune.records import Ending, Stop, TraineeEvent, TrialExit
from autotune.trial.error_text import complaint_of_memory, last_error, memory_that_ran_out, one_line
from autotune.trial.losses import Losses
from autotune.trial.milestones import EVALUATION

_OUR_CHOICE: Mapping[Stop, str] = {Stop.ENOUGH: "", Stop.HOPELESS: "far behind the fastest"}
_STOPPED: Mapping[Stop, Ending] = {
    Stop.GPU_LOST: Ending.GPU_LOST,
    Stop.DIVERGED: Ending.DIVERGED,
    Stop.HUNG: Ending.HUNG,
    Stop.NEVER_STARTED: Ending.NEVER_STARTED,
    Stop.UNCOUNTED: Ending.UNCOUNTED,
    Stop.DEADLINE: Ending.KILLED_BY_BUDGET,
    Stop.GUARD_LOST: Ending.INTERRUPTED,
}
_SENT_BY_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SHELL = 128  # a shell passes the signal that ended its command on as an exit status, with this added

_FAR_ABOVE = "its loss grew far above today's at the same step"

_WARM_UP_STEPS = 5
_FEWEST_STEPS = 5  # on each side of a jump
_SPLITS = 20  # places looked at for a jump
_JUMP = 2.0  # times as fast as before


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence on a trial besides how its processes ended and the events that they reported.

    Attributes:
        stdout_tail: The last lines that the trainer wrote to stdout; caught errors are often printed there.
        gpu_memory_full: Returns whether the driver showed the memory of one of its GPUs to be full; not called for a
            trial that went well.
        nan_counts: Whether losses that are no numbers are a divergence; not so where today's config has them too.
        outruns: Whether it made samples more than twice as fast as any good trial before.
        why_not_started: State in which it was stopped before its first step, for people; empty if it was not.
    """

    stdout_tail: str = ""
    gpu_memory_full: Callable[[], bool] = lambda: False
    nan_counts: bool = True
    outruns: bool = False
    why_not_started: str = ""


def ending_of(
    trial_exit: TrialExit, events: Sequence[TraineeEvent], evidence: Evidence | None = None
) -> tuple[Ending, str]:
    """Return the ending of a trial.

    Args:
        trial_exit: Exit of its processes.
        events: All that it reported.
        evidence: Further evidence; None for none.

    Returns:
        The ending, and one line of detail (at most 200 printable characters, perhaps empty), such as the class
        and message of the exception. A trial that crashed after enough steps has been measured all the same.
    """
    evidence = evidence or Evidence()
    stop = trial_exit.stop
    caught = _caught(trial_exit, events, evidence)
    diverged = _diverged(events) if evidence.nan_counts else None
    if stop is not None and stop not in _OUR_CHOICE:
        if stop is Stop.NEVER_STARTED and not events:
            return Ending.OBSERVER_MISSING, _left(trial_exit)
        if stop is Stop.DIVERGED:
            return caught or (Ending.DIVERGED, diverged or _FAR_ABOVE)
        if stop is Stop.UNCOUNTED:
            return Ending.UNCOUNTED, one_line(uncounted(events))
        said = _noted(events) if stop in (Stop.NEVER_STARTED, Stop.HUNG, Stop.DEADLINE) else ""
        state = evidence.why_not_started if stop is Stop.NEVER_STARTED else ""
        if said == state:
            said = ""
        return _STOPPED[stop], one_line(
            "; ".join(part for part in (trial_exit.waited_for, state, said, _left(trial_exit)) if part)
        )
    if stop is None:
        if trial_exit.exit_code is None:
            return Ending.INTERRUPTED, one_line("its exit status could not be learned " + _left(trial_exit))
        if trial_exit.exit_code != 0:
            return _failure(trial_exit, trial_exit.exit_code, diverged, evidence)
    if caught:
        return caught
    if diverged:
        return Ending.DIVERGED, diverged
    if stop is not None:
        return Ending.STOPPED, _left(trial_exit) or _OUR_CHOICE[stop]
    if not any(event.kind == "step" for event in events):
        return (Ending.NO_STEPS, one_line(_noted(events))) if events else (Ending.OBSERVER_MISSING, "")
    return Ending.COMPLETED, ""


def uncounted(events: Sequence[TraineeEvent]) -> str:
    """Return a line on steps of which none could be measured."""
    seen = Counter(event.kind for event in events)
    pauses = ", ".join(f"{seen[kind]} x {kind}" for kind in sorted(PAUSES) if seen[kind])
    return f"no steps could be counted: of {seen['step']}, none is free of pauses ({pauses or 'none was seen'})"


def _noted(events: Sequence[TraineeEvent]) -> str:
    """Return the observer's note since the last step, e.g. why it sees no steps; empty if there is none."""
    silence = takewhile(lambda event: event.kind != "step", reversed(events))
    return next((event.text for event in silence if event.text), "")


def _failure(trial_exit: TrialExit, exit_code: int, diverged: str | None, evidence: Evidence) -> tuple[Ending, str]:
    error = last_error(trial_exit.stderr_tail, evidence.stdout_tail)
    status = _status(exit_code)
    if trial_exit.oom_killed:
        # Not only for -9: a wrapper script passes it on as 137, and a killed worker fails the loop that needs it.
        # But the count is that of all processes around: what the trainer itself said stays visible.
        killer = "the kernel's out-of-memory killer has struck"
        return Ending.OUT_OF_HOST_MEMORY, one_line(f"{status}; {killer}{f' meanwhile: {error}' if error else ''}")
    killed = exit_code in (-signal.SIGKILL, _SHELL + signal.SIGKILL)
    if any(exit_code in (-number, _SHELL + number) for number in _SENT_BY_OTHERS) or (
        killed and trial_exit.oom_killed is False
    ):
        beyond = "; a memory limit of its own, e.g. a container's, is not seen from here" if killed else ""
        sent = "which autotune did not send" if exit_code < 0 else "as after a signal, which autotune did not send"
        return Ending.INTERRUPTED, f"{status}, {sent}{beyond}"
    memory = memory_that_ran_out(error, gpu_memory_full=evidence.gpu_memory_full)
    if memory is not None:
        return memory, one_line(error)
    detail = f"{status}: {error}" if error else status
    if diverged is not None:
        return Ending.DIVERGED, one_line(f"{diverged}; {detail}")
    if killed:
        detail = f"{status}; it may be that the kernel did, for want of memory"
    return Ending.CRASHED, one_line(detail)


def _diverged(events: Sequence[TraineeEvent]) -> str | None:
    reported = [event.loss for event in events if event.loss is not None and event.kind != EVALUATION]
    losses = Losses()
    for step, loss in enumerate(reported):
        losses.add(step, loss)
    if not losses.are_no_numbers:
        return None
    bad = sum(not math.isfinite(loss) for loss in reported)
    return f"{bad} of {len(reported)} reported losses were NaN or infinite"


def _caught(trial_exit: TrialExit, events: Sequence[TraineeEvent], evidence: Evidence) -> tuple[Ending, str] | None:
    """Return the memory, and the evidence, of an out-of-memory error that the trainer caught to go on; None if none."""
    noted = "\n".join(event.text for event in events if event.text)
    said = complaint_of_memory(noted, trial_exit.stderr_tail, evidence.stdout_tail)
    if said is None:
        return None
    shown = _diverged(events)
    if shown is None and (jump := _jump(events)) >= _JUMP:
        shown = f"its steps became {jump:.1f} times as fast"
    if shown is None and evidence.outruns:
        shown = "it was more than twice as fast as any other trial"
    return (said[0], one_line(f"caught, and {shown}: {said[1]}")) if shown else None


def _jump(events: Sequence[TraineeEvent]) -> float:
    """Return the factor by which a trial's steps became faster at some moment after its first few; 1.0 if never."""
    ends_s = [event.t_s for event in events if event.kind == "step"]
    lengths_s = [after - before for before, after in pairwise(ends_s)][_WARM_UP_STEPS:]
    largest = 1.0
    for index in range(1, _SPLITS):
        split = len(lengths_s) * index // _SPLITS
        if min(split, len(lengths_s) - split) >= _FEWEST_STEPS:
            after_s = median(lengths_s[split:])
            largest = max(largest, median(lengths_s[:split]) / after_s if after_s > 0 else math.inf)
    return largest


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
