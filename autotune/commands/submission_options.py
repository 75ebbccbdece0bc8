"""Options of ``autotune worker`` that say where workers are started, if not here."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from autotune.commands.parameters import dry_run_option

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--submit",
        "engine",
        type=click.Choice(["slurm", "kubernetes", "ssh"]),
        help="Start workers elsewhere: an array job of Slurm (what stands behind -- goes to sbatch), a Job for "
        "Kubernetes (printed), or one on each HOST that is named behind it, over ssh.",
    ),
    click.option("-n", "--workers", "count", type=click.IntRange(1, 1000), help="Number of workers to submit [1]."),
    click.option("--image", help="Image with the trainer, the config and autotune, for Kubernetes."),
    click.option(
        "--gpus", type=click.IntRange(0, 64), help="GPUs of a worker, for Kubernetes; 0 for a trainer without [1]."
    ),
    click.option(
        "--secret", metavar="NAME", help="Secret of Kubernetes with the storage's address [autotune-storage]."
    ),
    click.option(
        "--reachable", is_flag=True, help="The other machines reach the storage, though it looks like this one's own."
    ),
    dry_run_option,
)


def submission_options(command: _Command) -> _Command:
    """Add the options; the command gets them under the names of `SubmissionRequest`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
