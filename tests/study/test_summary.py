"""Summary of a search, from its record alone."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.measure.score import EFFECTIVE_UTILIZATION, UTILIZATION, Objective
from autotune.records import Conditions, Purpose, SearchResult, TrialRecord, Validity, Values, Verdict
from autotune.space.knob import Label
from autotune.space.space import Space, point_name
from autotune.study.answer import judged_finalists
from autotune.study.summary import latest_search, summarize
from tests.runs import MakeTrial, gpu, knob, on_gpu

SPACE = Space(knobs=(knob("batch", 8, 32, label=Label.BATCH), knob("workers", 1, 2)))
BASELINE = SPACE.baseline
FAST: Values = {"batch": 32, "workers": 2}
WORKERS: Values = {"batch": 8, "workers": 2}
FACTORS = (1.0, 1.05, 0.95, 1.02, 0.98, 1.01)


class History:
    """Writes a record, search by search."""

    def __init__(self, make_trial: MakeTrial) -> None:
        self._make_run = make_trial
        self.records: list[TrialRecord] = []
        self.search = "s1"

    def run(self, values: Values, samples_per_s: float | None, purpose: Purpose, **changes: Any) -> None:
        """One run."""
        self.records.append(self._make_run(values, samples_per_s, purpose=purpose, search=self.search, **changes))

    def explored(self, search: str, baseline: float | None, **points: float | None) -> "History":
        """A search that has measured today's config and these points."""
        self.search = search
        self.run(BASELINE, baseline, Purpose.BASELINE)
        for name, speed in points.items():
            self.run({"fast": FAST, "workers": WORKERS}[name], speed, Purpose.EXPLORE)
        return self

    def confirmed(
        self, baseline: float, candidate: float, *, pairs: int = 4, values: Values = FAST, planned: int | None = None
    ) -> "History":
        """That many pairs, of a sequential confirmation if it was planned for so many at most."""
        conditions = Conditions(pairs_planned=planned)
        for pair, (one, other) in enumerate(zip(FACTORS, FACTORS[1:] + FACTORS[:1], strict=True)):
            if pair < pairs:
                self.run(BASELINE, baseline * one, Purpose.CONFIRM, pair=pair, conditions=conditions)
                self.run(values, candidate * other, Purpose.CONFIRM, pair=pair, conditions=conditions)
        return self

    def answer(self, search: str | None = None, objective: Objective = EFFECTIVE_UTILIZATION) -> SearchResult:
        """Return the summary of these records."""
        result = summarize(self.records, search or self.search, SPACE, objective=objective)
        assert result is not None
        return result


@pytest.fixture
def history(make_trial: MakeTrial) -> History:
    """An empty record."""
    return History(make_trial)


def test_a_confirmed_gain_is_better(history: History) -> None:
    """Best, baseline, ratio with its interval, and what each change is worth are there."""
    result = history.explored("s1", 50.0, workers=55.0, fast=100.0).confirmed(50.0, 100.0).answer()
    assert result.verdict is Verdict.BETTER
    assert (result.best.values, result.baseline.values, result.candidate) == (FAST, BASELINE, None)
    assert result.score_ratio is not None
    assert 1.5 < result.speedup.low < result.speedup.ratio == pytest.approx(2.0, rel=0.01)
    assert "4 interleaved pairs" in result.why
    assert {change.path for change in result.changes} == {"batch", "workers"}
    assert result.same_training is not None
    side, ratio = result.same_training
    assert (side.values, ratio) == (WORKERS, pytest.approx(1.1, rel=0.03))
    assert (result.trials, result.outcomes) == (11, {"stopped": 11})


def test_a_gain_that_is_not_confirmed_is_no_change(history: History) -> None:
    """A point that was not confirmed remains the candidate; the best is the baseline."""
    result = history.explored("s1", 50.0, fast=60.0).confirmed(50.0, 50.5).answer()
    assert result.verdict is Verdict.NO_CHANGE
    assert result.best == result.baseline
    assert result.candidate.values == FAST
    assert result.speedup is not None
    assert result.smallest_gain is not None
    assert f"{100 * result.smallest_gain:.0f} %" in result.why


