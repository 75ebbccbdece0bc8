"""``autotune profile step``: the phases of a training step."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_if_any_option, json_option, state_dir_option
from autotune.trial.termination import signals_held


@click.command(name="step")
@config_if_any_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(
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
        from autotune.commands.profile.profiling import answer_step

    answer_step(call, config, as_json=as_json, state_dir=state_dir, trainer=trainer)
    return 0
