"""Which single changes a diagnosis tries, and what a change says of what was found."""

from dataclasses import replace

import pytest

from autotune.diagnose.findings import CheckResult, Limit, issue
from autotune.diagnose.switches import Gain, Switch, bound_of, explained, plan_switches
from autotune.measure.phases import Bounds
from autotune.records import Ratio, Scalar, TrialPhase
from autotune.space.knob import Label
from autotune.space.space import Space
from tests.runs import knob


def space_of(**kinds: bool) -> Space:
    """Return a space of switches of these kinds, as they are now."""
    return Space(knobs=tuple(knob(kind, value, not value, kind=kind) for kind, value in kinds.items()))


@pytest.mark.parametrize(
    ("is_compiling", "is_unsteady", "tried"),
    [(False, False, []), (True, False, [{"fixed_length": True}]), (False, True, [{"xla": False}])],
)
def test_what_compiles_for_each_shape_is_taken_away(
    is_compiling: bool, is_unsteady: bool, tried: list[dict[str, bool]]
) -> None:
    """Batches of one shape where functions are traced anew; no XLA, which tells nobody, where slow steps recur."""
    space = space_of(xla=True, fixed_length=False)
    plan = plan_switches(space, None, may_settle=False, is_compiling=is_compiling, is_unsteady=is_unsteady)
    assert [dict(switch.changes) for switch in plan.tried] == tried


@pytest.mark.parametrize("is_restarting", [True, False])
def test_workers_are_kept_only_where_restarting_them_takes_time(is_restarting: bool) -> None:
    """Keeping them speeds up nothing else."""
    keeps = knob("keeps", False, True, kind="persistent_workers", heuristic_values=(True,))
    plan = plan_switches(Space(knobs=(keeps,)), None, may_settle=False, is_restarting=is_restarting)
    assert [dict(one.changes) for one in plan.tried] == [{"keeps": True}] * is_restarting


@pytest.mark.parametrize(("low", "limit"), [(1.9, Limit.COMPILING), (1.1, Limit.STALLS)])
def test_slow_steps_that_are_gone_without_xla_are_compilations(low: float, limit: Limit) -> None:
    """It compiles the step for each shape that comes."""
    (switch,) = plan_switches(space_of(xla=True), None, may_settle=False, is_unsteady=True).tried
    found = CheckResult(check="steadiness", issues=(issue("steadiness", "Slow steps recur.", limit=Limit.STALLS),))
    (told,) = explained(found, [Gain(switch=switch, gain=Ratio(ratio=2.0, low=low, high=2.1))]).issues
    assert told.limit is limit
    assert ("XLA compiles the step again" in told.sentence) is (limit is Limit.COMPILING)


LOAD, REPLAY, TRAIN = TrialPhase.LOAD, TrialPhase.REPLAY, TrialPhase.TRAIN


@pytest.mark.parametrize(
    ("kind", "values", "most"),
    [
        ("workers", (1, 2), 2.2),  # a loader of twice the speed, and what its measurement may be off by
        ("workers", (0, 4), 4.4),
        ("workers", (1, 32), 8.0),  # then the step is the limit
        ("prefetch", (0, 2), 1.1),
        ("cache", ("none", "memory"), 8.0),
        ("batch_size", (8, 16), 1.2),
        ("torch_threads", (1, 2), None),
        ("graph_mode", (False, True), 1.2),
    ],
)
def test_a_change_gains_no_more_than_the_part_that_it_acts_on(
    kind: str, values: tuple[Scalar, Scalar], most: float | None
) -> None:
    """The loader is the limit, and the step takes an eighth of its time: two workers load twice as fast at most."""
    changed = knob("k", *values, kind=kind)
    switch = Switch(knobs=(changed,), values={"k": values[1]}, changes={"k": values[1]}, label=Label.SAME_TRAINING)
    bounds = Bounds(
        free_data=Ratio(ratio=8.0, low=7.5, high=8.5),
        free_step=Ratio(ratio=1.2, low=1.1, high=1.3),
        speeds={LOAD: 100.0, REPLAY: 800.0, TRAIN: 100.0},
        counts_samples=True,
        cores={},
        batch=8.0,
    )
    bound = bound_of(switch, bounds)
    assert (bound and bound.ratio) == (most if most is None else pytest.approx(most))
    if kind == "batch_size":
        free = bound_of(switch, replace(bounds, free_step=Ratio(ratio=50.0, low=40.0, high=60.0)))
        assert free is not None
        assert free.ratio == 2.0, "of a batch twice as large"
