"""Effects of single changes of a point."""

import math
import random
from itertools import product

import pytest

from autotune.records import Purpose, Ratio, Scalar, TrialRecord, Values
from autotune.search.worth import change_gains, knob_effects
from autotune.space.knob import Label
from autotune.space.space import Space
from autotune.study.noise import Noise
from tests.runs import MakeTrial, knob

SPACE = Space(
    knobs=(knob("data.batch", 8, 16, 32, label=Label.BATCH), knob("data.workers", 1, 2), knob("train.xla", False, True))
)
BASELINE = SPACE.baseline
NOISE = Noise(0.08**2, 4.0)
WORTH: dict[tuple[str, Scalar], float] = {
    ("data.batch", 16): 1.3,
    ("data.batch", 32): 2.0,
    ("data.workers", 2): 1.1,
    ("train.xla", True): 0.8,
}
BEST: Values = {"data.batch": 32, "data.workers": 2, "train.xla": True}


def _speed(values: Values) -> float:
    return 50.0 * math.prod(WORTH.get(item, 1.0) for item in values.items())


def _everything(make_trial: MakeTrial, noise: float = 0.0) -> list[TrialRecord]:
    rng = random.Random(1)
    points = [dict(zip(BASELINE, choices, strict=True)) for choices in product(*(knob.choices for knob in SPACE.knobs))]
    return [make_trial(values, _speed(values) * math.exp(rng.gauss(0.0, noise))) for values in points * 2]


@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_slices_through_a_point_have_the_true_speeds(make_trial: MakeTrial, noise: float) -> None:
    """Each value over the one that the point holds, which is 1.00; a knob that was never turned is left out."""
    space = Space(knobs=(*SPACE.knobs, knob("seed", 1, 2)))
    trials = [make_trial({**trial.values, "seed": 1}, _speed(trial.values)) for trial in _everything(make_trial, noise)]
    effects = knob_effects(trials, {**BEST, "seed": 1}, space, sd=0.08)
    assert list(effects) == ["data.batch", "data.workers", "train.xla"]
    for path, slice_ in effects.items():
        kept = WORTH[path, BEST[path]]
        for value, ratio in slice_:
            truth = WORTH.get((path, value), 1.0) / kept
            assert ratio.ratio == pytest.approx(truth, rel=0.05)
            assert ratio.low <= truth * 1.001
            assert ratio.high >= truth * 0.999


@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_known_effects_are_found(make_trial: MakeTrial, noise: float) -> None:
    """Each change gets its true effect, largest first, if every combination was tried."""
    changes = change_gains(_everything(make_trial, noise), BASELINE, BEST, SPACE, sd=0.08, noise=NOISE)
    assert [change.path for change in changes] == ["data.batch", "data.workers", "train.xla"]
    for change in changes:
        truth = WORTH[change.path, BEST[change.path]]
        assert change.worth.ratio == pytest.approx(truth, rel=0.02 if not noise else 0.12)
        assert change.worth.low < truth < change.worth.high
    assert len({change.group for change in changes}) == 3


def test_changes_that_were_only_made_together_share_a_group(make_trial: MakeTrial) -> None:
    """Changes that the trials cannot separate form one group with their common effect."""
    together = {**BASELINE, "data.workers": 2, "train.xla": True}
    fastest = {**together, "data.batch": 32}
    trials = [make_trial(BASELINE, 50.0), make_trial(together, 75.0), make_trial(fastest, 150.0)] * 4
    changes = {change.path: change for change in change_gains(trials, BASELINE, fastest, SPACE, sd=0.08, noise=NOISE)}
    assert changes["data.workers"].group == changes["train.xla"].group != changes["data.batch"].group
    together_worth, batch_worth = changes["train.xla"].worth, changes["data.batch"].worth
    assert changes["data.workers"].worth == together_worth
    assert together_worth.low < 1.5 < together_worth.high  # nobody tried it without the batch
    assert batch_worth.ratio == pytest.approx(2.0, rel=0.1)


def test_what_no_run_shows_is_not_known(make_trial: MakeTrial) -> None:
    """A change that no comparable trial had has no worth, instead of a made-up 1.00."""
    trials = [make_trial(BASELINE, 50.0), make_trial({**BASELINE, "data.batch": 16}, 65.0), make_trial(BEST, None)]
    assert {change.worth for change in change_gains(trials, BASELINE, BEST, SPACE, sd=0.08, noise=NOISE)} == {None}
    assert {change.worth for change in change_gains([], BASELINE, BEST, SPACE, sd=0.08, noise=NOISE)} == {None}


