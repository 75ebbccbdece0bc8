"""Ending of a trial, derived from the evidence, and its words for the user. Whether its numbers are good: elsewhere.

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
_SHELL = 128  # a shell passes the signal that ended its command on as an exit status, with this added
_SPLITS = 20  # places looked at for a jump


@dataclass(frozen=True, kw_only=True)
class TrialEvidence:
    """Evidence on a trial besides how its processes ended and the events that they reported.

    Attributes:
        stdout_tail: The last lines that the trainer wrote to stdout; caught errors are often printed there.
        gpu_memory_full: Returns whether the driver showed the memory of one of its GPUs to be full; not called for a
            trial that went well.
        nan_counts: Whether losses that are no numbers are a divergence; not so where today's config has them too.
        outruns: Whether it made samples more than twice as fast as any good trial before.
        must_last: Whether trials of today's config keep running in this search: a SIGKILL is then blamed on the values.
        why_not_started: State in which it was stopped before its first step, for people; empty if it was not.
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
    """Return the ending of a trial.

    Args:
        evidence: Further evidence; None for none.

    Returns:
        The ending, and one line of detail (at most 200 printable characters, perhaps empty), such as the class
        and message of the exception. A trial that crashed after enough steps has been measured all the same.
    """
    evidence = evidence or TrialEvidence()
    stop = trial_exit.stop
    caught = _caught(trial_exit, events, evidence)
    diverged = _diverged(events) if evidence.nan_counts else None
    if stop is not None and stop not in _OUR_CHOICE:
        if stop is Stop.NEVER_STARTED and not events:
            return Ending.OBSERVER_MISSING, _left(trial_exit)
        if stop is Stop.DIVERGED:
            return caught or (Ending.DIVERGED, diverged or "its loss grew far above today's at the same step")
        if stop is Stop.UNCOUNTED:
            return Ending.UNCOUNTED, one_line(uncounted(events))
        said = _noted(events) if stop in (Stop.NEVER_STARTED, Stop.HUNG, Stop.DEADLINE) else ""
        state = evidence.why_not_started if stop in (Stop.NEVER_STARTED, Stop.HUNG) else ""
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


