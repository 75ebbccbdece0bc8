"""Report of a study as its reader has it, made of records."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.records import Ending, LossCurve, Purpose, RaceArm, RaceLeg, TrialRecord, Validity
from autotune.report.html.contents import Advice, StudyContents
from autotune.report.html.study_page import comparison_page, study_page
from autotune.report.html.trial_points import best_over_time, trial_points
from autotune.results import Learning, LossDifference, Race, Raced, Verdict
from tests.report.conftest import BASELINE, BEST, MakeResult, on_gpus, pooled_gpu
from tests.report.html.validity import checked, part, pictures, words
from tests.runs import MakeTrial, gpu, on_gpu

NOW = "2030-01-01 00:00 UTC"
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe\x00&quot;"
SECTIONS = [
    *("comparison", "trials", "knobs", "utilization", "steps", "parts", "confirmation", "learning", "advice"),
    *("remarks", "break-even", "diff", "conditions", "repeat"),
]


def at(trial: TrialRecord, minute: int, **changes: Any) -> TrialRecord:
    """Return a trial that ended in that minute of its search."""
    return replace(trial, ended_utc=f"2030-01-01T{minute // 60:02d}:{minute % 60:02d}:00+00:00", **changes)


@pytest.fixture
def trials(make_trial: MakeTrial) -> list[TrialRecord]:
    """Trials of a search of twenty minutes with a GPU, a failure and a race."""
    rng = random.Random(1)
    slow = [0.02 if place % 8 < 5 else 0.4 for place in range(120)]
    made = [
        at(on_gpu(make_trial(BASELINE, 40.0, purpose=Purpose.BASELINE, point="base"), gpu(slow)), 1),
        at(make_trial({**BASELINE, "data.cache": "memory"}, 60.0, point="cached"), 2),
        at(
            make_trial({**BASELINE, "data.batch_size": 64}, None, ending=Ending.OUT_OF_GPU_MEMORY, detail="OOM when"), 3
        ),
        at(on_gpu(make_trial(BEST, 100.0, point="best"), gpu([rng.uniform(0.9, 1.0) for _ in slow])), 4),
    ]
    for pair in range(4):
        made.append(
            at(make_trial(BASELINE, 40.0 + pair, purpose=Purpose.CONFIRM, pair=pair, point="base"), 5 + 2 * pair)
        )
        made.append(at(make_trial(BEST, 100.0 - pair, purpose=Purpose.CONFIRM, pair=pair, point="best"), 6 + 2 * pair))
    for place, arm in enumerate((RaceArm.BASELINE, RaceArm.WINNER, RaceArm.SCALED)):
        curve = LossCurve(ends_s=(1.0, 2.0, 3.0), losses=(3.0, 2.0, 1.0 + place))
        leg = RaceLeg(arm=arm, pair=0, trained_s=3.0, curve=curve)
        race = make_trial(BEST, 100.0, purpose=Purpose.RACE, point="best", race=leg)
        made.append(at(race, 15 + place))
    return made


@pytest.fixture
def contents(trials: list[TrialRecord], search_result: MakeResult) -> StudyContents:
    """Contents of the report of a search that found something better."""
    result = search_result()
    assert result.baseline is not None
    assert result.best is not None
    today = pooled_gpu("2-40 % cyclic, period 2.0 s", 0.16, low=0.02, high=0.4, period_s=2.0)
    best = pooled_gpu("90-100 % flat", 0.95)
    race = Race(
        winner=Raced(
            learning=Learning.SLOWER,
            at_equal_time=LossDifference(today=1.0, other=2.0, low=0.5, high=1.5),
            learning_speed=0.5,
        ),
        trained_s=3.0,
        pairs=1,
    )
    result = replace(
        result,
        baseline=replace(on_gpus(result.baseline, today, data_wait_fraction=0.6), point="base"),
        best=replace(on_gpus(result.best, best, data_wait_fraction=0.02), point="best"),
        race=race,
        cautions=("something else may be at work",),
    )
    confirming = [trial.measurement for trial in trials if trial.purpose is Purpose.CONFIRM and trial.measurement]
    return StudyContents(
        config="config.yaml",
        study="config-1",
        trials=trials,
        result=result,
        elapsed_s=1200.0,
        pairs=list(zip(confirming[::2], confirming[1::2], strict=True)),
        step_times_s=([0.1 + 0.001 * place for place in range(100)], [0.3] * 40),
        diff="--- config.yaml\n+++ config.yaml (new)\n-  batch_size: 8\n+  batch_size: 32\n",
        commands={verb: f"autotune {verb} --config config.yaml" for verb in ("search", "apply", "diagnose", "report")},
        conditions=[("machine", "box"), ("CPU", "AMD EPYC, 2 cores")],
        advice=[Advice(sentence="Cache it.", values="cache=memory", gain="2.1x (1.7 to 2.5), measured")],
        verdict_of_diagnosis="Input-bound: the step waits.",
    )


def test_it_holds_everything_in_its_order(contents: StudyContents) -> None:
    """Verdict on top, then each section with its picture and its numbers, and nothing that runs or loads."""
    page = checked(study_page(contents, NOW))
    text = words(page)
    assert text.index("as fast as today's config") < text.index("Mind: It changes the")
    ids = [one.attrib["id"] for one in page.iter("{http://www.w3.org/1999/xhtml}section")]
    assert ids == SECTIONS
    assert len(pictures(page)) == 8
    assert "1 failed: 1 out of GPU memory" in part(page, "trials")
    assert "OOM when" in part(page, "trials")
    assert "2-40 % cyclic, period 2.0 s" in part(page, "utilization")
    assert "Confirming pairs" in part(page, "confirmation")
    assert "it learns slower, 0.50x as fast" in part(page, "learning")
    assert "Cache it." in part(page, "advice")
    assert "The search took 20m" in part(page, "break-even")
    assert "+ batch_size: 32" in part(page, "diff")
    assert "autotune apply --config config.yaml" in part(page, "repeat")


def test_the_same_study_makes_the_same_bytes(contents: StudyContents) -> None:
    """So that a report under version control changes with what was found, and its time."""
    assert study_page(contents, NOW) == study_page(contents, NOW)


def test_text_from_outside_is_text(contents: StudyContents) -> None:
    """Markup, control and bidi characters of trainers, configs and machines are shown, and do nothing."""
    odd = [replace(trial, detail=HOSTILE, conditions={"host": HOSTILE}) for trial in contents.trials]
    hostile = replace(
        contents,
        config=HOSTILE,
        study=HOSTILE,
        trials=odd,
        diff=f"+{HOSTILE}\n",
        conditions=[(HOSTILE, HOSTILE)],
        advice=[Advice(sentence=HOSTILE, values=HOSTILE, gain=HOSTILE)],
        state=HOSTILE,
        commands={"apply": HOSTILE},
    )
    page = study_page(hostile, NOW)
    document = checked(page)
    assert "<script>alert(1)</script>" in words(document)
    assert not {"\x1b", "\u202e", "\x00"} & set(page)


def test_of_a_search_in_which_everything_failed(trials: list[TrialRecord]) -> None:
    """The failures are there, with what they said, and each section says why it is empty."""
    failed = [
        replace(trial, measurement=None, validity=Validity.UNMEASURED, ending=Ending.CRASHED, detail="no such layer")
        for trial in trials[:3]
    ]
    why = "no trial of this config has given numbers yet"
    page = checked(study_page(StudyContents(config="c", study="s", trials=failed, result=None, why_no_result=why), NOW))
    assert words(page).count(why) > 2
    assert "3 failed: 3 crashed" in part(page, "trials")
    assert "no such layer" in part(page, "trials")
    assert "Nothing was found that would save time" in part(page, "break-even")


def test_of_a_search_that_has_not_begun() -> None:
    """A study without a trial has a report too."""
    page = checked(
        study_page(StudyContents(config="c", study="s", trials=(), result=None, why_no_result="nothing"), NOW)
    )
    assert "There is no trial of a search yet" in part(page, "trials")


def test_of_no_change(contents: StudyContents, search_result: MakeResult) -> None:
    """What was tried stands beside today's config, by that name."""
    result = search_result(verdict=Verdict.NO_CHANGE, why="the intervals hold 1")
    assert result.best is not None
    result = replace(result, candidate=result.best, best=result.baseline)
    page = checked(study_page(replace(contents, result=result, diff=None), NOW))
    assert "Today's config against the tried" in part(page, "comparison")
    assert "stays as it is" in part(page, "diff")


