"""Ending of a trial, derived from the evidence, with its texts for the user.

The evidence, in order of precedence:

1. our reason for stopping it (but see 6 and 7);
2. exit status not 0 and the kernel's out-of-memory counter increased: out of host memory;
3. a signal from another process (SIGTERM, SIGINT, SIGHUP): interrupted;
4. exit status not 0 and the last exception is about memory, or one that GPU libraries raise while the driver shows full
   memory: out of GPU or host memory;
5. exit status not 0: diverged if the losses had become NaN or infinite, else crashed;
6. such losses, while the baseline's are finite, even if the trial completed or was stopped: diverged, or out of memory
   if it reported that and caught the error;
7. it reported out of memory and became much faster: out of memory, caught. Skipped steps cost nothing, so it would win
   by speed;
8. exit status 0: completed, or no steps seen.

A trainer's output only names a failure that other evidence shows; it proves neither success nor failure.
"""

import math
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import fmean, median
from typing import NamedTuple

from autotune.records import PAUSES, Ending, Stop, TraineeEvent, TrialExit, TrialRecord
from autotune.trial.error_text import (
    TRACEBACK,
    complaint_of_memory,
    is_of_shared_memory,
    last_error,
    memory_that_ran_out,
    one_line,
)

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
_SHELL = 128  # a shell reports a signal that ended its command as an exit status of 128 + its number
_SPLITS = 20  # candidate places for a jump


@dataclass(frozen=True, kw_only=True)
class TrialEvidence:
    """Evidence in addition to a trial's exit and events.

    Attributes:
        stdout_tail: Caught errors are often printed there.
        gpu_memory_full: Returns whether a GPU's memory was full; called only after failures.
        nan_counts: Whether NaN losses are a divergence; not if the baseline has them too.
        outruns: Whether it was more than twice as fast as any good trial before.
        must_last: Whether the baseline's trials keep running: then a SIGKILL is blamed on the values.
        why_not_started: Its state when stopped before its first step, for people.
    """

    stdout_tail: str = ""
    gpu_memory_full: Callable[[], bool] = lambda: False
    nan_counts: bool = True
    outruns: bool = False
    must_last: bool = False
    why_not_started: str = ""


def ending_of(
    trial_exit: TrialExit, events: Sequence[TraineeEvent], evidence: TrialEvidence | None = None
) -> tuple[Ending, str]:
    """Return the ending, and a line of detail of at most 200 printable characters.

    A crash after enough steps still has a measurement.
    """
    evidence = evidence or TrialEvidence()
    stop = trial_exit.stop
    caught = _caught(trial_exit, events, evidence)
    diverged = _diverged(events) if evidence.nan_counts else None
    if stop is not None and stop not in _OUR_CHOICE:
        if stop is Stop.NEVER_STARTED and not events:
            return Ending.OBSERVER_MISSING, _unkillable(trial_exit)
        if stop is Stop.DIVERGED:
            return caught or (Ending.DIVERGED, diverged or "its loss grew far above today's at the same step")
        if stop is Stop.UNCOUNTED:
            return Ending.UNCOUNTED, one_line(uncounted(events))
        said = _noted(events) if stop in (Stop.NEVER_STARTED, Stop.HUNG, Stop.DEADLINE) else ""
        state = evidence.why_not_started if stop in (Stop.NEVER_STARTED, Stop.HUNG) else ""
        if said == state:
            said = ""
        return _STOPPED[stop], one_line(
            "; ".join(part for part in (trial_exit.waited_for, state, said, _unkillable(trial_exit)) if part)
        )
    if stop is None:
        if trial_exit.exit_code is None:
            return Ending.INTERRUPTED, one_line("its exit status is unknown " + _unkillable(trial_exit))
        if trial_exit.exit_code != 0:
            return _failure(trial_exit, trial_exit.exit_code, diverged, evidence)
    if caught:
        return caught
    if diverged:
        return Ending.DIVERGED, diverged
    if stop is not None:
        return Ending.STOPPED, _unkillable(trial_exit) or _OUR_CHOICE[stop]
    if not any(event.kind == "step" for event in events):
        return (Ending.NO_STEPS, one_line(_noted(events))) if events else (Ending.OBSERVER_MISSING, "")
    return Ending.COMPLETED, ""