@pytest.mark.parametrize(
    ("points", "pairs", "says"),
    [
        ({"workers": 45.0, "fast": 40.0}, None, "no tried point is faster"),
        ({"workers": 51.0, "fast": 40.0}, None, "no tried point is faster"),  # within what trials differ by
        ({}, None, "only the current values were tried"),
        ({"fast": 100.0}, None, "0 of at least 2 confirming pairs were measured"),
        ({"fast": 100.0}, (1, 100.0, None), "1 of at least 2 confirming pairs were measured"),
        ({"fast": 60.0}, (2, 60.0, None), "2 interleaved pairs with today's config do not show a gain"),
        ({"fast": 60.0}, (2, 60.0, 2), "2 interleaved pairs with today's config do not show a gain"),
        ({"fast": 60.0}, (3, 60.0, None), "3 interleaved pairs with today's config do not show a gain"),
    ],
)
def test_what_was_not_confirmed_is_not_the_answer(
    history: History, points: dict[str, float], pairs: tuple[int, float, int | None] | None, says: str
) -> None:
    """It is said why; a point that looks much faster is a candidate, not more, until it was measured again."""
    history.explored("s1", 50.0, **points)
    if pairs is not None:
        history.confirmed(50.0, pairs[1], pairs=pairs[0], planned=pairs[2])
    result = history.answer()
    verdict = Verdict.NOT_CONFIRMED if "of at least" in says else Verdict.NO_CHANGE
    assert (result.verdict, result.best) == (verdict, result.baseline)
    assert (result.speedup is not None) == (pairs is not None and pairs[0] > 1)
    assert (result.candidate is not None) == (points.get("fast", 0.0) > 50.0)
    assert says in result.why
    assert latest_search(history.records, EFFECTIVE_UTILIZATION) == "s1"


@pytest.mark.parametrize(("speed", "says"), [(100.0, "caches did not fill in time"), (50.5, "the speed may be 0.")])
def test_caches_that_are_still_being_filled_are_spoken_of(history: History, speed: float, says: str) -> None:
    """The interval then holds what full caches will make of the two."""
    history.explored("s1", 50.0, fast=speed).confirmed(50.0, speed)
    history.records = [
        replace(one, measurement=replace(one.measurement, filled_samples_per_s=one.measurement.samples_per_s))
        for one in history.records
        if one.measurement
    ]
    assert says in history.answer().why


def test_by_utilization_a_gpu_has_to_be_busier_at_no_less_speed(history: History) -> None:
    """However busy it is, and it is said why; where nothing else was tried there is no candidate either."""
    slow = _busy(History(history._make_run).explored("s1", 50.0, fast=40.0), baseline=0.3, fast=0.99)
    answer = slow.answer(objective=UTILIZATION)
    assert (answer.verdict, answer.candidate) == (Verdict.NO_CHANGE, None)
    assert "busier without being slower" in answer.why
    history.explored("s1", 50.0, fast=55.0).confirmed(50.0, 45.0)
    answer = _busy(history, baseline=0.3, fast=0.99).answer(objective=UTILIZATION)
    assert answer.verdict is Verdict.NO_CHANGE
    assert "show a busier GPU, but training may be slower" in answer.why


@pytest.mark.parametrize("pairs", [2, 3])
def test_a_confirmation_that_is_cut_short_shows_a_large_gain(history: History, pairs: int) -> None:
    """One trial that starts slowly at the end of the budget does not cost a factor of two that all others show."""
    result = history.explored("s1", 50.0, fast=100.0).confirmed(50.0, 100.0, pairs=pairs).answer()
    whole = history.explored("s2", 50.0, fast=100.0).confirmed(50.0, 100.0).answer()
    assert result.verdict is Verdict.BETTER
    assert result.speedup.low < whole.speedup.low


