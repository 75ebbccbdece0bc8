"""Job of several workers: the same command on several machines, each with a seed of its own."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from autotune import __version__
from autotune.environment import STORAGE_VARIABLE, inherited_environment
from autotune.errors import CommandError, ConfigError
from autotune.study.storage.address import SaidAddress, StorageAddress, StorageKind, address_of
from autotune.trial.error_text import one_line
from autotune.trial.mounts import file_system
from autotune.trial.search_child import run_short


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """Workers that are to be started on other machines.

    Attributes:
        program: Command line of autotune there, without a subcommand.
        options: Options of ``autotune worker`` that all of them get, the storage included; no password is in them.
        seed: Seed of the first one; each further one has the next number, so that no two draw the same points.
        cwd: Directory that they start in, the same path on all machines.
        folder: Folder of journals that all of them have to see; None if the study is in a database.
    """

    config: Path
    program: tuple[str, ...]
    options: tuple[str, ...]
    seed: int
    cwd: Path
    folder: SharedFolder | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Command line of a worker, without its seed."""
        return (*self.program, "worker", "--config", str(self.config), *self.options)

    def entering(self) -> list[str]:
        """Return the lines of a POSIX shell that go to the directory, and leave where it is not the same one."""
        lines = [f"cd -- {shlex.quote(str(self.cwd))} || exit 1"]
        if self.folder is not None:
            place = shlex.quote(str(self.folder.path))
            remedy = "not the one of the submitting machine: name a shared one, or a database, with --storage."
            lines += [
                f'if [ "$(stat -L -c %i -- {place})" != {self.folder.inode} ]; then '
                f"""printf 'autotune: on %s, %s is no folder, or {remedy}\\n' "$(uname -n)" {place} >&2; exit 1; fi"""
            ]
        return lines


def plain_name(config: Path) -> str:
    """Return the stem of a config as a part of names that engines take: at most 20 of ``a-z``, ``0-9`` and ``-``."""
    kept = "".join(one if one.isascii() and one.isalnum() else "-" for one in config.stem.lower())
    return "-".join(filter(None, kept.split("-")))[:20].strip("-") or "config"


_UNPRINTED = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Pods of a Job, beside what they run.

    Attributes:
        image: Image with the trainer, the config and autotune; empty for that of a template.
        gpus: GPUs of each; None for those of a template.
        secret: Name of the Secret whose key ``url`` is the address of the storage.
    """

    count: int
    image: str
    gpus: int | None
    secret: str


def manifest(job: WorkerJob, pods: Pods, now: datetime) -> str:
    """Return the manifest, in YAML.

    Args:
        job: The workers; its directory does not count, that of the image does.
        now: Time in UTC, for the Job's name: finished Jobs keep theirs.

    Raises:
        ConfigError: A text is none that a manifest can hold.
    """
    seed = f"{job.seed or ''}$(JOB_COMPLETION_INDEX)"
    words = [*(_scalar(word.replace("$", "$$")) for word in job.words), '"--seed"', _scalar(seed)]
    limits = f'\n          resources:\n            limits:\n              nvidia.com/gpu: "{pods.gpus}"'
    return _filled(
        "worker_job.yaml",
        version=__version__,
        count=pods.count,
        name=_scalar(f"autotune-{plain_name(job.config)}-{now:%Y%m%d-%H%M%S}"),
        image=_scalar(pods.image),
        words=", ".join(words),
        secret=pods.secret,
        quoted_secret=_scalar(pods.secret),
        gpus=limits if pods.gpus else "",
    )


def manifest_from(template: str, job: WorkerJob, pods: Pods, now: datetime, *, where: str) -> str:
    """Return the manifest of a user's own Job, Pod or PodTemplate, with what makes it one of workers.

    Its first container gets the command and the storage's address; the Job gets the number of workers, and each a node
    of its own unless it says otherwise. All else stays: volumes, tolerations, limits, secrets, service accounts.

    Args:
        where: Place of the template, for errors.

    Raises:
        ConfigError: It is none of these, or holds no container.
    """
    text = manifest(job, pods, now)
    ours: dict[str, Any] = yaml.safe_load(text)
    try:
        theirs = pod = yaml.safe_load(template)
        for name in _POD_OF[theirs["kind"]]:
            pod = pod[name]
        spec, container = pod["spec"], pod["spec"]["containers"][0]
        env = [one for one in container.get("env") or () if one["name"] != STORAGE_VARIABLE]
    except (yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise ConfigError(
            f"no Job, Pod or PodTemplate of Kubernetes with a container ({said})",
            where=where,
            remedy="Give a manifest of one document, as kubectl get job NAME -o yaml prints it.",
        ) from None
    of_pods = ours["spec"]["template"]
    worker = of_pods["spec"]["containers"][0]
    container.pop("args", None)
    container |= {"command": worker["command"], "env": [*env, *worker["env"]]}
    if pods.image:
        container["image"] = pods.image
    if pods.gpus is not None:
        resources = container.setdefault("resources", {})
        resources["limits"] = {**(resources.get("limits") or {}), "nvidia.com/gpu": str(pods.gpus)}
    kept = theirs["spec"] if theirs["kind"] == "Job" else {}
    ours["spec"] = {**kept, **ours["spec"]}
    ours["spec"]["template"] = {
        "metadata": _about(pod, of_pods, "labels", "annotations"),
        "spec": {**of_pods["spec"], **spec, "restartPolicy": "Never"},
    }
    ours["metadata"] = _about(theirs, ours, "namespace", "labels", "annotations") | {"name": ours["metadata"]["name"]}
    head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    return head + yaml.safe_dump(ours, sort_keys=False, allow_unicode=True)


_POD_OF = {"Job": ("spec", "template"), "Pod": (), "PodTemplate": ("template",)}
"""Kind of a user's template, and the keys on the way to the pod in it."""


