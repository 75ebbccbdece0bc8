"""Whole searches, in virtual time: real settings, record, statistics and judgement around a simulated trainer."""

import errno
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from optuna.samplers import BaseSampler, TPESampler

from autotune.errors import StudyError, TrialError
from autotune.events import Event, IncumbentChanged, SearchEnded, SearchStarted, TrialEnded, TrialStarted
from autotune.measure.score import EFFECTIVE_UTILIZATION
from autotune.records import Ending, Purpose, Validity, Verdict
from autotune.sampler.config_sampler import ConfigSampler
from autotune.search.answer import Study
from autotune.study.answer import judged_finalists
from scripts.bench.simulated_runner import Training
from tests.search.simulated import CONFIG, Search, Searched, Trainer, plain, searches_in

# Too large to be tried out.
BIG = CONFIG.replace(
    "data.cache: [none, memory]",
    "data.cache: [none, memory]\n        data.a: {low: 1, high: 16}\n        data.b: {low: 1, high: 16}",
).replace("cache: none\n", "cache: none\n    a: 3\n    b: 4\n", 1)


def dull(config: Mapping[str, Any]) -> Training:
    """Train as fast whatever the config says."""
    batch_size = config["data"]["batch_size"]
    return Training(samples=batch_size, step_s=0.005 * batch_size, noise=0.03, epoch=20)


def crashing(_config: Mapping[str, Any]) -> Training:
    """Crash before the first step."""
    return Training(steps=0, exit_code=1, stderr="Traceback (most recent call last):\nValueError: no such layer")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """One search that finds something, for all tests that look at it and change nothing."""
    with searches_in(tmp_path_factory.mktemp("searched")) as search:
        yield search(plain, budget_s=300)


def test_a_better_config_is_found_and_confirmed(searched: Searched) -> None:
    """The best of all combinations is the answer, shown by interleaved pairs, with its ratio about right."""
    answer = searched.answer
    assert answer.verdict is Verdict.BETTER
    assert answer.best.values["data.batch_size"] == 32
    assert answer.best.values["data.num_workers"] == 2
    true = (32 / 0.052 * 1.1) / (8 / 0.028)
    assert answer.speedup.low < true < answer.speedup.high
    assert answer.trials == len(searched.trials)


@pytest.mark.parametrize("sampler", [TPESampler(seed=0), ConfigSampler(seed=0)])
def test_another_sampler_finds_it_too(search: Search, sampler: BaseSampler) -> None:
    """Its proposals are measured, repeated and confirmed like everything else; with time for all of 8 points."""
    searched = search(plain, budget_s=400, sampler=sampler)
    assert searched.answer.verdict is Verdict.BETTER
    assert searched.answer.best.values["data.batch_size"] == 32
    assert searched.took_s <= 400


