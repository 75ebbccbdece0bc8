"""The standing answer of a study: what takes its place, and what does not."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.measure.score import EFFECTIVE_UTILIZATION
from autotune.records import (
    Conditions,
    Ending,
    Purpose,
    SearchResult,
    TrialRecord,
    Validation,
    Values,
    Verdict,
)
from autotune.space.knob import Label
from autotune.space.space import Space, point_name
from autotune.study.answer import answers_by_search, judged_finalists
from autotune.study.summary import answer_of, summarize
from tests.runs import MakeTrial, knob

SPACE = Space(
    knobs=(
        knob("batch", 8, 16, 32, label=Label.BATCH),
        knob("precision", "float32", "bfloat16", label=Label.PRECISION),
        knob("workers", 1, 2, 4),
        knob("cache", "none", "memory"),
    )
)
TODAY = SPACE.baseline
WORKERS: Values = {**TODAY, "workers": 2}
MORE: Values = {**TODAY, "workers": 4}
CACHE: Values = {**TODAY, "workers": 2, "cache": "memory"}
BATCH: Values = {**TODAY, "batch": 32, "workers": 2}
PRIMES = (1.0, 1.05, 0.95, 1.02, 0.98, 1.01)


class Study:
    """Record of a study, written search by search."""

    def __init__(self, make_trial: MakeTrial) -> None:
        self._make_trial = make_trial
        self.records: list[TrialRecord] = []

    def search(
        self, *points: tuple[Values, float | None], today: Values = TODAY, speed: float = 50.0, allowed: str = "",
        left_out: str = "", outside: str = "", explored: bool = True,
    ) -> "Study":  # fmt: skip
        """Add a search in which today's config and these points ran in the same rounds; None for one that crashed."""
        name = f"s{len({trial.search for trial in self.records})}"
        kinds = tuple(filter(None, allowed.split(",")))
        about = Conditions(allowed_changes=kinds, left_out_answer=left_out or None, outside_answer=outside or None)

        def add(values: Values, samples_per_s: float | None, purpose: Purpose, **changes: Any) -> None:
            changed = tuple(key for key in ("batch", "precision") if values[key] != today[key])
            conditions = replace(about, changes=changed)
            self.records.append(
                self._make_trial(values, samples_per_s, purpose=purpose, search=name, conditions=conditions, **changes)
            )

        add(today, speed, Purpose.BASELINE)
        for values, pace in points:
            add(values, pace, Purpose.EXPLORE)
        for pair, factor in enumerate(PRIMES if explored else ()):
            add(today, speed * factor, Purpose.CONFIRM, pair=pair)
            for values, pace in points:
                if pace is not None:
                    add(values, pace * factor, Purpose.CONFIRM, pair=pair)
        return self

    def stands(self, **question: Any) -> Values | None:
        """Return the values that the study stands by."""
        found = answers_by_search(self.records, EFFECTIVE_UTILIZATION, **question)[None]
        return found and found.trial.values

    def answer(self, today: Values = TODAY) -> SearchResult:
        """Return the answer, where the config holds these values."""
        result = answer_of(self.records, SPACE, objective=EFFECTIVE_UTILIZATION, config_point=point_name(today))
        assert result is not None
        return result


@pytest.fixture
def study(make_trial: MakeTrial) -> Study:
    """A study without trials."""
    return Study(make_trial)


def test_what_beats_it_in_the_same_rounds_takes_its_place(study: Study) -> None:
    """And nothing else does: not what was only compared with today's config, however much faster."""
    assert study.stands() is None
    assert study.search((WORKERS, 100.0)).stands() == WORKERS
    assert study.search((MORE, 120.0)).stands() == WORKERS
    assert study.search((MORE, 101.0), (WORKERS, 100.0)).stands() == WORKERS  # by 1 %: not worth a change
    assert study.search((MORE, 120.0), (WORKERS, 100.0)).stands() == MORE


def test_it_keeps_the_figures_that_it_was_given_for(study: Study) -> None:
    """Met again, by a search or two, it is still 2.0x: everybody who asks is told the same."""
    first = study.search((WORKERS, 100.0)).answer()
    again = study.search((WORKERS, 104.0)).search((WORKERS, 97.0), (MORE, 96.0)).answer()
    assert (again.verdict, again.search, again.speedup) == (Verdict.BETTER, "s0", first.speedup)


def test_a_later_search_that_never_came_to_pairs_does_not_hide_it(study: Study) -> None:
    """Nor one that was interrupted, or had no time."""
    study.search((WORKERS, 100.0)).search((MORE, 130.0), explored=False).search(explored=False)
    assert study.answer().search == "s0"
    assert study.search((WORKERS, None), explored=False).answer().search == "s0"
    assert judged_finalists(study.records, "s1", EFFECTIVE_UTILIZATION) == []


@pytest.mark.parametrize(("allowed", "stands"), [("", WORKERS), ("precision", WORKERS), ("batch,precision", BATCH)])
def test_a_change_of_the_training_has_to_be_allowed(study: Study, allowed: str, stands: Values) -> None:
    """However much faster; and the answer says what was held back, and how to have it."""
    study.search((WORKERS, 100.0)).search((BATCH, 200.0), (WORKERS, 100.0), allowed=allowed)
    assert study.stands() == stands
    assert study.search((CACHE, 300.0), (BATCH, 200.0), (WORKERS, 100.0)).stands() == CACHE


def test_of_a_first_search_any_kind_of_change_may_be_the_answer(study: Study) -> None:
    """What takes its place may make the same kind of change, and no other."""
    assert study.search((BATCH, 200.0)).stands() == BATCH
    assert study.search(({**BATCH, "workers": 4}, 250.0), (BATCH, 200.0)).stands() == {**BATCH, "workers": 4}


