"""Achieved speeds beside claimed ones, and speed of whole training, by records whose truth is known."""

import math
from dataclasses import replace

import pytest

from autotune.measure.score import THROUGHPUT, Judgement
from autotune.records import Measurement, Pauses, Purpose, Ratio, TrialRecord
from autotune.study import achieved as module
from autotune.study.achieved import achieved_with, claims_sd
from autotune.study.entry import attributes_of, record_of
from autotune.study.whole import whole_training
from tests.runs import measured
from tests.study.storages import record

CLAIM = Ratio(ratio=2.0, low=1.9, high=2.1)


def trial(point: str, samples_per_s: float, pauses: Pauses | None = None, **changes: object) -> TrialRecord:
    """Return a trial of a point; a training, unless something else is said."""
    measurement = replace(measured(samples_per_s), window_s=100.0, pauses=pauses)
    about = {"point": point, "search": f"training of {point}", "purpose": Purpose.TRAINING, "duration_s": 100.0}
    return replace(record(), **{**about, "measurement": measurement, **changes})  # type: ignore[arg-type]


def pauses(time_s: float, samples: float = 10_000.0, in_window_s: float = 0.0, **counts: int) -> Pauses:
    """Return pauses; evaluations where no kind is said."""
    return Pauses(time_s=time_s, samples=samples, in_window_s=in_window_s, **(counts or {"evaluations": 10}))


def test_ends_of_epochs_in_the_window_are_in_neither() -> None:
    """Passes of 1 s and a gap of 1 s, steps twice as fast: pairs say 1.33x, steps alone 2x, as is achieved."""
    ends = {"epoch_ends": 50}
    tried = [
        trial("today", 50.0, pauses(50.0, 5_000.0, 50.0, **ends), purpose=Purpose.CONFIRM, search="s"),
        trial("best", 66.67, pauses(66.67, 6_667.0, 66.67, **ends), purpose=Purpose.CONFIRM, search="s"),
    ]
    done = [trial("today", 100.0, pauses(100.0, **ends)), trial("best", 200.0, pauses(200.0, 20_000.0, **ends))]
    for records in (tried + done, [*tried, done[1]]):
        found = achieved_with(records, "today", "best", claimed=Ratio(ratio=4 / 3, low=1.3, high=1.37))
        assert found is not None
        assert (found.steps, found.claimed.ratio) == pytest.approx((2.0, 2.0), rel=0.01)
        assert found.outcome == "as"
        assert found.whole == pytest.approx(4 / 3, rel=0.01)


def test_the_whole_is_told_by_like_pauses_alone() -> None:
    """A training that came to evaluations is not compared with one that came to the ends of epochs only."""
    records = [trial("today", 100.0, pauses(1.0, epoch_ends=10)), trial("best", 150.0, pauses(60.0))]
    found = achieved_with(records, "today", "best", claimed=CLAIM)
    assert found is not None
    assert (found.steps, found.whole) == (pytest.approx(1.5), None)
    assert found.outcome == "less"
    like = [*records, trial("today", 100.0, pauses(50.0))]
    assert achieved_with(like, "today", "best", claimed=CLAIM).whole == pytest.approx(0.015 / (1 / 150 + 0.006))  # type: ignore[union-attr]


def test_another_machine_tells_nothing_of_this_one() -> None:
    """Neither a training nor trials of it."""
    elsewhere = replace(record().conditions, machine="another")
    records = [trial("today", 100.0, conditions=elsewhere), trial("best", 200.0)]
    assert achieved_with(records, "today", "best", claimed=CLAIM) is None


def finalist(speed: Ratio, widened: float | None = None) -> module.Finalist:
    """Return a winner with that claim."""
    judgement = Judgement(speed=speed, score=speed, pairs=4)
    conditions = replace(record().conditions, claims_sd=widened)
    won = trial("best", 200.0, purpose=Purpose.CONFIRM, search="s", conditions=conditions)
    return module.Finalist(
        trial=won, pairs_of_machines={}, planned_pairs=None, has_failed=False, validation=None, judgement=judgement
    )


@pytest.mark.parametrize(("achieved", "expected"), [(200.0, 0.0), (205.0, 0.0), (120.0, 0.29)])
def test_what_claims_missed_is_shrunk(monkeypatch: pytest.MonkeyPatch, achieved: float, expected: float) -> None:
    """One claim that came true says nothing; one that was far off counts as one of three."""
    records = [
        trial("today", 100.0, purpose=Purpose.CONFIRM, search="s"),
        trial("today", 100.0),
        trial("best", achieved),
    ]
    for widened in (None, 0.1):  # which is no error of the claim's own
        low = 1.96 * math.hypot(0.02, widened or 0.0)
        claim = Ratio(ratio=2.0, low=2.0 * math.exp(-low), high=2.0 * math.exp(low))
        won = finalist(claim, widened)
        monkeypatch.setattr(module, "judged_finalists", lambda *_, won=won: [won])
        assert claims_sd(records, THROUGHPUT) == pytest.approx(expected, abs=0.01)


def test_a_side_without_pauses_takes_the_others() -> None:
    """And one that came to fewer kinds: of these the answer says nothing."""
    sides = ([measured(100.0)], [measured(200.0)])
    known, fewer = pauses(100.0), pauses(9.0, checkpoints=3)
    both = pauses(100.0, evaluations=5, checkpoints=5)
    truth = (0.01 + 0.01) / (0.005 + 0.01)
    one, two, mixed = (
        whole_training(CLAIM, sides, *some) for some in (([known], []), ([known], [known]), ([both], [fewer]))
    )
    for whole in (one, two, mixed):
        assert whole.speedup is not None
        assert whole.speedup.ratio == pytest.approx(truth)
    assert one.speedup.low < two.speedup.low  # type: ignore[union-attr]
    assert mixed.seen == ("evaluations", "checkpoints")
    assert whole_training(CLAIM, sides, [], []).speedup is None


def test_pauses_that_no_window_holds_are_refused() -> None:
    """A damaged record of a shared study is named, and does not break who reads it."""
    written = attributes_of(trial("today", 100.0, pauses(50.0, in_window_s=50.0)))
    assert record_of(0, written).measurement
    written["measurement"]["pauses"]["in_window_s"] = 100.0
    with pytest.raises(ValueError, match="window"):
        record_of(0, written)


def test_a_common_error_is_no_smaller_on_several_machines() -> None:
    """The interval is widened once, by all of it."""
    judged = Judgement(
        speed=Ratio(ratio=1.5, low=1.48, high=1.52), score=Ratio(ratio=1.5, low=1.48, high=1.52), pairs=4
    )
    wide = judged.widened(0.1).speed
    assert (wide.low, wide.high) == pytest.approx((1.5 * math.exp(-0.1964), 1.5 * math.exp(0.1964)), rel=0.01)
    assert judged.widened(0.0) is judged


def test_a_measurement_tells_its_steps_and_its_whole() -> None:
    """A tenth of the window is of ends of epochs."""
    one: Measurement = replace(measured(90.0), window_s=10.0, pauses=pauses(1.0, 900.0, 1.0, epoch_ends=1))
    assert (one.step_fraction, 1.0 / one.sample_s) == pytest.approx((0.9, 100.0))
    assert one.overall_samples_per_s == pytest.approx(90.0)