def test_the_confirmation_is_made_of_whole_interleaved_pairs(searched: Searched) -> None:
    """Pairs are at least four, even in number, each of both configs, in trials after all exploring."""
    confirming = searched.of(Purpose.CONFIRM)
    assert searched.trials[-len(confirming) :] == confirming
    pairs = [trial.pair for trial in confirming]
    arms = len({trial.point for trial in confirming})  # with what leaves the batch alone
    assert arms == 3
    assert pairs == [pair for pair in range(len(confirming) // arms) for _ in range(arms)]
    rounds = [[trial.point for trial in confirming[place : place + arms]] for place in range(0, len(confirming), arms)]
    assert len(rounds) >= 4
    assert len(rounds) % 2 == 0
    assert all(searched.trials[0].point in one and len(set(one)) == arms for one in rounds)
    assert all(one == other[::-1] for one, other in pairwise(rounds))


def test_nothing_better_is_an_answer_without_a_confirmation(search: Search) -> None:
    """No time is spent on pairs if everything is slower than the baseline, and the rest is not used up."""

    def slower(config: Mapping[str, Any]) -> Training:
        changed = sum(value not in (8, 1, "none") for value in config["data"].values())
        return Training(samples=8, step_s=0.03 * 1.3**changed, noise=0.01, epoch=20)

    searched = search(slower, budget_s=1800)
    assert searched.answer.verdict is Verdict.NO_CHANGE
    assert searched.answer.candidate is None
    assert searched.of(Purpose.CONFIRM) == []
    assert searched.took_s < 300


def test_knobs_that_do_nothing_are_not_recommended(search: Search) -> None:
    """Noise makes some point look better; the confirmation sees through it."""
    answer = search(dull, budget_s=200).answer
    assert answer.verdict is Verdict.NO_CHANGE
    assert answer.best == answer.baseline


def test_more_pairs_are_made_where_they_could_decide_and_nothing_else_is_left_to_do(search: Search) -> None:
    """Both points were tried after two minutes of thirty: a gain of 5 % is not given up after 24 pairs."""
    config = CONFIG.replace("        data.batch_size: [8, 32]\n", "").replace(
        "        data.cache: [none, memory]\n", ""
    )

    def slight(config: Mapping[str, Any]) -> Training:
        return Training(samples=8, step_s=0.03 / (1.05 if config["data"]["num_workers"] == 2 else 1.0), noise=0.06)

    searches = [search(slight, config=config, budget_s=1800, seed=seed, fresh=seed > 0) for seed in range(3)]
    assert [searched.answer.verdict for searched in searches] == 3 * [Verdict.BETTER]
    assert all(searched.answer.speedup.low < 1.05 < searched.answer.speedup.high for searched in searches)
    assert max(len(searched.of(Purpose.CONFIRM)) for searched in searches) > 2 * 24


def _silent(config: Mapping[str, Any]) -> Training:
    return plain(config) if config["data"]["batch_size"] == 8 else Training(start_s=inf)


def _slow(config: Mapping[str, Any]) -> Training:
    return Training(samples=8, step_s=8.0)


@pytest.mark.parametrize(
    ("trainer", "budget_s"),
    [(plain, 2.0), (plain, 61.0), (crashing, 2.0), (_silent, 61.0), (_slow, 2.0), (_slow, 61.0)],
)
def test_the_budget_is_a_wall(search: Search, trainer: Trainer, budget_s: float) -> None:
    """The search is over in time, whatever the trainer does."""
    searched = search(trainer, budget_s=budget_s)
    assert searched.took_s <= budget_s
    assert (searched.result is None) is (searched.error is not None)


def test_it_gives_up_where_nothing_works(search: Search) -> None:
    """Five trials that all crash are enough to know; the error names how they ended, the first one is kept to show."""
    searched = search(crashing, budget_s=1800)
    failure = "The trainer failed, or was killed (exit status 1: ValueError: no such layer)"
    assert f"none of 5 trials has a measurement: {failure}" in searched.error.message
    assert len(searched.trials) == 5
    failed = searched.tuner.failures[Ending.CRASHED]
    assert failed.record == searched.trials[0]
    assert "no such layer" in failed.stderr_tail
    assert "no such layer" in failed.record.detail


def test_one_point_that_crashes_does_not_end_the_search(search: Search) -> None:
    """The failure is counted by name, never repeated, and the best of the rest is the answer."""

    def partly(config: Mapping[str, Any]) -> Training:
        return crashing(config) if config["data"]["num_workers"] == 2 else plain(config)

    searched = search(partly, budget_s=150)
    crashed = [trial.point for trial in searched.trials if trial.ending is Ending.CRASHED]
    assert len(set(crashed)) == len(crashed) >= 1
    assert searched.answer.outcomes["crashed"] == len(crashed)
    assert searched.answer.best.values["data.batch_size"] == 32
    assert searched.answer.best.values["data.num_workers"] == 1


def test_a_config_that_fails_is_no_baseline(search: Search) -> None:
    """The search goes on, and its answer says that there is nothing to compare with."""

    def baseline_crashes(config: Mapping[str, Any]) -> Training:
        return crashing(config) if config["data"]["batch_size"] == 8 else plain(config)

    answer = search(baseline_crashes, budget_s=100).answer
    assert answer.verdict is Verdict.NO_BASELINE
    assert answer.best.values["data.batch_size"] == 32
    assert answer.speedup is None


def test_caches_that_do_not_fill_in_time_are_left_alone(search: Search) -> None:
    """One pass takes too long for a trial: the baseline's value stays, with a remark, and no cold number counts."""

    def long_epochs(config: Mapping[str, Any]) -> Training:
        training = plain(config)
        step_s = training.step_s / (3 if config["data"]["cache"] == "memory" else 1)
        return Training(samples=training.samples, step_s=step_s, noise=0.03, epoch=100_000)

    searched = search(long_epochs, budget_s=200)
    cached = [trial for trial in searched.trials if trial.values["data.cache"] == "memory"]
    assert [trial.validity for trial in cached] == [Validity.COLD]
    assert "caches are kept fixed" in searched.said()
    assert searched.answer.best.values["data.cache"] == "none"
    assert searched.answer.verdict is Verdict.BETTER


def test_a_cache_of_the_baseline_that_does_not_fill_is_measured_as_it_is(search: Search) -> None:
    """The baseline is still the unit of everything, also with a cache that never gets warm in a trial."""

    def long_epochs(config: Mapping[str, Any]) -> Training:
        training = plain(config)
        return Training(samples=training.samples, step_s=training.step_s, noise=0.03, epoch=100_000)

    searched = search(long_epochs, budget_s=200, config=CONFIG.replace("cache: none", "cache: memory"))
    baseline = searched.of(Purpose.BASELINE)
    assert [trial.validity for trial in baseline][-2:] == [Validity.COLD, Validity.GOOD]
    assert "caches are kept fixed" in searched.said()
    assert searched.answer.verdict is Verdict.BETTER


def test_a_cache_that_pays_after_the_first_pass_is_found(search: Search) -> None:
    """The speed is that of a warm cache."""

    def cached(config: Mapping[str, Any]) -> Training:
        training = plain(config)
        step_s = training.step_s / (2 if config["data"]["cache"] == "memory" else 1)
        return Training(samples=training.samples, step_s=step_s, noise=0.03, epoch=50)

    answer = search(cached, budget_s=200).answer
    assert answer.best.values == {"data.batch_size": 32, "data.num_workers": 2, "data.cache": "memory"}


def test_the_same_command_goes_on_where_it_stopped(search: Search) -> None:
    """A second search finds the trials of the first, measures the baseline anew, and explores nothing twice."""
    first = search(plain, budget_s=60)
    second = search(plain, budget_s=150, seed=1)
    started = second.events[0]
    assert isinstance(started, SearchStarted)
    assert started.trials_found == len(first.trials)
    assert second.trials[0].purpose is Purpose.BASELINE
    explored = {trial.point for trial in first.of(Purpose.EXPLORE)}
    assert explored
    assert not explored & {trial.point for trial in second.of(Purpose.EXPLORE)}
    assert second.answer.verdict is Verdict.BETTER
    assert second.answer.trials == len(second.trials)


def test_whoever_watches_is_told_everything(searched: Searched) -> None:
    """Each trial is announced and reported, in order, between a first and a last event; gains are news."""
    assert isinstance(searched.events[0], SearchStarted)
    last = searched.events[-1]
    assert isinstance(last, SearchEnded)
    assert (last.verdict, last.trials) == (searched.answer.verdict, len(searched.trials))
    started = [event.number for event in searched.events if isinstance(event, TrialStarted)]
    assert started == [event.trial.number for event in searched.events if isinstance(event, TrialEnded)]
    assert started == list(range(len(started)))
    news = [event.speedup for event in searched.events if isinstance(event, IncumbentChanged)]
    assert news
    assert all(speedup > 1 for speedup in news)


def test_each_trial_has_its_own_config_and_leaves_its_result(searched: Searched) -> None:
    """Config and result can be looked up, by a name that no other trial has."""
    plans = searched.simulator.plans
    assert len({plan.trial_id for plan in plans}) == len(plans) == len(searched.trials)
    for plan, trial in zip(plans, searched.trials, strict=True):
        assert f"batch_size: {trial.values['data.batch_size']}\n" in plan.config_text
        assert "autotune" not in plan.config_text
        assert (plan.folder / "result.json").is_file()
    kept: Sequence[str] = sorted(searched.tuner.best_trials(1))
    assert kept
    assert set(kept) <= {plan.folder.name for plan in plans}


def test_a_config_whose_loss_is_no_number_is_a_baseline(search: Search) -> None:
    """Only the speed is asked for: it is found, and the answer says what the losses are."""
    found = search(lambda config: replace(plain(config), loss=nan), budget_s=100.0)
    assert found.answer.verdict == "better"
    assert Ending.DIVERGED not in {trial.ending for trial in found.trials}
    assert any("loss of today's config is NaN" in caution for caution in found.answer.cautions)


def test_a_point_that_loses_its_loss_has_diverged(search: Search) -> None:
    """Today's config has one, so it counts against the point, which is no answer."""

    def partly(config: Mapping[str, Any]) -> Training:
        diverges = config["data"]["batch_size"] > 8
        return replace(plain(config), loss=nan if diverges else 1.0)

    found = search(partly, budget_s=150.0)
    assert Ending.DIVERGED in {trial.ending for trial in found.trials}
    assert not any("NaN" in caution for caution in found.answer.cautions)
    assert found.answer.best.values["data.batch_size"] <= 8


def test_where_starts_are_dear_a_factor_of_two_is_confirmed_by_two_pairs(search: Search) -> None:
    """A trainer that takes 10 s to start, and 100 s for all: two pairs of 2 x 12 s fit, four do not."""

    def slow_to_start(config: Mapping[str, Any]) -> Training:
        return replace(plain(config), start_s=10.0, noise=0.08)

    searched = search(slow_to_start, budget_s=100)
    assert searched.took_s <= 100
    assert searched.answer.verdict is Verdict.BETTER
    assert len(searched.of(Purpose.CONFIRM)) in (4, 5)  # one more is begun in the time that is left
    assert "confirmed by 2 interleaved pairs" in searched.answer.why
    assert searched.answer.speedup.low > 1.02


@pytest.mark.parametrize("budget_s", range(60, 200, 20))
@pytest.mark.parametrize("seed", range(2))
def test_what_looks_better_is_confirmed_in_whatever_time_there_is(search: Search, budget_s: float, seed: int) -> None:
    """Four trials, and pairs of what they found: exploring never goes on until no pair fits any more."""

    def slow_to_start(config: Mapping[str, Any]) -> Training:
        step_s = 0.03 / (1.25 if config["data"]["num_workers"] == 2 else 1.0)
        return Training(samples=8, step_s=step_s, noise=0.08, start_s=budget_s / 9.0 - 3.0, epoch=20)

    config = CONFIG.replace("[8, 32]", "[8, 9]")
    searched = search(slow_to_start, budget_s=budget_s, seed=seed, config=config)
    assert searched.took_s <= budget_s
    assert searched.answer.speedup is not None
    assert len(searched.of(Purpose.CONFIRM)) >= 4


def test_a_sequential_confirmation_stops_when_it_is_sure_and_status_says_the_same(search: Search) -> None:
    """Time for more pairs is left; the record alone gives the verdict that ended the confirmation, and none before."""

    def slow_to_start(config: Mapping[str, Any]) -> Training:
        return replace(plain(config), start_s=20.0, noise=0.03)

    searched = search(slow_to_start, budget_s=700)
    confirming = searched.of(Purpose.CONFIRM)
    assert len(confirming) == 6  # with what leaves the batch alone
    (planned,) = {trial.conditions.pairs_planned for trial in confirming}
    assert planned in (2, 4, 6)
    assert searched.took_s + confirming[-1].duration_s < 700
    records = searched.trials
    judged = judged_finalists(records, records[0].search, EFFECTIVE_UTILIZATION)
    (judgement,) = (one.judgement for one in judged if one.trial.point == searched.answer.best.point)
    assert judgement.better
    assert (judgement.speed, judgement.score) == (searched.answer.speedup, searched.answer.score_ratio)
    before = judged_finalists(records[:-3], records[0].search, EFFECTIVE_UTILIZATION)
    assert [one.judgement for one in before] == [None, None]


def test_an_answer_that_the_space_does_not_have_is_not_given(search: Search) -> None:
    """A search that may not take the batch of the answer that stands says what it has found itself."""
    first = search(plain, budget_s=120.0).answer
    assert first.best.values["data.batch_size"] == 32
    later = search(plain, budget_s=20.0, config=CONFIG.replace("[8, 32]", "[8, 9]")).answer
    assert later.best.values["data.batch_size"] != 32


def test_one_seed_is_one_search(search: Search) -> None:
    """The choices of the search can be repeated."""
    one, other = (search(plain, budget_s=50, fresh=fresh).trials for fresh in (False, True))
    assert [trial.values for trial in one] == [trial.values for trial in other]


def test_the_gain_of_ten_more_minutes_is_estimated_at_the_end(search: Search, searched: Searched) -> None:
    """A large space that was hardly looked at promises more than one that was tried out."""
    little, all_of_it = search(plain, budget_s=90, config=BIG).answer, searched.answer
    assert little.gain_of_ten_minutes is not None
    assert all_of_it.gain_of_ten_minutes is not None
    assert 0.0 <= all_of_it.gain_of_ten_minutes < 0.05
    assert little.gain_of_ten_minutes > all_of_it.gain_of_ten_minutes


def test_what_each_change_is_worth_is_found_once_and_kept_with_the_study(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a search fits a model: whoever asks later gets what it has kept, and so does who is in a hurry."""
    answer = searched.answer
    assert any(change.worth for change in answer.changes)
    monkeypatch.delattr("autotune.sampler.gaussian_process.GaussianProcess.fit")
    for later in (searched.tuner.answer_so_far(), Study("config.yaml").answer()):
        assert (later.verdict, later.best, later.speedup) == (answer.verdict, answer.best, answer.speedup)
        assert later.changes == answer.changes


def _cut_the_record() -> None:
    (journal,) = Path(".autotune/studies").glob("*.journal")
    journal.write_bytes(journal.read_bytes()[:100])


@pytest.mark.parametrize(
    ("trouble", "trials"),
    [
        (TrialError("a file is gone", remedy="Put it back."), 4),
        (MemoryError(), 4),
        (OSError(errno.ENOSPC, "No space left on device"), 4),
        (None, 5),  # the trial that could no longer be written down is in the answer too
    ],
    ids=["error", "memory", "disk", "record"],
)
def test_trouble_that_ends_a_search_early_leaves_the_answer_so_far(
    search: Search, trouble: Exception | None, trials: int
) -> None:
    """All measurements are in it, with a caution; the trouble itself is reported separately."""

    def ends(event: Event) -> None:
        if isinstance(event, TrialStarted) and event.number == 4:
            if trouble:
                raise trouble
            _cut_the_record()

    found = search(plain, budget_s=300, told=ends)
    assert found.error is None
    assert found.answer.trials == trials
    assert found.answer.baseline.metrics is not None
    assert found.tuner.ended_by.remedy
    assert f"The search could not continue: {found.tuner.ended_by.message}." in found.answer.cautions
    assert isinstance(found.tuner.ended_by, StudyError) is (trouble is None)
    assert isinstance(found.events[-1], SearchEnded)


@pytest.mark.parametrize(
    ("fault", "times"), [({"steps": 0, "exit_code": 1}, 1), ({"steps": 13}, 2)], ids=["a crash", "ends early twice"]
)
def test_a_fault_in_the_confirmation_does_not_cost_the_answer(
    search: Search, searched: Searched, fault: Mapping[str, int], times: int
) -> None:
    """The half that failed is measured once more; after a second time another pair takes the place of this one."""
    confirmed = [number for number, trial in enumerate(searched.trials) if trial.purpose is Purpose.CONFIRM]
    faulty, made = range(confirmed[2], confirmed[2] + times), itertools.count()

    def unlucky(config: Mapping[str, Any]) -> Training:
        return replace(plain(config), **(fault if next(made) in faulty else {}))  # type: ignore[arg-type]

    found = search(unlucky, budget_s=300)
    confirming = found.of(Purpose.CONFIRM)
    spoiled = [trial for trial in confirming if not trial.comparable]
    assert [trial.number for trial in spoiled] == list(faulty)
    assert found.answer.verdict is Verdict.BETTER
    if times == 1:
        again = [trial for trial in confirming if (trial.pair, trial.point) == (spoiled[0].pair, spoiled[0].point)]
        assert [trial.comparable is not None for trial in again] == [False, True]
    assert sum(trial.comparable is not None for trial in confirming) >= len(confirmed)
