"""Words and numbers of a diagnosis as people read them."""

from autotune.diagnose.messages.message import Message, said
from autotune.results import Ratio


def ratio_text(ratio: Ratio) -> Message:
    """Return a ratio with its interval, e.g. ``2.6x (2.4 to 2.8)``."""
    digits = 2 if ratio.ratio < 2.0 else 1
    ends = {"low": f"{ratio.low:.{digits}f}", "high": f"{ratio.high:.{digits}f}"}
    return said("ratio", "{ratio}x ({low} to {high})", ratio=f"{ratio.ratio:.{digits}f}", **ends)


def percent(fraction: float) -> str:
    """Return a share as a whole percentage."""
    return f"{100.0 * fraction:.0f} %"


def milliseconds(time_s: float) -> str:
    """Return a short time with three digits at most, e.g. ``4.2 ms``."""
    time_ms = 1e3 * time_s
    return f"{time_ms:.1f} ms" if time_ms < 10.0 else f"{time_ms:.0f} ms" if time_ms < 1e4 else f"{time_s:.1f} s"
