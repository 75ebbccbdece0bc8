"""Preparation of a real training that is watched: its folder, and what is known of its speed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.clock import SystemClock
from autotune.commands.output import say_aside
from autotune.config.secrets import masked
from autotune.daemon.home import open_home
from autotune.daemon.training_folder import (
    TRIAL_VARIABLE,
    ConfirmedSpeed,
    TrainingHeader,
    code_state,
    confirmed_speed,
    make_training,
    watched_environment,
)
from autotune.errors import AutotuneError
from autotune.measure.gpu.driver import look_for_gpus
from autotune.measure.host import machine_facts
from autotune.search.answer import Study
from autotune.search.problem import Problem, open_problem
from autotune.trial.process_identity import this_process
from autotune.trial.python_command import python_command


def watched(
    argv: Sequence[str], environ: Mapping[str, str], *, config: Path | None, typed: Sequence[str] | None, cwd: Path
) -> dict[str, str]:
    """Return the environment in which a training is watched; where it cannot be, that is said, and it is the same.

    Args:
        argv: The command that this process is about to become.
        config: Its config; None if it has none.
        typed: The command as typed in place of the config's; None if it was not.
    """
    if environ.get(TRIAL_VARIABLE):  # a trial watches itself
        return dict(environ)
    try:
        folder = make_training(open_home(environ).trainings, _header(argv, config, typed, cwd), SystemClock().utc())
    except AutotuneError as error:
        say_aside(f"autotune: this training is not watched: {error.message}")
        return dict(environ)
    command = python_command(argv, cwd=cwd, search_path=environ.get("PATH"))
    if command is not None and command.keeping_out:
        switches = " and ".join(command.keeping_out)
        say_aside(f"autotune: its steps will not be seen: what would see them is kept out by {switches} in the command")
    return watched_environment(environ, folder)


def _header(argv: Sequence[str], config: Path | None, typed: Sequence[str] | None, cwd: Path) -> TrainingHeader:
    shown = masked(argv)
    header = TrainingHeader(
        argv=shown,
        cwd=str(cwd),
        owner=this_process(),
        started_utc=SystemClock().utc().isoformat(timespec="seconds"),
        code=code_state(shown, cwd),
        hardware=_hardware(),
    )
    return header if config is None else _with_config(header, config, typed)


def _with_config(header: TrainingHeader, config: Path, typed: Sequence[str] | None) -> TrainingHeader:
    header = replace(header, config=str(config.resolve()))
    try:
        content = config.read_bytes()
        problem = open_problem(config, command=typed, state_dir=None)
    except (AutotuneError, OSError):  # what matters is that it trains
        return header
    header = replace(header, config_sha256=hashlib.sha256(content).hexdigest(), values=dict(problem.space.baseline))
    try:
        study = Study.of(problem)
    except AutotuneError:  # nothing is known of it yet, or the storage is away
        return header
    return replace(header, study=study.name, confirmed=_confirmed(problem, study))


def _confirmed(problem: Problem, study: Study) -> ConfirmedSpeed | None:
    values = problem.space.baseline
    return confirmed_speed(study.trials, problem.space.name(values), samples_per_step=problem.batch_size(values))


def _hardware() -> str:
    facts = machine_facts()
    gpus = [gpu.name for gpu in look_for_gpus().gpus]
    return ", ".join([f"{facts.cores} x {facts.cpu_model}", *gpus])
