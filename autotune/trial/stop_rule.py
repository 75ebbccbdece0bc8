"""Stop rule: decides during a trial whether it has been measured long enough or is not worth continuing."""

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
"""Shortest training of a validation trial."""

_LONGEST_BETWEEN_LOOKS_S = 1.0
_LONGEST_SILENCE_S = 30.0
_LEAST_IDLE_SILENCE_S = 10.0
_STEPS_TO_PHASES, _LONGEST_TO_PHASES_S = 20, 5.0  # a trial without phases after both has none
_SILENT_STEPS = 10.0  # longest silence, as a multiple of the longest step so far


@dataclass(frozen=True, kw_only=True)
class StopLimits:
    """Limits on the length of a trial. Times are points on the injected clock.

    Attributes:
        settles: Whether the window starts only after one pass over the data (caches).
        filling: Whether it is measured while caches are filled.
        deadline_s: Time at which it is killed.
        give_up_s: Time at which it is judged by its steps so far; the wait for its process is added.
        measures_s: Least time after its first step.
        start_timeout_s: Time after which only a working trial may still come to its first step; None if no trial has.
        must_last: Whether it fails by hanging or exiting even after enough steps: the baseline's trials keep running.
        max_s: Longest measuring window; after several times as long it is judged by its steps.
        hopeless_below: Throughput that at least one step must reach.
        nan_counts: As in `TrialEvidence`.
        outruns_from: Throughput above which it may be skipping work; 0 if unknown.
        validate_s: Longest validation training, which ends once all `MILESTONES` are passed.
        rounds: Rounds of phases that are enough.
        trains_s: Of a race, the training time after the first step.
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
    """Stop rule of one trial: collects its events and decides when to stop it.

    Args:
        start_deadline_s: Time by which the first step must come; the wait for its process is added.
        samples_per_step: For trainers that report no samples.
        cpu_cores: Returns the mean number of busy cores between two times.
        progress: Called with the number of steps so far.

    Attributes:
        why_not_started: As in `TrialEvidence`.
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
        self._created_s = clock.now_s()
        self._unseen = UnseenSteps(cpu_cores, start_deadline_s - self._created_s)
        self._prepared_s = 0.0  # wait for its process
        self._next_look_s = -math.inf
        self._until_s: float | None = None
        self._patience_s = 0.0
        self._cut_s: float | None = None
        self._window: Window | None = None
        self._rounds = -1  # the first is complete when the second begins
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
        """Take new events, possibly none; return the reason to stop the trial, or None."""
        now_s, give_up_s = self._clock.now_s(), self.limits.give_up_s + self._prepared_s
        self._unseen.note(events)
        for event in events:
            if event.kind == "launched":  # a relaunch makes earlier events void
                self._prepared_s = event.t_s - self._created_s
                give_up_s = self.limits.give_up_s + self._prepared_s
                self.why_not_started, self._until_s = "", None
                self.events.clear()
                self.losses, self.milestones = Losses(), Milestones()
                continue
            self.events.append(event)
            self.milestones.update((event,), now_s)
            if event.loss is not None and event.kind != EVALUATION:
                self._note_loss(event.loss)
            self._rounds += event.phase is FIRST_PHASE
            self._is_unphased |= event.kind == "unphased"
            if event.kind == "epoch_end" and self._settled_s is None:
                self._settled_s = event.t_s
        self.milestones.update((), now_s)
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
            return self._finish_window(now_s, self._until_s, has_events=bool(events))
        if now_s >= self._next_look_s and not self.is_cold:
            window = self.window()
            if window is not None and self.limits.goal.is_met_by(window):
                if self.limits.goal.steps is not None:
                    self._window = window
                    return Stop.ENOUGH
                # The end is fixed now; a step or cycle in progress counts with its whole time.
                self._until_s, self._patience_s = now_s, 2.0 * max(window.beat_s or 0.0, passed.longest_silence_s)
                return None
            fastest = window.fastest_step_samples_per_s(self._samples_per_step) if window else math.inf
            if fastest < self.limits.hopeless_below:
                return Stop.HOPELESS
            if self._is_overdue(now_s):
                return Stop.UNCOUNTED if window is None else self.cut(now_s)
            self._next_look_s = min(self.limits.goal.next_look_s(now_s, window), now_s + _LONGEST_BETWEEN_LOOKS_S)
        return None

    def _finish_window(self, now_s: float, until_s: float, *, has_events: bool) -> Stop | None:
        is_over = now_s >= until_s + self._patience_s
        if is_over:
            self._cut_s = now_s
        window = self.window() if has_events or is_over else None
        if not is_over and (window is None or window.t1_s < until_s):
            return None
        if window is not None and self.limits.goal.is_met_by(window):
            self._window = window  # later events would move it
            return Stop.ENOUGH
        self._until_s = self._cut_s = None  # more warm-up, or cycles, were found meanwhile
        return None

    def _idles(self, now_s: float, least_s: float) -> bool:
        silent_s = self.milestones.silent_s
        if not self.limits.must_last or silent_s < max(least_s, _SILENT_STEPS * self.milestones.longest_silence_s):
            return False
        cores = self._cpu_cores(now_s - min(WORKING_S, 0.5 * silent_s), now_s)
        return cores is not None and cores < WORKING_CORES

    def cut(self, now_s: float) -> Stop:
        """End the measurement now, in mid-step; return the reason to stop."""
        self._cut_s = now_s
        return Stop.ENOUGH

    def _may_be_phased(self) -> bool:
        is_late = self.milestones.steps > _STEPS_TO_PHASES and self.milestones.trained_s > _LONGEST_TO_PHASES_S
        return not self._is_unphased and (self._rounds >= 0 or not is_late)

    def _judge_start(self, now_s: float, give_up_s: float) -> Stop | None:
        """Return the reason to stop a trial before its first step; it may start later than others while it works."""
        self.why_not_started = self.why_not_started or self._unseen.why(now_s)
        if self.why_not_started:
            return Stop.NEVER_STARTED
        began_s = self._created_s + self._prepared_s
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
            self.why_not_started = f"still working after {took}, the longest that the search allows one trial now"
        elif cores is not None:
            self.why_not_started = f"{'still working' if works else 'idle'} after {took}"
        # other values have started
        is_hung = cores is not None and not works and self.limits.start_timeout_s is not None
        return Stop.HUNG if is_hung else Stop.NEVER_STARTED

    def _is_validated(self, longest_s: float) -> bool:
        """Return whether a validation trial has passed all milestones or used its time, outside of short silences."""
        passed = self.milestones
        is_over = passed.trained_s >= (LEAST_VALIDATION_S if passed.are_passed else longest_s)
        is_silent = passed.silent_s > max(2.0, _SILENT_STEPS * passed.longest_silence_s)
        return is_over and (not is_silent or (passed.trained_s >= longest_s and passed.silent_s > _LONGEST_SILENCE_S))

    @property
    def steps(self) -> int:
        return self.milestones.updates

    @property
    def saw_a_pass(self) -> bool:
        return self._settled_s is not None

    @property
    def is_cold(self) -> bool:
        return self.limits.settles and self._settled_s is None

    @property
    def is_uncounted(self) -> bool:
        """Whether there are enough steps for a window, but no window."""
        return not self.is_cold and self._has_enough_steps and self.window() is None

    @property
    def _has_enough_steps(self) -> bool:
        # At most half of them are cut as warm-up.
        return self.milestones.steps > 2 * max(LEAST_STEPS, self.limits.goal.min_steps)

    def _is_overdue(self, now_s: float) -> bool:
        settled_s = self._settled_s if self.limits.settles else None
        passed_s = self.milestones.trained_s if settled_s is None else now_s - settled_s
        longest_s = max(self.limits.max_s, self.limits.goal.length_s)
        # three times, because validation takes time too
        return self._has_enough_steps and passed_s >= 3.0 * longest_s

    def window(self) -> Window | None:
        if self._window is not None:
            return self._window
        after_s = self._settled_s if self.limits.settles else None
        return steady_window(self.events, after_s=after_s, cut_s=self._cut_s, goal=self.limits.goal)

    def _note_loss(self, loss: float) -> None:
        self._bad_losses = 0 if math.isfinite(loss) else self._bad_losses + 1
        self.losses.add(self.steps, loss)
        baseline = self.limits.baseline_losses
        self._has_diverged = (
            self._has_diverged
            # in a row: single ones occur while a loss scale settles, or on a clip that is too short
            or (self.limits.nan_counts and self._bad_losses >= 3)
            or (baseline is not None and self.losses.are_far_above(baseline))
        )


