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
        assert rule.at is not None
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


def test_only_idle_needs_an_idle_machine() -> None:
    """Who names a time, or now, has decided that the machine may be used."""
    assert StartRule.parse("idle", NOON).needs_idle
    assert not StartRule.parse("now", NOON).needs_idle
    assert not StartRule.parse("22:30", NOON).needs_idle


@pytest.mark.parametrize("at", ["2026-13-01T00:00:00+00:00", "2026-01-01T00:00:00"])
def test_a_time_that_is_none_is_refused(at: str) -> None:
    """When it is read, and not when it has come."""
    with pytest.raises(ValueError, match=r"month|offset"):
        StartRule(kind="at", at=at)