def _about(theirs: Mapping[str, Any], ours: Mapping[str, Any], *kept: str) -> dict[str, Any]:
    """Return the metadata of a template as far as they are not the cluster's, with the labels of workers."""
    about = {name: value for name, value in (theirs.get("metadata") or {}).items() if name in kept}
    return {**about, "labels": {**(about.get("labels") or {}), **ours["metadata"]["labels"]}}


def _filled(file: str, /, **values: object) -> str:
    """Return the text of a file of this package with values in place of ``$name``."""
    return Template(files(__package__).joinpath(file).read_text("utf-8")).substitute(values)


def _scalar(text: str) -> str:
    """Return a text as a double-quoted scalar of YAML 1.2, of which JSON is a part but for a few characters.

    Raises:
        ConfigError: It is no text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of a path that are not UTF-8
        raise ConfigError(
            f"a manifest cannot hold {text!a}", where="--submit kubernetes", remedy="Use names in UTF-8."
        ) from error
    return _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


# Workers on other machines that are started over ssh, and end when the connection does.


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
    """Raise a CommandError if there is no ssh."""
    if shutil.which("ssh") is None:
        raise CommandError(
            "there is no ssh on the PATH", where="--submit ssh", remedy="Install it: apt-get install openssh-client"
        )


# Array job of Slurm: each of its tasks lends one node, whole, to a study.


NOTICE_S = 30
"""Time between SIGTERM to the worker and the end of the job's time limit."""

_JOB = re.compile(r"(\d+)(?:;.*)?")


def job_script(job: WorkerJob, count: int, output: Path) -> str:
    """Return the script of an array job.

    The worker replaces the batch shell, so that Slurm's signals reach it, whether they go to that shell alone
    (``--signal=B:``, ``scancel --batch``) or to all processes of the job.

    Args:
        output: Folder of their output, one file for each.

    Raises:
        ConfigError: The folder has a name that sbatch cannot be told.
    """
    return _filled(
        "worker_job.sh",
        name=plain_name(job.config),
        last=count - 1,
        notice_s=NOTICE_S,
        output=_pattern(output),
        version=__version__,
        entering="\n".join(job.entering()),
        words=shlex.join(job.words),
        seed=job.seed,
    )


