"""Workers on other machines that are started over ssh, and end when the connection does."""

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace

from autotune.errors import CommandError, ConfigError
from autotune.submission.worker_job import WorkerJob

_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
_HOST = re.compile(r"[^\s\x00-\x1f\x7f-]\S*")

UNREACHED = 255
"""Exit status of ssh itself, where it did not reach the host or lost it."""


def ssh_words(job: WorkerJob, host: str) -> tuple[str, ...]:
    """Return the command that runs one worker on a host; its input has to stay open for as long as that is to work.

    Raises:
        ConfigError: That is no name of a host.
    """
    if not _HOST.fullmatch(host):
        raise ConfigError(
            f"{host!a} is no name of a host",
            where="--submit ssh",
            remedy="Write host, user@host, or a name of ~/.ssh/config.",
        )
    return (*_SSH, *_ALIVE, "--", host, remote_command(job))


def remote_command(job: WorkerJob) -> str:
    """Return the command for the login shell of the other machine, whichever it is.

    ssh sends no signals. So a process there waits for the end of its input, which comes when the connection ends,
    whatever ends it, and then tells the worker to leave.
    """
    worker = f"{shlex.join(job.words)} --seed {job.seed} </dev/null 3<&- &"
    lines = [
        *(f"{line};" for line in job.entering()),
        "exec 3<&0;",
        worker,
        "worker=$!;",
        'trap "kill -TERM $worker" HUP INT TERM;',
        '(cat; kill -TERM "$worker") <&3 >/dev/null 2>&1 &',
        "watcher=$!; exec 3<&-;",
        'wait "$worker"; code=$?;',
        'while kill -0 "$worker" 2>/dev/null; do wait "$worker"; code=$?; done;',  # a signal ended the wait
        'kill "$watcher" 2>/dev/null; exit "$code"',
    ]
    return f"exec /bin/sh -c {shlex.quote(' '.join(lines))}"


def jobs_by_host(job: WorkerJob, hosts: Sequence[str]) -> dict[str, WorkerJob]:
    """Return the job of each host: they differ in their seeds.

    Raises:
        ConfigError: There is no host, or one is there twice.
    """
    if not hosts or len(set(hosts)) != len(hosts):
        raise ConfigError(
            "no host is named" if not hosts else "a host is named twice",
            where="--submit ssh",
            remedy="Name each machine once: --submit ssh HOST...; a machine has one worker of a study.",
        )
    return {host: replace(job, seed=job.seed + place) for place, host in enumerate(hosts)}


def require_ssh() -> None:
    """Raise an error if there is no ssh.

    Raises:
        CommandError: There is none.
    """
    if shutil.which("ssh") is None:
        raise CommandError(
            "there is no ssh on the PATH", where="--submit ssh", remedy="Install it: apt-get install openssh-client"
        )