def test_half_a_pair_does_not_count(history: History) -> None:
    """A pair of which one trial failed, or never came, is none."""
    history.explored("s1", 50.0, fast=100.0).confirmed(50.0, 100.0, pairs=3)
    history.run(BASELINE, 50.0, Purpose.CONFIRM, pair=3)
    history.run(FAST, None, Purpose.CONFIRM, pair=3)
    history.run(FAST, 100.0, Purpose.CONFIRM, pair=4, validity=Validity.NOT_STEADY)
    history.run(BASELINE, 50.0, Purpose.CONFIRM, pair=4)
    (finalist,) = judged_finalists(history.records, "s1", EFFECTIVE_UTILIZATION)
    assert len(finalist.pairs) == 3
    assert history.answer().verdict is Verdict.NOT_CONFIRMED  # so few are judged only if none of its trials failed


def test_runs_of_todays_config_that_are_far_apart_are_told_of(history: History) -> None:
    """The answer holds, and its reader knows what it was measured on."""
    even = history.explored("s1", 50.0, fast=100.0).confirmed(50.0, 100.0).answer()
    assert even.cautions == ()
    history.run(BASELINE, 70.0, Purpose.CONFIRM, pair=4)
    (caution,) = history.answer().cautions
    assert "Of 6 trials of today's config, one was 1.47x as fast as another" in caution


def test_todays_config_that_fails_is_no_baseline(history: History) -> None:
    """The best of what runs is the answer, and no ratio is made up."""
    result = history.explored("s1", None, workers=45.0, fast=60.0).answer()
    assert result.verdict is Verdict.NO_BASELINE
    assert (result.baseline.values, result.baseline.metrics) == (BASELINE, None)
    assert result.best.values == FAST
    assert (result.speedup, result.score_ratio, result.same_training) == (None, None, None)
    assert "crashed" in result.why
    assert {change.worth for change in result.changes} == {None}
    assert result.outcomes == {"crashed": 1, "stopped": 2}


def test_no_numbers_are_no_answer(history: History) -> None:
    """No summary if every trial failed."""
    history.explored("s1", None, fast=None)
    history.run(FAST, 90.0, Purpose.EXPLORE, validity=Validity.COLD)
    assert summarize(history.records, "s1", SPACE, objective=EFFECTIVE_UTILIZATION) is None


def test_after_apply_the_same_training_is_still_that_of_then(history: History) -> None:
    """Unchanged training means that of the searched config, not of the present one."""
    history.explored("s1", 50.0)
    history.run({"batch": 32, "workers": 1}, 90.0, Purpose.EXPLORE)
    now = Space(knobs=(knob("batch", 32, 8, label=Label.BATCH), knob("workers", 2, 1)))
    result = summarize(history.records, "s1", now, objective=EFFECTIVE_UTILIZATION)
    assert result.same_training is None


def test_the_last_search_with_an_answer_is_the_one_to_report(history: History) -> None:
    """One that was interrupted hides no answer; that nothing is faster is one, too."""
    assert latest_search([], EFFECTIVE_UTILIZATION) is None
    history.explored("s0", 50.0, fast=100.0)
    assert latest_search(history.records, EFFECTIVE_UTILIZATION) == "s0"
    history.explored("s1", 50.0, fast=100.0).confirmed(50.0, 100.0, pairs=2, planned=6)
    history.explored("s2", 50.0).explored("s3", 50.0, fast=90.0).confirmed(50.0, 60.0, pairs=2)
    assert latest_search(history.records, EFFECTIVE_UTILIZATION) == "s1"
    history.explored("s4", 100.0, fast=99.0)
    assert latest_search(history.records, EFFECTIVE_UTILIZATION) == "s4"


