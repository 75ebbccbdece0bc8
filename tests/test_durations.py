"""Durations as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.clock import format_duration, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("30m", 1800.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1h1m1s", 3661.0),
        ("1.5h", 5400.0),
        ("0.25s", 0.25),
        ("1h90s", 3690.0),
        ("  5M ", 300.0),
        ("8760h", 365 * 24 * 3600.0),
    ],
)
def test_durations_as_people_write_them_are_read(text: str, seconds: float) -> None:
    """Hours, minutes and seconds, each optional, fractions and capitals allowed."""
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["abc", "", " ", "30", "m", "-5m", "5 m", "30m1h", "1h30", "1d", "5m5m", "1e3s", "nan", "infs"]
)
def test_other_words_are_refused(text: str) -> None:
    """The message holds what was written, and shows how to write it."""
    with pytest.raises(ValueError, match="is not a duration; write it like 90s, 30m, 2h or 1h30m") as caught:
        parse_duration_s(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["0s", "0h0m0s", "0.0m", "8761h", "9" * 400 + "h"])
def test_a_duration_must_be_usable(text: str) -> None:
    """Nothing, and more than a year, are typing errors."""
    with pytest.raises(ValueError, match="must be above 0 and at most a year"):
        parse_duration_s(text)


@given(st.integers(0, 8759), st.integers(0, 59), st.integers(1, 59))
def test_parts_add_up(hours: int, minutes: int, seconds: int) -> None:
    """Any whole number of each is the sum of them."""
    assert parse_duration_s(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@given(st.floats(0.05, 365 * 24 * 3600.0))
def test_printed_durations_can_be_typed(seconds: float) -> None:
    """A duration that was shown reads back as nearly the same: to a tenth below 10 s, a minute above an hour."""
    allowed = 0.051 if seconds < 10 else 0.51 if seconds < 3599 else 60
    assert abs(parse_duration_s(format_duration(seconds)) - seconds) <= allowed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0s"),
        (8.44, "8.4s"),
        (59.0, "59s"),
        (60.0, "1m"),
        (125.0, "2m05s"),
        (3599.6, "1h"),
        (5400.0, "1h30m"),
        (7200.0, "2h"),
        (360000.0, "100h"),
    ],
)
def test_durations_are_short_to_read(seconds: float, text: str) -> None:
    """No more digits than one would say aloud."""
    assert format_duration(seconds) == text
