"""Benchmark of races: simulated trainings whose learning is known, and the trainers that really learn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.records import Learning
from scripts.bench.races import trainers
from scripts.bench.races.benchmark_races import simulated_report
from scripts.bench.races.simulated import CASES, FAMILIES, Config, Data, held_out_after, simulated_race

LEARNER = Path(trainers.__file__).with_name("learner.py")


@pytest.mark.services
def test_the_report_has_a_row_for_each_family_and_each_truth() -> None:
    """Of races that were all judged."""
    report = simulated_report(1)
    for name in FAMILIES:
        assert f"| {name} | 1 |" in report
    assert "| 0.5x | 8 |" in report


@pytest.mark.parametrize(("learning_speed", "learning"), [(0.5, Learning.SLOWER), (2.0, Learning.FASTER)])
def test_what_learns_twice_or_half_as_fast_is_told(learning_speed: float, learning: Learning) -> None:
    """By the races, as far as seeds are not unlike."""
    other = Config(speed=4.0, batch=4.0, worth=learning_speed / 4.0)
    race = simulated_race(FAMILIES["plain"], other, rounds=4, trains_s=25.0, seed=1)
    assert race is not None
    assert race.winner.learning is learning
    assert race.winner.learning_speed == pytest.approx(learning_speed, rel=0.25)


@pytest.mark.parametrize("evaluations", [0, 6])
@pytest.mark.parametrize("name", CASES)
def test_nothing_that_memorises_is_said_to_learn(name: str, evaluations: int) -> None:
    """Nor what may memorise; what is honest is told by its held-out loss, or within one pass over the data."""
    case = CASES[name]
    data = Data(passes=case.passes, tells_epochs=case.tells_epochs, evaluations=evaluations)
    race = simulated_race(
        FAMILIES["plain"],
        case.other,
        today=case.today,
        data=data,
        changes=case.changes,
        rounds=4,
        trains_s=25.0,
        seed=1,
    )
    assert race is not None
    fastest = max(case.today.speed, case.other.speed)
    today, other = (held_out_after(FAMILIES["plain"], one, data, fastest=fastest) for one in (case.today, case.other))
    if race.winner.learning.is_safe:
        assert other < today
        assert evaluations or case.passes <= 1.0
    else:
        assert not name.startswith("honest") or (case.passes > 1.0 and not evaluations)


def test_a_learning_speed_that_no_batch_explains_is_not_believed() -> None:
    """Forty-six times as fast with four times the samples per second, though none is seen again."""
    other = Config(speed=4.0, batch=4.0, worth=46.0 / 4.0)
    race = simulated_race(FAMILIES["plain"], other, rounds=4, trains_s=25.0, seed=1)
    assert race is not None
    assert race.winner.learning is Learning.UNKNOWN
    assert "lower than another batch or cache makes it" in race.winner.why


@pytest.mark.parametrize("problem", ["logistic", "network"])
def test_the_learners_learn(tmp_path: Path, problem: str) -> None:
    """Down to a held-out loss; the time is that of an accelerator, however fast the machine is."""
    config = {"problem": problem, "batch_size": 64, "learning_rate": 0.05, "seed": 1, "samples": 2000}
    (tmp_path / "config.json").write_text(json.dumps({**config, "fixed_s": 0.01, "sample_s": 0.0001}))
    losses = []
    for until, limit in (("100", "60"), ("0", "3")):
        argv = [sys.executable, str(LEARNER), str(tmp_path / "config.json"), "--until", until, "--limit", limit]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
        losses.append(json.loads(done.stdout)["loss"])
    assert losses[1] < 0.8 * losses[0]
