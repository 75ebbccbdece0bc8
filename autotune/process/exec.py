"""Exec of another program in place of this process, for real training that is no trial."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from autotune.errors import CommandError
from autotune.process.termination import release_signals


def exec_program(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> NoReturn:
    """Replace this process with a command.

    Its input, output, signals, terminal and exit status are those of this process from then on; no shell is
    involved.

    Args:
        argv: The command.
        env: The whole environment; its ``PATH`` says where a bare name is looked up.
        cwd: Its working directory.

    Raises:
        CommandError: It cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    release_signals()
    # Python ignores these two signals, and ignored ones stay so after exec: `train.py | head` would never end.
    for one in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)
    try:
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 -- no shell, on purpose
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{argv[0]} cannot be started: {getattr(error, 'strerror', None) or error}",
            where="command",
            remedy="Check that it is a program; a script needs a first line such as #!/usr/bin/env python.",
        ) from error
