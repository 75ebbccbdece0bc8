"""Which single changes a diagnosis tries, and what a change says of what was found."""

import pytest

from autotune.diagnose.findings import CheckResult, Limit, issue
from autotune.diagnose.measured_checks import Gain, explained, plan_switches
from autotune.records import Ratio
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
    plan = plan_switches(space, None, most=6, may_settle=False, is_compiling=is_compiling, is_unsteady=is_unsteady)
    assert [dict(switch.changes) for switch in plan.tried] == tried


@pytest.mark.parametrize(("low", "limit"), [(1.9, Limit.COMPILING), (1.1, Limit.STALLS)])
def test_slow_steps_that_are_gone_without_xla_are_compilations(low: float, limit: Limit) -> None:
    """It compiles the step for each shape that comes."""
    (switch,) = plan_switches(space_of(xla=True), None, most=1, may_settle=False, is_unsteady=True).tried
    found = CheckResult(check="steadiness", issues=(issue("steadiness", "Slow steps recur.", limit=Limit.STALLS),))
    (told,) = explained(found, [Gain(switch=switch, gain=Ratio(ratio=2.0, low=low, high=2.1))]).issues
    assert told.limit is limit
    assert ("XLA compiles the step anew" in told.sentence) is (limit is Limit.COMPILING)
