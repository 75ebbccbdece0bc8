"""A stretch of utilization as one line of characters."""

from autotune.daemon.monitor_display import ASCII, span_for, sparkline


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


def test_a_line_moves_and_does_not_flicker() -> None:
    """A cell keeps its character while time goes on."""
    windows = wave(90, 0.0, 0.9, 0.3, length_s=1 / 6)
    lines = [sparkline(windows, until_s=60.0 + late_s, span_s=30.0, cells=60) for late_s in (0.0, 0.2, 0.49, 0.5, 1.0)]
    assert lines[0] == lines[1] == lines[2]
    assert lines[0][1:] == lines[3][:-1]
    assert lines[0][2:] == lines[4][:-2]


def test_a_short_line_shows_less_time() -> None:
    """A character of more than a second would average a training's beat away."""
    assert [span_for(cells) for cells in (120, 60, 59, 30, 29, 10)] == [60.0, 60.0, 30.0, 30.0, 15.0, 15.0]
