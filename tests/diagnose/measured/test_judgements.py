"""Tests of what single trials show: steadiness, time outside of steps, memory, the fixed cost of a step."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.diagnose.findings import CheckResult, GainBasis, Issue, Limit, Recommendation, Severity, bound_text
from autotune.diagnose.phased_checks import ReplayedSteps, judge_fixed_cost, judge_input
from autotune.diagnose.place_checks import judge_own_loading, judge_start, without_loading
from autotune.diagnose.shares import by_waiting, of_phases, time_shares, without_input
from autotune.diagnose.step_checks import (
    judge_costs,
    judge_outside_steps,
    judge_steadiness,
    slow_steps,
    timed_steps,
)
from autotune.diagnose.surroundings import judge_memory, judge_ranks, largest_batch
from autotune.diagnose.verdict import verdict_of
from autotune.measure.phases import Bounds, PhasedTrial, PhaseRound
from autotune.records import Machine, RankMeasurement, Ratio, TraineeEvent, TrialPhase
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


EPOCHS = dict.fromkeys(range(50, 400, 50), ("epoch_end", 0.0))


@pytest.mark.parametrize(
    ("slow", "after", "words"),
    [
        (range(20, 400, 20), {}, "every 20 steps"),
        (range(37, 400, 37), {}, "every 37 steps"),
        (range(51, 400, 50), EPOCHS, "at the start of each epoch"),
        (range(100, 110), {}, None),  # ten in a row are one event, and nothing to find in the trainer
    ],
)
def test_slow_steps_that_recur_are_said_to(slow: range, after: dict[int, tuple[str, float]], words: str | None) -> None:
    """Their distance, their share of the time, and that they do not wait for data."""
    events = steps([0.5 if number in slow else 0.02 for number in range(1, 400)], after=after)
    issues = judge_steadiness(timed_steps(events)).issues
    why = "callbacks start again" if words and "epoch" in words else "do not wait for data"
    assert [words in issue.sentence and why in issue.sentence for issue in issues if words] == ([True] if words else [])
    assert all(issue.limit is Limit.STALLS and issue.bound and issue.bound.low > 1.05 for issue in issues)
    assert bool(issues) is bool(words)


@pytest.mark.parametrize(
    ("grows", "step_s", "said"),
    [
        (
            6.0,
            0.003,
            "Steps slow down from 3.5 ms to 15 ms within 2980 steps and 27s: twice as long every 11s (9.7s",
        ),
        (1.3, 0.015, "31 % slower every minute (27 % to 34 %)"),
        (1.05, 0.003, None),
    ],
)
def test_steps_that_get_slower_and_slower_are_said_to(grows: float, step_s: float, said: str | None) -> None:
    """By how much, and how fast; single slow steps change nothing."""
    rng = random.Random(1)
    made = [step_s * grows ** (number / 3000) * rng.lognormvariate(0.0, 0.1) for number in range(3000)]
    made[500:2500:100] = [0.2] * 20
    issues = [one for one in judge_steadiness(timed_steps(steps(made))).issues if one.limit is Limit.DRIFT]
    assert [said in one.sentence for one in issues if said] == ([True] if said else [])
    assert bool(issues) is bool(said)


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_that_is_slower_for_a_while_makes_no_steps_slower_and_slower(seed: int) -> None:
    """Phases of other speeds come and go, and one that comes last is no trend."""
    rng = random.Random(seed)
    made, pace = [], 1.0
    for number in range(2000):
        pace = rng.choice([1.0, 1.3, 1.7]) if number % 250 == 0 else pace
        made.append(0.01 * pace * rng.lognormvariate(0.0, 0.1))
    assert not [one for one in judge_steadiness(timed_steps(steps(made))).issues if one.limit is Limit.DRIFT]


def test_the_line_of_slow_steps_is_named() -> None:
    """The line that the loop stays in for most of them, and not one that it stays in at other times."""
    events = steps([0.5 if number % 40 == 0 else 0.02 for number in range(1, 400)])
    slow = [after.t_s for before, after in pairwise(events) if after.t_s - before.t_s > 0.1]
    about = {"kind": "cost", "stream": "7.0", "cost": "stay"}
    stays = [TraineeEvent(t_s=t_s, place="/home/me/train.py:39 main", duration_s=0.48, **about) for t_s in slow]  # type: ignore[arg-type]
    stays.append(TraineeEvent(t_s=slow[0] - 1.0, place="/home/me/train.py:7 load", duration_s=30.0, **about))  # type: ignore[arg-type]
    (issue,) = judge_steadiness(timed_steps(events), stays, "/home/me").issues
    assert issue.place == "train.py:39"
    assert issue.sentence.endswith(" 96 % of that time the loop is at train.py:39 in main.")
    assert judge_steadiness(timed_steps(events)).issues[0].place == ""


def test_an_evaluation_that_is_no_event_is_told_by_what_is_called(tmp_path: Path) -> None:
    """Of lines that call each other the innermost one that the loop stays in; its source names the evaluation."""
    (tmp_path / "train.py").write_text("for x in data:\n    step(x)\n    mae = validate(model)\n")
    events = steps([0.5 if number % 40 == 0 else 0.02 for number in range(1, 400)])
    slow = [after.t_s for before, after in pairwise(events) if after.t_s - before.t_s > 0.1]
    about = {"kind": "cost", "stream": "7.0", "cost": "stay"}
    stays = []
    for t_s in slow:
        stays.append(TraineeEvent(t_s=t_s, place=f"{tmp_path}/train.py:3 <module>", duration_s=0.48, times=1, **about))  # type: ignore[arg-type]
        stays += [
            TraineeEvent(t_s=t_s - 0.1 * n, place=f"{tmp_path}/train.py:{9 + n} run", duration_s=0.1, times=2, **about)  # type: ignore[arg-type]
            for n in range(4)
        ]
    (issue,) = judge_steadiness(timed_steps(events), stays, str(tmp_path)).issues
    assert (issue.place, issue.limit) == ("train.py:3", Limit.OUTSIDE)
    assert issue.sentence.endswith("That is validate.")


def loop_of(within_s: float = 0.0, **lines: tuple[float, float]) -> list[TraineeEvent]:
    """Return 200 steps in 10 s, and what lines took of that, with their CPU time, and that within a framework."""
    events = steps([0.05] * 200)
    about = {"kind": "cost", "stream": "7.0", "cost": "loop", "t_s": 10.0}
    return events + [
        TraineeEvent(
            place=f"/home/me/train.py:{name[1:]} batch", duration_s=took_s, text=f"{cpu_s} {within_s}", **about
        )  # type: ignore[arg-type]
        for name, (took_s, cpu_s) in lines.items()
    ]


@pytest.mark.parametrize(
    ("lines", "limit", "share"),
    [
        ({"_9": (8.5, 0.1)}, Limit.READING, 0.85),
        ({"_9": (5.0, 4.9), "_10": (3.5, 3.5)}, Limit.PREPARING, 0.85),  # two lines of one function
        ({"_9": (4.0, 3.9)}, Limit.OVERLAP, 0.4),  # as long as the step, about
        ({"_9": (0.5, 0.5)}, None, 0.0),
    ],
)
def test_a_loop_that_loads_by_itself_is_seen_by_its_lines(
    lines: dict[str, tuple[float, float]], limit: Limit | None, share: float
) -> None:
    """Where it is outside of its framework, and whether it computes there; what slow steps take is told as theirs."""
    found = judge_own_loading(loop_of(**lines), CheckResult(check="steadiness"), "/home/me")
    assert found is not None
    assert [one.limit for one in found.issues] == ([limit] if limit else [])
    if limit:
        assert found.issues[0].numbers["time_fraction"] == pytest.approx(share)
        assert found.issues[0].place == "train.py:9"
        stalls = replace(found.issues[0], check="steadiness", limit=Limit.STALLS)
        same = judge_own_loading(loop_of(**lines), CheckResult(check="steadiness", issues=(stalls,)), "/home/me")
        assert same is not None
        assert same.issues == ()
    assert judge_own_loading(steps([0.05] * 200), CheckResult(check="steadiness"), "/home/me") is None


def test_a_buffer_that_is_refilled_is_the_place_of_stalls_at_epochs() -> None:
    """The loop's own line, where these steps wait, says less."""
    events = steps([1.0 if number % 50 == 1 else 0.02 for number in range(1, 400)], after=EPOCHS)
    stalls = judge_steadiness(timed_steps(events), events, "/home/me")
    advice = Recommendation(sentence="Shuffle before the map.")
    buffer = Issue(
        check="code",
        severity=Severity.NOTE,
        sentence="the shuffle buffer holds prepared samples",
        limit=Limit.STALLS,
        place="train.py:31",
        recommendations=(advice,),
    )
    (share, *_) = time_shares([stalls], FREE, [CheckResult(check="code", issues=(buffer,))])
    assert (share.limit, share.place) == (Limit.STALLS, "train.py:31")
    assert share.change is not None
    assert share.change.sentence == advice.sentence
    assert "Look at train.py:31" in verdict_of([stalls], static=[CheckResult(check="code", issues=(buffer,))]).sentence


