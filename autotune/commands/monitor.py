"""``autotune monitor``: what the GPUs do now."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.commands.output import append_line, say, say_object
from autotune.commands.parameters import DURATION
from autotune.errors import Terminated, how_it_ended
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.daemon.monitor import MonitorReading, MonitorSummary


@click.command(name="monitor")
@click.option("--pid", type=click.IntRange(min=1), help="Show the GPUs of this process, and its steps; end with it.")
@click.option("--for", "for_s", type=DURATION, help="End after this time (default: at ^C).")
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append a line to this file whenever the verdict on a GPU is another one, with what to do about it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, every second or two.")
def command(pid: int | None, for_s: float | None, log: Path | None, as_json: bool) -> int:
    """Shows what the GPUs of this machine do: how busy, how steadily, and what that usually means.

    On a terminal one screen, drawn anew every second; in a pipe or a log file one line for each GPU and second. More
    than four GPUs are looked at every two seconds. The verdict is about the last minute. Nothing is started, nothing is
    changed, and what is watched does not notice.
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
            with _shown(console, as_json=as_json) as show, _logged(log) as note:
                while True:
                    reading = monitor.reading()
                    show(reading)
                    note(reading)
                    if monitor.has_ended or (for_s is not None and clock.now_s() - began_s >= for_s):
                        break
                    due_s = max(due_s + monitor.every_s, clock.now_s())
                    end_s = due_s if for_s is None else min(due_s, began_s + for_s)
                    clock.wait(end_s - clock.now_s())
        except KeyboardInterrupt as interrupt:
            ended = interrupt
        _say(console, monitor.summary(), as_json=as_json)
    # ^C is how one leaves a monitor; it cuts short only what was to last for a given time.
    if ended is None or (for_s is None and not isinstance(ended, Terminated)):
        return 0
    return how_it_ended(ended)[1]


@contextlib.contextmanager
def _shown(console: "Console", *, as_json: bool) -> "Iterator[Callable[[MonitorReading], None]]":
    from autotune.daemon.monitor_display import MonitorDisplay, log_lines

    if as_json:
        yield lambda reading: say_object(reading.document())
    elif console.is_terminal and not console.is_dumb_terminal:
        with MonitorDisplay(console) as display:
            yield display.show
    else:
        said: set[str] = set()

        def show(reading: "MonitorReading") -> None:
            news = [note for note in reading.notes if note not in said]
            said.update(news)
            say("\n".join((*news, *log_lines(reading))))

        yield show


@contextlib.contextmanager
def _logged(path: Path | None) -> "Iterator[Callable[[MonitorReading], None]]":
    """Give a function that appends a line to a file for each verdict that is another one than before."""
    from autotune.daemon.monitor_display import verdict_line

    if path is None:
        yield lambda _reading: None
        return
    known: dict[str, str] = {}

    def note(reading: "MonitorReading") -> None:
        for gpu in reading.gpus:
            pattern = gpu.trouble or (gpu.verdict.meaning if gpu.verdict else None)
            if pattern and known.get(gpu.uuid) != pattern:
                known[gpu.uuid] = pattern
                append_line(path, verdict_line(reading.utc, gpu))

    append_line(path, None)  # an error now, where it cannot be written
    yield note


def _say(console: "Console", summary: "MonitorSummary", *, as_json: bool) -> None:
    from autotune.daemon.monitor_display import summary_lines

    if as_json:
        say_object(summary.document())
    else:
        for line in summary_lines(summary):
            console.print(line, soft_wrap=not console.is_terminal)
