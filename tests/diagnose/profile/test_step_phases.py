"""Tests of the phases that the times of functions make."""

import pytest

from autotune.diagnose.step_profile import StepTimes, Training, step_profile


def times(**times_ms: float) -> StepTimes:
    """Times of functions that take as long in each round."""
    return StepTimes(
        of="a model",
        compiled="graph",
        device="CPU",
        batch_size=8,
        times_ms={name: (value,) * 5 for name, value in times_ms.items()},
        why_not={"copy": "there is no GPU"},
    )


def test_phases_are_differences_and_what_is_missing_is_said() -> None:
    """A phase is what its function takes beyond the one before; without a GPU nothing was copied to one."""
    profile = step_profile(times(data=1.0, forward=10.0, loss=11.0, gradients=31.0, update=35.0, step=40.0))
    assert [phase.median_ms for phase in profile.phases] == [1.0, None, 10.0, 1.0, 20.0, 4.0, 4.0]
    assert profile.phases[1].why_not == "there is no GPU"
    assert profile.adds_up == pytest.approx(0.9)


def test_a_phase_without_a_function_of_its_own_is_part_of_the_next() -> None:
    """Where no function ends with the forward pass, that is part of the loss, and said so."""
    training = Training(steps_ms=[50.0, 50.0], waits_ms=[5.0, 5.0], steps=2)
    profile = step_profile(times(loss=11.0, gradients=31.0, update=35.0), training)
    named = {phase.name: phase.median_ms for phase in profile.phases}
    assert named["forward"] is None
    assert named["forward and loss"] == 11.0
    assert named["the rest"] == 10.0
    assert profile.adds_up == pytest.approx(0.8)


def test_a_step_in_one_piece_is_one_phase() -> None:
    """A training step that is a model's own is timed whole; waits that nobody reports are not measured."""
    training = Training(steps_ms=[50.0, 50.0], waits_ms=None, steps=2)
    profile = step_profile(times(whole=45.0), training)
    named = {phase.name: phase.median_ms for phase in profile.phases}
    assert named["forward to optimizer"] == 45.0
    assert named["data"] is None
    assert profile.adds_up == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("parts", "waits_ms", "steps_ms", "said"),
    [
        (
            {"gradients": 40.0},
            5.0,
            [50.0] * 100,
            "Forward and loss and backward takes 80 % of the step: the arithmetic",
        ),
        ({"gradients": 10.0}, 35.0, [50.0] * 100, "Data takes 70 % of the step: waiting for data is the limit"),
        ({"gradients": 5.0}, 1.0, [50.0] * 100, "The rest takes 88 % of the step: Python and callbacks"),
        ({"gradients": 40.0}, 5.0, [50.0] * 98 + [500.0] * 2, "; one step in a hundred takes 10.0 times the usual."),
        ({}, 5.0, [50.0] * 100, "not known"),
    ],
)
def test_the_verdict_says_what_takes_most(
    parts: dict[str, float], waits_ms: float, steps_ms: list[float], said: str
) -> None:
    """And what that is about; uneven steps are told, too."""
    training = Training(steps_ms=steps_ms, waits_ms=[waits_ms] * 100, steps=100)
    assert said in step_profile(times(**parts) if parts else StepTimes(), training).verdict


def test_nothing_adds_up_where_nothing_is_known() -> None:
    """Of a step that nothing is known of but its length, no share is said."""
    training = Training(steps_ms=[50.0, 50.0], waits_ms=[5.0, 5.0], steps=2)
    assert step_profile(StepTimes(), training).adds_up is None


def test_marked_phases_are_compared_with_steps_without_marks() -> None:
    """The rest is what they leave of such a step, and it is said how much longer those with marks took."""
    marked = {"data": (2.0,) * 4, "forward": (10.0,) * 4, "backward": (20.0,) * 4, "optimizer": (4.0,) * 4}
    times = StepTimes(
        of="a model",
        device="CPU",
        marked_ms={**marked, "rest": (8.0,) * 4},
        plain_ms=(40.0,) * 6,
        why_not={"copy": "there is no GPU"},
    )
    profile = step_profile(times, Training(steps_ms=times.plain_ms, waits_ms=None, steps=6))
    assert [phase.mean_ms for phase in profile.phases] == [2.0, None, 10.0, None, 20.0, 4.0, 4.0]
    assert profile.phases[1].why_not == "there is no GPU"
    assert profile.adds_up == pytest.approx(0.9)
    assert profile.marks_cost == pytest.approx(0.1)
    assert (profile.rounds, profile.steps) == (4, 6)
