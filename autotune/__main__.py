"""``python -m autotune`` and the ``autotune`` command."""

import sys

from autotune.clock import SystemClock
from autotune.trial.termination import ignore_signals, signals_held, take_signals

# Start of the budget. The kernel's process start time would include what a shell script did before `exec autotune`.
_STARTED_S = SystemClock().now_s()


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        take_signals()  # before anything that takes time is imported
        with signals_held():
            from autotune import cli
        code = cli.run(sys.argv[1:], started_s=_STARTED_S)
        ignore_signals()
    except KeyboardInterrupt as interrupt:
        from autotune import cli  # the signal may precede the import above

        code = cli.interrupted(sys.argv[1:], interrupt)
        ignore_signals()
    sys.exit(code)


if __name__ == "__main__":
    main()