def test_in_force_it_is_todays_training_and_another_batch_is_another_change(study: Study) -> None:
    """Search after search, a batch does not grow by itself."""
    larger = {**BATCH, "batch": 16, "cache": "memory"}
    study.search((BATCH, 200.0)).search((larger, 400.0), today=BATCH, speed=200.0)
    assert study.stands() == BATCH
    result = study.answer(BATCH)
    assert (result.verdict, result.search) == (Verdict.NO_CHANGE, "s1")
    assert "held back: it changes the batch; allow that with --batch 4x" in result.why
    study.search((larger, 400.0), today=BATCH, speed=200.0, allowed="batch")
    assert (study.stands(), study.answer(BATCH).verdict) == (larger, Verdict.BETTER)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workers": 4}, "it is not shown to be faster than the current answer in pairs with it"),
        ({"batch": 32}, "it changes the batch; allow that with --batch 4x"),
        (
            {"precision": "bfloat16"},
            "it changes the precision; allow that with its key under knobs:",
        ),
        (
            {"batch": 32, "precision": "bfloat16"},
            "it changes the batch and the precision; allow that with its key under knobs:",
        ),
    ],
)
def test_what_is_held_back_says_why_and_how_to_have_it(study: Study, changes: Values, why: str) -> None:
    """The option that allows a change of the batch allows no other."""
    study.search((WORKERS, 100.0)).search(({**TODAY, **changes}, 120.0))
    assert study.stands() == WORKERS
    own = summarize(study.records, "s1", SPACE, objective=EFFECTIVE_UTILIZATION)
    assert (own.verdict, own.why) == (Verdict.NO_CHANGE, f"a faster point is held back: {why}")


@pytest.mark.parametrize(("between", "is_known"), [(10, True), (11, False)])
def test_what_was_noisy_a_dozen_searches_ago_tells_nothing_of_now(study: Study, between: int, is_known: bool) -> None:
    """The interval is then that of a study which began later."""
    study.search((TODAY, 35.0), explored=False)
    for _ in range(between):
        study.search(explored=False)
    study.search((WORKERS, 100.0))
    later = Study(study._make_trial)
    later.records = [trial for trial in study.records if trial.search != "s0"]
    assert (study.answer().speedup == later.answer().speedup) is not is_known


def test_where_it_fails_it_stands_no_more(study: Study) -> None:
    """It crashed in a later search, was slower than today's config, or broke in a longer training."""
    study.search((WORKERS, 100.0))
    before = list(study.records)
    assert study.search((WORKERS, None), (MORE, 90.0)).stands() == MORE
    study.records = list(before)
    assert study.search((WORKERS, 30.0), (MORE, 90.0)).stands() == MORE
    study.records = list(before)
    assert study.search((WORKERS, 30.0)).stands() is None
    study.records = list(before)
    study.search((WORKERS, 100.0))
    broke = Validation(trained_s=60.0, broke=("it stops at the end of an epoch",))
    study.records.append(
        study._make_trial(
            WORKERS, 100.0, search="s1", purpose=Purpose.VALIDATE, validation=broke, ending=Ending.STOPPED
        )
    )
    assert study.stands() is None


def test_what_the_domains_do_not_have_any_more_is_replaced(study: Study) -> None:
    """The user has taken its values out of them: nothing could ever meet it again."""
    study.search((WORKERS, 100.0)).search((CACHE, 80.0), outside=point_name(WORKERS))
    assert study.stands() == CACHE
    assert (study.answer().search, study.answer().is_apart) == ("s1", False)


def test_a_search_with_a_limit_speaks_for_itself_and_leaves_what_stands(study: Study) -> None:
    """``--batch 2x`` may find less: that is its own answer, and the study's is what it was."""
    smaller = {**BATCH, "batch": 16}
    study.search((BATCH, 200.0)).search((smaller, 120.0), left_out=point_name(BATCH))
    assert study.stands() == BATCH
    own = summarize(study.records, "s1", SPACE, objective=EFFECTIVE_UTILIZATION)
    assert (own.verdict, own.best.values, own.is_apart) == (Verdict.BETTER, smaller, True)
    assert (study.answer().search, study.answer().is_apart) == ("s0", False)


def test_each_question_has_an_answer(study: Study) -> None:
    """With the batch left out another point may stand; the answer to the whole question stays."""
    study.search((BATCH, 200.0)).search((WORKERS, 100.0))
    assert study.stands() == BATCH
    assert study.stands(excluded=frozenset({"batch"})) == WORKERS


def test_the_answer_is_for_the_values_that_the_config_holds(study: Study) -> None:
    """Applied, and searched again in vain: no change; taken back, the answer is what it was."""
    study.search((WORKERS, 100.0)).search((MORE, 100.0), today=WORKERS, speed=100.0)
    assert (study.answer(WORKERS).verdict, study.answer(WORKERS).search) == (Verdict.NO_CHANGE, "s1")
    assert (study.answer(TODAY).verdict, study.answer(TODAY).search) == (Verdict.BETTER, "s0")


def test_where_a_person_set_other_values_it_has_to_be_better_than_those(study: Study) -> None:
    """It was met there, and is no better: today's values are as good."""
    mine = {**TODAY, "workers": 4}
    study.search((WORKERS, 100.0)).search((WORKERS, 100.0), today=mine, speed=100.0)
    assert study.answer(mine).verdict is Verdict.NO_CHANGE
    assert (study.answer(TODAY).verdict, study.stands()) == (Verdict.BETTER, WORKERS)
