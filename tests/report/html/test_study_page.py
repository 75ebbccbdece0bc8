"""Report of a study as its reader has it, made of records."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest

from autotune.records import (
    Conditions,
    Ending,
    Learning,
    LossCurve,
    LossDifference,
    Purpose,
    Race,
    RaceArm,
    Raced,
    RaceLeg,
    Ratio,
    TrialRecord,
    Validity,
    Verdict,
)
from autotune.report.html.contents import (
    DiagnosisSummary,
    StepPart,
    StudyContents,
    best_over_time,
    trial_points,
)
from autotune.report.html.page import report_text
from tests.report.conftest import BASELINE, BEST, MakeResult, on_gpus, pooled_gpu
from tests.report.html.validity import HTML, checked, part, pictures, words
from tests.runs import MakeTrial, gpu, on_gpu

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe\x00&quot;"
SECTIONS = [
    *("changes", "comparison", "trials", "utilization", "steps", "parts", "confirmation", "learning", "advice"),
    *("remarks", "break-even", "conditions", "repeat"),
]


def at(trial: TrialRecord, minute: int, **changes: Any) -> TrialRecord:
    """Return a trial that ended in that minute of its search."""
    return replace(trial, ended_utc=f"2030-01-01T{minute // 60:02d}:{minute % 60:02d}:00+00:00", **changes)


def contrast(colour: str, ground: str) -> float:
    """Return the contrast ratio of two colours, written as ``#rgb`` or ``#rrggbb`` (WCAG 2.2)."""

    def luminance(text: str) -> float:
        digits = text[1:] if len(text) == 7 else "".join(2 * digit for digit in text[1:])
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(colour), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture
def trials(make_trial: MakeTrial) -> list[TrialRecord]:
    """Trials of a search of twenty minutes with a GPU, a failure and a race."""
    rng = random.Random(1)
    slow = [0.02 if place % 8 < 5 else 0.4 for place in range(120)]
    made = [
        at(on_gpu(make_trial(BASELINE, 40.0, purpose=Purpose.BASELINE, point="base"), gpu(slow)), 1),
        at(make_trial({**BASELINE, "data.cache": "memory"}, 60.0, point="cached"), 2),
        at(
            make_trial({**BASELINE, "data.batch_size": 64}, None, detail="OOM when"), 3, ending=Ending.OUT_OF_GPU_MEMORY
        ),
        at(on_gpu(make_trial(BEST, 100.0, point="best"), gpu([rng.uniform(0.9, 1.0) for _ in slow])), 4),
    ]
    for pair in range(4):
        confirms: dict[str, Any] = {"purpose": Purpose.CONFIRM, "pair": pair}
        made.append(at(make_trial(BASELINE, 40.0 + pair, point="base", **confirms), 5 + 2 * pair))
        made.append(at(make_trial(BEST, 100.0 - pair, point="best", **confirms), 6 + 2 * pair))
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
    today = pooled_gpu("2-40 % cyclic, period 2.0 s", 0.16, low=0.02, high=0.4, period_s=2.0)
    best = pooled_gpu("90-100 % flat", 0.95)
    losses = LossDifference(today=1.0, other=2.0, low=0.5, high=1.5)
    winner = Raced(learning=Learning.SLOWER, at_equal_time=losses, learning_speed=0.5)
    result = replace(
        result,
        baseline=replace(on_gpus(result.baseline, today, data_wait_fraction=0.6), point="base"),
        best=replace(on_gpus(result.best, best, data_wait_fraction=0.02), point="best"),
        race=Race(winner=winner, trained_s=3.0, pairs=1),
        cautions=("something else may be at work",),
    )
    speeds = [trial.measurement.speed for trial in trials if trial.purpose is Purpose.CONFIRM and trial.measurement]
    pairs = list(zip(speeds[::2], speeds[1::2], strict=True))
    return StudyContents(
        config="config.yaml",
        study="config-1",
        trials=trials,
        result=result,
        elapsed_s=1200.0,
        measures="throughput and steadiness",
        pairs=pairs,
        step_times_s=([0.1 + 0.001 * place for place in range(100)], [0.3] * 40),
        diff="--- config.yaml\n+++ config.yaml (new)\n-  batch_size: 8\n+  batch_size: 32\n",
        commands={verb: f"autotune {verb} --config config.yaml" for verb in ("search", "apply", "diagnose", "report")}
        | {"same training": "autotune search --config config.yaml --same-training"},
        conditions=[("machine", "box"), ("CPU", "AMD EPYC, 2 cores")],
        diagnosed=DiagnosisSummary(
            recommendations=[("Cache it.", "2.1x (1.7-2.5), measured")],
            verdict="Input-bound: the step waits.",
        ),
    )


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out, as where there is no matplotlib: they take most of the time of a page."""
    monkeypatch.setattr("autotune.report.html.page.find_spec", lambda _: None)


def test_it_holds_everything_in_its_order(contents: StudyContents) -> None:
    """Verdict on top, then each section with its picture and its numbers, and nothing that runs or loads.

    The same study makes the same bytes: a report under version control changes with what was found, and its time.
    """
    written = report_text(contents, NOW)
    assert report_text(contents, NOW) == written
    page = checked(written)
    text = words(page)
    assert text.index("as fast as today's config") < text.index("Caution: It changes the")
    ids = [one.attrib["id"] for one in page.iter(f"{HTML}section")]
    assert ids == SECTIONS
    assert len(pictures(page)) == 8
    assert "1 failed: 1 out of GPU memory" in part(page, "trials")
    assert "OOM when" in part(page, "trials")
    assert "2-40 % cyclic, period 2.0 s" in part(page, "utilization")
    assert "Confirming pairs" in part(page, "confirmation")
    assert "it converges more slowly, 0.50x as fast" in part(page, "learning")
    assert "Cache it." in part(page, "advice")
    assert "The search took 20m" in part(page, "break-even")
    assert "+ batch_size: 32" in part(page, "changes")
    assert "autotune apply --config config.yaml" in part(page, "repeat")
    assert "--diagnosis FOLDER" in part(page, "parts")


@pytest.mark.usefixtures("undrawn")
def test_what_learns_more_slowly_is_not_praised(contents: StudyContents) -> None:
    """Where the race was lost, no section promises time that is won, and what to do instead is said."""
    page = checked(report_text(contents, NOW))
    assert "converges more slowly than today's, 0.50x as fast" in part(page, "break-even")
    assert "It pays off" not in part(page, "break-even")
    winner = replace(contents.result.race.winner, learning=Learning.MEMORISES, why="its held-out loss is higher")
    race = replace(contents.result.race, winner=winner)
    memorised = checked(report_text(replace(contents, result=replace(contents.result, race=race)), NOW))
    assert "not comparable: its held-out loss is higher" in part(memorised, "learning")
    assert "do not pay off: they overfitted in the race" in part(memorised, "break-even")
    likely = replace(contents, result=replace(contents.result, race=None, why_not_raced="the loss was not seen"))
    assert "It pays off for trainings" in part(checked(report_text(likely, NOW)), "break-even")
    assert "asks first" in part(page, "changes")
    assert "--same-training searches for values that leave the training unchanged" in part(page, "changes")
    assert "--same-training" in part(page, "repeat")
    both = replace(likely.result, same_training_confirmed=Ratio(ratio=1.4, low=1.3, high=1.5))
    changed = part(checked(report_text(replace(contents, result=both), NOW)), "changes")
    assert "asks first" not in changed  # `apply --all` does not
    assert "Without --all it writes the confirmed values that leave the training unchanged" in changed


def test_text_from_outside_is_text(contents: StudyContents) -> None:
    """Markup, control and bidi characters of trainers, configs and machines are shown, and do nothing."""
    odd = [
        replace(trial, detail=HOSTILE, conditions=Conditions(host=HOSTILE, machine=f"{HOSTILE}{place % 2}"))
        for place, trial in enumerate(contents.trials)
    ]
    changes = [replace(one, path=HOSTILE, old=HOSTILE, new=HOSTILE, label=HOSTILE) for one in contents.result.changes]
    texts = dict.fromkeys(("config", "measures", "study", "state"), HOSTILE)
    hostile = replace(
        contents,
        **texts,
        result=replace(contents.result, why=HOSTILE, cautions=(HOSTILE,), changes=tuple(changes)),
        diagnosed=DiagnosisSummary(
            verdict=HOSTILE,
            recommendations=[(HOSTILE, HOSTILE)],
            step_parts=[StepPart(name=HOSTILE, mean_ms=1.0)],
        ),
        remedies={ending.value: f"`{HOSTILE}`" for ending in Ending},
        trials=odd,
        diff=f"+{HOSTILE}\n",
        conditions=[(HOSTILE, HOSTILE)],
        commands={"apply": HOSTILE},
    )
    page = report_text(hostile, NOW)
    assert "<script>alert(1)</script>" in words(checked(page))
    assert not {"\x1b", "\u202e", "\x00"} & set(page)


@pytest.mark.usefixtures("undrawn")
def test_of_a_search_in_which_everything_failed(trials: list[TrialRecord]) -> None:
    """The failures are there, with what they said, and no section that could only say that there is no answer."""
    failed = [
        replace(trial, measurement=None, validity=Validity.UNMEASURED, ending=Ending.CRASHED, detail="no such layer")
        for trial in trials[:3]
    ]
    why = "no trial of this config has a measurement yet"
    nothing = StudyContents(config="c", study="s", trials=failed, result=None, why_no_result=why)
    page = checked(report_text(nothing, NOW))
    assert words(next(page.iter(f"{HTML}h1"))) == f"No answer: {why}."
    assert "3 failed: 3 crashed" in part(page, "trials")
    assert "no such layer" in part(page, "trials")
    assert [one.get("id") for one in page.iter(f"{HTML}section")] == ["trials", "advice", "conditions", "repeat"]
    page = checked(report_text(replace(nothing, trials=()), NOW))
    assert "No trial of a search yet" in part(page, "trials")


def test_a_step_is_taken_apart(contents: StudyContents) -> None:
    """The parts of a profile are drawn and listed; what was not measured, or is lost in the noise, is said.

    As each picture has its numbers below, in a table that opens, for those who see none or want the digits.
    """
    parts = (StepPart(name="forward", mean_ms=3.0), StepPart(name="copy", mean_ms=None), StepPart(name="a", mean_ms=-1))
    diagnosed = replace(contents.diagnosed, step_parts=parts)
    page = checked(report_text(replace(contents, diagnosed=diagnosed), NOW))
    assert "Parts of a step of today's config" in pictures(page)
    text = part(page, "parts")
    assert "forward 3 ms 100 % copy not measured - a 0 ms 0 %" in text
    assert "--diagnosis FOLDER" not in text
    neighbours = [(before.tag, after.tag) for parent in page.iter() for before, after in pairwise(parent)]
    assert neighbours.count((f"{HTML}figure", f"{HTML}details")) == len(pictures(page))


@pytest.mark.usefixtures("undrawn")
def test_without_matplotlib_the_numbers_stand_there(contents: StudyContents) -> None:
    """Open, in place of the pictures, and the page says what draws them."""
    page = checked(report_text(contents, NOW))
    assert not pictures(page)
    assert "need matplotlib" in words(page)


def test_text_is_readable_by_light_and_by_dark() -> None:
    """A contrast of 4.5 to 1 for all text on each ground that it stands on (WCAG 2.2, 1.4.3)."""
    style = files("autotune.report.html").joinpath("page.css").read_text(encoding="utf-8")
    by_light, by_dark = (dict(re.findall(r"--(\w+): (#\w+)", block)) for block in re.findall(r":root \{([^}]*)", style))
    for colours in (by_light, by_dark):
        grounds = {"text": ("ground", "soft", "plus", "minus"), "muted": ("ground",), "accent": ("ground",)}
        for name, under in grounds.items():
            assert min(contrast(colours[name], colours[ground]) for ground in under) >= 4.5


@pytest.mark.usefixtures("undrawn")
def test_of_two_machines(trials: list[TrialRecord], contents: StudyContents) -> None:
    """Both are named, also where their hosts have one name, and each row says on which its trial was made."""
    boxes = [Conditions(host="box", machine=f"m{place}") for place in range(2)]
    made = [replace(one, conditions=boxes[place % 2]) for place, one in enumerate(trials)]
    names = {"m0": "box (m0)", "m1": "box (m1)"}
    text = part(checked(report_text(replace(contents, trials=made, machines=names), NOW)), "trials")
    assert "Run on 2 machines: box (m0), box (m1)." in text
    assert "0 box (m0) baseline" in text


@pytest.mark.usefixtures("undrawn")
def test_of_no_change(contents: StudyContents, search_result: MakeResult) -> None:
    """What was tried stands beside today's config, by that name."""
    unclear = replace(search_result().changes[0], worth=Ratio(ratio=1.1, low=0.9, high=1.3))
    result = search_result(verdict=Verdict.NO_CHANGE, why="the intervals hold 1", changes=(unclear,))
    result = replace(result, candidate=result.best, best=result.baseline)
    page = checked(report_text(replace(contents, result=result, diff=None), NOW))
    assert "tried" in part(page, "comparison")
    assert "Nothing to write" in part(page, "changes")
    assert "a gain of this change alone is not confirmed." in part(page, "changes")
    confirmed = replace(result, verdict=Verdict.BETTER)
    page = checked(report_text(replace(contents, result=confirmed), NOW))
    assert "is not confirmed; that of all changes together is." in part(page, "changes")