def test_metrics_that_each_step_computes_are_no_input() -> None:
    """By their names, all of them together: the data are not what the steps wait for."""
    names = {"9": "update_auc", "20": "calibration"}
    events = [
        replace(event, place=event.place.replace("batch", names[event.place.split(":")[1].split()[0]]))
        if event.place
        else event
        for event in loop_of(_9=(4.5, 4.4), _20=(4.0, 4.0))
    ]
    found = judge_own_loading(events, CheckResult(check="steadiness"), "/home/me")
    assert found is not None
    (issue,) = found.issues
    assert (issue.limit, issue.place) == (Limit.OUTSIDE, "train.py:9")
    assert "85 % of the time outside of its framework, in update_auc and calibration (mostly at" in issue.sentence
    assert "less often" in issue.recommendations[0].sentence


@pytest.mark.parametrize(("computes_s", "limit"), [(8.0, Limit.PREPARING), (1.0, Limit.READING)])
def test_a_loop_that_waits_for_a_thread_that_computes_is_limited_by_that(computes_s: float, limit: Limit) -> None:
    """Reading is the limit only if nothing computes meanwhile."""
    thread = TraineeEvent(
        kind="cost",
        stream="7.0",
        t_s=10.0,
        cost="thread",
        place="/home/me/load.py:7 fill",
        duration_s=computes_s,
        times=1,
    )
    found = judge_own_loading([*loop_of(_9=(8.5, 0.1)), thread], CheckResult(check="steadiness"), "/home/me")
    assert found is not None
    (issue,) = found.issues
    assert (issue.limit, issue.place) == (limit, "load.py:7" if limit is Limit.PREPARING else "train.py:9")


