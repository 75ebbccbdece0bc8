"""``autotune monitor``."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from autotune.clock import format_duration
from autotune.commands.output import say, say_object
from autotune.commands.parameters import DURATION
from autotune.errors import Terminated, how_it_ended
from autotune.report.plain_text import plain
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.daemon.monitor import MonitorReading, ShownGpu


@click.command(name="monitor")
@click.option("--pid", type=click.IntRange(min=1), metavar="PID", help="Watch the GPUs of this process; exit with it.")
@click.option("--for", "for_s", type=DURATION, help="Exit after this time (default: at ^C).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, every second or two.")
def command(pid: int | None, for_s: float | None, as_json: bool) -> int:
    """Watch how steadily the GPUs work, and what that usually means.

    Updates every second, with more than four GPUs every two; a log file gets one line per GPU. The verdict covers the
    last minute. Only reads. `nvitop` shows everything else about GPUs.
    """
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.daemon.monitor import Monitor
        from autotune.report.console import text_console

    clock = SystemClock()
    console = text_console()
    ended: KeyboardInterrupt | None = None
    with Monitor(pid, clock) as monitor:
        began_s = due_s = clock.now_s()
        try:
            with _shown(console, as_json=as_json) as show:
                while True:
                    reading = monitor.reading()
                    show(reading)
                    if reading.has_ended or (for_s is not None and clock.now_s() - began_s >= for_s):
                        break
                    due_s = max(due_s + monitor.every_s, clock.now_s())
                    end_s = due_s if for_s is None else min(due_s, began_s + for_s)
                    clock.wait(end_s - clock.now_s())
        except KeyboardInterrupt as interrupt:
            ended = interrupt
        _print_summary(console, monitor.reading(), as_json=as_json)
    # ^C is the normal way to leave; it is an interrupt only with --for.
    if ended is None or (for_s is None and not isinstance(ended, Terminated)):
        return 0
    return how_it_ended(ended)[1]


@contextlib.contextmanager
def _shown(console: "Console", *, as_json: bool) -> "Iterator[Callable[[MonitorReading], None]]":
    if as_json:
        yield lambda reading: say_object(reading.document())
    elif console.is_terminal and not console.is_dumb_terminal:
        from rich.live import Live
        from rich.text import Text

        # No automatic refresh: it would cost more than the measuring.
        live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)

        def draw(reading: "MonitorReading") -> None:
            if not console.is_terminal:
                raise BrokenPipeError  # the terminal is gone
            head = f"{reading.utc:%H:%M:%S} UTC  watched for {format_duration(reading.watched_s)}  ^C to exit"
            live.update(Text("\n".join((head, *reading.notes, *_lines(reading)))), refresh=True)

        with live:
            yield draw
    else:
        printed: set[str] = set()

        def show(reading: "MonitorReading") -> None:
            notes = [note for note in reading.notes if note not in printed]
            printed.update(notes)
            words = [f"{reading.utc:%H:%M:%S} {gpu.label}  {'  '.join(_words(gpu))}" for gpu in reading.gpus]
            say("\n".join((*notes, *(plain(line, 1000) for line in words))))

        yield show


def _print_summary(console: "Console", reading: "MonitorReading", *, as_json: bool) -> None:
    if as_json:
        say_object(reading.document("summary"))
        return
    ended = f"Process {reading.pid} has ended. " if reading.has_ended else ""
    for line in (f"{ended}Watched for {format_duration(reading.watched_s)}.", *_lines(reading)):
        console.print(line, soft_wrap=not console.is_terminal)
    if any(gpu.verdict for gpu in reading.gpus):
        console.print("Next: autotune diagnose --config FILE")


def _lines(reading: "MonitorReading") -> list[str]:
    gpus = [plain(f"{gpu.label}  {gpu.name}: {', '.join(_words(gpu))}", 1000) for gpu in reading.gpus]
    meanings = {gpu.verdict.text: gpu.verdict.meaning for gpu in reading.gpus if gpu.verdict}
    return [*gpus, *(f"{text}: {meaning}" for text, meaning in meanings.items())]


def _words(gpu: "ShownGpu") -> Iterator[str]:
    if gpu.trouble:
        yield gpu.trouble
    if gpu.minute_utilization is None:
        why = (gpu.why_no_utilization or "").removeprefix(f"{gpu.name}: ")  # the line names the GPU already
        yield "utilization not measured" + (f" ({why})" if why and not gpu.trouble else "")
    else:
        yield f"{100 * gpu.minute_utilization:.0f} % busy in the last minute"
    if gpu.verdict or gpu.why_no_verdict:
        yield gpu.verdict.text if gpu.verdict else gpu.why_no_verdict or ""
    if gpu.memory_used_bytes is not None:
        total = "" if gpu.memory_total_bytes is None else f" of {gpu.memory_total_bytes / 2**30:.1f}"
        yield f"{gpu.memory_used_bytes / 2**30:.1f}{total} GiB"
