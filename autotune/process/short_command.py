"""Commands of the system that answer at once, such as ``systemctl``."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_TEXT = 2000
_ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class Answered:
    """End of a command.

    Attributes:
        status: Its exit status; None if it could not be started, or did not end in time.
        text: What it printed, or why it has no status.
    """

    status: int | None
    text: str


def run_short(
    argv: Sequence[str], limit_s: float, *, env: Mapping[str, str] | None = None, cwd: Path = _ROOT
) -> Answered:
    """Run a command to its end, without input and without a shell.

    Args:
        argv: The command.
        limit_s: Time limit; then it is killed.
        env: Its whole environment; None for that of this process.
        cwd: Its working directory.
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        return Answered(status=None, text=f"there is no {argv[0]}")
    except subprocess.TimeoutExpired:
        return Answered(status=None, text=f"{argv[0]} did not end within {limit_s:.0f} s")
    except OSError as error:
        return Answered(status=None, text=f"{argv[0]} cannot be started: {error.strerror}")
    return Answered(status=done.returncode, text=done.stdout.decode("utf-8", "replace").strip()[-_MOST_TEXT:])
