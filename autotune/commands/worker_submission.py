"""Submission of workers: what ``autotune worker --submit`` checks, writes, starts and says."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import click

from autotune.clock import Clock
from autotune.commands.gpu_shares import Started, gpu_shares, workers_on, working_along
from autotune.commands.output import say, say_aside
from autotune.config.command_line import TypedOptions
from autotune.config.load import Settings, load_settings
from autotune.config.secrets import masked
from autotune.daemon import submission
from autotune.daemon.submission import WorkerJob, shared_storage
from autotune.environment import STORAGE_VARIABLE, inherited_environment
from autotune.errors import ConfigError
from autotune.files import create_private, make_private_folder, open_regular
from autotune.options import SearchRequest
from autotune.study.storage.address import SaidAddress, said_by_environment
from autotune.trial.command_group import CommandEnd, CommandGroup, OutputLine
from autotune.trial.search_child import OWN_COMMAND
from autotune.trial.state_folder import StateFolder


@dataclass(frozen=True, kw_only=True)
class SubmissionRequest:
    """Options and arguments of ``autotune worker --submit``.

    Attributes:
        engine: What starts the workers: ``slurm``, ``kubernetes``, ``ssh``, or ``gpus`` for those of this machine.
        count: Their number; None if it was not said.
        gpus: GPUs of a pod; None if it was not said.
        template: File of the user's own manifest, or batch script; None for ours.
        secret: Name of the Secret with the storage's address; None if it was not said.
        reachable: Whether other machines reach the storage, though it looks like this machine's own.
        dry_run: True to show what would be submitted, and start nothing.
        storage: Where studies are kept, as typed.
        budget_s: Budget of each worker, in seconds; None for that of the command.
        allow_busy_gpu: Whether they work although somebody else is on the GPU.
        warm_start: Whether they begin with the best points of studies of like trainings.
        words: Hosts, or options of sbatch.
    """

    engine: str
    count: int | None
    image: str | None
    gpus: int | None
    template: Path | None
    secret: str | None
    reachable: bool
    dry_run: bool
    config: Path
    storage: str | None
    budget_s: float | None
    seed: int
    same_training: bool
    batch: str | None
    allow_busy_gpu: bool
    state_dir: Path | None
    words: tuple[str, ...]
    warm_start: bool = True


def submit_workers(request: SubmissionRequest, clock: Clock, *, program: tuple[str, ...] = OWN_COMMAND) -> int:
    """Carry out a request; return the exit code.

    Args:
        program: Command line of autotune on the other machines.

    Raises:
        click.UsageError: Options were typed that do not go together.
        AutotuneError: The workers could not work, or cannot be started.
    """
    _require_fitting(request)
    settings = load_settings(request.config)
    is_here_alike = request.engine != "kubernetes"  # the image has other programs, and its own address of the storage
    _require_searchable(request, settings, is_here_alike=is_here_alike)
    here, section = Path.cwd(), settings.section
    beside = settings.path.absolute().parent
    said = [
        SaidAddress(text=request.storage, where="--storage", folder=here) if request.storage else None,
        said_by_environment(os.environ, here),
        SaidAddress(text=section.storage, where=section.place("storage"), folder=beside) if section.storage else None,
    ]
    if not is_here_alike:
        return _kubernetes(request, next(filter(None, said), None), clock)
    state = StateFolder.locate(request.config, explicit=request.state_dir, environ=os.environ)
    if not request.dry_run:
        state.create()
    if request.engine == "gpus":
        return _gpus(request, _job_here(request, settings, state, program), state, clock)
    storage = shared_storage(said, state.studies, is_reachable=request.reachable, make=not request.dry_run)
    state_dir = state.path if request.state_dir is not None or os.environ.get("AUTOTUNE_DIR") else None
    job = WorkerJob(
        config=request.config,
        program=program,
        options=("--storage", storage.text, *_options(request, state_dir)),
        seed=request.seed,
        cwd=here,
        folder=storage.folder,
    )
    return _slurm(request, job, state, clock) if request.engine == "slurm" else _ssh(request, job, clock)


def _slurm(request: SubmissionRequest, job: WorkerJob, state: StateFolder, clock: Clock) -> int:
    count = request.count or 1
    folder = state.workers / f"{clock.utc():%Y%m%dT%H%M%S}-{os.getpid()}"
    script, options = folder / "job.sh", request.words
    if request.template is None:
        text = submission.job_script(job, count, folder)
    else:
        template = _text_of(request.template)
        text = submission.job_script_from(template, job)
        options = (*submission.options_beside(template, count, folder), *options)
    words = submission.sbatch_words(options, script)
    if request.dry_run:
        say(text)
        say_aside(f"Would be written to {script} and submitted with:\n  {shlex.join(masked(words))}")
        return 0
    submission.require_sbatch()
    make_private_folder(folder)
    create_private(script, text.encode())
    if waits := submission.is_waited_for(words, text):
        say_aside("sbatch was asked to wait until the last worker has ended; squeue shows the job meanwhile.")
    number, status = submission.submit(words, waits=waits)
    if waits:
        say(f"Job {number} has ended with exit status {status}.\n  output  {folder}/{number}_*.log")
        return 1 if status else 0
    say(
        f"Submitted job {number}: {f'{count} workers, each' if count > 1 else 'a worker'} on a node of its own"
        f"{'' if request.template is None else ', as far as the script asks for it'}.\n"
        f"  script  {script}\n"
        f"  output  {folder}/{number}_*.log\n"
        f"squeue --job {number} shows them, scancel {number} ends them; nothing that they finished is lost."
    )
    return 0


def _kubernetes(request: SubmissionRequest, said: SaidAddress | None, clock: Clock) -> int:
    if said is not None and said.text.strip().lower().startswith(("journal:", "sqlite:")):
        raise ConfigError(
            "pods do not share a folder: workers on Kubernetes need a database",
            where=said.where,
            remedy="Put postgresql://user:password@host/name into the Secret that the manifest names.",
        )
    secret = request.secret or "autotune-storage"
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", secret):
        raise ConfigError(f"{secret!a} is no name of a Secret", where="--secret", remedy="Use a-z, 0-9, - and dots.")
    gpus = 1 if request.gpus is None and request.template is None else request.gpus
    pods = submission.Pods(count=request.count or 1, image=request.image or "", gpus=gpus, secret=secret)
    options = tuple(_options(request, request.state_dir))
    job = WorkerJob(config=request.config, program=("autotune",), options=options, seed=request.seed, cwd=Path("/"))
    if request.template is None:
        text = submission.manifest(job, pods, clock.utc())
    else:
        template = _text_of(request.template)
        text = submission.manifest_from(template, job, pods, clock.utc(), where=str(request.template))
    say(text.rstrip("\n"))
    return 0


def _text_of(template: Path) -> str:
    try:
        with open_regular(template) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(
            f"it cannot be read: {why}", where=str(template), remedy="Name another with --template."
        ) from error


def _job_here(
    request: SubmissionRequest | SearchRequest, settings: Settings, state: StateFolder, program: tuple[str, ...]
) -> WorkerJob:
    """Return workers on this machine: they are told of the storage where they would not see themselves what it is."""
    is_seen = os.environ.get(STORAGE_VARIABLE) or settings.section.storage
    place = request.storage or (None if is_seen else f"journal:{state.studies}")
    options = (*(("--storage", place) if place else ()), *_options(request, None))
    return WorkerJob(config=request.config, program=program, options=options, seed=request.seed, cwd=Path.cwd())


def _gpus(request: SubmissionRequest, job: WorkerJob, state: StateFolder, clock: Clock) -> int:
    """Run a worker for each GPU of this machine, each with that GPU and its share of the processor's cores."""
    shares = gpu_shares(state, "--submit gpus")
    return _run_group(workers_on(shares, job.words, state, seed=job.seed), request, clock, leave_s=0.0)


