"""``autotune profile``: how long the parts of a training step take, and its batches."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_if_any_option, config_option, json_option, state_dir_option
from autotune.trial.termination import signals_held


@click.command(name="pipeline", short_help="times of batches, waits for them, their cycle")
@config_option
@click.option("--grid", "with_grid", is_flag=True, help="Also try batch sizes and workers, a short trial a pair.")
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def pipeline_command(
    call: Invocation,
    config: Path,
    with_grid: bool,
    as_json: bool,
    state_dir: Path | None,
    trainer: tuple[str, ...],
) -> int:
    """Times the batches of the loader alone, the waits of the training for them, and the steps without loading.

    In a trial of its own that no search looks at, with today's values. The command stands in the config's section, or
    behind --.
    """
    with signals_held():
        from autotune.commands.profile_run import answer_pipeline

    answer_pipeline(call, config, with_grid=with_grid, as_json=as_json, state_dir=state_dir, trainer=trainer)
    return 0


@click.command(name="step", short_help="data, copy to device, forward, loss, backward, optimizer, the rest")
@config_if_any_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def step_command(
    call: Invocation, config: Path | None, as_json: bool, state_dir: Path | None, trainer: tuple[str, ...]
) -> int:
    """Times the phases of a training step: data, copy to device, forward, loss, backward, optimizer, the rest.

    With a config, those of your trainer's step, in a trial of its own that no search looks at: Keras's fit and
    train_on_batch, and autotune.tf, compiled as it trains and on its own batches; PyTorch by marks on its own steps.
    The command stands in the config's section, or behind --.

    Without a config, those of the shipped text-to-speech model, on random batches.
    """
    if trainer and config is None:
        raise click.UsageError("A command behind -- needs its config: --config FILE")
    with signals_held():
        from autotune.commands.profile_run import answer_step

    answer_step(call, config, as_json=as_json, state_dir=state_dir, trainer=trainer)
    return 0


command = click.Group(
    name="profile",
    commands=[pipeline_command, step_command],
    help="How long the parts of a training step take, and its batches.",
)
