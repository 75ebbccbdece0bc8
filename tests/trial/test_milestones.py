"""Milestones of a training."""

from autotune.records import TraineeEvent
from autotune.trial.outcome import MILESTONES, Milestones


def event(kind: str, t_s: float, *, update: bool = True) -> TraineeEvent:
    """Return an event of the one process."""
    return TraineeEvent(kind=kind, t_s=t_s, stream="1.0", update=update)


def test_a_milestone_is_passed_once_steps_follow_it() -> None:
    """A trainer that dies in its checkpoint has reached it, and has not passed it."""
    passed = Milestones()
    passed.look([event("step", 1.0), *(event(kind, 2.0) for kind in MILESTONES)], 2.5)
    assert not passed.are_passed
    passed.look([event("step", 3.0), event("step", 4.0)], 4.0)
    assert not passed.are_passed
    passed.look([event("step", 5.0)], 5.0)
    assert passed.are_passed
    assert passed.reached == dict.fromkeys(MILESTONES, 1)


def test_times_count_from_the_first_step_to_the_last_look() -> None:
    """Time before the first step is no training; the longest silence is between steps, the last one after."""
    passed = Milestones()
    passed.look([], 50.0)
    assert passed.trained_s == passed.silent_s == 0.0
    passed.look(
        [event("step", 60.0), event("step", 61.0), event("step", 66.0, update=False), event("step", 67.0)], 68.0
    )
    passed.look([], 80.0)
    assert (passed.trained_s, passed.silent_s, passed.longest_silence_s) == (20.0, 13.0, 5.0)
    assert (passed.steps, passed.updates) == (4, 3)