def share_for_search(request: SearchRequest, gpus: Sequence[int], clock: Clock) -> AbstractContextManager[None]:
    """Make this process one of the first GPU of those that search together; return the workers on the others.

    Args:
        gpus: Their numbers; empty for all.

    Returns:
        Has them at work for as long as a ``with`` block lasts.

    Raises:
        click.UsageError: The search's sampler is one that workers do not have.
        ConfigError: There are not that many GPUs, or cores.
    """
    if request.sampler is not None:
        raise click.UsageError("--gpus and --sampler exclude each other: name the sampler in the section.")
    state = StateFolder.locate(request.config, explicit=request.state_dir, environ=os.environ)
    own, *others = gpu_shares(state, "--gpus", gpus)
    job = _job_here(request, load_settings(request.config), state, OWN_COMMAND)
    started = workers_on(others, job.words, state, seed=job.seed + 1, behind=request.trainer)
    own.take()
    return working_along(started, clock)


def _ssh(request: SubmissionRequest, job: WorkerJob, clock: Clock) -> int:
    jobs = submission.jobs_by_host(job, request.words)
    if not request.dry_run:
        submission.require_ssh()
    started = {
        host: Started(words=submission.ssh_words(one, host), env=inherited_environment()) for host, one in jobs.items()
    }
    return _run_group(started, request, clock, leave_s=15.0)  # a worker gives its trial back within a few seconds


