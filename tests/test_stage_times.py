"""The verdict on two stages says which one sets the pace, and why the bound is not reached."""

import pytest

from autotune.stage_times import PipelineTimes, StageTimes


def times(
    *, passed_s: float = 10.0, data_busy_s: float, model_busy_s: float, host_s: float = 0.0, starved_s: float = 0.0
) -> PipelineTimes:
    """Times of 100 batches."""
    data = StageTimes(batches=100, busy_s=data_busy_s, input_s=host_s, room_s=0.0)
    model = StageTimes(batches=100, busy_s=model_busy_s, input_s=starved_s, room_s=0.0)
    return PipelineTimes(passed_s=passed_s, data=data, model=model)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (times(data_busy_s=5, model_busy_s=9.8), "the steps are the bottleneck; 98 % of their rate"),
        (times(data_busy_s=9.9, model_busy_s=4, starved_s=5), "the features are the bottleneck; 99 %"),
        (
            times(data_busy_s=4, model_busy_s=5, host_s=5, starved_s=5),
            "both stages wait for the host to read and decode",
        ),
        (times(data_busy_s=8, model_busy_s=8, starved_s=2), "steps waited for features 20 % of the time"),
        (times(data_busy_s=8, model_busy_s=9), "hand-over between the stages"),
        (times(data_busy_s=0.5, model_busy_s=9.9), "a second GPU gains more if both train"),
        (times(data_busy_s=0.0, model_busy_s=0.0), "too few batches"),
    ],
)
def test_the_verdict_names_the_slower_stage_and_the_reason(seen: PipelineTimes, said: str) -> None:
    """From busy and waiting times alone."""
    assert said in seen.verdict()


def test_the_bound_is_the_slower_stage() -> None:
    """No pipeline is faster than its slowest part: 1/max(f, s)."""
    seen = times(data_busy_s=5, model_busy_s=8)
    assert seen.bound == pytest.approx(100 / 8)
    assert seen.reached == pytest.approx(0.8)


def test_times_of_a_period_are_the_difference() -> None:
    """Times before a look do not count after it."""
    early, late = times(data_busy_s=5, model_busy_s=9), times(data_busy_s=25, model_busy_s=10, passed_s=40.0)
    assert (late - early).data.busy_s == 20
    assert (late - early).passed_s == 30.0