def test_ten_thousand_trials_fit(contents: StudyContents, make_trial: MakeTrial) -> None:
    """The picture is thinned, the table holds the last ones, and says so."""
    more = [at(make_trial(BEST, 90.0 + place % 20, point=f"p{place % 50}"), place % 1400) for place in range(9_900)]
    page = checked(study_page(replace(contents, trials=[*contents.trials, *more]), NOW))
    assert "The table holds the last 300." in part(page, "trials")


def test_studies_side_by_side(contents: StudyContents) -> None:
    """A row each, and the gains in one picture; one without an answer is there too."""
    other = StudyContents(config="other.yaml", study="o", trials=(), result=None, why_no_result="nothing yet")
    page = checked(comparison_page([contents, other, replace(contents, config="third.yaml")], NOW))
    text = part(page, "studies")
    assert "config.yaml box better" in text
    assert "other.yaml - no answer" in text
    assert len(pictures(page)) == 1


def test_time_between_searches_is_left_out(make_trial: MakeTrial) -> None:
    """A search that goes on the next day stands beside the first; the ratio is that of each machine."""
    first = at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE, duration_s=30.0), 1)
    better = at(make_trial(BEST, 20.0, duration_s=30.0), 2)
    later = at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE, search="s2", duration_s=30.0), 1000)
    best = at(make_trial(BEST, 40.0, search="s2", duration_s=30.0), 1001)
    points = trial_points([first, better, later, best])
    assert [point.t_s for point in points] == [30.0, 90.0, 120.0, 180.0]
    assert [point.ratio for point in points] == pytest.approx([1.0, 2.0, 1.0, 4.0])
    assert best_over_time(points)[-1] == (180.0, pytest.approx(2.83, abs=0.01))


def test_machines_are_not_compared(make_trial: MakeTrial) -> None:
    """A trial stands beside today's config on its own machine; where that was not measured it has no ratio."""
    made: Sequence[TrialRecord] = [
        at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE, conditions={"machine": "a"}), 1),
        at(make_trial(BASELINE, 100.0, conditions={"machine": "b"}), 2),
        at(make_trial(BEST, 150.0, conditions={"machine": "b"}), 3),
        at(make_trial(BEST, 150.0, conditions={"machine": "c"}), 4),
    ]
    assert [point.ratio for point in trial_points(made)] == pytest.approx([1.0, 1.0, 1.5, None])
