"""Stop rule, tested at the exact moment."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.measure.window import WindowGoal
from autotune.records import FIRST_PHASE, Stop, TraineeEvent, TrialPhase
from autotune.trial.outcome import Losses
from autotune.trial.stop_rule import StopLimits, StopRule

START_S = 1000.0
GOAL = WindowGoal(min_s=2.0, min_steps=10, target_s=2.0)


class Watched:
    """Trial under the stop rule, in virtual time."""

    def __init__(self, *, goal: WindowGoal = GOAL, settles: bool = False, **policy: Any) -> None:
        self.cores: float | None = 1.0
        self.clock = VirtualClock(START_S)
        self.told: list[int] = []
        self.watch = StopRule(
            StopLimits(goal=goal, settles=settles, **policy),
            self.clock,
            start_deadline_s=START_S + 60.0,
            cpu_cores=lambda _t0_s, _t1_s: self.cores,
            progress=self.told.append,
        )

    def event(self, kind: str = "step", *, loss: float | None = None) -> TraineeEvent:
        """Return an event that happens now."""
        return TraineeEvent(kind=kind, t_s=self.clock.now_s(), stream="1.0", samples=8.0, loss=loss)

    def at(self, t_s: float, *kinds: str) -> Stop | None:
        """Return the rule's answer to these events at that time, counted from the start."""
        self.clock.wait(START_S + t_s - self.clock.now_s())
        return self.watch([self.event(kind) for kind in kinds])

    def steps(self, count: int, every_s: float) -> Stop | None:
        """Make steps from now on, one at a time, until the rule says stop."""
        for _ in range(count):
            self.clock.wait(every_s)
            if (stop := self.watch([self.event()])) is not None:
                return stop
        return None


def test_no_step_within_the_start_timeout_is_never_started() -> None:
    """Not before the time is up, and then at once; a sign of life without a step does not help."""
    trial = Watched()
    assert trial.at(1.0, "start", "note") is None
    assert trial.at(59.99) is None
    assert trial.at(60.0) is Stop.NEVER_STARTED


def test_a_trial_at_work_may_start_later_than_others_did() -> None:
    """Its work before its first step takes longer than theirs; the limit in the config ends it all the same."""
    trial = Watched(start_timeout_s=20.0)
    assert trial.at(20.0) is None
    assert trial.at(59.0) is None
    assert trial.at(60.0) is Stop.NEVER_STARTED
    assert trial.watch.why_not_started == "still working after 1m"


@pytest.mark.parametrize(
    ("cores", "stop", "said"), [(0.05, Stop.HUNG, "idle after 40s"), (None, Stop.NEVER_STARTED, "")]
)
def test_an_idle_trial_is_ended_when_others_have_long_started(cores: float | None, stop: Stop, said: str) -> None:
    """A hang, while it works or later; where nothing is known of its processes, the time alone counts."""
    trial = Watched(start_timeout_s=20.0)
    assert trial.at(20.0) is None
    trial.cores = cores
    assert trial.at(20.9) is None, "it was looked at less than a second ago"
    assert trial.at(40.0) is stop
    assert trial.watch.why_not_started == said


def test_half_a_minute_of_silence_after_short_steps_is_hung() -> None:
    """Thirty seconds are forgiven, more are not."""
    trial = Watched(goal=WindowGoal(min_s=100.0, min_steps=10, target_s=0.0))
    trial.at(5.0, "step")
    trial.at(6.0, "step")
    assert trial.at(36.0) is None
    assert trial.at(36.01) is Stop.HUNG


@pytest.mark.parametrize("goal_s", [2.0, 5.0])
def test_enough_is_when_the_window_is_long_enough(goal_s: float) -> None:
    """A steady trial is stopped soon after its window has the required length, and not before."""
    trial = Watched(goal=WindowGoal(min_s=2.0, min_steps=10, target_s=goal_s))
    assert trial.steps(1000, 0.1) is Stop.ENOUGH
    window = trial.watch.window()
    assert goal_s <= window.time_s + 1e-9
    assert trial.clock.now_s() - START_S < 2.0 * goal_s


def test_steps_that_move_the_end_of_the_warm_up_do_not_leave_a_window_too_short() -> None:
    """Steps of real trials, which come in batches: one that was enough at a look is enough in the end."""
    rng = random.Random(3)
    goal = replace(GOAL, min_s=0.7, target_s=0.7)
    for _ in range(100):
        trial, stop = Watched(goal=goal), None
        while stop is None:
            began_s = trial.clock.now_s()
            trial.clock.wait(0.12)
            ends_s = [began_s + 0.03 * place + 0.02 * rng.random() ** 4 for place in range(4)]
            stop = trial.watch([replace(trial.event(), t_s=end_s) for end_s in ends_s])
        assert stop is Stop.ENOUGH
        window = trial.watch.window()
        assert goal.is_met_by(window)


