"""Stop rule: decides while a trial goes on whether it has been measured long enough, or is not worth going on."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.clock import Clock, format_duration
from autotune.frameworks import FRAMEWORKS
from autotune.measure.window import LEAST_STEPS, Window, WindowGoal, steady_window
from autotune.records import FIRST_PHASE, Stop, TraineeEvent
from autotune.trial.outcome import EVALUATION, Losses, Milestones

LEAST_VALIDATION_S = 20.0
"""Shortest training of a validation trial: memory that grows and speed that falls off do not show in less."""

_LONGEST_BETWEEN_LOOKS_S = 1.0
_LONGEST_SILENCE_S = 30.0
_LEAST_IDLE_SILENCE_S = 10.0
_STEPS_TO_PHASES, _LONGEST_TO_PHASES_S = 20, 5.0  # after which a trial that has begun none never will
_SILENT_STEPS = 10.0  # ... or this many times the longest step so far, if that is more


@dataclass(frozen=True, kw_only=True)
class StopLimits:
    """Limits on how long a trial goes on. Times are points on the injected clock.

    Attributes:
        goal: Required length of the measuring window.
        settles: Whether the window starts only after one pass over the data (caches).
        filling: Whether it would have to, but caches take too long to fill: it is measured while they are filled.
        deadline_s: Time at which the trial is killed if it still goes on.
        give_up_s: Time at which it is stopped and judged by the steps so far; later by what its process was waited for.
        measures_s: Time that it has from its first step on in any case, however late that comes.
        start_timeout_s: Time to its first step after which only one that is seen to work is waited for, as others
            have shown; None where none has started yet.
        must_last: Whether a trial that hangs or ends with an error counts as failed, even with enough steps measured:
            trials of today's config keep running.
        max_s: Longest measuring window; a trial that made enough steps for one and takes several times as long is
            stopped, and judged by the steps so far.
        hopeless_below: Samples per second that at least one step has to reach, else the trial is stopped early.
        baseline_losses: Losses of the baseline; None if they are not known.
        nan_counts: Whether losses that are no numbers end it; not so where today's config has them too.
        outruns_from: Samples per second from which on a trial is suspected of skipping work; 0 if that is not known.
        validate_s: Longest training of a validation trial, which goes on until it has passed all `MILESTONES`; None
            for the other trials.
        rounds: Rounds of phases after which one that is taken through phases has shown enough; None for the others.
        trains_s: Time from its first step for which a trial of a race trains; None for the others.
    """

    goal: WindowGoal
    settles: bool
    filling: bool = False
    deadline_s: float = math.inf
    give_up_s: float = math.inf
    measures_s: float = 0.0
    start_timeout_s: float | None = None
    must_last: bool = False
    max_s: float = math.inf
    hopeless_below: float = 0.0
    baseline_losses: Losses | None = None
    nan_counts: bool = True
    outruns_from: float = 0.0
    validate_s: float | None = None
    rounds: int | None = None
    trains_s: float | None = None


class StopRule:
    """Stop rule of one trial: collects its events and says when to stop it.

    Args:
        start_deadline_s: Time by which its first step has to come in any case; later by what its process was waited
            for.
        samples_per_step: Samples per step according to the config, for trainers that do not report them; None if the
            config does not say.
        cpu_cores: Returns the mean number of cores that its processes kept busy between two times; None if that is not
            known.
        progress: Called with the number of steps so far.

    Attributes:
        why_not_started: State in which it was stopped before its first step, for people; empty else.
    """

    def __init__(
        self,
        limits: StopLimits,
        clock: Clock,
        *,
        start_deadline_s: float,
        samples_per_step: float | None = None,
        cpu_cores: Callable[[float, float], float | None] = lambda _t0_s, _t1_s: None,
        progress: Callable[[int], None] = lambda _steps: None,
    ) -> None:
        self._clock = clock
        self._start_deadline_s = start_deadline_s
        self._samples_per_step = samples_per_step
        self._cpu_cores = cpu_cores
        self._progress = progress
        self._made_s = clock.now_s()
        self._unseen = UnseenSteps(cpu_cores, start_deadline_s - self._made_s)
        self._prepared_s = 0.0  # for which it waited until its process began
        self._next_look_s = -math.inf
        self._until_s: float | None = None
        self._patience_s = 0.0
        self._cut_s: float | None = None
        self._window: Window | None = None
        self._rounds = -1  # the first is whole when the second begins
        self._is_unphased = False
        self._bad_losses = 0
        self._has_diverged = False
        self._settled_s: float | None = None
        self.limits = limits
        self.events: list[TraineeEvent] = []
        self.losses = Losses()
        self.milestones = Milestones()
        self.why_not_started = ""

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        """Take new events, possibly none, and return the reason to stop the trial; None to go on."""
        now_s, give_up_s = self._clock.now_s(), self.limits.give_up_s + self._prepared_s
        self._unseen.note(events)
        for event in events:
            if event.kind == "launched":  # perhaps for the second time: what was reported before is void
                self._prepared_s = event.t_s - self._made_s
                give_up_s = self.limits.give_up_s + self._prepared_s
                self.why_not_started, self._until_s = "", None
                self.events.clear()
                self.losses, self.milestones = Losses(), Milestones()
                continue
            self.events.append(event)
            self.milestones.look((event,), now_s)
            if event.loss is not None and event.kind != EVALUATION:
                self._note_loss(event.loss)
            self._rounds += event.phase is FIRST_PHASE
            self._is_unphased |= event.kind == "unphased"
            if event.kind == "epoch_end" and self._settled_s is None:
                self._settled_s = event.t_s
        self.milestones.look((), now_s)
        self._progress(self.steps)
        if self._has_diverged:
            return Stop.DIVERGED

        passed = self.milestones
        if not passed.steps:
            return self._judge_start(now_s, give_up_s)
        if self.limits.validate_s is not None:
            return Stop.ENOUGH if self._is_validated(self.limits.validate_s) else None
        has_its_rounds = self.limits.rounds is not None and self._rounds >= self.limits.rounds
        if has_its_rounds or (self.limits.trains_s is not None and passed.trained_s >= self.limits.trains_s):
            return Stop.ENOUGH
        if passed.silent_s > max(_LONGEST_SILENCE_S, _SILENT_STEPS * passed.longest_silence_s):
            return Stop.HUNG
        is_given_up = now_s >= give_up_s and passed.trained_s >= self.limits.measures_s
        if self._idles(now_s, 2.0 if is_given_up else _LEAST_IDLE_SILENCE_S):
            return Stop.HUNG
        if is_given_up:
            return self.cut(now_s)
        if self.limits.trains_s is not None:
            return None
        if self.limits.rounds is not None and self._may_be_phased():
            return None  # its steps are not of one kind
        if self._until_s is not None:
            return self._wait_for_its_end(now_s, self._until_s, has_news=bool(events))
        if now_s >= self._next_look_s and not self.is_cold:
            window = self.window()
            if window is not None and self.limits.goal.is_met_by(window):
                if self.limits.goal.steps is not None:
                    self._window = window
                    return Stop.ENOUGH
                # The end is fixed by now; what is under way, a step or a cycle, counts with its whole time.
                self._until_s, self._patience_s = now_s, 2.0 * max(window.beat_s or 0.0, passed.longest_silence_s)
                return None
            fastest = window.fastest_step_samples_per_s(self._samples_per_step) if window else math.inf
            if fastest < self.limits.hopeless_below:
                return Stop.HOPELESS
            if self._is_overdue(now_s):
                return Stop.UNCOUNTED if window is None else self.cut(now_s)
            self._next_look_s = min(self.limits.goal.next_look_s(now_s, window), now_s + _LONGEST_BETWEEN_LOOKS_S)
        return None

    def _wait_for_its_end(self, now_s: float, until_s: float, *, has_news: bool) -> Stop | None:
        """Return the reason to stop a trial that is long enough once what was under way then has ended."""
        is_over = now_s >= until_s + self._patience_s
        if is_over:
            self._cut_s = now_s
        window = self.window() if has_news or is_over else None
        if not is_over and (window is None or window.t1_s < until_s):
            return None
        if window is not None and self.limits.goal.is_met_by(window):
            self._window = window  # what comes while it is stopped would move it
            return Stop.ENOUGH
        self._until_s = self._cut_s = None  # meanwhile more of it was seen to be warm-up, or cycles were found
        return None

    def _idles(self, now_s: float, least_s: float) -> bool:
        """Return whether a trial that has to last makes no step for much longer than before, and does nothing else."""
        silent_s = self.milestones.silent_s
        if not self.limits.must_last or silent_s < max(least_s, _SILENT_STEPS * self.milestones.longest_silence_s):
            return False
        cores = self._cpu_cores(now_s - min(WORKING_S, 0.5 * silent_s), now_s)
        return cores is not None and cores < WORKING_CORES

    def cut(self, now_s: float) -> Stop:
        """Take it that the trial is ended now, in the middle of a step; return that reason to stop it."""
        self._cut_s = now_s
        return Stop.ENOUGH

    def _may_be_phased(self) -> bool:
        """Return whether a trial that is to go through phases does, or may do so yet.

        A trainer that reports its own steps, and whose loader nobody sees, says nothing of phases.
        """
        is_late = self.milestones.steps > _STEPS_TO_PHASES and self.milestones.trained_s > _LONGEST_TO_PHASES_S
        return not self._is_unphased and (self._rounds >= 0 or not is_late)

    def _judge_start(self, now_s: float, give_up_s: float) -> Stop | None:
        """Return the reason to stop a trial that has not made a step yet.

        The starts of other points tell how long this one's takes only where the work is the same. What grows with the
        batch, such as an evaluation before the first step, is work that can be seen.
        """
        self.why_not_started = self.why_not_started or self._unseen.why(now_s)
        if self.why_not_started:
            return Stop.NEVER_STARTED
        began_s = self._made_s + self._prepared_s
        due_s = math.inf if self.limits.start_timeout_s is None else began_s + self.limits.start_timeout_s
        is_over = now_s >= min(self._start_deadline_s + self._prepared_s, give_up_s)
        if not is_over and now_s < max(due_s, self._next_look_s):
            return None
        cores = self._cpu_cores(max(began_s, now_s - WORKING_S), now_s)
        works = cores is not None and cores >= WORKING_CORES
        self._next_look_s = now_s + _LONGEST_BETWEEN_LOOKS_S
        if works and not is_over:
            return None
        took = format_duration(now_s - began_s)
        if works and now_s >= give_up_s:
            self.why_not_started = f"still at work after {took}, the longest that the search gives one trial now"
        elif cores is not None:
            self.why_not_started = f"{'still at work' if works else 'idle'} after {took}"
        # with other values it has started
        is_hung = cores is not None and not works and self.limits.start_timeout_s is not None
        return Stop.HUNG if is_hung else Stop.NEVER_STARTED

    def _is_validated(self, longest_s: float) -> bool:
        """Return whether a validation trial has shown what there is to see, or has had its time.

        It does not end in a silence, which may be an evaluation or a hang, before that is long enough to be judged.
        """
        passed = self.milestones
        is_over = passed.trained_s >= (LEAST_VALIDATION_S if passed.are_passed else longest_s)
        is_silent = passed.silent_s > max(2.0, _SILENT_STEPS * passed.longest_silence_s)
        return is_over and (not is_silent or (passed.trained_s >= longest_s and passed.silent_s > _LONGEST_SILENCE_S))

    @property
    def steps(self) -> int:
        """Number of steps so far, those without an update of the optimizer left out."""
        return self.milestones.updates

    @property
    def saw_a_pass(self) -> bool:
        """True if the trial reached the end of a pass over the data."""
        return self._settled_s is not None

    @property
    def is_cold(self) -> bool:
        """True while caches that have to be filled first are not yet full."""
        return self.limits.settles and self._settled_s is None

    @property
    def is_uncounted(self) -> bool:
        """True if enough steps for a window have come, and there is none."""
        return not self.is_cold and self._has_enough_steps and self.window() is None

    @property
    def _has_enough_steps(self) -> bool:
        # The warm-up that is cut is half of them at most.
        return self.milestones.steps > 2 * max(LEAST_STEPS, self.limits.goal.min_steps)

    def _is_overdue(self, now_s: float) -> bool:
        settled_s = self._settled_s if self.limits.settles else None
        passed_s = self.milestones.trained_s if settled_s is None else now_s - settled_s
        longest_s = max(self.limits.max_s, self.limits.goal.length_s)
        # of the longest length that a trial may take to be measured; validation takes time, too
        return self._has_enough_steps and passed_s >= 3.0 * longest_s

    def window(self) -> Window | None:
        """Return the steady window of the steps so far, or the one that was enough; None if there is none."""
        if self._window is not None:
            return self._window
        after_s = self._settled_s if self.limits.settles else None
        goal = self.limits.goal
        return steady_window(
            self.events,
            after_s=after_s,
            cut_s=self._cut_s,
            steps=goal.steps,
            cycle=goal.cycle,
            until_step=goal.until_step,
        )

    def _note_loss(self, loss: float) -> None:
        self._bad_losses = 0 if math.isfinite(loss) else self._bad_losses + 1
        self.losses.add(self.steps, loss)
        baseline = self.limits.baseline_losses
        self._has_diverged = (
            self._has_diverged
            # in a row; a single one happens, while a loss scale settles or on a clip that is too short
            or (self.limits.nan_counts and self._bad_losses >= 3)
            or (baseline is not None and self.losses.are_far_above(baseline))
        )


WORKING_CORES = 0.1
"""Cores that a process at work keeps busy at least.

