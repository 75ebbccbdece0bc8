"""``autotune run``: real training, with the values and the environment of the config."""

import shlex
import sys
from pathlib import Path

import click

from autotune.commands.parameters import config_option, dry_run_option
from autotune.commands.printing import say
from autotune.environment import inherited_environment
from autotune.process.termination import signals_held


@click.command(name="run")
@config_option
@dry_run_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def command(config: Path, dry_run: bool, trainer: tuple[str, ...]) -> int:
    """Starts real training: the section's command, filled in from the config itself, in its environment.

    Nothing is redirected or shortened. This process becomes the trainer: its output, signals and exit status are
    the trainer's.
    """
    with signals_held():
        from autotune.process.exec import exec_program
        from autotune.settings.command import resolve_executable
        from autotune.settings.load import load_settings
        from autotune.settings.secrets import masked
        from autotune.settings.typed import typed_tokens, with_further

    settings = load_settings(config)
    typed = typed_tokens(trainer, config, Path.cwd())
    typed = typed and with_further(typed, settings.further, Path.cwd())
    argv = settings.argv(config=config, config_text=settings.trial_document.text, python=sys.executable, command=typed)
    env = {**inherited_environment(), **settings.section.env}
    resolve_executable(argv[0], Path.cwd(), env.get("PATH"))
    if dry_run:
        variables = masked([f"{name}={text}" for name, text in settings.section.env.items()])
        quoted = [
            f"{name}={shlex.quote(text)}" for name, _, text in (variable.partition("=") for variable in variables)
        ]
        say(" ".join([*quoted, shlex.join(masked(argv))]))
        return 0
    exec_program(argv, env)
