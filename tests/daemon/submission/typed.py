"""Submission on a command line: ``python -m tests.daemon.submission.typed --config C --submit ssh HOST...``.

The workers are stand-ins, see stand_in.py.
"""

import sys
from typing import Any

import click

from autotune.clock import SystemClock
from autotune.commands.parameters import config_option, seed_option, state_dir_option, storage_option
from autotune.commands.worker import submission_options
from autotune.commands.worker_submission import SubmissionRequest, submit_workers
from autotune.errors import AutotuneError, how_it_ended
from autotune.trial.termination import take_signals
from tests.daemon.submission.conftest import STAND_IN


@click.command()
@config_option
@seed_option
@submission_options
@state_dir_option
@storage_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(**options: Any) -> int:
    """Submit stand-ins for workers."""
    request = SubmissionRequest(budget_s=None, same_training=False, batch=None, allow_busy_gpu=False, **options)
    return submit_workers(request, SystemClock(), program=STAND_IN)


def main() -> int:
    """Carry out the command line; return the exit code."""
    take_signals()
    try:
        return int(command.main(standalone_mode=False))
    except (KeyboardInterrupt, click.exceptions.Abort) as error:
        return how_it_ended(error if isinstance(error, KeyboardInterrupt) else error.__cause__)[1]
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
