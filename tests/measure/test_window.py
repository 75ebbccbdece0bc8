"""Promises of the steady window, on the events that a trial reports."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.probe import GpuUsage, HostUsage
from autotune.measure.window import WindowGoal, main_stream, measure_trial, pauses_of, stages_between, steady_window
from autotune.records import GpuFigures, GpuMeasurement, TraineeEvent
from autotune.stage_times import PipelineTimes, StageTimes


def events_of(durations_s, *, start_s=100.0, stream="7.0", samples=None, work=None, wait_s=None):
    """A stream of steps; the first duration is that of the first step, from ``start_s``."""
    works = [None] * len(durations_s) if work is None else [float(one) for one in work]
    about = {"kind": "step", "stream": stream, "samples": samples, "wait_s": wait_s}
    ends_s = [float(t_s) for t_s in start_s + np.cumsum(durations_s)]
    return [TraineeEvent(t_s=t_s, work=work, **about) for t_s, work in zip(ends_s, works, strict=True)]


def mark(kind, t_s, *, stream="7.0"):
    """A mark that is no step."""
    return TraineeEvent(kind=kind, t_s=t_s, stream=stream)


def test_throughput_is_samples_over_the_time_of_the_window():
    """Steps of 0.1 s with 8 samples are 80 samples a second, the slow first step notwithstanding."""
    window = steady_window(events_of([11.0] + [0.1] * 100, samples=8.0))
    measured = measure_trial(window, started_s=97.0)
    assert (measured.samples_per_s, measured.steps, measured.window_s) == pytest.approx((80.0, 100, 10.0))
    assert (measured.step_p50_s, measured.step_p95_s) == pytest.approx((0.1, 0.1))
    assert (measured.cv, measured.stall_fraction) == (pytest.approx(0.0, abs=1e-9), 0.0)
    assert (measured.beat_s, measured.cycles) == (None, None)
    assert measured.first_step_s == pytest.approx(14.0)


def test_warm_up_is_cut():
    """Slow steps after the first are not counted."""
    window = steady_window(events_of([2.0] + [0.4] * 10 + list(np.random.default_rng(1).normal(0.1, 0.005, 100))))
    assert window.t0_s >= 100.0 + 2.0 + 10 * 0.4 - 1e-9
    assert window.steps >= 80
    assert window.time_s / window.steps == pytest.approx(0.1, rel=0.02)


def test_long_batches_are_not_cut_as_warm_up():
    """A curriculum that begins with long utterances is steady per frame, so nothing is cut."""
    work = np.concatenate(([50.0], np.full(60, 100.0), np.full(60, 50.0)))
    window = steady_window(events_of(work * 1e-3, work=work))
    assert window.steps == 120
    assert window.cv() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kind", ["eval", "checkpoint"])
def test_pauses_are_left_out(kind):
    """The step in which the trainer evaluated or saved does not count, neither its time nor its samples.

    The end of an epoch is a cost of the config, and a pause of another process, such as a data worker, is none.
    """
    events = events_of([1.0] + [0.1] * 50 + [5.0] + [0.1] * 50, samples=4.0)
    window = steady_window([*events, mark(kind, 109.0)])
    assert window.steps == 100
    assert window.time_s == pytest.approx(10.0)
    assert window.t1_s - window.t0_s == pytest.approx(15.0)
    assert measure_trial(window, started_s=100.0).samples_per_s == pytest.approx(40.0)
    for other in (mark("epoch_end", 109.0), mark(kind, 109.0, stream="8.0")):
        assert steady_window([*events, other]).steps == 101


def test_the_window_has_whole_rounds_of_gradient_accumulation():
    """Each of them has one update, whose time is shared by all batches; a round with a pause is left out as a whole."""
    durations_s = [2.0] + [0.1, 0.1, 0.1, 0.5] * 20 + [0.1, 0.1]
    updates = [True] + [False, False, False, True] * 20 + [False, False]
    steps = events_of(durations_s, samples=8.0)
    steps = [replace(step, update=done) for step, done in zip(steps, updates, strict=True)]
    for events, rounds in ((steps, 20), ([*steps, mark("eval", steps[42].t_s + 0.01)], 19)):
        window = steady_window(events)
        assert window.steps == 4 * (rounds - 2)  # without what comes before the first whole cycle, and the last one
        assert window.samples_per_s(None) == pytest.approx(4 * 8.0 / 0.8)


def test_the_first_pass_is_left_out_where_caches_fill():
    """Nothing before ``after_s`` counts, not even a step that began before it."""
    events = events_of([1.0] + [0.2] * 50 + [0.1] * 50)
    window = steady_window(events, after_s=111.05)
    assert window.steps == 49
    assert window.t0_s == pytest.approx(111.1)


def test_the_main_stream_is_the_one_with_most_steps():
    """Other loops and processes do not mix into the window."""
    side = events_of([0.5] * 10, stream="7.1")
    main = events_of([0.1] * 60, stream="7.2", samples=2.0)
    events = sorted(side + main, key=lambda event: event.t_s)
    assert main_stream(events) == "7.2"
    assert measure_trial(steady_window(events), started_s=100.0).samples_per_s == pytest.approx(20.0)
    assert main_stream([mark("epoch_end", 1.0)]) is None


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_no_window_from_too_few_steps(steps):
    """Up to four timed steps there is nothing to judge; a fifth makes a window."""
    assert steady_window(events_of([0.1] * steps)) is None
    assert steady_window(events_of([0.1] * 6)).steps == 5


def test_samples_fall_back_to_the_batch_size():
    """The batch size of the config counts where steps do not say, and else each step is one."""
    window = steady_window(events_of([0.1] * 51))
    assert measure_trial(window, started_s=100.0, default_samples=32.0).samples_per_s == pytest.approx(320.0)
    assert measure_trial(window, started_s=100.0).samples_per_s == pytest.approx(10.0)


def test_waiting_for_data_is_a_share_of_the_steps_that_report_it():
    """A missing report is no waiting of zero, and none at all is None."""
    quiet, waiting = events_of([0.1] * 31), events_of([0.1] * 30, start_s=103.1, wait_s=0.04)
    for events, fraction in ((quiet, None), (waiting, 0.4), (quiet + waiting, 0.4)):
        measured = measure_trial(steady_window(events), started_s=100.0)
        assert measured.data_wait_fraction == (fraction and pytest.approx(fraction))


def test_what_the_probes_saw_is_carried_along():
    """Host and GPU figures arrive; without probes they are absent."""
    window = steady_window(events_of([0.1] * 31))
    bare = measure_trial(window, started_s=100.0)
    assert (bare.cpu_cores, bare.peak_memory_bytes, bare.gpu_utilization) == (None, None, None)
    gpu = GpuMeasurement(figures=GpuFigures(uuid="GPU-1", name="H100", utilization=0.4))
    host = HostUsage(cpu_cores=1.5, peak_memory_bytes=2**30)
    usage = GpuUsage(utilization=0.4, power_w=200.0, devices=(gpu,))
    full = measure_trial(window, started_s=100.0, host=host, gpu=usage)
    assert (full.cpu_cores, full.peak_memory_bytes, full.gpu_utilization) == (1.5, 2**30, 0.4)
    assert full.gpus == (gpu,)
    assert full.energy_per_sample_j == pytest.approx(200.0 / full.samples_per_s)


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=150))
def test_any_series_of_steps_is_measurable_or_has_no_window(durations_s):
    """Steps at the same instant included, a window always gives finite numbers within its trial."""
    window = steady_window(events_of(durations_s))
    if window is not None:
        measured = measure_trial(window, started_s=100.0)
        assert 100.0 <= window.t0_s < window.t1_s <= 100.0 + sum(durations_s) + 1e-6
        assert 0 < measured.window_s <= window.t1_s - window.t0_s + 1e-6
        assert 0 < measured.samples_per_s < np.inf


def test_noise_within_a_trial_predicts_that_of_shorter_windows():
    """The variance over 1 s, divided by the length, is what means over pieces of that length show."""
    random = np.random.default_rng(3)
    noise = random.normal(0, 0.01, 40_001)
    series = 0.1 + noise + 0.9 * np.roll(noise, 1)
    window = steady_window(events_of(series))
    pieces = series[1:].reshape(-1, 100).sum(axis=1)
    expected = (pieces.std() / pieces.mean()) ** 2 * pieces.mean()
    assert window.within_variance_s() == pytest.approx(expected, rel=0.25)


def test_a_goal_is_met_at_its_length_and_not_before():
    """Both the time and the number of steps have to be there."""
    goal = WindowGoal(min_s=2.0, min_steps=10, target_s=3.0)
    windows = [steady_window(events_of(durations)) for durations in ([0.25] * 12, [0.25] * 13, [1.0] * 10, [1.0] * 11)]
    assert [goal.is_met_by(window) for window in (None, *windows)] == [False, False, True, False, True]


def test_looks_are_few_and_end_soon_after_the_goal():
    """A watch that looks when told needs a handful of looks and overshoots by a quarter at most."""
    goal = WindowGoal(min_s=2.0, min_steps=10, target_s=8.0)
    events = events_of([5.0] + [0.1] * 10 + [0.02] * 2000)
    counts = range(1, len(events), 10)
    enough_s = next(events[count - 1].t_s for count in counts if goal.is_met_by(steady_window(events[:count])))
    look_s, looks = 0.0, 0
    for count, event in enumerate(events):
        if event.t_s >= look_s:
            looks += 1
            window = steady_window(events[: count + 1])
            if goal.is_met_by(window):
                break
            look_s = goal.next_look_s(event.t_s, window)
    assert looks <= 8
    assert event.t_s <= enough_s + goal.length_s / 4


def test_times_of_stages_are_those_of_the_window():
    """Work before it, while the first step was compiled, is not in them; one report is not enough."""

    def stages(t_s, batches, busy_s):
        side = StageTimes(batches=batches, busy_s=busy_s, input_s=0.0, room_s=0.0)
        times = PipelineTimes(passed_s=t_s - 100.0, data=side, model=side)
        return TraineeEvent(kind="stages", t_s=t_s, stream="7.0", stages=times)

    events = events_of([11.0] + [0.1] * 100)
    reports = [stages(105.0, 1, 4.0), stages(112.0, 20, 12.0), stages(118.0, 70, 17.0), stages(150.0, 99, 40.0)]
    found = stages_between(events + reports, steady_window(events))
    assert (found.passed_s, found.data.batches, found.model.busy_s) == (6.0, 50, 5.0)
    assert stages_between(events + reports[:2], steady_window(events)) is None
    assert stages_between(events, steady_window(events)) is None


def ready(batches, durations_s, waits_s):
    """Events of steps before which so many batches were ready."""
    events = events_of(durations_s)
    steps = [replace(event, wait_s=wait_s) for event, wait_s in zip(events, waits_s, strict=True)]
    return [TraineeEvent(kind="begin", t_s=99.0, stream=steps[0].stream, batches=batches), *steps]


@pytest.mark.parametrize("waits", [True, False])
def test_batches_that_were_ready_before_the_first_step_do_not_count(waits):
    """They were made before it. Where a step waits for its batch, none is left, as far as waits are known."""
    durations_s = [0.5, *[0.1] * 8, *[0.2] * 60]
    waits_s = [0.4, *[0.0] * 8, *[0.15] * 60] if waits else [None] * 69
    window = steady_window(ready(16, durations_s, waits_s))
    assert window.steps == (60 if waits else 52)
    assert window.time_s == pytest.approx(0.2 * window.steps)
    early = steady_window(ready(64, durations_s[:9], waits_s[:9]))
    assert early.steps == 5
    assert steady_window(ready(64, durations_s[:21], [None] * 21), cut_s=200.0).steps >= 10


def test_pauses_take_what_their_steps_take_beyond_usual_ones():
    """An evaluation of 2 s and an epoch's end of 0.5 s, in 250 steps of 8 samples.

    A checkpoint at the start says nothing of how often one comes, and the last one is followed by no step.
    """
    steps = [0.1] * 251
    steps[100] += 2.0
    steps[200] += 0.5
    ends_s = 100.0 + np.cumsum(steps)
    marks = [
        mark("checkpoint", ends_s[1]),
        mark("eval", ends_s[99] + 1.9),
        mark("epoch_end", ends_s[199]),
        mark("checkpoint", ends_s[-1] + 1.0),
    ]
    events = [*events_of(steps, samples=8.0), *marks, mark("eval", ends_s[50] + 0.05, stream="8.0")]
    window = steady_window(events)
    pauses = pauses_of(events, window)
    assert (pauses.evaluations, pauses.epoch_ends, pauses.checkpoints) == (1, 1, 0)
    assert (pauses.time_s, pauses.in_window_s) == pytest.approx((2.5, 0.5))
    assert pauses.samples == 201 * 8.0
    measured = replace(measure_trial(window, started_s=100.0), pauses=pauses)
    assert 1.0 / measured.sample_s == pytest.approx(80.0)
    assert measured.overall_samples_per_s == pytest.approx(1.0 / (1 / 80.0 + 2.5 / 1608))
    assert measure_trial(window, started_s=100.0).overall_samples_per_s is None
