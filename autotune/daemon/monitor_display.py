"""Display of a monitor on a terminal: one screen, redrawn in the same place."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment

from autotune.clock import format_duration
from autotune.daemon.monitor import GpuSummary, MonitorReading, MonitorSummary, ShownGpu, ShownProcess
from autotune.metrics import ABSENT, METRICS
from autotune.report.plain_text import plain


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

    def __exit__(self, *_: object) -> None:
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


# Lines of a monitor: those of a screen of any size, those of a log file, and those of the summary.


Line = tuple[str, str]
"""Text, and its style in the words of ``rich``; empty for none."""

_GAP = "   "
_INDENT = "  "
_MOST_CELLS = 120


# Sparkline: a stretch of utilization as one line of characters.


BLOCKS = "▁▂▃▄▅▆▇█"


def screen(reading: MonitorReading, *, width: int, height: int, levels: str = BLOCKS) -> list[Line]:
    """Return the lines that fit a terminal: a paragraph for each GPU, else a line.

    Args:
        width: Columns of the terminal; lines are made for at least 40.
    """
    width = max(width, 40)
    driver = f"  driver {plain(reading.driver, 30)}" if reading.driver else ""
    words = f"{reading.utc:%H:%M:%S} UTC  watched for {format_duration(reading.watched_s)}{driver}  ^C ends it"
    head = [
        (_cut(words, width), "dim"),
        *((line, "bold") for line in _flow(_process_words(reading.process), width, "")),
    ]
    head += [line for note in reading.notes for line in _wrapped(note, width, indent="", style="yellow")]
    room = height - 1 - len(head)  # the cursor has a row of its own
    if len(reading.gpus) * 5 <= room:  # lines of a paragraph; drawing what cannot fit would cost as much as all else
        lines = [line for gpu in reading.gpus for line in (("", ""), *_paragraph(gpu, width, levels))]
        if len(lines) <= room:
            return head + lines
    lines = [_row(gpu, width) for gpu in reading.gpus]
    meanings = {gpu.verdict.pattern: gpu.verdict.meaning for gpu in reading.gpus if gpu.verdict}
    for pattern, meaning in meanings.items():
        lines += _wrapped(f"{pattern}: {meaning}", width, indent="", style="dim")
    return head + lines[: max(room, len(reading.gpus))]


def log_lines(reading: MonitorReading) -> list[str]:
    """Return one line for each GPU, and one for the process."""
    stamp = f"{reading.utc:%H:%M:%S}"
    lines = [f"{stamp} {part}" for part in _process_words(reading.process)]
    for gpu in reading.gpus:
        words = [gpu.label, gpu.trouble] if gpu.trouble else [gpu.label, *_figures(gpu), *_owners(gpu), _verdict(gpu)]
        lines.append(plain(f"{stamp} {_INDENT.join(filter(None, words))}", 1000))
    return lines


def verdict_line(utc: datetime, gpu: ShownGpu) -> str:
    """Return what is wrong with a GPU, or how it works, and what to do about it, with the time."""
    said = gpu.trouble or (f"{gpu.verdict.text}: {gpu.verdict.meaning}" if gpu.verdict else "")
    return plain(f"{utc:%Y-%m-%dT%H:%M:%SZ} {gpu.label} {gpu.name}: {said}", 1000)


def summary_lines(summary: MonitorSummary) -> list[str]:
    """Return the lines that stay on the screen: each GPU over all the time, and the meaning of its last minute."""
    lines = [f"Watched for {format_duration(summary.watched_s)}."]
    if summary.process is not None and summary.process.ended:
        lines[0] = f"Process {summary.process.pid} has ended. {lines[0]}"
    for gpu in summary.gpus:
        lines.append(plain(f"{gpu.label}  {gpu.name}: {', '.join(_summary_words(gpu))}", 1000))
    said = {gpu.verdict.text: gpu.verdict.meaning for gpu in summary.gpus if gpu.verdict}
    lines += [f"{text}: {meaning}" for text, meaning in said.items()]
    return lines


def _process_words(process: ShownProcess | None) -> list[str]:
    if process is None:
        return []
    name = f"process {process.pid}" + (" has ended" if process.ended else "")
    if process.steps_per_s is None:
        return [f"{name}: {process.why_no_steps}" if process.why_no_steps else name]
    pace = METRICS["samples_per_s"]
    words = [f"{pace.text(process.steps_per_s).removesuffix('/s')} steps/s"]
    if process.samples_per_s is not None:
        words.append(f"{pace.text(process.samples_per_s).removesuffix('/s')} samples/s")
    if process.data_wait_fraction is not None:
        words.append(f"waits for data {_percent(process.data_wait_fraction)}")
    if process.stall_fraction:
        words.append(f"{METRICS['stall_fraction'].label} {_percent(process.stall_fraction)}")
    # five usual steps without one
    if process.silent_s is not None and process.silent_s > max(5.0, 5.0 / process.steps_per_s):
        words.append(f"no step for {format_duration(process.silent_s)}")
    return [f"{name}: {', '.join(words)}"]


def _paragraph(gpu: ShownGpu, width: int, levels: str) -> Iterator[Line]:
    yield _cut(f"{gpu.label}  {plain(gpu.name)}", width), "bold"
    if gpu.trouble:
        yield from _wrapped(gpu.trouble, width, style="bold red")
    else:
        for line in (*_flow(_figures(gpu), width), *_flow(_owners(gpu), width)):
            yield line, ""
    if gpu.windows:
        yield _drawn(gpu, min(width - len(_INDENT), _MOST_CELLS), levels), "green"
    if gpu.why_no_utilization and not gpu.trouble:
        yield from _wrapped(gpu.why_no_utilization, width, style="yellow")
    elif gpu.verdict:
        yield from _wrapped(gpu.verdict.text, width, style="bold cyan")
        yield from _wrapped(gpu.verdict.meaning, width)
    elif gpu.why_no_verdict and not gpu.trouble:
        yield from _wrapped(gpu.why_no_verdict, width, style="dim")
    if gpu.throttled_fraction and gpu.throttle_reasons:
        reasons = ", ".join(gpu.throttle_reasons)
        share = _percent(gpu.throttled_fraction)
        yield from _wrapped(f"throttled in {share} of the last minute: {reasons}", width, style="bold yellow")
    if gpu.absent:
        yield from _wrapped(f"not reported: {', '.join(gpu.absent)}", width, style="dim")


def _drawn(gpu: ShownGpu, room: int, levels: str) -> str:
    """Return the sparkline of the last minute, or of as much of it as there is room for, with its length."""
    cells = room - len(" 60 s")
    span_s = span_for(cells)
    line = sparkline(gpu.windows, until_s=gpu.windows[-1][0], span_s=span_s, cells=cells, levels=levels)
    return f"{_INDENT}{line} {span_s:.0f} s"


def _row(gpu: ShownGpu, width: int) -> Line:
    busy = ABSENT if gpu.utilization is None else _percent(gpu.utilization)
    power = ABSENT if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    heat = ABSENT if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
    memory = _gib(gpu.memory_used_bytes, gpu.memory_total_bytes) or ABSENT
    words = f"{gpu.label:<5}  {busy:>5}  {memory:>16}  {power:>5}  {heat:>6}  {gpu.trouble or _verdict(gpu)}"
    return _cut(words.rstrip(), width), "bold red" if gpu.trouble else ""


def _figures(gpu: ShownGpu) -> list[str]:
    """Return the GPU's figures now; unknown ones are left out, but for utilization, which is named as such."""
    figures = [f"{_percent(gpu.utilization)} now" if gpu.utilization is not None else "utilization not measured"]
    if gpu.minute_utilization is not None:
        figures.append(f"{_percent(gpu.minute_utilization)} in the last minute")
    elif gpu.sm_activity is not None:
        figures.append(f"{_percent(gpu.sm_activity)} of its multiprocessors")
    if (memory := _gib(gpu.memory_used_bytes, gpu.memory_total_bytes)) is not None:
        figures.append(memory)
    if gpu.power_w is not None:
        figures.append(f"{gpu.power_w:.0f} W")
    if gpu.temperature_c is not None:
        figures.append(f"{gpu.temperature_c} °C")
    if gpu.sm_clock_mhz is not None:
        reasons = f" ({', '.join(gpu.clock_reasons)})" if gpu.clock_reasons else ""
        figures.append(f"{gpu.sm_clock_mhz} MHz{reasons}")
    return figures