def _failure(
    trial_exit: TrialExit, exit_code: int, diverged: str | None, evidence: TrialEvidence
) -> tuple[Ending, str]:
    error = last_error(trial_exit.stderr_tail, evidence.stdout_tail)
    status = _status(exit_code)
    if trial_exit.oom_killed:
        # Not only for -9: a wrapper script passes it on as 137, and a killed worker fails the loop that needs it.
        # But the count is that of all processes around: what the trainer itself said stays visible.
        killer = "the kernel's out-of-memory killer has struck"
        return Ending.OUT_OF_HOST_MEMORY, one_line(f"{status}; {killer}{f' meanwhile: {error}' if error else ''}")
    killed = exit_code in (-signal.SIGKILL, _SHELL + signal.SIGKILL)
    is_sent = any(exit_code in (-number, _SHELL + number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    sent = "which autotune did not send" if exit_code < 0 else "as after a signal, which autotune did not send"
    beyond = "a memory limit of its own, e.g. a container's, is not seen from here"
    if is_sent or (killed and trial_exit.oom_killed is False and not evidence.must_last):
        return Ending.INTERRUPTED, f"{status}, {sent}{f'; {beyond}' if killed else ''}"
    # A mapped file that cannot grow: with no room for it in /dev/shm, that is how the kernel says so.
    has_bus_error = exit_code in (-signal.SIGBUS, _SHELL + signal.SIGBUS)
    said = "\n".join((error, trial_exit.stderr_tail, evidence.stdout_tail))
    if has_bus_error or is_of_shared_memory(said):
        return Ending.OUT_OF_SHARED_MEMORY, one_line(f"{status}: {error}" if error else status)
    memory = memory_that_ran_out(error, gpu_memory_full=evidence.gpu_memory_full)
    if memory is not None:
        return memory, one_line(error)
    complaint = None if TRACEBACK in said else complaint_of_memory(trial_exit.stderr_tail, evidence.stdout_tail)
    if complaint is not None:  # of a program that ended without an exception of Python's
        return complaint[0], one_line(complaint[1])
    detail = f"{status}: {error}" if error else status
    if diverged is not None:
        return Ending.DIVERGED, one_line(f"{diverged}; {detail}")
    if killed:
        why = "it may be that the kernel did, for want of memory" if trial_exit.oom_killed is None else beyond
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
    """Return the memory, and the evidence, of an out-of-memory error that the trainer caught to go on; None if none."""
    noted = "\n".join(event.text for event in events if event.text)
    said = complaint_of_memory(noted, trial_exit.stderr_tail, evidence.stdout_tail)
    if said is None:
        return None
    shown = _diverged(events)
    if shown is None and (jump := _jump(events)) >= 2.0:  # times as fast as before
        shown = f"its steps became {jump:.1f} times as fast"
    if shown is None and evidence.outruns:
        shown = "it was more than twice as fast as any other trial"
    return (said[0], one_line(f"caught, and {shown}: {said[1]}")) if shown else None


def _jump(events: Sequence[TraineeEvent]) -> float:
    """Return the factor by which a trial's steps became faster at some moment after its first few; 1.0 if never."""
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


def _left(trial_exit: TrialExit) -> str:
    left = ", ".join(map(str, trial_exit.left_pids))
    return left and f"processes that cannot be killed are left: {left}"


FAR = 10.0
"""A trial has diverged when its loss, relative to its own first, is this many times the baseline's at the same step."""

_FIRST = 3  # losses whose median is the level at which a trial began
_MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean
_LATEST = 5  # losses that say where it is now: a single bad batch does not count


class Level(NamedTuple):
    """Level of a loss before some step: the median of the last ``n_losses``, and their standard deviation."""

    loss: float
    sd: float
    n_losses: int

    @property
    def error(self) -> float:
        """Standard error."""
        return _MEDIAN_ERROR * self.sd / math.sqrt(self.n_losses)


class RelativeLoss(NamedTuple):
    """Level of a loss around some step, over that at which the trial began; with its standard error."""

    ratio: float
    error: float


class Losses:
    """Finite losses of one trial, by step.

    Those of other batches are compared relative to where each trial began, since a loss that is summed over the batch
    scales with the batch size.
    """

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._seen = 0
        self._last_is_finite = True

    def add(self, step: int, loss: float) -> None:
        """Add a loss that was reported after this many steps."""
        self._seen += 1
        self._last_is_finite = math.isfinite(loss)
        if self._last_is_finite:
            self._steps.append(step)
            self._values.append(loss)

    @property
    def are_no_numbers(self) -> bool:
        """True if the last reported loss, or most of them, were NaN or infinite.

        Some losses (CTC on a short clip) are infinite for a batch now and then and training goes on well; a trainer
        that swallows out-of-memory errors alternates. So it has to stay that way, or to be the rule.
        """
        return self._seen > 0 and (not self._last_is_finite or 2 * len(self._values) < self._seen)

    @property
    def are_many(self) -> bool:
        """True if there are enough of them for a level, which may be impossible for other reasons."""
        return len(self._values) >= _FIRST + _LATEST

    @property
    def first(self) -> float | None:
        """Level at which it began; None without a loss."""
        return median(self._values[:_FIRST]) if self._values else None

    @property
    def last_step(self) -> int:
        """Step of the latest loss; 0 without any."""
        return self._steps[-1] if self._steps else 0

    def level(self, step: float) -> Level | None:
        """Return the level of the loss in the last part before a step; None where too few losses tell.

        The spread is taken from the differences of losses that follow one another, which a falling level hardly moves.
        """
        steps = [at for at in self._steps if at <= step]
        until = self._values[: len(steps)]
        latest = until[-max(_LATEST, len(until) // 4) :]  # a quarter of the losses tells the level at its end
        # of the steps: a loss that is older does not tell where training is
        if len(until) < _FIRST + _LATEST or steps[-1] < 0.75 * step:
            return None
        # median absolute deviation of a normal distribution with standard deviation 1
        spread = median(abs(after - before) for before, after in pairwise(latest)) / (0.6745 * math.sqrt(2))
        return Level(median(latest), spread, len(latest))

    def relative_level(self, step: float) -> RelativeLoss | None:
        """Return the level before a step over that at which the trial began; None where too few losses tell."""
        level, began = self.level(step), self.first or 0.0
        if level is None or began <= 0:
            return None
        error = _MEDIAN_ERROR * level.sd * math.sqrt(1 / level.n_losses + 1 / _FIRST)
        return RelativeLoss(ratio=level.loss / began, error=error / began)

    def are_far_above(self, baseline: "Losses") -> bool:
        """Return whether the latest losses are `FAR` times as high as any of the baseline up to the same step."""
        began, baseline_began = self.first or 0.0, baseline.first or 0.0
        if not self.are_many or len(baseline._values) < _FIRST or began <= 0 or baseline_began <= 0:
            return False  # too few, or no zero to measure from
        now = median(self._values[-_LATEST:]) / began
        if now <= FAR:
            return False
        # Beyond the baseline's last step it is compared with all of the baseline's losses.
        until_now = zip(baseline._steps, baseline._values, strict=True)
        highest = max((loss / baseline_began for step, loss in until_now if step <= self._steps[-1]), default=1.0)
        return now > FAR * max(1.0, highest)


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """Loss of a trial and that of today's config after as many steps, on batches of the same size.

    Attributes:
        are_alike: Whether they differ by no more than like trainings do.
        is_far_above: Whether it is above today's by more than the order of samples, or other random numbers, may make
            of a training.
    """

    step: int
    own: float
    today: float
    are_alike: bool
    is_far_above: bool

    def __str__(self) -> str:
        """Return both in words."""
        return f"its loss is {self.own:.3g} after {self.step:,} steps, and {self.today:.3g} with today's config"


def compare_losses(today: Sequence[Losses], own: Losses) -> LossComparison | None:
    """Compare the losses of a trial with those of trials of today's config; None where too few losses tell."""
    step = min(own.last_step, max((one.last_step for one in today), default=0))
    known = [level for one in today if (level := one.level(step))]
    level, began = own.level(step), [one.first for one in today if one.first is not None]
    if level is None or not known:
        return None
    losses = [one.loss for one in known]
    usual, spread = fmean(losses), max(losses) - min(losses)
    error = math.hypot(level.error, max(one.error for one in known))
    return LossComparison(
        step=step,
        own=level.loss,
        today=usual,
        are_alike=abs(level.loss - usual) <= max(3.0 * error, spread, 0.1 * abs(usual)),
        is_far_above=level.loss - usual > max(8.0 * error, 4.0 * spread, abs(usual), 0.5 * abs(median(began) - usual)),
    )


EPOCH_END, EVALUATION, CHECKPOINT = "epoch_end", "eval", "checkpoint"
MILESTONES = (EPOCH_END, EVALUATION, CHECKPOINT)
"""Kinds of event that a training comes to besides its steps."""


class Milestones:
    """Milestones that one trial has come to so far, and the times between its steps.

    Attributes:
        reached: How often it came to each kind.
        samples: Number of samples in its steps; None if one did not tell.
        updates: Number of steps, those without an update of the optimizer left out.
        trained_s: Time from its first step until the last look.
        silent_s: Time from its last step until the last look.
        longest_silence_s: Longest time between two steps.
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

    def look(self, events: Sequence[TraineeEvent], now_s: float) -> None:
        """Take the new events, possibly none."""
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
        """True if training went on after each kind of milestone."""
        # a milestone, which show that training goes on
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
    """Meaning of an ending to a user, and what they can do about it."""

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
        remedy="Read stderr.log and stdout.log in the trial's folder; start the command by hand with the config beside "
        "it. In that one the output keys point into the trial's folder: if the trainer does not take that, see "
        "redirect_except.",
    ),
    Ending.OUT_OF_HOST_MEMORY: Explanation(
        sentence="Memory ran out: an error of the trainer says so, or the kernel ended a process for want of it.",
        remedy="Lower the upper ends of batch size, workers, buffers or caching, or free memory.",
    ),
    Ending.OUT_OF_GPU_MEMORY: Explanation(
        sentence="GPU memory ran out, as the trainer's output says.",
        remedy="Lower the upper end of the batch size, or end whatever else uses the GPU.",
    ),
    Ending.OUT_OF_SHARED_MEMORY: Explanation(
        sentence="Shared memory (/dev/shm) ran out: an error of the trainer says so, or it was killed by SIGBUS.",
        remedy="Make it larger (docker run --shm-size=8g, or --ipc=host; in Kubernetes a volume emptyDir with medium: "
        "Memory at /dev/shm), or lower the upper ends of workers, prefetching and batch size.",
    ),
    Ending.GPU_LOST: Explanation(
        sentence="The NVIDIA driver failed, or reported the GPU as lost.",
        remedy="See what `nvidia-smi` and `dmesg` (lines with Xid) say; it may take a reset of the GPU, or a reboot. "
        "Then start the search again.",
    ),
    Ending.DIVERGED: Explanation(
        sentence="The loss became NaN or infinite, or grew far beyond today's at the same step.",
        remedy="Leave out the precision or batch sizes that do this, or lower the learning rate.",
    ),
    Ending.HUNG: Explanation(
        sentence="No step came for too long: after others, or before the first one, with its processes idle.",
        remedy="What it printed last is in its folder (stderr.log, stdout.log). Where it has a loader's workers, these "
        "can deadlock: a forked one inherits each lock that a thread holds. Start them with spawn or forkserver. "
        "What only starts later is waited for with a larger --budget.",
    ),
    Ending.NEVER_STARTED: Explanation(
        sentence="The trainer ran, and no step of it was seen.",
        remedy="Report the trainer's steps: from autotune.trainee import step, and step(samples=...) in the training "
        "loop. If it only needs longer to start: trial.start_timeout_s, or a larger --budget of a search.",
    ),
    Ending.NO_STEPS: Explanation(
        sentence="The trainer ended by itself and no step of it was seen.",
        remedy="If it did train, report its steps: from autotune.trainee import step, and step() in the training loop. "
        "A command that leaves the training in the background is over too soon: keep it in the foreground.",
    ),
    Ending.OBSERVER_MISSING: Explanation(
        sentence="Nothing inside the trainer reported to autotune. It may be no Python, or keep out its environment.",
        remedy="Start Python without -I, -E and -S, and keep PYTHONPATH as it is; a program in another language has to "
        "write its steps into the folder that AUTOTUNE_TRIAL_DIR names (autotune/trainee/stream.py has the format).",
    ),
    Ending.UNCOUNTED: Explanation(
        sentence="Steps came, but no speed could be made of them: a pause was seen in each.",
        remedy="Report the trainer's steps: from autotune.trainee import step, and step(samples=...) in the training "
        "loop; or let it validate and save less often, e.g. by values under `set:`.",
    ),
    Ending.KILLED_BY_BUDGET: Explanation(
        sentence="The budget ended while it ran.",
        remedy="Give a larger --budget, or train less per run.",
    ),
    Ending.INTERRUPTED: Explanation(
        sentence="It was interrupted: autotune was, or a signal came that autotune did not send.",
        remedy="Start the same search again; it goes on where it was.",
    ),
}
"""A sentence and a remedy for every ending."""


def failure_text(trial: TrialRecord) -> str:
    """Return what a trial that gave no numbers came to, with what is known of the reason."""
    sentence = EXPLANATIONS[trial.ending].sentence.removesuffix(".")
    return f"{sentence} ({trial.detail})" if trial.detail else sentence
