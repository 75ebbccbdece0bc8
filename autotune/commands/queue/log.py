"""``autotune queue log``: what the searches of an entry printed."""

import click

from autotune.commands.parameters import entry_argument
from autotune.trial.termination import signals_held

_LOOK_S = 0.25
_LONGEST_LINE_BYTES = 1 << 16  # what is longer is shown in pieces


@click.command(name="log")
@entry_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the entry is done.")
def command(number: int, follow: bool) -> int:
    """Shows what the searches of an entry printed about their progress."""
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.commands.printing import say
        from autotune.commands.queue.opened import open_queue
        from autotune.errors import AutotuneError
        from autotune.files import open_regular

    _home, queue = open_queue()
    clock = SystemClock()
    entry = queue.entry(number)
    position = 0
    while True:
        goes_on = follow and any(one.id == entry.id and one.goes_on for one in queue.entries())
        try:
            with open_regular(queue.log(entry)) as file:
                file.seek(position)
                while line := file.readline(_LONGEST_LINE_BYTES):
                    is_whole = line.endswith(b"\n") or len(line) == _LONGEST_LINE_BYTES
                    if not is_whole and goes_on:
                        break
                    position += len(line)
                    say(line.decode("utf-8", "replace").removesuffix("\n"))
        except FileNotFoundError:
            if not follow:
                say(f"Entry {number} has not been started yet.")
        except OSError as error:
            raise AutotuneError(f"the log cannot be read: {error.strerror}", where=str(queue.log(entry))) from error
        if not goes_on:
            return 0
        clock.wait(_LOOK_S)