def _owners(gpu: ShownGpu) -> list[str]:
    own, others = gpu.own_fraction, gpu.foreign_fraction
    return [] if own is None or others is None else [f"own kernels {_percent(own)}", f"others {_percent(others)}"]


def _verdict(gpu: ShownGpu) -> str:
    return gpu.verdict.text if gpu.verdict else gpu.why_no_verdict or ""


def _summary_words(gpu: GpuSummary) -> Iterator[str]:
    if gpu.trouble:
        yield gpu.trouble
    if gpu.utilization is None:
        # Of the device that the line is about.
        why = (gpu.why_no_utilization or "").removeprefix(f"{gpu.name}: ")
        yield "utilization not measured" + (f" ({why})" if why and not gpu.trouble else "")
    else:
        yield f"{_percent(gpu.utilization)} busy on average"
    if gpu.verdict:
        yield f"in the last minute {gpu.verdict.text}"
    if (memory := _gib(gpu.peak_memory_bytes, gpu.memory_total_bytes)) is not None:
        yield f"at most {memory}"
    if gpu.power_w is not None:
        yield f"{gpu.power_w:.0f} W on average"
    if gpu.highest_temperature_c is not None:
        yield f"at most {gpu.highest_temperature_c} °C"
    if gpu.throttled_fraction:
        yield f"throttled in {_percent(gpu.throttled_fraction)} of the time"