def _run_group(started: Mapping[str, Started], request: SubmissionRequest, clock: Clock, *, leave_s: float) -> int:
    if request.dry_run:
        for one in started.values():
            say(shlex.join(one.shown))
        return 0
    failed = []
    with CommandGroup(clock, leave_s) as group:
        try:
            for name, one in started.items():
                group.start(name, one.words, one.env, one.cores)
            for told in group.output():
                _show(told)
                if isinstance(told, CommandEnd) and told.status != 0:
                    failed.append(told.name)
        except KeyboardInterrupt:
            say_aside(f"autotune: telling {len(started)} workers to leave ...")
            for told in group.leave():
                _show(told)
            raise
    if failed:
        say_aside(f"autotune: {len(failed)} of {len(started)} workers failed: {', '.join(failed)}")
    return min(len(failed), 100)


def _show(one: OutputLine | CommandEnd) -> None:
    if isinstance(one, OutputLine):
        say_aside(f"{one.name}: {one.text}")
    elif one.status == submission.UNREACHED:
        say_aside(f"{one.name}: ssh did not reach it, or lost it (status {one.status})")
    else:
        say_aside(f"{one.name}: left" + (f" with status {one.status}" if one.status else ", nothing more to do"))


def _options(request: SubmissionRequest | SearchRequest, state_dir: Path | None) -> list[str]:
    """Return the options of ``autotune worker`` that all of them get."""
    options = ["--allow-busy-gpu"] if request.allow_busy_gpu else []
    options += ["--same-training"] if request.same_training else []
    options += [] if request.warm_start else ["--no-warm-start"]
    options += ["--batch", request.batch] if request.batch else []
    if request.budget_s is not None:
        options += ["--budget", f"{request.budget_s:.3f}".rstrip("0").rstrip(".") + "s"]
    return [*options, *(["--state-dir", str(state_dir)] if state_dir is not None else [])]


def _require_fitting(request: SubmissionRequest) -> None:
    engine = request.engine
    if engine in ("ssh", "gpus") and request.template is not None:
        raise click.UsageError("--template is for --submit slurm and kubernetes.")
    if engine == "gpus" and (request.words or request.count is not None):
        raise click.UsageError("--submit gpus starts one worker for each GPU; leave -n, and further words, out.")
    if engine == "ssh" and request.count is not None:
        raise click.UsageError("--submit ssh starts one worker on each host that is named; leave -n out.")
    if engine == "kubernetes":
        if not request.image and request.template is None:
            raise click.UsageError(
                "--submit kubernetes needs --image, with the trainer, the config and autotune in it, or a --template."
            )
        if request.words:
            raise click.UsageError("--submit kubernetes takes no further words; the config's section has the command.")
    elif request.image or request.gpus is not None or request.secret:
        raise click.UsageError("--image, --gpus and --secret are for --submit kubernetes.")


def _require_searchable(request: SubmissionRequest, settings: Settings, *, is_here_alike: bool) -> None:
    """Raise an error for a config that each of the workers would refuse.

    GPUs are not asked for: the machine that workers are submitted from has none, as a rule.

    Args:
        is_here_alike: Whether the workers start the trainer's program from the same path as this machine does.
    """
    from autotune.search.problem import limited, open_problem

    if settings.command is None:  # what is typed behind -- is the engine's
        init = TypedOptions(config=request.config).command("init")
        raise ConfigError(
            "the section has no command, and workers that are submitted take it from there",
            where=str(request.config),
            remedy=f"Write it once: {init} -- python train.py --config {{config}}",
        )
    storage = request.storage if is_here_alike else None
    problem = open_problem(request.config, command=None, state_dir=request.state_dir, storage=storage)
    problem = limited(problem, same_training=request.same_training, batch=request.batch)
    problem.require_searchable()
    if is_here_alike:
        problem.require_program()