@pytest.mark.parametrize(("in_usual_s", "is_loading"), [(3.0, True), (0.1, False)])
def test_slow_steps_are_slow_by_loading_where_that_takes_time_of_each(in_usual_s: float, is_loading: bool) -> None:
    """A batch that was not ready in the queue; what is done in some steps alone, as logging is, is no loading."""
    events = steps([0.5 if number % 40 == 0 else 0.02 for number in range(1, 400)])
    slow = [(step.end_s - step.duration_s, step.end_s) for step in slow_steps(timed_steps(events))]
    about = {"kind": "cost", "stream": "7.0", "place": "/home/me/train.py:9 batch"}
    stays = [TraineeEvent(t_s=end_s, cost="stay", duration_s=0.45, **about) for _, end_s in slow]  # type: ignore[arg-type]
    took_s = 0.45 * len(slow) + in_usual_s
    loop = TraineeEvent(t_s=events[-1].t_s, cost="loop", duration_s=took_s, text="0.0 0.0", **about)  # type: ignore[arg-type]
    found = judge_steadiness(timed_steps(events))
    assert bool(without_loading(found, [*events, *stays, loop], slow).issues) is not is_loading
    assert without_loading(found, events, slow) == found


@pytest.mark.parametrize(
    ("used_s", "late", "is_limit"), [(6.0, "0.004", True), (6.0, "0.0002", False), (1.0, "0.004", False)]
)
def test_threads_that_hold_pythons_lock_are_the_limit(used_s: float, late: str, is_limit: bool) -> None:
    """Where they compute in Python: numpy releases the lock. Steps that are slow by it are no stalls of their own."""
    events = steps([0.2 if number % 20 == 0 else 0.04 for number in range(1, 230)])
    about = {"kind": "cost", "stream": "7.0", "t_s": 10.0, "times": 1}
    loop = TraineeEvent(cost="loop", place="/home/me/train.py:9 main", duration_s=0.1, text="0.0 0.0", **about)  # type: ignore[arg-type]
    thread = TraineeEvent(cost="thread", place="/home/me/load.py:7 fill", duration_s=used_s, text=late, **about)  # type: ignore[arg-type]
    events = sorted([*events, loop, thread], key=lambda one: one.t_s)
    slow = [(step.end_s - step.duration_s, step.end_s) for step in slow_steps(timed_steps(events))]
    steadiness = judge_steadiness(timed_steps(events))
    assert steadiness.issues
    assert bool(without_loading(steadiness, events, slow).issues) is not is_limit
    found = judge_own_loading(events, CheckResult(check="steadiness"), "/home/me")
    assert found is not None
    assert [(one.limit, one.place) for one in found.issues] == ([(Limit.PREPARING, "load.py:7")] if is_limit else [])


