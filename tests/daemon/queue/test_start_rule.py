"""Start rules."""

from datetime import UTC, datetime, timedelta

import pytest

from autotune.daemon.queue import StartRule

NOON = datetime(2030, 6, 1, 12, 0, tzinfo=UTC).astimezone()


def test_a_time_of_the_day_is_the_next_one() -> None:
    """A time that has gone by today is that of tomorrow; this very minute is tomorrow's, too."""
    later, earlier = NOON + timedelta(minutes=30), NOON - timedelta(minutes=30)
    for time, day in ((later, NOON), (earlier, NOON + timedelta(days=1)), (NOON, NOON + timedelta(days=1))):
        rule = StartRule.parse(f"{time:%H:%M}", NOON)
        at = datetime.fromisoformat(rule.at)
        assert (at.date(), f"{at:%H:%M}") == (day.date(), f"{time:%H:%M}")
        assert str(rule) == f"{time:%H:%M}"


def test_a_clock_that_is_set_back_waits_again() -> None:
    """Whether a time has come is asked of the clock as it is."""
    rule = StartRule.parse(f"{NOON + timedelta(minutes=1):%H:%M}", NOON)
    assert rule.waits_for_time(NOON) is not None
    assert rule.waits_for_time(NOON + timedelta(minutes=1)) is None
    assert rule.waits_for_time(NOON + timedelta(minutes=1) - timedelta(hours=1)) is not None


@pytest.mark.parametrize("text", ["", "later", "25:00", "12:60", "12", "idle ", "-1:00", "12:00:00"])
def test_anything_else_is_refused(text: str) -> None:
    """What is no start is named, with what would be one."""
    with pytest.raises(ValueError, match="22:30"):
        StartRule.parse(text, NOON)
