"""``autotune run``."""

import hashlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.clock import SystemClock
from autotune.commands.output import say, say_aside
from autotune.commands.parameters import config_if_any_option, dry_run_option
from autotune.errors import AutotuneError
from autotune.process import inherited_environment
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.trial.trainings import TrainingHeader


@click.command(name="run")
@config_if_any_option
@click.option("--watch", is_flag=True, help="Let the daemon warn when training slows down.")
@click.option("--watch-only", is_flag=True, help="Watch the command after -- unchanged; needs no config.")
@dry_run_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def command(config: Path | None, watch: bool, watch_only: bool, dry_run: bool, trainer: tuple[str, ...]) -> int:
    """Start real training: the section's command and environment, with the config's values.

    Redirects and shortens nothing. This process becomes the trainer. Counts steps, so that `autotune status` shows the
    achieved speedup next to the claimed one.
    """
    if watch_only and not trainer:
        raise click.UsageError("--watch-only needs a command: autotune run --watch-only -- python train.py")
    if config is None and not watch_only:
        raise click.UsageError("Missing option '--config'.")
    with signals_held():
        from autotune.config.command import resolve_executable, typed_tokens, with_further
        from autotune.config.load import load_settings
        from autotune.config.secrets import masked
        from autotune.trial.python_command import exec_program

    env, set_here, cwd = inherited_environment(), dict[str, str](), Path.cwd()
    if config is None or watch_only:
        argv, typed = trainer, None
    else:
        typed = typed_tokens(trainer, config, Path.cwd())
        settings = load_settings(config, typed_command=typed)
        settings.require_folder()
        cwd = settings.folder
        for remark in settings.remarks:
            say_aside(f"autotune: {remark}")
        typed = typed and with_further(typed, settings.further, Path.cwd())
        argv = settings.argv(
            config=config, config_text=settings.trial_document.text, python=sys.executable, command=typed
        )
        set_here = dict(settings.section.env)
        env |= set_here
    resolve_executable(argv[0], cwd, env.get("PATH"))
    if dry_run:
        variables = masked([f"{name}={text}" for name, text in set_here.items()])
        quoted = [f"{name}={shlex.quote(text)}" for name, _, text in (one.partition("=") for one in variables)]
        enter = [] if cwd == Path.cwd() else ["cd", shlex.quote(str(cwd)), "&&"]
        say(" ".join([*enter, *quoted, shlex.join(masked(argv))]))
        return 0
    is_watched = watch or watch_only or (config is not None and _is_always_watched(config, env))
    env = _counted(argv, env, config=config, typed=typed, cwd=cwd, is_watched=is_watched)
    exec_program(argv, env, cwd)


def _is_always_watched(config: Path, environ: Mapping[str, str]) -> bool:
    with signals_held():
        from autotune.config.daemon_settings import load_daemon_settings

    try:
        return load_daemon_settings(environ).watches(config)
    except AutotuneError as error:  # training must start anyway
        say_aside(f"autotune: {error}")
        return False


def _counted(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    config: Path | None,
    typed: Sequence[str] | None,
    cwd: Path,
    is_watched: bool,
) -> dict[str, str]:
    """Return the environment that counts a training's steps; unchanged, with a message, if impossible."""
    with signals_held():
        from autotune.daemon.home import open_home
        from autotune.trial.python_command import python_command
        from autotune.trial.trainings import TRIAL_VARIABLE, make_training, watched_environment

    if environ.get(TRIAL_VARIABLE):  # trials are measured already
        return dict(environ)
    try:
        header = _header(argv, config, typed, cwd, is_watched=is_watched)
        folder = make_training(open_home(environ).trainings, header, SystemClock().utc())
    except AutotuneError as error:
        say_aside(f"autotune: this training is not {'watched' if is_watched else 'counted'}: {error.message}")
        return dict(environ)
    command = python_command(argv, cwd=cwd, search_path=environ.get("PATH"))
    if is_watched and command is not None and command.isolating_options:
        switches = " and ".join(command.isolating_options)
        say_aside(f"autotune: steps cannot be observed: {switches} in the command keeps the observer out")
    return watched_environment(environ, folder)


def _header(
    argv: Sequence[str], config: Path | None, typed: Sequence[str] | None, cwd: Path, *, is_watched: bool
) -> "TrainingHeader":
    """Return the training's header, with the study's confirmed speed if readable."""
    with signals_held():
        from autotune.config.secrets import masked
        from autotune.daemon.drift import confirmed_speed
        from autotune.measure.gpu.driver import look_for_gpus
        from autotune.measure.host import machine_facts
        from autotune.search.answer import Study
        from autotune.search.problem import open_problem
        from autotune.trial.process_identity import this_process
        from autotune.trial.trainings import TrainingHeader, code_state

    shown, facts, known = masked(argv), machine_facts(), dict[str, Any]()
    if config is not None:
        with suppress(AutotuneError, OSError):  # e.g. no study yet, or the storage cannot be reached
            content, problem = config.read_bytes(), open_problem(config, command=typed, state_dir=None)
            values = problem.space.baseline
            known = {
                "config_sha256": hashlib.sha256(content).hexdigest(),
                "values": dict(values),
                "point": problem.space.name(values),
                "samples_per_step": problem.batch_size(values),
                "conditions": problem.conditions,
                "digests": problem.code.now.digests(),
                "study": problem.study,
            }
            known["study"] = problem.place.known_study() or problem.study  # the study may have an older name
            trials = Study.of(problem).trials if is_watched else ()
            known["confirmed"] = confirmed_speed(trials, known["point"], samples_per_step=known["samples_per_step"])
    return TrainingHeader(
        argv=shown,
        cwd=str(cwd),
        config=None if config is None else str(config.resolve()),
        owner=this_process(),
        started_utc=SystemClock().utc().isoformat(timespec="seconds"),
        code=code_state(shown, cwd),
        hardware=", ".join([f"{facts.cores} x {facts.cpu_model}", *(gpu.name for gpu in look_for_gpus().gpus)]),
        is_watched=is_watched,
        **known,
    )
