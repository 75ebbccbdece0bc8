"""Tests of what single trials show: steadiness, time outside of steps, memory, the fixed cost of a step."""

from dataclasses import replace

import pytest

from autotune.diagnose.findings import Limit
from autotune.diagnose.measured_machine import judge_memory, largest_batch
from autotune.diagnose.measured_steps import (
    ReplayedSteps,
    judge_fixed_cost,
    judge_outside_steps,
    judge_steadiness,
    retraced_function,
    timed_steps,
)
from autotune.measure.phases import Bounds
from autotune.records import Machine, Ratio, TraineeEvent
from tests.runs import measured

GIB = 1 << 30
FREE = Bounds(
    free_data=Ratio(ratio=1.0, low=0.99, high=1.01),
    free_step=Ratio(ratio=9.0, low=8.0, high=10.0),
    speeds={},
    counts_samples=True,
    cores={},
)


def steps(durations_s: list[float], *, after: dict[int, tuple[str, float]] | None = None) -> list[TraineeEvent]:
    """Return steps of these lengths; behind some of them an event of a kind, which takes its time."""
    found, t_s = [TraineeEvent(kind="step", t_s=0.0, stream="7.0")], 0.0
    for number, duration_s in enumerate(durations_s, start=1):
        t_s += duration_s
        found.append(TraineeEvent(kind="step", t_s=t_s, stream="7.0", wait_s=0.0))
        if after and number in after:
            kind, took_s = after[number]
            t_s += took_s
            found.append(TraineeEvent(kind=kind, t_s=t_s, stream="7.0", duration_s=took_s or None))
    return found


@pytest.mark.parametrize(("every", "words"), [(20, "every 20 steps"), (37, "every 37 steps")])
def test_slow_steps_that_recur_are_said_to(every: int, words: str) -> None:
    """Their distance in steps, their share of the time, and that they do not wait for data."""
    events = steps([0.5 if number % every == 0 else 0.02 for number in range(1, 400)])
    (issue,) = judge_steadiness(timed_steps(events)).issues
    assert words in issue.sentence
    assert "do not wait for data" in issue.sentence
    assert issue.limit is Limit.STALLS
    assert issue.bound is not None
    assert issue.bound.low > 1.05


def test_slow_starts_of_epochs_are_told_from_other_stalls() -> None:
    """The step behind the end of an epoch is slow: that is where to look."""
    ends = dict.fromkeys(range(50, 400, 50), ("epoch_end", 0.0))
    events = steps([0.6 if number % 50 == 1 and number > 1 else 0.02 for number in range(1, 400)], after=ends)
    (issue,) = judge_steadiness(timed_steps(events)).issues
    assert "at the beginning of each epoch" in issue.sentence


def test_one_disturbance_is_no_pattern() -> None:
    """Ten slow steps in a row are one event, and nothing to find in the trainer."""
    events = steps([0.5 if 100 <= number < 110 else 0.02 for number in range(1, 400)])
    assert not judge_steadiness(timed_steps(events)).issues


def test_a_pause_is_no_slow_step() -> None:
    """An evaluation is looked at elsewhere."""
    after = dict.fromkeys(range(40, 400, 40), ("eval", 1.0))
    events = steps([0.02] * 400, after=after)
    assert not judge_steadiness(timed_steps(events)).issues
    (issue,) = judge_outside_steps(events).issues
    assert issue.limit is Limit.OUTSIDE
    assert issue.numbers["time_fraction"] == pytest.approx(0.53, abs=0.02)
    assert "evaluate more seldom" in issue.sentence


def test_a_first_evaluation_that_compiles_does_not_stand_for_all() -> None:
    """The median of them counts."""
    after = {40: ("eval", 6.0), 200: ("eval", 0.1), 360: ("eval", 0.1)}
    assert not judge_outside_steps(steps([0.05] * 400, after=after)).issues


def test_what_is_seen_once_is_uncertain() -> None:
    """Half of its time is certain, and it may recur at once."""
    (issue,) = judge_outside_steps(steps([0.05] * 100, after={60: ("checkpoint", 2.5)})).issues
    assert issue.bound is not None
    assert issue.bound.low < issue.bound.ratio < issue.bound.high