One that waits for a lock uses no CPU time, its idle threads a hundredth of a core; imports, tracing and the evaluation
before the first step use most of one, also where they wait for an accelerator.
"""

WORKING_S = 10.0
"""Time over which that is looked at."""

_LEAST_GRACE_S = 60.0  # importing a framework takes half a minute on a slow machine
_GRACE_SHARE = 0.2  # of the time to the first step that the config allows: who allows more knows of a preparation


# Frameworks in the processes of a trial, as their mapped libraries tell.


def uses_a_framework(pid: int) -> bool | None:
    """Return whether a process or a descendant of it has loaded a framework whose steps are observed.

    Returns:
        None if that cannot be known: it has ended, or one of them is another user's.
    """
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
        return any(_MAPPED.search(Path(f"/proc/{member.pid}/maps").read_text(errors="replace")) for member in members)
    except (psutil.Error, OSError):
        return None


class UnseenSteps:
    """Judge of a trial without a step so far: tells when no step of it will be seen, however long it goes on.

    Two things are certain enough: the observer reports that the trainer trains in a way that hides its steps; or the
    trainer has been at work for long, with none of the frameworks whose steps are observed, and without having
    imported the functions that report steps.

    Args:
        cpu_cores: Returns the mean number of cores that the trial kept busy between two times; None if that is not
            known.
        start_timeout_s: Longest time to the first step that the config allows.
        uses_framework: Returns whether a process, or one below it, has loaded such a framework; None if not known.
    """

    def __init__(
        self,
        cpu_cores: Callable[[float, float], float | None],
        start_timeout_s: float,
        uses_framework: Callable[[int], bool | None] = uses_a_framework,
    ) -> None:
        self._cpu_cores = cpu_cores
        self._grace_s = max(_LEAST_GRACE_S, _GRACE_SHARE * start_timeout_s)
        self._uses_framework = uses_framework
        self._launched: TraineeEvent | None = None
        self._unseen: TraineeEvent | None = None
        self._is_observed = False
        self._may_come = False
        self._next_look_s = 0.0
        self._found = ""

    def note(self, events: Sequence[TraineeEvent]) -> None:
        """Take new events."""
        for event in events:
            match event.kind:
                case "launched":
                    self._launched, self._unseen, self._is_observed, self._may_come = event, None, False, False
                case "unseen" if self._unseen is None:
                    self._unseen = event
                case "start":
                    self._is_observed = True
                case "step" | "reporter":
                    self._may_come = True

    def why(self, now_s: float) -> str:
        """Return the reason why no step will be seen, for people; empty as long as one may come."""
        if self._may_come:
            return ""
        self._found = self._found or self._look(now_s)
        return self._found

    def _look(self, now_s: float) -> str:
        if self._unseen is not None and now_s - self._unseen.t_s >= 30.0:  # for a first step after all
            return self._unseen.text or "the trainer trains, and its steps cannot be seen"
        if self._launched is None or not self._is_observed:
            return ""
        if now_s < max(self._launched.t_s + self._grace_s, self._next_look_s):
            return ""
        self._next_look_s = now_s + 5.0
        cores = self._cpu_cores(now_s - WORKING_S, now_s)
        if cores is None or cores < WORKING_CORES or self._uses_framework(self._launched.pid) is not False:
            return ""
        worked = format_duration(now_s - self._launched.t_s)
        return f"it has worked for {worked} without PyTorch, TensorFlow or JAX, and steps of others are not seen"


_MAPPED = re.compile(rf"/({'|'.join(row.library for row in FRAMEWORKS if row.library)})/[^\n]*\.so")