def test_ten_thousand_trials_fit(contents: StudyContents, make_trial: MakeTrial) -> None:
    """The picture is thinned, the table holds the last ones, and says so."""
    more = [at(make_trial(BEST, 90.0 + place % 20, point=f"p{place % 50}"), place % 1400) for place in range(9_900)]
    page = checked(report_text(replace(contents, trials=[*contents.trials, *more]), NOW))
    assert "The table shows the last 300." in part(page, "trials")


def test_time_between_searches_is_left_out(make_trial: MakeTrial) -> None:
    """A search that goes on the next day stands beside the first; the ratio is that of each machine."""
    first = at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE, duration_s=30.0), 1)
    better = at(make_trial(BEST, 20.0, duration_s=30.0), 2)
    later = at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE, search="s2", duration_s=30.0), 1000)
    best = at(make_trial(BEST, 40.0, search="s2", duration_s=30.0), 1001)
    points = trial_points([first, better, later, best])
    assert [point.t_s for point in points] == [30.0, 90.0, 120.0, 180.0]
    assert [point.ratio for point in points] == pytest.approx([1.0, 2.0, 1.0, 4.0])
    assert best_over_time(points) == [(30.0, 1.0), (90.0, pytest.approx(2.83, abs=0.01))]


def test_the_best_speed_so_far_never_falls(make_trial: MakeTrial) -> None:
    """A trial that was lucky does not raise it beyond what the point shows in all of its trials."""
    first = at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE), 1)
    further = [("lucky", 40.0), ("lucky", 10.0), ("better", 30.0), ("worse", 15.0)]
    trials = [at(make_trial(BEST, speed, point=name), 2 + place) for place, (name, speed) in enumerate(further)]
    assert [speed for _, speed in best_over_time(trial_points([first, *trials]))] == pytest.approx([1.0, 2.0, 3.0])


