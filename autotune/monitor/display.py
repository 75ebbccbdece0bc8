"""Display of a monitor on a terminal: one screen, redrawn in the same place."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment

from autotune.monitor.layout import Line, screen
from autotune.monitor.reading import MonitorReading
from autotune.monitor.sparkline import ASCII, BLOCKS


class MonitorDisplay:
    """Context that owns the lower part of the terminal, and leaves nothing behind.

    Args:
        console: A terminal that can move its cursor.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._levels = BLOCKS if console.encoding.lower().startswith("utf") else ASCII
        # Nothing is drawn but what `show` is given: a refresh of its own costs more than all the measuring.
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, reading: MonitorReading) -> None:
        """Draw a reading in place of the one before it.

        Raises:
            BrokenPipeError: The terminal is gone, and nobody would see it any more.
        """
        if not self._console.is_terminal:
            raise BrokenPipeError
        size = self._console.size
        lines = screen(reading, width=size.width, height=size.height, levels=self._levels)
        self._live.update(_Lines(lines), refresh=True)


class _Lines:
    """Lines that fit the terminal already, so that nothing has to be measured or wrapped: that would cost the most."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, (line, style) in enumerate(self._lines):
            if number:
                yield Segment.line()
            yield Segment(line, console.get_style(style) if style else None)
