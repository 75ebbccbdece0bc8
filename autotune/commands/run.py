"""``autotune run``: real training, with the values and the environment of the config."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from autotune.commands.output import say, say_aside
from autotune.commands.parameters import config_if_any_option, dry_run_option
from autotune.environment import inherited_environment
from autotune.errors import AutotuneError
from autotune.trial.termination import signals_held


@click.command(name="run")
@config_if_any_option
@click.option("--watch", is_flag=True, help="Report the pace of its steps, so that the daemon sees when it gets slow.")
@click.option("--watch-only", is_flag=True, help="The same for the command behind -- as it is; needs no config.")
@dry_run_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def command(config: Path | None, watch: bool, watch_only: bool, dry_run: bool, trainer: tuple[str, ...]) -> int:
    """Starts real training: the section's command, filled in from the config itself, in its environment.

    Nothing is redirected or shortened. This process becomes the trainer: its output, signals and exit status are
    the trainer's.
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
        quoted = [
            f"{name}={shlex.quote(text)}" for name, _, text in (variable.partition("=") for variable in variables)
        ]
        enter = [] if cwd == Path.cwd() else ["cd", shlex.quote(str(cwd)), "&&"]
        say(" ".join([*enter, *quoted, shlex.join(masked(argv))]))
        return 0
    if watch or watch_only or (config is not None and _is_always_watched(config, env)):
        with signals_held():
            from autotune.commands.run_process import watched

        env = watched(argv, env, config=config, typed=typed, cwd=cwd)
    exec_program(argv, env, cwd)


def _is_always_watched(config: Path, environ: Mapping[str, str]) -> bool:
    with signals_held():
        from autotune.config.daemon_settings import load_daemon_settings

    try:
        return load_daemon_settings(environ).watches(config)
    except AutotuneError as error:  # what matters is that it trains
        say_aside(f"autotune: {error}")
        return False