def test_a_training_without_pauses_says_so() -> None:
    """None was seen, which is not the same as none there is."""
    assert judge_outside_steps(steps([0.05] * 100)).sentence == "No evaluation and no checkpoint was seen."


@pytest.mark.parametrize(("fixed", "is_issue"), [(0.9, True), (0.2, False)])
def test_the_fixed_cost_of_a_step(fixed: float, is_issue: bool) -> None:
    """A step of which most stays with twice the batch is limited by what does not depend on it."""
    one = ReplayedSteps(batch=8, step_s=[0.01] * 20)
    other = ReplayedSteps(batch=16, step_s=[0.01 * (2 - fixed)] * 20)
    result = judge_fixed_cost(one, other, FREE)
    assert bool(result.issues) is is_issue
    assert f"{100 * fixed:.0f} %" in (result.issues[0].sentence if is_issue else result.sentence)


def test_a_step_that_hardly_counts_is_not_worth_it() -> None:
    """Where the loader is the limit, a step without its fixed cost gains no more than a free step does."""
    one, other = ReplayedSteps(batch=8, step_s=[0.01] * 9), ReplayedSteps(batch=16, step_s=[0.0105] * 9)
    limited = replace(FREE, free_step=Ratio(ratio=1.01, low=1.0, high=1.02))
    assert not judge_fixed_cost(one, other, limited).issues
    assert judge_fixed_cost(None, other, FREE).why_not


def test_memory_that_grows_is_told_by_when_it_is_full() -> None:
    """100 MiB a minute fill 2 GiB in 20 minutes."""
    machine = Machine(cpu_cores=2, cpu_model="x", memory_bytes=4 * GIB)
    numbers = replace(measured(10.0), peak_memory_bytes=2 * GIB)
    series = tuple((float(t_s), int(2 * GIB + t_s * 100 * (1 << 20) / 60)) for t_s in range(40))
    (issue,) = judge_memory(machine, numbers, (series, ()), []).issues
    assert "MiB a minute" in issue.sentence
    assert "full after 20m" in issue.sentence


def test_memory_that_stays_is_fine() -> None:
    """Its use is told all the same; a host that is nearly full is an issue."""
    machine = Machine(cpu_cores=2, cpu_model="x", memory_bytes=4 * GIB)
    series = tuple((float(t_s), 2 * GIB) for t_s in range(40))
    fine = judge_memory(machine, replace(measured(10.0), peak_memory_bytes=2 * GIB), (series, ()), [])
    assert not fine.issues
    assert "2.0 of 4.0 GiB" in fine.sentence
    assert judge_memory(machine, replace(measured(10.0), peak_memory_bytes=int(3.9 * GIB)), (series, ()), []).issues


def test_the_largest_safe_batch_lies_on_a_line() -> None:
    """2 GiB and 1 GiB for each 8 samples: of 24 GiB, 128 samples are safe, 256 are not."""
    numbers = [
        (8.0, replace(measured(10.0), gpu_memory_bytes=3 * GIB)),
        (16.0, replace(measured(10.0), gpu_memory_bytes=4 * GIB)),
    ]
    assert largest_batch(numbers, 24 * GIB) == 128
    taken = [(batch, replace(one, gpu_memory_bytes=23 * GIB)) for batch, one in numbers]
    assert largest_batch(taken, 24 * GIB) is None, "a framework that takes it all says nothing"
    assert largest_batch(numbers[:1], 24 * GIB) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("function step at 0x7f3d", "step"),
        ("function Model.train.<locals>.one_step at 0x7f3d", "Model.train.<locals>.one_step"),
        ("bound method Model.step of <__main__.Model object at 0x7f3d>", "Model.step"),
    ],
)
def test_tensorflow_s_own_warning_names_what_is_traced_again(name: str, found: str) -> None:
    """The function stands in the issue, with what to do."""
    warning = f"WARNING:tensorflow:5 out of the last 5 calls to <{name}> triggered tf.function retracing. Tr"
    assert retraced_function(f"epoch 1\n{warning}\n") == found
    assert retraced_function("epoch 1\n") is None
    one, other = ReplayedSteps(batch=8, step_s=[0.01] * 9), ReplayedSteps(batch=16, step_s=[0.01] * 9)
    (issue,) = judge_fixed_cost(one, other, FREE, retraced=found).issues
    assert f"traces {found} again and again" in issue.sentence