def test_all_changes_together_are_worth_what_the_confirmation_says(make_trial: MakeTrial) -> None:
    """One group of everything, one number: that of the pairs, as in the headline; a part of it is not that.

    So it is as long as none of them is sure alone.
    """
    confirmed = Ratio(ratio=1.9, low=1.8, high=2.0)
    trials = [make_trial(BASELINE, 50.0), make_trial(BEST, 90.0)]
    assert {c.worth for c in change_gains(trials, BASELINE, BEST, SPACE, sd=0.08, noise=NOISE, whole=confirmed)} == {
        confirmed
    }
    part = make_trial({**BASELINE, "data.batch": 32}, 80.0)
    worths = [
        c.worth for c in change_gains([*trials, part], BASELINE, BEST, SPACE, sd=0.2, noise=NOISE, whole=confirmed)
    ]
    assert set(worths) == {confirmed}
    without = {**BEST, "data.batch": BASELINE["data.batch"]}
    trials += [
        part,
        *(make_trial(values, speed) for _ in range(4) for values, speed in ((without, 55.0), (BEST, 90.0))),
    ]
    worths = [c.worth for c in change_gains(trials, BASELINE, BEST, SPACE, sd=0.08, noise=NOISE, whole=confirmed)]
    assert confirmed not in worths


def test_a_smaller_value_beside_the_best_does_not_hide_what_the_change_is_worth(make_trial: MakeTrial) -> None:
    """Trials of it show whether less would do, and nothing of today's value: the only change is worth what all are."""
    confirmed, best = Ratio(ratio=2.0, low=1.9, high=2.1), {**BASELINE, "data.batch": 32}
    trials = [make_trial(values, _speed(values)) for values in (BASELINE, best)]
    less = {**BASELINE, "data.batch": 16}
    trials += [make_trial(values, _speed(values), purpose=Purpose.TAKE_BACK) for values in (best, best, less)]
    (change,) = change_gains(trials, BASELINE, best, SPACE, sd=0.08, noise=NOISE, whole=confirmed)
    assert change.worth == confirmed


def test_a_part_that_was_measured_in_pairs_is_worth_what_they_say(make_trial: MakeTrial) -> None:
    """Where not each of its changes is sure by itself; of the others nothing changes."""
    trials = [make_trial(BASELINE, 50.0), make_trial(BEST, 160.0)] * 4
    alike: Values = {"data.workers": 2, "train.xla": True}
    over_today, rest = Ratio(ratio=1.5, low=1.2, high=1.9), Ratio(ratio=2.0, low=1.7, high=2.4)
    parts = [(alike, over_today), ({"data.batch": 32}, rest)]
    changes = change_gains(trials, BASELINE, BEST, SPACE, sd=0.08, noise=NOISE, parts=parts)
    assert {change.path: change.worth for change in changes} == {
        **dict.fromkeys(alike, over_today),
        "data.batch": rest,
    }
    unsure = [(alike, Ratio(ratio=1.1, low=0.9, high=1.3))]
    kept = change_gains(_everything(make_trial), BASELINE, BEST, SPACE, sd=0.08, noise=NOISE, parts=unsure)
    assert kept == change_gains(_everything(make_trial), BASELINE, BEST, SPACE, sd=0.08, noise=NOISE)


def test_what_a_change_needs_is_not_taken_back_alone(make_trial: MakeTrial) -> None:
    """XLA needs the graph mode: without that one the point is as fast as without both."""
    space = Space(
        knobs=(
            knob("batch", 8, 16),
            knob("graph", False, True, kind="graph_mode"),
            knob("xla", False, True, kind="xla"),
        )
    )
    best: Values = {"batch": 16, "graph": True, "xla": True}
    graph: Values = {**best, "xla": False}
    neither: Values = {**graph, "graph": False}
    speeds = [(space.baseline, 50.0), (neither, 60.0), (graph, 72.0), (best, 108.0)]
    trials = [make_trial(values, speed) for values, speed in speeds * 4]
    worths = {
        change.path: change.worth for change in change_gains(trials, space.baseline, best, space, sd=0.02, noise=NOISE)
    }
    assert worths["xla"] is not None
    assert worths["graph"] is not None
    assert worths["xla"].ratio == pytest.approx(1.5, rel=0.03)
    assert worths["graph"].ratio == pytest.approx(1.8, rel=0.03)


def test_a_value_that_is_no_number_is_no_evidence(make_trial: MakeTrial) -> None:
    """NaN in a record: that trial is left out, and a point that has it is worth what nobody knows."""
    odd: Values = {**BASELINE, "data.batch": math.nan}
    xla: Values = {**BASELINE, "train.xla": True}
    trials = [make_trial(BASELINE, 50.0), make_trial(odd, 5000.0), make_trial(xla, 40.0)]
    (change,) = change_gains(trials, BASELINE, xla, SPACE, sd=0.08, noise=NOISE)
    assert change.worth.ratio < 1.0
    assert {
        change.worth
        for change in change_gains(trials, BASELINE, {**xla, **odd, "train.xla": True}, SPACE, sd=0.08, noise=NOISE)
    } == {None}
    assert {change.worth for change in change_gains(trials, BASELINE, odd, SPACE, sd=0.08, noise=NOISE)} == {None}