@pytest.mark.parametrize(
    ("wait_s", "every", "phase_s", "is_input"),
    [
        (0.45, 0, 0.06, True),
        (0.45, 0, 0.02, False),  # phases had none of them
        (0.45, 40, 0.06, False),  # what recurs so rarely is a refill, say
        (0.45, 16, 0.11, True),
        (0.0, 0, 0.06, False),
    ],
)
def test_waits_for_data_are_the_inputs_issue_unless_they_recur_rarely(
    wait_s: float, every: int, phase_s: float, is_input: bool
) -> None:
    """Steps of 20 ms that now and then wait: the mean is 60 ms, also in phases."""
    slow = range(20, 400, every) if every else [3, 20, 25, 70, 78, 130, 145, 150, 230, 236, 240, 310, 390]
    slow = {number for start in slow for number in range(start, start + 3)}
    made = [
        replace(step, duration_s=0.5, wait_s=wait_s) if step.number in slow else replace(step, wait_s=0.0)
        for step in timed_steps(steps([0.02] * 400))
    ]
    found = judge_steadiness(made)
    assert found.issues
    trial = PhasedTrial(rounds=(PhaseRound(speeds={TrialPhase.TRAIN: 8.0 / phase_s}, batch=8.0),), counts_samples=True)
    assert bool(without_input(found, trial, made).issues) is not is_input


@pytest.mark.parametrize(("waits", "with_free_data"), [(0.7, 1.0 / (1.0 / 3.5 + 0.4)), (0.3, 3.5)])
def test_a_slow_rank_s_wait_for_data_is_not_counted_twice(waits: float, with_free_data: float) -> None:
    """With free data the rank would not be slow: its share is taken from the input's."""
    of_first = RankMeasurement(number=0, node="n1", step_s=0.01, data_wait_fraction=0.3, own_fraction=0.3)
    other = RankMeasurement(number=1, node="n1", step_s=0.01, data_wait_fraction=waits, own_fraction=0.7)
    ranks = judge_ranks(replace(measured(50.0), ranks=(of_first, other)))
    free = replace(FREE, free_data=Ratio(ratio=3.5, low=2.8, high=4.7))
    bounds = of_phases(free, PhasedTrial(rounds=(), counts_samples=True), [], ranks)
    assert bounds.free_data is not None
    assert bounds.free_data.ratio == pytest.approx(with_free_data)
    shares = {one.cause: one.fraction for one in time_shares([ranks, judge_input(bounds, 2)], bounds, [])}
    assert shares["waiting for one rank"] == pytest.approx(0.4)
    assert shares["waiting for data"] == pytest.approx(min(0.6, 1.0 - 1.0 / with_free_data))


def test_what_an_evaluation_traces_is_no_compilation() -> None:
    """Its time is its own; the same traces in steps are told with what these take."""
    for kind, is_told in (("eval", False), ("note", True)):
        events = []
        for event in steps([0.05] * 400, after=dict.fromkeys(range(100, 400, 40), (kind, 1.0))):
            times = sum(one.kind == kind for one in events) + 1
            if event.kind == kind:
                about = {"cost": "trace", "place": "train.py:9 f", "times": times, "duration_s": 0.01 * times}
                events.append(TraineeEvent(kind="cost", t_s=event.t_s - 0.5, stream="7.0", **about))  # type: ignore[arg-type]
            events.append(event)
        assert bool(judge_costs(events, "/home/me").issues) is is_told, kind


@pytest.mark.parametrize(
    ("own_cores", "limit"),
    [(1.2, Limit.PREPARING), (0.4, Limit.READING), (0.75, Limit.LOADING), (None, Limit.LOADING)],
)
def test_a_loader_that_cannot_be_replayed_is_told_by_waiting(own_cores: float | None, limit: Limit) -> None:
    """By the cores that are busy meanwhile: one that computes keeps one busy all the time."""
    waiting = [replace(step, wait_s=0.6 * step.duration_s) for step in timed_steps(steps([0.05] * 200))]
    unknown = replace(FREE, free_data=None, free_step=None)
    bounds = by_waiting(unknown, waiting)
    assert bounds.free_data is not None
    assert bounds.free_data.ratio == pytest.approx(2.5)
    (issue,) = judge_input(bounds, 2, own_cores).issues
    assert issue.limit is limit
    vague = replace(FREE, free_data=Ratio(ratio=1.1, low=0.2, high=6.0))
    assert by_waiting(vague, waiting).free_data == bounds.free_data
    assert by_waiting(FREE, waiting) == FREE
    assert by_waiting(unknown, timed_steps(steps([0.05] * 200))) == unknown


