"""``python -m autotune``, and the ``autotune`` command."""

import sys

from autotune.clock import SystemClock

# The budget counts from here. (The kernel's start time of the process would count what a shell script did before
# its `exec autotune`.)
_STARTED_S = SystemClock().now_s()


def main() -> None:
    """Runs the command line and exits with its code."""
    from autotune.cli import run

    sys.exit(run(sys.argv[1:], started_s=_STARTED_S))


if __name__ == "__main__":
    main()