def uncounted(events: Sequence[TraineeEvent]) -> str:
    """Return a line on steps that could not be measured."""
    seen = Counter(event.kind for event in events)
    pauses = ", ".join(f"{seen[kind]} x {kind}" for kind in sorted(PAUSES) if seen[kind])
    return f"no steps could be counted: of {seen['step']}, none is free of pauses ({pauses or 'none was seen'})"


def _noted(events: Sequence[TraineeEvent]) -> str:
    """Return the observer's latest note since the last step, e.g. why it sees no steps."""
    silence = takewhile(lambda event: event.kind != "step", reversed(events))
    return next((event.text for event in silence if event.text), "")


def _failure(
    trial_exit: TrialExit, exit_code: int, diverged: str | None, evidence: TrialEvidence
) -> tuple[Ending, str]:
    error = last_error(trial_exit.stderr_tail, evidence.stdout_tail)
    status = _status(exit_code)
    if trial_exit.oom_killed:
        # Not only for -9: a wrapper script exits with 137, and a killed worker fails its loop. The counter covers other
        # processes too, so the trainer's own error stays visible.
        killer = "the kernel's out-of-memory killer killed a process"
        return Ending.OUT_OF_HOST_MEMORY, one_line(f"{status}; {killer}{f' meanwhile: {error}' if error else ''}")
    killed = exit_code in (-signal.SIGKILL, _SHELL + signal.SIGKILL)
    is_sent = any(exit_code in (-number, _SHELL + number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    sent = "which autotune did not send" if exit_code < 0 else "as after a signal, which autotune did not send"
    beyond = "a separate memory limit, e.g. a container's, cannot be seen from here"
    if is_sent or (killed and trial_exit.oom_killed is False and not evidence.must_last):
        return Ending.INTERRUPTED, f"{status}, {sent}{f'; {beyond}' if killed else ''}"
    # A mapped file cannot grow: that is how the kernel reports a full /dev/shm.
    has_bus_error = exit_code in (-signal.SIGBUS, _SHELL + signal.SIGBUS)
    said = "\n".join((error, trial_exit.stderr_tail, evidence.stdout_tail))
    if has_bus_error or is_of_shared_memory(said):
        return Ending.OUT_OF_SHARED_MEMORY, one_line(f"{status}: {error}" if error else status)
    memory = memory_that_ran_out(error, gpu_memory_full=evidence.gpu_memory_full)
    if memory is not None:
        return memory, one_line(error)
    complaint = None if TRACEBACK in said else complaint_of_memory(trial_exit.stderr_tail, evidence.stdout_tail)
    if complaint is not None:  # of a program that ended without a Python exception
        return complaint[0], one_line(complaint[1])
    detail = f"{status}: {error}" if error else status
    if diverged is not None:
        return Ending.DIVERGED, one_line(f"{diverged}; {detail}")
    if killed:
        why = "the kernel may have, when memory ran out" if trial_exit.oom_killed is None else beyond
        detail = f"{status}, {sent}; {why}"
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


def _caught(
    trial_exit: TrialExit, events: Sequence[TraineeEvent], evidence: TrialEvidence
) -> tuple[Ending, str] | None:
    """Return an out-of-memory ending, and the evidence that the trainer caught the error."""
    noted = "\n".join(event.text for event in events if event.text)
    said = complaint_of_memory(noted, trial_exit.stderr_tail, evidence.stdout_tail)
    if said is None:
        return None
    shown = _diverged(events)
    if shown is None and (jump := _jump(events)) >= 2.0:  # times as fast as before
        shown = f"its steps became {jump:.1f}x as fast"
    if shown is None and evidence.outruns:
        shown = "it was more than twice as fast as any other trial"
    return (said[0], one_line(f"caught, and {shown}: {said[1]}")) if shown else None


def _jump(events: Sequence[TraineeEvent]) -> float:
    """Return the largest factor by which steps became faster after the first few; 1.0 if never."""
    ends_s = [event.t_s for event in events if event.kind == "step"]
    lengths_s = [after - before for before, after in pairwise(ends_s)][5:]
    largest = 1.0
    for index in range(1, _SPLITS):
        split = len(lengths_s) * index // _SPLITS
        if min(split, len(lengths_s) - split) >= 5:  # on each side of a jump
            after_s = median(lengths_s[split:])
            largest = max(largest, median(lengths_s[:split]) / after_s if after_s > 0 else math.inf)
    return largest


def _status(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit status {exit_code}"
    names = (number.name for number in signal.Signals if number == -exit_code)
    return f"killed by {next(names, f'signal {-exit_code}')}"  # a real-time signal has no name


def _unkillable(trial_exit: TrialExit) -> str:
    left = ", ".join(map(str, trial_exit.left_pids))
    return left and f"processes that cannot be killed remain: {left}"


FAR = 10.0
"""A trial has diverged if its loss, relative to its first, is this many times the baseline's at the same step."""

_FIRST = 3  # losses whose median is the initial level
_MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median relative to that of a mean
_LATEST = 5  # losses for the current level, robust to a single bad batch


class Level(NamedTuple):
    """Level of a loss before some step: median of the last ``n_losses``, and their standard deviation."""

    loss: float
    sd: float
    n_losses: int

    @property
    def error(self) -> float:
        return _MEDIAN_ERROR * self.sd / math.sqrt(self.n_losses)


class RelativeLoss(NamedTuple):
    """Level of a loss relative to its initial level, with its standard error."""

    ratio: float
    error: float


class Losses:
    """Finite losses of one trial, by step.

    They are compared relative to their initial level: a loss summed over the batch scales with its size.
    """

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._seen = 0
        self._last_is_finite = True

    def add(self, step: int, loss: float) -> None:
        self._seen += 1
        self._last_is_finite = math.isfinite(loss)
        if self._last_is_finite:
            self._steps.append(step)
            self._values.append(loss)

    @property
    def are_no_numbers(self) -> bool:
        """Whether the last loss, or most of them, were NaN or infinite.

        Single ones are normal for some losses (CTC on a short clip), and trainers that swallow out-of-memory errors
        alternate.
        """
        return self._seen > 0 and (not self._last_is_finite or 2 * len(self._values) < self._seen)

    @property
    def are_many(self) -> bool:
        """Whether they suffice for a level."""
        return len(self._values) >= _FIRST + _LATEST

    @property
    def first(self) -> float | None:
        return median(self._values[:_FIRST]) if self._values else None

    @property
    def last_step(self) -> int:
        return self._steps[-1] if self._steps else 0

    def level(self, step: float) -> Level | None:
        """Return the level before a step; None with too few losses.

        The spread is from differences of successive losses, which a trend hardly affects.
        """
        steps = [at for at in self._steps if at <= step]
        until = self._values[: len(steps)]
        latest = until[-max(_LATEST, len(until) // 4) :]
        # losses older than a quarter of the steps don't show the current level
        if len(until) < _FIRST + _LATEST or steps[-1] < 0.75 * step:
            return None
        # 0.6745: median absolute deviation of a standard normal distribution
        spread = median(abs(after - before) for before, after in pairwise(latest)) / (0.6745 * math.sqrt(2))
        return Level(median(latest), spread, len(latest))

    def relative_level(self, step: float) -> RelativeLoss | None:
        """Return the level before a step relative to the initial one; None with too few losses."""
        level, began = self.level(step), self.first or 0.0
        if level is None or began <= 0:
            return None
        error = _MEDIAN_ERROR * level.sd * math.sqrt(1 / level.n_losses + 1 / _FIRST)
        return RelativeLoss(ratio=level.loss / began, error=error / began)

    def are_far_above(self, baseline: "Losses") -> bool:
        """Return whether the latest losses are `FAR` times as high as any of the baseline up to this step."""
        began, baseline_began = self.first or 0.0, baseline.first or 0.0
        if not self.are_many or len(baseline._values) < _FIRST or began <= 0 or baseline_began <= 0:
            return False  # too few, or not relative to 0
        now = median(self._values[-_LATEST:]) / began
        if now <= FAR:
            return False
        # Beyond the baseline's last step, all of the baseline's losses count.
        until_now = zip(baseline._steps, baseline._values, strict=True)
        highest = max((loss / baseline_began for step, loss in until_now if step <= self._steps[-1]), default=1.0)
        return now > FAR * max(1.0, highest)


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """Loss of a trial and of the baseline after equally many steps with equal batch sizes.

    Attributes:
        are_similar: Whether they differ no more than similar trainings.
        is_far_above: Whether sample order or random seeds can't explain the excess.
    """

    step: int
    own: float
    baseline: float
    are_similar: bool
    is_far_above: bool

    def __str__(self) -> str:
        return f"its loss is {self.own:.3g} after {self.step:,} steps, and {self.baseline:.3g} with today's config"


def compare_losses(baseline: Sequence[Losses], own: Losses) -> LossComparison | None:
    """Compare a trial's losses with those of baseline trials; None with too few losses."""
    step = min(own.last_step, max((one.last_step for one in baseline), default=0))
    known = [level for one in baseline if (level := one.level(step))]
    level = own.level(step)
    # the first loss that was seen of a fast training is already near the end
    began = max((one.first for one in (*baseline, own) if one.first is not None), default=0.0)
    if level is None or not known:
        return None
    losses = [one.loss for one in known]
    usual, spread = fmean(losses), max(losses) - min(losses)
    error = math.hypot(level.error, max(one.error for one in known))
    return LossComparison(
        step=step,
        own=level.loss,
        baseline=usual,
        are_similar=abs(level.loss - usual) <= max(3.0 * error, spread, 0.1 * abs(usual)),
        is_far_above=level.loss - usual > max(8.0 * error, 4.0 * spread, abs(usual), 0.5 * abs(began - usual)),
    )


EPOCH_END, EVALUATION, CHECKPOINT = "epoch_end", "eval", "checkpoint"
MILESTONES = (EPOCH_END, EVALUATION, CHECKPOINT)
"""Kinds of event, other than steps, that a training passes."""


class Milestones:
    """Milestones of one trial so far, and the times between its steps.

    Attributes:
        reached: Number of events of each kind.
        samples: None if unknown for any step.
        updates: Steps that update the optimizer.
        trained_s: Time from its first step to the last `update` here.
        silent_s: Time from its last step to that.
        longest_silence_s: Between two steps.
    """

    def __init__(self) -> None:
        self._first_step_s: float | None = None
        self._last_step_s = 0.0
        self._steps_after: dict[str, int] = {}  # the first milestone of each kind
        self.reached: Counter[str] = Counter()
        self.steps = 0
        self.updates = 0
        self.samples: float | None = 0.0
        self.trained_s = 0.0
        self.silent_s = 0.0
        self.longest_silence_s = 0.0

    def update(self, events: Sequence[TraineeEvent], now_s: float) -> None:
        for event in events:
            if event.kind == "step":
                self._step(event)
            elif event.kind in MILESTONES:
                self.reached[event.kind] += 1
                self._steps_after.setdefault(event.kind, 0)
        if self._first_step_s is not None:
            self.trained_s, self.silent_s = now_s - self._first_step_s, now_s - self._last_step_s

    @property
    def are_passed(self) -> bool:
        """Whether training continued for three steps after each kind of milestone."""
        return all(self._steps_after.get(kind, 0) >= 3 for kind in MILESTONES)

    def _step(self, event: TraineeEvent) -> None:
        if self._first_step_s is None:
            self._first_step_s = event.t_s
        else:
            self.longest_silence_s = max(self.longest_silence_s, event.t_s - self._last_step_s)
        self._last_step_s = event.t_s
        self.steps += 1
        self.updates += event.update
        self.samples = None if self.samples is None or event.samples is None else self.samples + event.samples
        for kind in self._steps_after:
            self._steps_after[kind] += 1


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Meaning of an ending for a user, and what to do."""

    sentence: str
    remedy: str


EXPLANATIONS: Mapping[Ending, Explanation] = {
    Ending.COMPLETED: Explanation(
        sentence="The trainer ran to its end.",
        remedy="If it was too short to measure, let it train longer, e.g. more epochs under `set:`.",
    ),
    Ending.STOPPED: Explanation(
        sentence="The trial was stopped because enough was known.",
        remedy="Nothing to do.",
    ),
    Ending.CRASHED: Explanation(
        sentence="The trainer failed, or was killed.",
        remedy="Read stderr.log and stdout.log in the trial's folder; run the command by hand with the config next to "
        "them. Its output keys point into the trial's folder: if the trainer does not accept that, use "
        "redirect_except.",
    ),
    Ending.OUT_OF_HOST_MEMORY: Explanation(
        sentence="Memory ran out: the trainer reported it, or the kernel killed a process because of it.",
        remedy="Lower the upper ends of batch size, workers, buffers or caching, or free memory.",
    ),
    Ending.OUT_OF_GPU_MEMORY: Explanation(
        sentence="GPU memory ran out, according to the trainer's output.",
        remedy="Lower the upper end of the batch size, or stop other processes that use the GPU.",
    ),
    Ending.OUT_OF_SHARED_MEMORY: Explanation(
        sentence="Shared memory (/dev/shm) ran out: the trainer reported it, or was killed by SIGBUS.",
        remedy="Make it larger (docker run --shm-size=8g, or --ipc=host; in Kubernetes a volume emptyDir with medium: "
        "Memory at /dev/shm), or lower the upper ends of workers, prefetching and batch size.",
    ),
    Ending.GPU_LOST: Explanation(
        sentence="The NVIDIA driver failed, or reported the GPU as lost.",
        remedy="Check `nvidia-smi` and `dmesg` (lines with Xid); a reset of the GPU or a reboot may be needed. "
        "Then start the search again.",
    ),
    Ending.DIVERGED: Explanation(
        sentence="The loss became NaN or infinite, or grew far above today's at the same step.",
        remedy="Exclude the precision or batch sizes that cause this, or lower the learning rate.",
    ),
    Ending.HUNG: Explanation(
        sentence="No step came for too long: after earlier steps, or before the first one with its processes idle.",
        remedy="Read stderr.log and stdout.log in the trial's folder. Forked data loader workers can deadlock, because "
        "they inherit locks that threads hold: start them with spawn or forkserver. If it only starts late, give a "
        "larger --budget.",
    ),
    Ending.NEVER_STARTED: Explanation(
        sentence="The trainer ran, but no step was seen.",
        remedy="Report the trainer's steps: from autotune.trainee import step, and step(samples=...) in the training "
        "loop. If it only starts late, raise trial.start_timeout_s, or the --budget of a search.",
    ),
    Ending.NO_STEPS: Explanation(
        sentence="The trainer exited, and no step was seen.",
        remedy="If it did train, report its steps: from autotune.trainee import step, and step() in the training loop. "
        "A command that starts the training in the background exits too soon: keep it in the foreground.",
    ),
    Ending.OBSERVER_MISSING: Explanation(
        sentence="Nothing inside the trainer reported to autotune. It may not be Python or may ignore its environment.",
        remedy="Start Python without -I, -E and -S, and keep PYTHONPATH as it is; a program in another language has to "
        "write its steps into the folder in AUTOTUNE_TRIAL_DIR (format: autotune/trainee/stream.py).",
    ),
    Ending.UNCOUNTED: Explanation(
        sentence="Steps came, but no speed could be computed: a pause was seen in each.",
        remedy="Report the trainer's steps: from autotune.trainee import step, and step(samples=...) in the training "
        "loop; or let it validate and save less often, e.g. by values under `set:`.",
    ),
    Ending.KILLED_BY_BUDGET: Explanation(
        sentence="The budget ended while it ran.",
        remedy="Give a larger --budget, or train less per run.",
    ),
    Ending.INTERRUPTED: Explanation(
        sentence="It was interrupted together with autotune, or by a signal that autotune did not send.",
        remedy="Start the same search again; it resumes where it stopped.",
    ),
}
"""Sentence and remedy for every ending."""


def failure_text(trial: TrialRecord) -> str:
    """Return what happened to a failed trial, with the known reason."""
    sentence = EXPLANATIONS[trial.ending].sentence.removesuffix(".")
    return f"{sentence} ({trial.detail})" if trial.detail else sentence
