"""Array job of Slurm: each of its tasks lends one node, whole, to a study."""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from autotune import __version__
from autotune.environment import inherited_environment
from autotune.errors import CommandError, ConfigError
from autotune.process.short_command import run_short
from autotune.submission.worker_job import WorkerJob, plain_name

NOTICE_S = 30
"""Time between SIGTERM to the worker and the end of the job's time limit."""

_SUBMIT_S = 60.0
_JOB = re.compile(r"(\d+)(?:;.*)?")


def job_script(job: WorkerJob, count: int, output: Path) -> str:
    """Return the script of an array job.

    The worker replaces the batch shell, so that Slurm's signals reach it, whether they go to that shell alone
    (``--signal=B:``, ``scancel --batch``) or to all processes of the job.

    Args:
        job: The workers.
        count: Number of tasks.
        output: Folder of their output, one file for each.

    Raises:
        ConfigError: The folder has a name that sbatch cannot be told.
    """
    return "\n".join(
        [
            "#!/bin/sh",
            f"#SBATCH --job-name=autotune-{plain_name(job.config)}",
            f"#SBATCH --array=0-{count - 1}",
            "#SBATCH --nodes=1",
            "#SBATCH --exclusive",
            "#SBATCH --mem=0",
            f"#SBATCH --signal=B:TERM@{NOTICE_S}",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            f"#SBATCH --output={_pattern(output)}",
            f"# Workers of autotune {__version__}. Each task measures on a node of its own. A task that is preempted",
            "# gives its trial back, and joins the study again when Slurm starts it anew.",
            *job.entering(),
            f'exec {shlex.join(job.words)} --seed "$(({job.seed} + SLURM_ARRAY_TASK_ID))"',
            "",
        ]
    )


def sbatch_words(options: Sequence[str], script: Path) -> tuple[str, ...]:
    """Return the command that submits a script; options in it take precedence over those in the script."""
    return ("sbatch", "--parsable", *options, str(script))


def require_sbatch() -> None:
    """Raise an error if Slurm's command is not there.

    Raises:
        CommandError: It is not.
    """
    if shutil.which("sbatch") is None:
        raise CommandError(
            "there is no sbatch on the PATH",
            where="--submit slurm",
            remedy="Submit on a machine with Slurm's commands (a login node); often they come with: module load slurm. "
            "Where there is no Slurm, --submit ssh HOST... starts workers without one.",
        )


def submit(words: Sequence[str]) -> str:
    """Submit a job; return its number.

    Raises:
        CommandError: Slurm does not take it.
    """
    answered = run_short(words, _SUBMIT_S, env=inherited_environment())
    lines = answered.text.splitlines()
    numbers = [match[1] for line in lines if (match := _JOB.fullmatch(line.strip()))]
    if answered.status != 0 or not numbers:
        raise CommandError(
            f"Slurm did not take the job: {answered.text or f'status {answered.status}'}",
            where="sbatch",
            remedy="Options of sbatch stand behind --, for example: -- --partition=gpu --time=1:00:00 --gres=gpu:1",
        )
    return numbers[-1]


def _pattern(output: Path) -> str:
    """Return the pattern of the output files, quoted as sbatch reads its comments; a percent sign is doubled."""
    folder = str(output)
    if not folder.isprintable() or "\\" in folder:  # sbatch takes names with a backslash for no pattern
        raise ConfigError(
            f"Slurm cannot write its output into a folder of such a name: {folder!a}",
            where="state folder",
            remedy="Name another one with --state-dir.",
        )
    escaped = folder.replace("%", "%%").replace('"', '\\"')
    return f'"{escaped}/%A_%a.log"'
