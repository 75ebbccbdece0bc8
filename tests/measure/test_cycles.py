"""Promises on training that stops and goes: speed is that of whole cycles, and the interval says what is not known."""

from dataclasses import replace

import numpy as np
import pytest

from autotune.measure.cycles import speed_error, warm_up
from autotune.measure.statistics import LEAST_CYCLES
from autotune.measure.window import WindowGoal, measure_trial, steady_window
from tests.measure.test_window import events_of


def stalling(cycles, *, fast=99, step_s=0.01, stall_s=1.0, begin=40):
    """Steps of one length with a long one in each cycle; the first cycle has begun before."""
    cycle = [step_s] * fast + [stall_s]
    return [0.5, *(cycle * (cycles + 1))[begin:]]


@pytest.mark.parametrize("begin", [0, 1, 40, 90, 99])
def test_the_speed_is_that_of_whole_cycles(begin):
    """Wherever a trial begins in its cycle, and wherever it ends: 100 steps in 1.99 s."""
    for extra in (0, 1, 30, 60, 95):
        durations_s = stalling(5, begin=begin)[: 101 - begin + 400 + extra]
        measured = measure_trial(steady_window(events_of(durations_s)), started_s=99.0)
        assert measured.samples_per_s == pytest.approx(100 / 1.99, rel=1e-3)
        assert measured.cycles >= LEAST_CYCLES
        assert measured.beat_s == pytest.approx(1.99)


def test_bursts_within_epochs_are_cycles_of_cycles():
    """A loader of four workers begins anew with each epoch: the window has whole epochs."""
    burst = [0.01, 0.01, 0.01, 0.1]
    epoch = burst * 20 + [0.01, 0.01, 0.01, 2.0]
    window = steady_window(events_of([0.5, *(epoch * 6)[30:-9]]))
    assert window.beat_s == pytest.approx(sum(epoch))
    assert window.time_s / window.steps == pytest.approx(sum(epoch) / len(epoch), rel=1e-6)


def test_a_stall_at_the_beginning_is_no_warm_up():
    """It comes back: what is cut at the start is what training does not come back to."""
    full_buffers, ahead = [0.001] * 50 + [0.02] * 500, [0.01] * 30 + [0.3] * 9
    for durations_s, cut in (
        (stalling(6, begin=60)[1:], 0),
        ([1.0, 1.0, *[0.01] * 900], 2),
        (full_buffers, 50),
        (ahead, 30),
    ):
        assert warm_up(np.array(durations_s), np.ones(len(durations_s))) == cut


def test_one_stall_is_known_to_be_too_few():
    """The interval of a window with a single stall is as wide as a stall is long; its cycle is not known."""
    window = steady_window(events_of(stalling(0, fast=199, begin=100) + [0.01] * 120))
    assert (window.cycles, window.beat_s) == (0, None)
    assert 2.0 * window.speed_error() > 0.3


@pytest.mark.parametrize("kept", [0.0, 0.6])
def test_the_interval_holds_the_true_speed(kept):
    """In about nineteen of twenty, also where the noise of neighbouring steps is alike."""
    random, held = np.random.default_rng(3), 0
    for _ in range(200):
        noise = random.normal(0.0, 0.2, 400)
        for index in range(1, len(noise)):
            noise[index] += kept * noise[index - 1]
        durations_s = 0.02 * np.exp(noise)
        expected_s = 0.02 * np.exp(0.2**2 / (1.0 - kept**2) / 2.0)
        error = speed_error(durations_s, np.ones(len(durations_s)), None)
        held += abs(np.log(durations_s.mean() / expected_s)) <= 2.0 * error
    assert 0.9 <= held / 200 <= 0.99


def test_a_goal_asks_for_whole_cycles_as_far_as_it_may():
    """Two seconds are enough for even steps; where stalls come every two, six are asked for, or what is allowed."""
    goal = WindowGoal(min_s=1.0, min_steps=10, target_s=2.0, most_s=10.0)
    even, two, four = (steady_window(events_of(one)) for one in ([0.5] + [0.02] * 150, stalling(2), stalling(4)))
    assert [goal.is_met_by(window) for window in (even, two, four)] == [True, False, True]
    assert WindowGoal(min_s=1.0, min_steps=10, target_s=2.0).is_met_by(two)


def test_a_step_that_was_cut_short_counts():
    """A trial that is ended in the middle of a long step has not had the speed of the short ones."""
    events = events_of([0.5] + [0.01] * 200)
    ended_s = events[-1].t_s
    assert steady_window(events, cut_s=ended_s + 0.02).steps == 200
    cut = steady_window(events, cut_s=ended_s + 2.0)
    assert cut.time_s == pytest.approx(4.0)
    assert cut.speed_error() > 0.3


def test_what_stalls_are_is_measured_step_by_step():
    """Their share, their length, and whether they wait for data; blocks of steps would average them away."""
    durations_s = stalling(6)
    events = events_of(durations_s, wait_s=0.0)
    waits_s = (0.75 if length > 0.9 else 0.0 for length in durations_s)
    events = [replace(event, wait_s=wait_s) for event, wait_s in zip(events, waits_s, strict=True)]
    measured = measure_trial(steady_window(events), started_s=99.0)
    assert (measured.step_p50_s, measured.step_max_s) == pytest.approx((0.01, 1.0))
    assert measured.cv == pytest.approx(4.95, abs=0.05)
    assert (measured.stall_fraction, measured.stall_wait_fraction) == pytest.approx((0.99 / 1.99, 0.75))


def test_stalls_at_the_ends_of_epochs_are_told_from_others():
    """By what the trainer has said: a refilled pipeline is another matter than a slow disk."""
    durations_s = stalling(6)
    events = events_of(durations_s)
    long = [event for event, length in zip(events, durations_s, strict=True) if length > 0.9]
    ended = [replace(event, kind="epoch_end", t_s=event.t_s - 0.95) for event in long[::2]]
    measured = measure_trial(steady_window([*events, *ended]), started_s=99.0)
    assert measured.stall_epoch_fraction == pytest.approx(0.5, abs=0.11)
    assert measure_trial(steady_window(events), started_s=99.0).stall_epoch_fraction == 0.0