def test_python_between_operations_is_no_loading() -> None:
    """A function that launches them is a step."""
    found = judge_own_loading(loop_of(2.0, _9=(5.0, 4.9)), CheckResult(check="steadiness"), "/home/me")
    assert found is not None
    assert [(one.limit, one.place) for one in found.issues] == [(Limit.HOST, "train.py:9")]


def test_what_passes_before_the_first_step_is_told_by_place(tmp_path: Path) -> None:
    """Imports are one; a place of the trainer's own that takes long is an issue."""
    (tmp_path / "train.py").write_text("import tensorflow as tf\n\n\ndef prepare(): ...\n")
    about = {"kind": "cost", "t_s": 0.0, "stream": "7.0", "cost": "before"}
    places = [("train.py:1 <module>", 4.0, ""), ("train.py:9 main", 9.0, "framework"), ("train.py:4 prepare", 15.0, "")]
    events = [
        TraineeEvent(place=f"{tmp_path}/{place}", duration_s=took_s, text=text, **about)  # type: ignore[arg-type]
        for place, took_s, text in places
    ]
    (found,) = judge_start(events, 31.0, str(tmp_path)).issues
    told = "15s at train.py:4 in prepare, 9.0s in the framework, 4.0s imports"
    assert found.sentence == f"The first step ends 31s after the start: {told}."
    assert found.place == "train.py:4"
    assert judge_start(events[:2], 14.0, str(tmp_path)).issues == ()
    assert judge_start([], 5.0, str(tmp_path)).why_not


def test_a_pause_is_no_slow_step() -> None:
    """An evaluation is looked at elsewhere."""
    after = dict.fromkeys(range(40, 400, 40), ("eval", 1.0))
    events = steps([0.02] * 400, after=after)
    assert not judge_steadiness(timed_steps(events)).issues
    (issue,) = judge_outside_steps(events).issues
    assert issue.limit is Limit.OUTSIDE
    assert issue.numbers["time_fraction"] == pytest.approx(0.53, abs=0.02)
    assert "Evaluate less often" in issue.recommendations[0].sentence


def test_one_pause_does_not_stand_for_all() -> None:
    """The first one compiles, and counts only if there is no other: then half is certain; none says so."""
    after = {40: ("eval", 6.0), 200: ("eval", 0.1), 360: ("eval", 0.1)}
    assert not judge_outside_steps(steps([0.05] * 400, after=after)).issues
    del after[360]
    assert not judge_outside_steps(steps([0.05] * 400, after=after)).issues
    (issue,) = judge_outside_steps(steps([0.05] * 100, after={60: ("checkpoint", 2.5)})).issues
    assert issue.bound is not None
    assert issue.bound.low < issue.bound.ratio < issue.bound.high
    assert judge_outside_steps(steps([0.05] * 100)).sentence == "No evaluation or checkpoint was seen."


@pytest.mark.parametrize(("fixed", "is_issue"), [(0.9, True), (0.2, False)])
def test_the_fixed_cost_of_a_step(fixed: float, is_issue: bool) -> None:
    """A step of which most stays with twice the batch is limited by what does not depend on it."""
    one = ReplayedSteps(batch=8, step_s=[0.01] * 20)
    other = ReplayedSteps(batch=16, step_s=[0.01 * (2 - fixed)] * 20)
    result = judge_fixed_cost(one, other, FREE)
    assert bool(result.issues) is is_issue
    assert f"{100 * fixed:.0f} %" in (result.issues[0].sentence if is_issue else result.sentence)


@pytest.mark.parametrize(("cores", "is_issue"), [(1.0, True), (1.8, False)])
def test_what_keeps_several_cores_busy_is_no_launching(cores: float, is_issue: bool) -> None:
    """A wide layer reads its weights for two batches as for one, with all threads; Python launches with one."""
    one, other = ReplayedSteps(batch=8, step_s=[0.01] * 20), ReplayedSteps(batch=16, step_s=[0.0105] * 20)
    result = judge_fixed_cost(one, other, replace(FREE, cores={TrialPhase.REPLAY: cores}))
    assert bool(result.issues) is is_issue
    assert is_issue or "it is computation" in result.sentence