WORKING_CORES = 0.1
"""Least number of cores that a working process keeps busy; idle threads take a hundredth, imports most of one."""

WORKING_S = 10.0
"""Time over which busy cores are averaged."""

_LEAST_GRACE_S = 60.0  # importing a framework takes half a minute on a slow machine
_GRACE_SHARE = 0.2  # of the config's start timeout: a long one implies long preparation


# Frameworks in the processes of a trial, by their mapped libraries.


def uses_a_framework(pid: int) -> bool | None:
    """Return whether a process or a descendant has loaded an observed framework; None if unknown."""
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
        return any(_MAPPED.search(Path(f"/proc/{member.pid}/maps").read_text(errors="replace")) for member in members)
    except (psutil.Error, OSError):
        return None


class UnseenSteps:
    """Detector of trials whose steps will never be seen.

    The observer reports that it can't see them, or the trainer works for long without an observed framework and without
    the functions that report steps.
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
        """Return why no step will be seen; empty as long as one may come."""
        if self._may_come:
            return ""
        self._found = self._found or self._look(now_s)
        return self._found

    def _look(self, now_s: float) -> str:
        if self._unseen is not None and now_s - self._unseen.t_s >= 30.0:  # a first step may still come
            return self._unseen.text or "the trainer trains, but its steps cannot be seen"
        if self._launched is None or not self._is_observed:
            return ""
        if now_s < max(self._launched.t_s + self._grace_s, self._next_look_s):
            return ""
        self._next_look_s = now_s + 5.0
        cores = self._cpu_cores(now_s - WORKING_S, now_s)
        if cores is None or cores < WORKING_CORES or self._uses_framework(self._launched.pid) is not False:
            return ""
        worked = format_duration(now_s - self._launched.t_s)
        return f"it has worked for {worked} without PyTorch, TensorFlow or JAX; steps of others are not seen"


_MAPPED = re.compile(rf"/({'|'.join(row.library for row in FRAMEWORKS if row.library)})/[^\n]*\.so")