def test_a_diagnosis_is_no_search(make_trial: MakeTrial) -> None:
    """Its trials of today's config and of what it recommends are none of a search, whatever they are called."""
    diagnosis = [
        at(make_trial(BASELINE, 10.0, purpose=purpose, search="d"), minute)
        for minute, purpose in enumerate((Purpose.DIAGNOSE, Purpose.BASELINE, Purpose.EXPLORE))
    ]
    assert trial_points(diagnosis) == []
    searched = at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE, search="s"), 9)
    assert [point.trial for point in trial_points([*diagnosis, searched])] == [searched]


def test_the_beginning_of_a_race_leaves_room(contents: StudyContents, trials: list[TrialRecord]) -> None:
    """Losses that fall from far above in the first moments are cut off, and that is said."""
    leg = trials[-1].race
    ends_s = tuple(float(place) for place in range(1, 31))
    curve = LossCurve(ends_s=ends_s, losses=(50.0, 9.0, *(1.2 - 0.005 * end_s for end_s in ends_s[2:])))
    made = [*trials[:-1], replace(trials[-1], race=replace(leg, curve=curve))]
    assert "initial losses are above" not in part(checked(report_text(contents, NOW)), "learning")
    made = [one for one in made if one.race is None or one.race.curve is curve]
    assert "initial losses are above" in part(checked(report_text(replace(contents, trials=made), NOW)), "learning")


def test_machines_are_not_compared(make_trial: MakeTrial) -> None:
    """A trial stands beside today's config on its own machine; where that was not measured it has no ratio."""
    made: Sequence[TrialRecord] = [
        at(make_trial(BASELINE, 10.0, purpose=Purpose.BASELINE, conditions=Conditions(machine="a")), 1),
        at(make_trial(BASELINE, 100.0, conditions=Conditions(machine="b")), 2),
        at(make_trial(BEST, 150.0, conditions=Conditions(machine="b")), 3),
        at(make_trial(BEST, 150.0, conditions=Conditions(machine="c")), 4),
    ]
    assert [point.ratio for point in trial_points(made)] == pytest.approx([1.0, 1.0, 1.5, None])