def test_a_step_that_hardly_counts_is_not_worth_it() -> None:
    """Where the loader is the limit, a step without its fixed cost gains no more than a free step does."""
    one, other = ReplayedSteps(batch=8, step_s=[0.01] * 9), ReplayedSteps(batch=16, step_s=[0.0105] * 9)
    limited = replace(FREE, free_step=Ratio(ratio=1.01, low=1.0, high=1.02))
    assert not judge_fixed_cost(one, other, limited).issues
    assert judge_fixed_cost(None, other, FREE).why_not


@pytest.mark.parametrize(
    ("peak_gib", "growth_mib", "said"),
    [
        (2.0, 100, "MiB a minute: it would be full after 20m"),
        (3.9, 0, "is nearly full: 97 % of 4.0 GiB"),
        (2.0, 0, None),
    ],
)
def test_memory_that_is_full_or_fills_is_told(peak_gib: float, growth_mib: int, said: str | None) -> None:
    """With when it is full; its use is told all the same."""
    machine = Machine(cpu_cores=2, cpu_model="x", memory_bytes=4 * GIB)
    numbers = replace(measured(10.0), peak_memory_bytes=int(peak_gib * GIB))
    series = tuple((float(t_s), int(2 * GIB + t_s * growth_mib * (1 << 20) / 60)) for t_s in range(40))
    result = judge_memory(machine, numbers, (series, ()), [])
    assert [said in issue.sentence for issue in result.issues if said] == ([True] if said else [])
    if growth_mib:  # 65 MiB of 4 GiB within the trial are more than warming up, and of 64 GiB they are not
        larger = judge_memory(replace(machine, memory_bytes=64 * GIB), numbers, (series, ()), [])
        assert [one.severity for one in (*result.issues, *larger.issues)] == [Severity.WARNING, Severity.NOTE]
    assert f"{peak_gib:.1f} of 4.0 GiB" in result.sentence


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


def cost(kind: str, place: str = "train.py:41 step", **changes: object) -> TraineeEvent:
    """Return the event that something besides the arithmetic took time."""
    fields = {"kind": "cost", "t_s": 0.5, "stream": "7.0", "cost": kind, "place": f"/home/me/{place}"}
    return TraineeEvent(**{**fields, **changes})  # type: ignore[arg-type]


def with_cost(events: list[TraineeEvent], kind: str, after: Sequence[int], took_s: float) -> list[TraineeEvent]:
    """Return the events of a trial in which something was made anew just before the end of some of its steps."""
    found, times = [], 0
    for number, event in enumerate(events):
        if number in after:
            times += 1
            told = {"t_s": event.t_s - 1e-6, "times": times, "duration_s": times * took_s}
            found.append(cost(kind, text="x float32[8] -> float32[9]", **told))
        found.append(event)
    return found


@pytest.mark.parametrize(
    ("kind", "after", "said"),
    [
        ("trace", range(40, 200, 4), "traced again 39 times in 180 steps (the last time x float32[8]"),
        ("compile", range(40, 200, 4), "train.py:41 step is compiled again 39 times"),
        ("workers", range(40, 200, 40), "restarts the loader's workers 3 times"),
        ("trace", range(2), None),  # once, at the begin
        ("trace", range(40, 42), None),
    ],
)
def test_what_is_made_anew_is_told_by_its_place_and_its_share(kind: str, after: range, said: str | None) -> None:
    """The steps that it happens in are no stalls besides."""
    events = with_cost(steps([0.5 if number in after else 0.02 for number in range(1, 201)]), kind, after, 0.4)
    result = judge_costs(events, "/home/me")
    if said is None:
        assert result.issues == ()
        return
    (issue,) = result.issues
    assert said in issue.sentence
    assert issue.sentence.startswith("train.py:41 step ")
    assert issue.place == "train.py:41"
    assert issue.bound is not None
    slow = 0.5 * len(after)
    assert issue.bound.ratio == pytest.approx((slow + 0.02 * (180 - len(after))) / (0.02 * 180), rel=0.01)
    assert judge_steadiness(timed_steps(events)).issues == ()


