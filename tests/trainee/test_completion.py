"""Promises on steps of a device that works behind the program: each ends when the device has completed it."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.trainee.completion import APART_S, Completions
from autotune.trainee.loop import Loop
from autotune.trainee.stream import WATCH_DIR_VARIABLE, Report, Stream


class Device:
    """Device with a queue: it takes a time for each step, and the program waits while too many are in the queue."""

    def __init__(self, step_s: float, ahead: int) -> None:
        self.now_s, self._step_s, self._ahead = 0.0, step_s, ahead
        self.ends_s: list[float] = []
        self.completions = Completions()

    def step(self, takes_s: float = 0.001) -> tuple[float]:
        """Give it a step, as soon as there is room in its queue; return its end as the program sees it."""
        self.now_s += takes_s
        if len(self.ends_s) >= self._ahead:
            self.now_s = max(self.now_s, self.ends_s[-self._ahead])
        end_s = max([self.now_s, *self.ends_s[-1:]]) + self._step_s
        self.ends_s.append(end_s)
        self.completions.poll(self.now_s)
        if self.completions.is_due(self.now_s):
            self.completions.add(self.now_s, lambda: self.now_s >= end_s)
        return (self.now_s,)

    def wait(self) -> None:
        """Let the program wait until the device has completed all."""
        self.now_s = max(self.now_s, self.ends_s[-1])
        self.completions.poll(self.now_s)


def ends_of(steps: Sequence[tuple[float, ...]]) -> list[float]:
    """Return when steps ended."""
    return [step[0] for step in steps]


@pytest.mark.parametrize("ahead", [1, 30, 500])
def test_the_pace_is_the_devices_from_the_first_step_on(ahead: int) -> None:
    """However far the program runs ahead; what is under way when one asks is not reported yet."""
    device, reported, held = Device(0.1, ahead), list[tuple[float, ...]](), list[tuple[float, ...]]()
    for _ in range(600):
        held.append(device.step())
        done = device.completions.ended(held)
        reported += done
        held = held[len(done) :]
    ends_s = ends_of(reported)
    assert len(ends_s) < 600 - ahead + 2
    assert ends_s == sorted(ends_s)
    for end_s, truth_s in zip(ends_s, device.ends_s, strict=False):
        assert end_s == pytest.approx(truth_s, abs=0.11)


def test_steps_that_are_seen_to_be_completed_at_once_are_spread_evenly() -> None:
    """A program that looks at its loss after each fifty steps sees nothing in between."""
    device, reported = Device(0.1, 1000), list[tuple[float, ...]]()
    for _ in range(4):
        held = [device.step(0.002) for _ in range(50)]
        device.wait()
        reported += device.completions.ended(held)
    for end_s, truth_s in zip(ends_of(reported), device.ends_s, strict=True):
        assert end_s == pytest.approx(truth_s, abs=0.11)


def test_steps_that_are_completed_during_a_pause_tell_no_pace() -> None:
    """They end together after it: the window leaves out the time of the pause with what was made in it."""
    device = Device(0.1, 1000)
    first = [device.step() for _ in range(5)]
    device.wait()
    assert len(device.completions.ended(first)) == 5
    held = [device.step() for _ in range(5)]
    assert device.completions.ended(held) == []
    device.completions.pause()
    device.now_s += 10.0
    device.wait()
    assert set(ends_of(device.completions.ended(held))) == {device.now_s}


def test_a_device_that_keeps_up_changes_nothing() -> None:
    """Nor do markers of which nothing can be told any more, or steps that share one."""
    device = Device(0.0001, 1000)
    held = [device.step() for _ in range(20)]
    ends_s = ends_of(device.completions.ended(held[:19]))
    assert [after - before for before, after in pairwise(ends_s)] == pytest.approx([0.001] * 18)
    void = Completions()
    void.add(1.0, lambda: None)
    assert not void.is_due(1.0 + APART_S / 2)
    void.poll(1.5)
    assert not void.is_pending
    assert void.ended([(1.1,), (1.2,)]) == [(1.1,), (1.2,)]


def test_real_training_is_only_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is asked of the device there; a trial asks."""
    assert Loop(Report(Stream())).is_marker_due(1.0)
    monkeypatch.setenv(WATCH_DIR_VARIABLE, str(tmp_path))
    assert not Loop(Report(Stream())).is_marker_due(1.0)
