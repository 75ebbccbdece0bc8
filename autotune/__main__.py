"""``python -m autotune``, and the ``autotune`` command."""

import sys

from autotune.clock import SystemClock
from autotune.trial.termination import ignore_signals, signals_held, take_signals

# The budget counts from here. (The kernel's start time of the process would count what a shell script did before
# its `exec autotune`.)
_STARTED_S = SystemClock().now_s()


def main() -> None:
    """Runs the command line and exits with its code."""
    try:
        take_signals()  # before anything that takes time is imported
        with signals_held():
            from autotune import cli
        code = cli.run(sys.argv[1:], started_s=_STARTED_S)
        ignore_signals()
    except KeyboardInterrupt as interrupt:
        from autotune import cli  # the signal may have come before the import above

        code = cli.interrupted(sys.argv[1:], interrupt)
        ignore_signals()
    sys.exit(code)


if __name__ == "__main__":
    main()