def test_a_diagnosis_is_no_search(history: History, make_trial: MakeTrial) -> None:
    """It hides no answer, though nothing that it tried was faster; alone on record it is none."""
    history.explored("s1", 50.0, fast=100.0).confirmed(50.0, 100.0)
    look = make_trial(BASELINE, 50.0, search="d1", purpose=Purpose.DIAGNOSE)
    later = [look, *(make_trial(BASELINE, 50.0, search="d1", purpose=purpose) for purpose in (Purpose.BASELINE,))]
    later.append(make_trial({**BASELINE}, 40.0, search="d1", purpose=Purpose.EXPLORE))
    assert latest_search([*history.records, *later], EFFECTIVE_UTILIZATION) == "s1"
    assert latest_search(later, EFFECTIVE_UTILIZATION) is None


def _busy(history: History, **shares: float) -> History:
    """The same history on a GPU: how busy today's config and the fast point keep it."""
    by_point = {point_name(BASELINE): shares["baseline"], point_name(FAST): shares["fast"]}
    history.records = [
        replace(trial, measurement=on_gpu(trial, by_point[trial.point]).measurement) if trial.measurement else trial
        for trial in history.records
    ]
    return history


def test_a_gpu_that_is_busier_at_no_less_speed_is_better_by_utilization(history: History) -> None:
    """The score ratio is that of utilization; the speed ratio stands beside it."""
    history.explored("s1", 50.0, fast=75.0).confirmed(50.0, 75.0)
    result = _busy(history, baseline=0.3, fast=0.6).answer(objective=UTILIZATION)
    assert result.verdict is Verdict.BETTER
    assert result.objective == "utilization"
    assert result.score_ratio.ratio == pytest.approx(2.0)
    assert result.speedup.ratio == pytest.approx(1.5, rel=0.01)


def test_each_side_shows_its_gpus(history: History) -> None:
    """Pooled over the search's trials of the point; the best rate that E needs comes from the whole study."""
    waves = {point_name(BASELINE): [0.1, 0.1, 0.5, 0.5] * 10, point_name(FAST): [0.9] * 40}
    for search in ("s0", "s1"):
        history.explored(search, 50.0, fast=100.0).confirmed(50.0, 100.0)
    history.records = [on_gpu(trial, gpu(waves[trial.point])) for trial in history.records]
    result = history.answer("s1")
    assert result.baseline.gpus.devices[0].text == "10-50 % cyclic, period 1.0 s"
    assert result.best.gpus.devices[0].text == "90 % flat"
    assert result.best.gpus.devices[0].samples == 5 * 40
    baseline, best = (side.gpus.effective_utilization or 0.0 for side in (result.baseline, result.best) if side.gpus)
    assert 0.0 < baseline < best
    assert baseline / best == pytest.approx(0.5, rel=0.05)


def test_one_record_gives_one_verdict_whoever_asks(history: History) -> None:
    """The search asks with a space it has narrowed, `status` with that of a config edited since: the answer is one."""
    history.explored("s1", 50.0, workers=52.0, fast=60.0)
    for speed in (45.0, 60.0, 38.0, 55.0):  # repeats of a point that a narrowed space does not hold
        history.run(WORKERS, speed, Purpose.REPEAT)
    history.confirmed(50.0, 56.0)
    narrowed = replace(SPACE, knobs=tuple(one.narrowed([one.baseline]) for one in SPACE.knobs))
    moved = Space(knobs=(knob("batch", 32, 64, label=Label.BATCH), knob("workers", 2, 4)))
    answers = [
        summarize(history.records, "s1", space, objective=EFFECTIVE_UTILIZATION) for space in (SPACE, narrowed, moved)
    ]
    told = [(answer.verdict, answer.speedup, answer.score_ratio) for answer in answers if answer]
    assert told[1:] == told[:1] * 2


def test_what_comes_after_a_search_leaves_its_answer_alone(history: History) -> None:
    """Runs of later searches are no part of what the earlier one has shown."""
    history.explored("s1", 50.0, workers=52.0, fast=60.0).confirmed(50.0, 56.0)
    before = history.answer("s1")
    history.explored("s2", 50.0)
    for speed in (30.0, 60.0, 38.0, 70.0):
        history.run(WORKERS, speed, Purpose.EXPLORE)
    assert history.answer("s1") == before
