"""A stretch of utilization as one line of characters."""

from autotune.daemon.monitor_display import ASCII, sparkline


def wave(seconds: int, *levels: float, length_s: float = 1.0) -> list[tuple[float, float, float]]:
    """Driver windows that go through some levels again and again."""
    return [
        ((place + 1) * length_s, length_s, levels[place % len(levels)]) for place in range(round(seconds / length_s))
    ]


def test_each_character_is_the_mean_of_its_time() -> None:
    """From idle to fully busy, in eighths."""
    assert sparkline(wave(8, *(place / 8 for place in range(8))), until_s=8.0, span_s=8.0, cells=8) == "▁▂▃▄▅▆▇█"
    assert sparkline(wave(8, 0.0, 1.0), until_s=8.0, span_s=8.0, cells=4) == "▅▅▅▅"
    assert sparkline(wave(2, 0.02, 0.4), until_s=2.0, span_s=2.0, cells=4, levels=ASCII) == "__::"


def test_a_beat_faster_than_the_characters_of_a_second_is_seen() -> None:
    """A wave of 2 s, at 6 driver windows a second, fills a line of 120 characters with itself."""
    windows = wave(60, *[0.02] * 6, *[0.4] * 6, length_s=1 / 6)
    assert sparkline(windows, until_s=60.0, span_s=60.0, cells=120) == "▁▁▄▄" * 30


def test_what_is_not_known_is_blank() -> None:
    """Before the first window, in a gap, and where only a corner of the time was seen; never drawn as idle."""
    windows = [(5.0, 1.0, 0.0), (8.0, 1.0, 1.0), (8.1, 0.1, 1.0)]
    assert sparkline(windows, until_s=9.0, span_s=9.0, cells=9) == "    ▁  █ "