def test_when_time_is_up_a_trial_is_stopped_with_what_it_has() -> None:
    """At the given moment, whatever the window holds by then."""
    trial = Watched(goal=WindowGoal(min_s=100.0, min_steps=10, target_s=0.0), give_up_s=START_S + 10.0)
    trial.at(1.0, "step")
    assert trial.at(9.99, "step") is None
    assert trial.at(10.0, "step") is Stop.ENOUGH


def test_time_before_the_process_begins_does_not_count() -> None:
    """A warm interpreter was prepared for it first: its limits are later by that."""
    trial = Watched(give_up_s=START_S + 100.0)
    trial.at(50.0, "launched")
    assert trial.at(109.9) is None
    assert trial.at(110.0) is Stop.NEVER_STARTED
    assert not trial.watch.events


def test_steps_that_cannot_be_measured_end_a_trial() -> None:
    """A pause in each step leaves nothing to measure: it ends after three times the longest window, not the budget."""
    trial = Watched(max_s=10.0)
    stops = [trial.at(1.0 + 0.5 * number, "step", "eval") for number in range(100)]
    assert stops.index(Stop.UNCOUNTED) == 60
    assert set(stops[:60]) == {None}
    assert trial.watch.is_uncounted


def test_steps_without_an_update_are_not_counted() -> None:
    """If gradients are accumulated, a step of the training is that of its optimizer."""
    trial = Watched()
    for number in range(8):
        trial.clock.wait(0.1)
        trial.watch([replace(trial.event(), update=number % 4 == 3)])
    assert (trial.told[-1], len(trial.watch.events)) == (2, 8)


def test_caches_fill_before_measuring_starts() -> None:
    """The window begins after the first epoch, however long that takes, and holds nothing of it."""
    trial = Watched(settles=True)
    assert trial.steps(200, 0.1) is None
    assert trial.watch.is_cold
    epoch_s = trial.clock.now_s() - START_S
    assert trial.at(epoch_s, "epoch_end") is None
    assert not trial.watch.is_cold
    assert trial.steps(1000, 0.01) is Stop.ENOUGH
    window = trial.watch.window()
    assert window.t0_s >= START_S + epoch_s
    assert window.durations_s.max() == pytest.approx(0.01)


def test_caches_that_do_not_fill_in_time_stay_cold() -> None:
    """Given up during the first epoch, a trial says so: its numbers would be those of a cold cache."""
    trial = Watched(settles=True, give_up_s=START_S + 10.0)
    assert trial.steps(1000, 0.1) is Stop.ENOUGH
    assert trial.watch.is_cold


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_losses_that_are_no_numbers_end_a_trial(loss: float) -> None:
    """A training that has diverged is not worth another second."""
    trial = Watched()
    trial.at(1.0, "step")
    assert trial.watch([trial.event(loss=1.5)]) is None
    assert trial.watch([trial.event(loss=loss), trial.event(loss=loss)]) is None
    assert trial.watch([trial.event(loss=loss)]) is Stop.DIVERGED


def test_a_loss_that_leaves_the_baselines_far_behind_ends_a_trial() -> None:
    """It is finite still, but diverging; one that falls as the baseline's does goes on."""
    baselines = Losses()
    for step in range(1, 50):
        baselines.add(step, 2.0 - 0.01 * step)
    blown, fine = Watched(baseline_losses=baselines), Watched(baseline_losses=baselines)
    stops = []
    for step in range(20):
        for trial, loss in ((blown, 2.0 * 3.0**step), (fine, 16.0 - 0.05 * step)):
            trial.clock.wait(0.01)
            stops.append((trial, trial.watch([trial.event(loss=loss)])))
    assert next(stop for trial, stop in stops if trial is blown and stop is not None) is Stop.DIVERGED
    assert all(stop is None for trial, stop in stops if trial is fine)


def test_a_trial_that_is_far_behind_is_stopped_early() -> None:
    """A short look is enough, long before the window has its length; one that is fast enough goes on to its end."""
    patient = WindowGoal(min_s=2.0, min_steps=10, target_s=30.0)
    slow, fast = Watched(goal=patient, hopeless_below=100.0), Watched(goal=patient, hopeless_below=70.0)
    assert slow.steps(1000, 0.1) is Stop.HOPELESS
    assert slow.clock.now_s() - START_S < 5.0
    assert fast.steps(1000, 0.1) is Stop.ENOUGH


