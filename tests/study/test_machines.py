"""Machines of a study: their speeds, and trials on one scale."""

import math
import random

import pytest

from autotune.records import Conditions, TrialRecord
from autotune.study.members import machine_offsets, on_one_scale
from tests.runs import MakeTrial


def trials_of(make_trial: MakeTrial, machines: dict[str, float], points: int, noise: float) -> list[TrialRecord]:
    """Return trials of points of different speeds; each machine has some of them, and all have the first."""
    rng = random.Random(1)
    made = []
    for machine, ln_speed in machines.items():
        own = {0, *rng.sample(range(points), points // 2)}
        for point in sorted(own):
            speed = 50.0 * math.exp(0.2 * point + ln_speed + rng.gauss(0.0, noise))
            made.append(make_trial({"x": point}, speed, conditions=Conditions(machine=machine, host=machine)))
    return made


def test_speeds_of_machines_are_told_apart_from_those_of_points(make_trial: MakeTrial) -> None:
    """A machine that happened to get the fast points is not taken for a fast machine."""
    true = {"a": 0.0, "b": 0.15, "c": -0.2}
    offsets = machine_offsets(trials_of(make_trial, true, 12, 0.02))
    for machine, ln_speed in true.items():
        assert offsets[machine] - offsets["a"] == pytest.approx(ln_speed, abs=0.03)


def test_trials_of_one_point_agree_on_one_scale(make_trial: MakeTrial) -> None:
    """On the reference machine nothing changes, and others show what it would have shown."""
    trials = trials_of(make_trial, {"a": 0.0, "b": 0.2}, 8, 0.0)
    scaled = on_one_scale(trials, "b")
    assert [trial for trial in scaled if trial.machine == "b"] == [trial for trial in trials if trial.machine == "b"]
    speeds: dict[str, list[float]] = {}
    for trial in scaled:
        speeds.setdefault(trial.point, []).append(trial.measurement.samples_per_s)
    assert all(max(some) / min(some) < 1.02 for some in speeds.values())


def test_trials_of_one_machine_are_left_as_they_are(make_trial: MakeTrial) -> None:
    """One machine has no other scale than its own, also where earlier versions wrote only the host."""
    trials = [
        make_trial({"x": 1}, 50.0, conditions=Conditions(host="a")),
        make_trial({"x": 2}, 60.0, conditions=Conditions(host="a")),
    ]
    assert on_one_scale(trials) is trials
