"""Promises of searches of training that stops and goes, in virtual time: what is confirmed is true; steadier counts."""

from dataclasses import replace

import pytest

from autotune.events import Remark
from autotune.records import Purpose, Verdict
from scripts.bench.simulated_runner import Training
from tests.search.simulated import CONFIG, Search, Searched, Trainer

USUAL = CONFIG[: CONFIG.index("    trial:")]
STALLS = Training(samples=8, step_s=0.01, stall_every=100, stall_s=1.0, noise=0.01)


def stalling(today: Training, **second: float) -> Trainer:
    """Train with a stall now and then, and with these changes with a second worker."""
    other = replace(today, **second)  # type: ignore[arg-type]
    return lambda config: other if config["data"]["num_workers"] == 2 else today


def remarks(searched: Searched) -> str:
    """What the search said on its way."""
    return "\n".join(event.text for event in searched.events if isinstance(event, Remark))


@pytest.mark.parametrize("stall_s", [0.8, 0.0])
def test_a_shorter_stall_is_worth_what_plain_training_gains(search: Search, stall_s: float) -> None:
    """Steps of 10 ms with one of a second in a hundred: the interval holds the ratio of whole cycles."""
    searched = search(stalling(STALLS, stall_s=stall_s), config=USUAL, budget_s=600)
    speedup = searched.answer.speedup
    assert searched.answer.verdict is Verdict.BETTER
    assert speedup.low <= 2.0 / (1.0 + stall_s) <= speedup.high
    assert "Training stalls every 2.0s: trials measure whole cycles." in remarks(searched)


def test_even_steps_of_the_same_speed_are_steadier(search: Search) -> None:
    """No gain of speed; the verdict says so, and that the steps are evener."""
    answer = search(stalling(STALLS, step_s=0.02, stall_s=0.0), config=USUAL, budget_s=600).answer
    assert answer.verdict is Verdict.STEADIER
    assert answer.best.values["data.num_workers"] == 2
    assert answer.speedup.low > 0.98
    assert answer.steadiness.low > 1.1


def test_the_same_stalls_are_no_change(search: Search) -> None:
    """Neither better nor steadier."""
    assert search(stalling(STALLS), config=USUAL, budget_s=600).answer.verdict is Verdict.NO_CHANGE


def test_rare_stalls_are_waited_for_as_far_as_the_budget_goes(search: Search) -> None:
    """Each trial has whole cycles of them; with less budget the answer does not claim what nobody could see."""
    trainer = stalling(replace(STALLS, step_s=0.06, stall_s=6.0), stall_s=4.8)
    long = search(trainer, config=USUAL, budget_s=1800)
    confirming = [trial.measurement for trial in long.of(Purpose.CONFIRM) if trial.measurement]
    assert long.answer.verdict is Verdict.BETTER
    assert all(measured.cycles >= 1 and measured.steps % 100 == 0 for measured in confirming)
    short = search(trainer, config=USUAL, budget_s=100, fresh=True)
    assert short.answer.verdict is Verdict.NO_CHANGE
    assert "the period of stalls was not seen" in remarks(short)


@pytest.mark.parametrize("seed", range(4))
def test_stalls_that_the_pairs_are_first_to_show_leave_time_for_all_of_them(search: Search, seed: int) -> None:
    """They are waited for as far as the other pairs leave time, and no trial takes that of all others."""
    trainer = stalling(replace(STALLS, stall_every=600, stall_s=0.6), step_s=0.004)
    answer = search(trainer, config=USUAL, budget_s=60, seed=seed).answer
    assert answer.verdict is Verdict.BETTER
    assert answer.speedup.low <= 6.6 / 3.0 <= answer.speedup.high