def test_what_is_made_anew_in_each_step_takes_at_least_its_own_time() -> None:
    """How long a step takes without it is unknown: so is the gain without it."""
    result = judge_costs(with_cost(steps([0.1] * 200), "trace", range(1, 201), 0.06), "/home/me")
    (issue,) = result.issues
    assert issue.sentence.endswith("at least 60 % of the time.")
    (share, *_) = time_shares([result], replace(FREE, free_data=None, free_step=None), [])
    assert share.change is not None
    assert share.change.gain is None
    # in nine of ten steps: the others tell
    after = [number for number in range(1, 201) if number % 10 != 5]
    rare = with_cost(steps([0.1 if number in after else 0.001 for number in range(1, 201)]), "trace", after, 0.06)
    (issue,) = judge_costs(rare, "/home/me").issues
    assert issue.numbers["time_fraction"] == pytest.approx(0.99, abs=0.005)


def test_a_change_that_hardly_acts_on_its_cause_is_not_named_first() -> None:
    """Prefetching, of a loader that is busy all the time."""
    bounds = replace(FREE, free_data=Ratio(ratio=13.0, low=12.0, high=14.0))
    few = Recommendation(sentence="prefetch: 4", gain=Ratio(ratio=1.26, low=1.0, high=1.26), evidence=GainBasis.BOUNDED)
    (found,) = judge_input(replace(bounds, cores={TrialPhase.LOAD: 1.1}), 2).issues
    found = replace(found, limit=Limit.PREPARING, recommendations=(few,))
    (share, *_) = time_shares([CheckResult(check="input", issues=(found,))], bounds, [])
    assert share.change is not None
    assert share.change.sentence.startswith("Prepare samples once")


def test_python_within_a_graph_is_told_where_it_takes_much_of_the_time() -> None:
    """Its calls wait for each other."""
    events = steps([0.02] * 200)
    (issue,) = judge_costs(with_cost(events, "python", range(201), 0.01), "/home/me").issues
    assert "train.py:41 step is Python that TensorFlow calls" in issue.sentence
    assert "10 ms each, 50 % of the time in total" in issue.sentence
    assert judge_costs(with_cost(events, "python", range(201), 0.001), "/home/me").issues == ()


@pytest.mark.parametrize(("operations", "is_many"), [(20, False), (4000, True)])
def test_operations_that_python_launches_are_told_by_the_step(operations: int, is_many: bool) -> None:
    """Those of the first second; a compiled step has a few around it."""
    events = steps([0.02] * 200)
    told = cost("eager", t_s=1.0, times=operations, duration_s=0.8, text="12.5 0.01")
    phased = sorted([*events, told], key=lambda one: one.t_s)
    issues = judge_costs(events, "/home/me", phased).issues
    assert ["train.py:41 step: Python launches 100 TensorFlow operations" in issue.sentence for issue in issues] == (
        [True] if is_many else []
    )
    between = replace(told, text="12.5 0.4")  # half of the time passes from one operation to the next
    phased = sorted([*events, between], key=lambda one: one.t_s)
    assert [issue.numbers["time_fraction"] for issue in judge_costs(events, "/home/me", phased).issues] == (
        [0.5] if is_many else []
    )


def test_a_change_gains_at_most_the_upper_end_of_its_causes_interval() -> None:
    """The point estimate is below what the change achieves in half of all cases."""
    events = with_cost(
        steps([0.5 if number % 20 == 0 else 0.02 for number in range(1, 201)]), "trace", range(20, 200, 20), 0.4
    )
    found = judge_costs(events, "/home/me")
    (issue,) = found.issues
    assert issue.bound is not None
    (share, *_) = time_shares([found], replace(FREE, free_data=None, free_step=None), [])
    assert share.change is not None
    assert share.change.gain is not None
    assert share.change.gain.high == pytest.approx(issue.bound.high)
    assert share.fraction == pytest.approx(1.0 - 1.0 / issue.bound.ratio)


@pytest.mark.parametrize("busy", [0.9, 0.1])
def test_gradients_outside_of_compiled_functions_are_launches(busy: float) -> None:
    """As far as Python is busy meanwhile: what the device computes takes none of that thread's time."""
    gradients = with_cost(steps([0.1] * 100), "gradient", range(100), 0.06)
    main = [cost("main", "?", t_s=second + 0.5, times=1, duration_s=busy * second) for second in range(10)]
    issues = judge_costs(sorted([*gradients, *main], key=lambda one: one.t_s), "/home/me").issues
    assert len(issues) == (busy == 0.9)
    if issues:
        assert "train.py:41 step computes the gradient op by op" in issues[0].sentence
        assert issues[0].numbers["time_fraction"] == pytest.approx(0.9)
        assert "@jax.jit" in issues[0].recommendations[0].sentence


