"""Phases of a trial: their order, their length, and what is kept for them."""

import sys
from types import SimpleNamespace

import pytest

from autotune.trainee.batch import in_new_containers
from autotune.trainee.phases import LOAD, REPLAY, TRAIN, Schedule, framework_settings


class Clock:
    """A clock that is moved by hand, and a schedule on it."""

    def __init__(self, length_s: float = 2.0) -> None:
        self.now_s = 100.0
        self.schedule = Schedule(length_s)

    def steps(self, count: int, each_s: float = 0.1) -> list[str]:
        """Make so many steps, and return the phases that begin."""
        begun = []
        for _ in range(count):
            self.now_s += each_s
            if self.schedule.step(self.now_s):
                begun.append(self.schedule.begin(self.now_s))
        return begun

    def warmed_up(self) -> "Clock":
        """Make the steps of the warm-up."""
        assert self.steps(4) == [REPLAY]
        return self


def test_the_warm_up_is_three_steps_at_least() -> None:
    """Nothing begins before; the first call has no step before it."""
    clock = Clock()
    assert clock.steps(3) == []
    assert clock.schedule.phase is None
    assert clock.steps(1) == [REPLAY]


def test_phases_follow_each_other_for_ever() -> None:
    """Training comes after drawing, which empties the buffers, and not after replay, which leaves them full."""
    clock = Clock().warmed_up()
    begun = []
    for _ in range(90):
        begun += clock.steps(1)
        if clock.schedule.phase == LOAD:
            while not clock.schedule.has_drawn_enough:
                clock.now_s += 0.5
                clock.schedule.drew(0.5)
    assert begun[:5] == [LOAD, TRAIN, REPLAY, LOAD, TRAIN]


def test_a_phase_takes_its_length() -> None:
    """At the exact boundary the next one begins."""
    clock = Clock().warmed_up()
    assert clock.steps(15, each_s=0.125) == []
    assert clock.steps(1, each_s=0.125) == [LOAD]


def test_a_phase_has_three_steps_but_no_more_than_four_times_its_length() -> None:
    """Steps of 2.5 s make a phase of 7.5 s; of steps of 8 s there is one."""
    clock = Clock().warmed_up()
    assert [clock.steps(1, each_s=2.5) for _ in range(3)] == [[], [], [LOAD]]
    clock = Clock().warmed_up()
    assert clock.steps(1, each_s=8.0) == [LOAD]


def test_drawing_needs_three_batches_and_its_length_in_time_of_drawing() -> None:
    """Time between two passes over the data does not count, up to four times the length in all."""
    clock = Clock().warmed_up()
    clock.steps(16, each_s=0.125)
    for _ in range(2):
        clock.schedule.drew(1.5)
        assert not clock.schedule.has_drawn_enough
        assert clock.steps(1, each_s=3.5) == []
    clock.schedule.drew(0.1)
    assert clock.schedule.has_drawn_enough
    assert clock.steps(1) == [TRAIN]


def test_a_phase_that_cannot_be_is_left_out() -> None:
    """The others follow each other; where none is left but training, that goes on without end."""
    clock = Clock().warmed_up()
    assert clock.schedule.leave_out(LOAD)
    assert not clock.schedule.leave_out(LOAD)
    assert clock.steps(80) == [TRAIN, REPLAY, TRAIN]
    clock.schedule.leave_out(REPLAY)
    assert clock.steps(80) == []


def test_a_trainer_may_take_apart_what_it_is_given() -> None:
    """Containers are new each time, whatever is in them the same."""
    array = object()
    batch = {"x": array, "more": [(array, {"y": array})]}
    given = in_new_containers(batch)
    assert given == batch
    del given["x"], given["more"][0][1]["y"]
    assert batch == {"x": array, "more": [(array, {"y": array})]}


def test_settings_are_those_of_loaded_frameworks_that_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported for it; what raises in this version, or is no plain value, is left out."""
    for name in ("tensorflow", "keras", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert framework_settings() == {}
    torch = SimpleNamespace(get_num_threads=lambda: 3, get_num_interop_threads=lambda: object())
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert framework_settings() == {"torch.threads": 3}