def job_script_from(template: str, job: WorkerJob) -> str:
    """Return a user's own batch script, with the worker's command for ``{worker}``, or at its end.

    Nothing of it is changed: its header, its modules, what it exports, and the line that enters a container stay.
    """
    command = f'{shlex.join(job.words)} --seed "$(({job.seed} + SLURM_ARRAY_TASK_ID))"'
    lines = template.splitlines()
    begin = next((place for place, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    body = "\n".join(lines[begin:])
    body = body.replace(WORKER, command) if WORKER in body else f"{body}\nexec {command}".lstrip("\n")
    return "\n".join((*lines[:begin], *job.entering(), body, ""))


def options_beside(template: str, count: int, output: Path) -> tuple[str, ...]:
    """Return the options of sbatch that a user's own script gets: those that make workers of it, and are not in it."""
    header = " ".join(line for line in template.splitlines() if line.startswith("#SBATCH"))
    return (
        f"--array=0-{count - 1}",
        *(() if "--signal" in header else (f"--signal=B:TERM@{NOTICE_S}",)),
        *(() if re.search(r"\s(--output|-o)\b", header) else (f"--output={output}/%A_%a.log", "--open-mode=append")),
    )


WORKER = "{worker}"
"""Place of the worker's command in a user's own batch script."""


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


def is_waited_for(words: Sequence[str], script: str) -> bool:
    """Return whether sbatch returns when the job has ended, as its command line, the script or its variable says."""
    in_script = re.search(r"^#SBATCH[ \t](?:.*[ \t])?(?:--wait|-W)\b", script, re.M)
    return not {"--wait", "-W"}.isdisjoint(words) or in_script is not None or "SBATCH_WAIT" in os.environ


def submit(words: Sequence[str], *, waits: bool) -> tuple[str, int]:
    """Submit a job; return its number and, of one that is waited for, its exit status.

    Raises:
        CommandError: Slurm does not take it.
    """
    answered = run_short(words, None if waits else 60.0, env=inherited_environment())
    lines = answered.text.splitlines()
    numbers = [match[1] for line in lines if (match := _JOB.fullmatch(line.strip()))]
    if not numbers or answered.status is None or (answered.status != 0 and not waits):
        raise CommandError(
            f"Slurm did not take the job: {answered.text or f'status {answered.status}'}",
            where="sbatch",
            remedy="Options of sbatch stand behind --, for example: -- --partition=gpu --time=1:00:00 --gres=gpu:1",
        )
    return numbers[-1], answered.status


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


_SAY_OTHER = "Name a database, --storage postgresql://user@host/name, or a folder that all of them see, --storage "
_LOCAL = frozenset(
    {"aufs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"}
    | {"squashfs", "tmpfs", "vfat", "xfs", "zfs"}
)
"""File systems that only the machine sees which has their disk, unless it exports them."""


@dataclass(frozen=True, kw_only=True)
class SharedFolder:
    """Folder that is to be the same one on several machines.

    Attributes:
        inode: Its number in its file system, which network file systems show on each machine alike.
    """

    path: Path
    inode: int


@dataclass(frozen=True, kw_only=True)
class SharedStorage:
    """Storage of several machines.

    Attributes:
        text: Address to give to each of them: without a password, which may be in a file that it names.
        folder: Folder of its journals; None for a database.
    """

    text: str
    folder: SharedFolder | None = None


def shared_storage(
    said: Sequence[SaidAddress | None], journals: Path, *, is_reachable: bool, make: bool = True
) -> SharedStorage:
    """Return the storage as other machines are told of it.

    Args:
        said: What was said of it, the first that says something counts.
        journals: Folder of journals where nothing was said.
        is_reachable: Whether the user says that other machines reach it, though it looks like this machine's own.
        make: Whether to make a folder of journals that is not there; its parent has to be.

    Raises:
        ConfigError: They could not reach it, or would have to be told its password.
    """
    first = next((one for one in said if one is not None and one.text.strip()), None)
    where = first.where if first else None
    address = address_of(first) or StorageAddress(kind=StorageKind.JOURNAL, shown=f"journal:{journals}", path=journals)
    if address.kind is StorageKind.SQLITE:
        raise ConfigError(
            f"{address.shown} serves one machine only: SQLite's locks do not work between machines",
            where=where,
            remedy=f"{_SAY_OTHER}journal:FOLDER.",
        )
    if address.secrets and address.kept_in is None:
        raise ConfigError(
            f"{STORAGE_VARIABLE} holds an address with a password, which is not written into a job",
            where=STORAGE_VARIABLE,
            remedy="Put the address into a file with mode 0600 that the other machines see too, and name that: "
            "--storage file:FILE.",
        )
    text = address.shown if address.kept_in is None else f"file:{address.kept_in}"
    if address.kind is StorageKind.POSTGRESQL:
        if not is_reachable and (host := _own_host(address)) is not None:
            raise ConfigError(
                f"the server at {host} is this machine alone, and other machines have to reach it",
                where=where,
                remedy="Name it as they do: postgresql://user@host/name. If all workers run on this machine, say "
                "--reachable.",
            )
        return SharedStorage(text=text)
    assert address.path is not None, "a folder of journals has a path"
    return SharedStorage(text=text, folder=_shared_folder(address.path, where, is_reachable=is_reachable, make=make))


def _shared_folder(path: Path, where: str | None, *, is_reachable: bool, make: bool) -> SharedFolder | None:
    kind = file_system(path)
    if kind in _LOCAL and not is_reachable:
        raise ConfigError(
            f"{path} is on a disk of this machine ({kind}), and journals in it serve this machine only",
            where=where,
            remedy=f"{_SAY_OTHER}journal:FOLDER (NFS 4, Lustre and the like). If this machine exports the folder "
            "to the others under this path, or all workers run on this machine, say --reachable.",
        )
    try:
        if make:
            path.mkdir(mode=0o700, exist_ok=True)
        elif not path.exists():
            return None
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "nothing can be written into it from here")
        return SharedFolder(path=path, inode=os.stat(path).st_ino)
    except OSError as error:
        raise ConfigError(
            f"the folder of journals cannot be used: {error.strerror}",
            where=str(path),
            remedy="Name another with --storage.",
        ) from error


def _own_host(address: StorageAddress) -> str | None:
    parts = urlsplit(address.url)
    query = parse_qs(parts.query)
    host = next(iter(query.get("host", [])), None) or parts.hostname or ""
    if not host or host.startswith(("/", "@")):
        return host or "its local socket"
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return host if host == "localhost" or host.endswith(".localhost") else None