@pytest.mark.parametrize(("step_s", "is_slow"), [(0.02, True), (0.2, False)])
def test_many_short_operations_of_pytorch_are_launches(step_s: float, is_slow: bool) -> None:
    """What they take at least, by what the shortest one takes; long ones are arithmetic."""
    told = cost("launch", "train.py:50 loss", times=1500, duration_s=0.005)
    issues = judge_costs(steps([step_s] * 100), "/home/me", [told]).issues
    assert len(issues) == is_slow
    if is_slow:
        assert "train.py:50 loss: PyTorch runs 1500 operations in each step, 13 µs each" in issues[0].sentence
        assert (issues[0].limit, issues[0].place) == (Limit.HOST, "train.py:50")
        assert issues[0].bound is not None
        assert issues[0].bound.ratio == pytest.approx(1.33, abs=0.01)


@pytest.mark.parametrize(("step_s", "is_slow"), [(0.002, True), (0.02, False)])
def test_reading_from_the_gpu_again_and_again_is_waiting(step_s: float, is_slow: bool) -> None:
    """It costs a trip there and back at least, in which neither the GPU nor Python does anything."""
    told = cost("wait", "train.py:15 forward", times=25, duration_s=0.0004)
    issues = judge_costs(steps([step_s] * 100), "/home/me", [told]).issues
    assert len(issues) == is_slow
    if is_slow:
        assert "train.py:15 forward: Python waits for the GPU 25 times in each step" in issues[0].sentence
        assert (issues[0].limit, issues[0].place) == (Limit.HOST, "train.py:15")


def test_one_long_step_is_no_stall() -> None:
    """Whatever little ones there are beside it: what recurs takes time without it, too."""
    lengths = {200: 1.5, 100: 0.026, 50: 0.026, 300: 0.026}
    assert judge_steadiness(timed_steps(steps([lengths.get(number, 0.007) for number in range(2000)]))).issues == ()


@pytest.mark.parametrize(
    ("wait_s", "loads", "is_limit"),
    [(0.001, 100.0, False), (0.02, 100.0, True), (None, 100.0, False), (None, 30.0, True)],
)
def test_loading_that_no_step_waits_for_is_no_limit(wait_s: float | None, loads: float, is_limit: bool) -> None:
    """It takes cores from the step: with free data that is faster."""
    speeds = {TrialPhase.TRAIN: 14.0, TrialPhase.REPLAY: 20.0, TrialPhase.LOAD: loads}
    bounds = replace(FREE, free_data=Ratio(ratio=1.4, low=1.3, high=1.5), speeds=speeds, batch=1.0, wait_s=wait_s)
    result = judge_input(bounds, 2)
    assert bool(result.issues) is is_limit
    assert ("takes cores from the step" in result.sentence) is not is_limit


def test_why_torch_compile_cuts_a_function_is_told() -> None:
    """As a note: what it costs is not known."""
    told = cost("cut", "train.py:3 loss", t_s=0.0, text="print")
    (issue,) = judge_costs([told, *steps([0.02] * 200)], "/home/me").issues
    assert (issue.severity, issue.place) == (Severity.NOTE, "train.py:3")
    assert issue.sentence == "torch.compile breaks the graph of train.py:3 loss, with Python in between: print"


def test_speed_on_the_same_batches_is_no_limit_of_the_input_where_shapes_are_compiled_anew() -> None:
    """On the same few batches nothing is."""
    speeds = {TrialPhase.TRAIN: 10.0, TrialPhase.REPLAY: 30.0, TrialPhase.LOAD: 100.0}
    bounds = replace(FREE, free_data=Ratio(ratio=3.0, low=2.8, high=3.2), speeds=speeds)
    assert judge_input(bounds, 2).issues
    (left,) = judge_input(bounds.less(0.5), 2).issues  # two thirds of the time are saved, half is made anew
    assert left.numbers["time_fraction"] == pytest.approx(2 / 3 - 0.5)
    assert judge_input(bounds.less(0.65), 2).issues == ()


def test_a_bound_beyond_all_gains_is_no_number() -> None:
    """What then limits is something else."""
    assert bound_text(Ratio(ratio=4033.9, low=20.0, high=8000.0)) == "more than 20x"
    assert bound_text(Ratio(ratio=3.0, low=2.0, high=4.0)) == "3.0x (2.0 to 4.0)"