def _gib(used_bytes: int | None, total_bytes: int | None) -> str | None:
    if used_bytes is None:
        return None
    total = "" if total_bytes is None else f" of {total_bytes / 2**30:.1f}"
    return f"{used_bytes / 2**30:.1f}{total} GiB"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _flow(parts: Iterable[str], width: int, indent: str = _INDENT) -> Iterator[str]:
    """Yield lines with the parts side by side, as many as fit."""
    line = ""
    for part in parts:
        if line and len(indent) + len(line) + len(_GAP) + len(part) > width:
            yield indent + line
            line = ""
        line = f"{line}{_GAP}{part}" if line else part
    if line:
        yield _cut(indent + line, width)


@lru_cache(maxsize=64)  # of a second to the next hardly anything is worded anew
def _wrapped(text: str, width: int, *, indent: str = _INDENT, style: str = "") -> Sequence[Line]:
    lines = textwrap.wrap(plain(text, 2000), width, initial_indent=indent, subsequent_indent=indent)
    return tuple((line, style) for line in lines)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


ASCII = "_.-:=+*#"
"""For terminals that cannot show `BLOCKS`."""

_LONGEST_CELL_S = 1.0


def span_for(cells: int) -> float:
    """Return the seconds that a line of so many cells shows: a minute, or less where cells would be too long."""
    return next((span_s for span_s in (60.0, 30.0) if span_s <= cells * _LONGEST_CELL_S), 15.0)


def sparkline(
    windows: Sequence[tuple[float, float, float]], *, until_s: float, span_s: float, cells: int, levels: str = BLOCKS
) -> str:
    """Return the time up to ``until_s``, oldest first, a mean in each cell; a space stands for what is not known.

    Borders of cells stay where they are while time goes on, so that a line moves to the left and never flickers.

    Args:
        windows: End, length and busy share 0..1 of each driver window, in order of time.
        until_s: End of the line, but for less than a cell.
        span_s: Length of time that the line shows.
        levels: Characters from idle to fully busy.
    """
    cell_s = span_s / cells
    last = math.floor(until_s / cell_s)
    borders_s = cell_s * np.arange(last - cells, last + 1)
    ends_s, lengths_s, busy = np.array(windows, dtype=float).reshape(-1, 3).T
    if not len(ends_s):
        return " " * cells
    # Stamps may be rounded so that windows overlap a little: each counts from the end of the one before.
    starts_s = np.maximum(ends_s - lengths_s, np.concatenate(([-math.inf], ends_s[:-1])))
    knots_s = np.column_stack((starts_s, ends_s)).ravel()
    covered_s = np.diff(np.interp(borders_s, knots_s, _integral(ends_s - starts_s)))
    busy_s = np.diff(np.interp(borders_s, knots_s, _integral((ends_s - starts_s) * busy)))
    known = covered_s > 0.25 * cell_s  # of a cell, else nothing is known of it
    shares = np.divide(busy_s, covered_s, out=np.zeros(cells), where=known)
    # an eighth must be the eighth that it is
    steps = np.minimum(len(levels) - 1, (shares * len(levels) + 1e-6).astype(int))
    return "".join(" " if step < 0 else levels[step] for step in np.where(known, steps, -1).tolist())


def _integral(amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running sum at the start and the end of each window; straight in between, and level in a gap."""
    after = np.cumsum(amounts)
    return np.column_stack((after - amounts, after)).ravel()
