"""Durations as people write them: ``90s``, ``30m``, ``2h``, ``1h30m``."""

import re

_PARTS = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?")
_LARGEST_S = 365 * 24 * 3600.0


def parse_duration_s(text: str) -> float:
    """Parse a duration.

    Args:
        text: Hours, minutes and seconds in this order, each optional, e.g. ``1h30m``.

    Returns:
        Seconds, above 0 and at most a year.

    Raises:
        ValueError: The text is no such duration; the message says what would be.
    """
    match = _PARTS.fullmatch(text.strip().lower())
    found = {unit: float(number) for unit, number in match.groupdict().items() if number} if match else {}
    if not found:
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 30m, 2h or 1h30m")
    seconds = found.get("h", 0.0) * 3600 + found.get("m", 0.0) * 60 + found.get("s", 0.0)
    if not 0 < seconds <= _LARGEST_S:
        raise ValueError(f"{text!r} is not a usable duration; it must be above 0 and at most a year")
    return seconds


def format_duration(seconds: float) -> str:
    """Format a duration for people: ``8.4s``, ``2m05s``, ``1h30m``."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
