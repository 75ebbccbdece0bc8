"""Handler of log records that nobody else handles: warnings, on stderr, printed as all else is."""

import logging

from autotune.commands.printing import say_aside


class _Aside(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say_aside(self.format(record))
        except (OSError, ValueError):  # nobody reads stderr any more
            return


def say_warnings_aside() -> None:
    """Has warnings of the log printed, from now on."""
    logging.lastResort = _Aside(logging.WARNING)