def test_a_validation_trial_goes_on_through_all_milestones() -> None:
    """Long after its window would do, until there was one of each kind and training went on, 20 s at least."""
    trial = Watched(validate_s=120.0)
    assert trial.steps(240, 0.1) is None
    trial.watch([trial.event("epoch_end"), trial.event("eval"), trial.event("checkpoint")])
    assert trial.steps(10, 0.1) is Stop.ENOUGH
    quick = Watched(validate_s=120.0)
    quick.at(1.0, "step", "epoch_end", "eval", "checkpoint")
    assert quick.steps(190, 0.1) is None
    assert quick.steps(20, 0.1) is Stop.ENOUGH


def test_a_trial_that_is_taken_through_phases_ends_with_its_last_round() -> None:
    """A round is whole when the next one begins; steps of phases are no window, however many there are."""
    trial, stops = Watched(rounds=2), []
    for phase in (*[FIRST_PHASE, TrialPhase.LOAD, TrialPhase.TRAIN] * 2, FIRST_PHASE):
        trial.clock.wait(5.0)
        stops.append(trial.watch([trial.event(), replace(trial.event("phase"), phase=phase)]))
        stops.append(trial.steps(30, 0.1) if stops[-1] is None else None)
    assert stops == [*[None] * 12, Stop.ENOUGH, None]


def test_of_a_trial_that_waits_for_its_caches_the_time_counts_from_when_they_are_full() -> None:
    """Where its steps cannot be measured, it ends after three times the longest window from there."""
    trial = Watched(settles=True, max_s=10.0)
    stops = {0.5 * half: trial.at(0.5 * half, "step", "eval") for half in range(2, 200)}
    stops[100.0] = trial.at(100.0, "step", "epoch_end")
    stops |= {0.5 * half: trial.at(0.5 * half, "step", "eval") for half in range(201, 261)}
    assert {t_s for t_s, stop in stops.items() if stop is not None} == {130.0}
    assert stops[130.0] is Stop.UNCOUNTED


@pytest.mark.parametrize(("last_step_s", "ends_s"), [(17.0, 21.0), (16.0, 21.0), (15.5, 45.6), (10.0, 40.1)])
def test_a_validation_trial_does_not_end_in_a_silence(last_step_s: float, ends_s: float) -> None:
    """Ten times its longest step is no silence yet; a longer one may be an evaluation or a hang, and 30 s tell."""
    trial = Watched(validate_s=20.0)
    for half in range(2, int(2 * last_step_s) + 1):
        assert trial.at(0.5 * half, "step") is None
    times_s = [tenth / 10 for tenth in range(int(10 * last_step_s) + 1, 500)]
    assert next(t_s for t_s in times_s if trial.at(t_s) is Stop.ENOUGH) == ends_s


def test_a_trial_of_long_steps_is_hung_after_ten_of_them() -> None:
    """Steps of five seconds are none of a hang after half a minute."""
    trial = Watched(goal=WindowGoal(min_s=1e3, min_steps=10, target_s=0.0))
    assert trial.steps(4, 5.0) is None
    assert trial.at(70.0) is None
    assert trial.at(70.01) is Stop.HUNG


def test_a_trial_of_a_race_trains_for_the_time_that_all_train() -> None:
    """From its first step on, however soon its window would do; a hang ends it, too."""
    trial, hung = Watched(trains_s=40.0), Watched(trains_s=40.0)
    for one in (trial, hung):
        assert one.at(3.0, "step") is None
    assert trial.steps(399, 0.1) is None
    assert trial.at(42.99) is None
    assert trial.at(43.0) is Stop.ENOUGH
    assert hung.at(33.01) is Stop.HUNG


@pytest.mark.parametrize(("min_steps", "count"), [(10, 21), (2, 11), (20, 41)])
def test_steps_are_called_uncounted_once_there_were_enough_for_a_window(min_steps: int, count: int) -> None:
    """Twice as many as it needs, since a half may be warm-up, and five at least."""
    trial = Watched(max_s=1.0, goal=WindowGoal(min_s=0.5, min_steps=min_steps, target_s=0.0))
    stops = []
    while not stops or stops[-1] is None:
        assert not trial.watch.is_uncounted
        stops.append(trial.at(1.0 + 0.5 * len(stops), "step", "eval"))
    assert (len(stops), stops[-1]) == (count, Stop.UNCOUNTED)


@pytest.mark.parametrize(("every_s", "kind", "steps"), [(0.1, "note", 52), (1.0, "note", 21), (0.1, "unphased", 22)])
def test_a_trial_without_phases_is_measured_as_others_are(every_s: float, kind: str, steps: int) -> None:
    """Once it says so, or neither twenty steps nor five seconds have brought one."""
    trial = Watched(rounds=2)
    trial.at(0.0, kind)
    assert trial.steps(100, every_s) is Stop.ENOUGH
    assert trial.told[-1] == pytest.approx(steps, abs=1)
