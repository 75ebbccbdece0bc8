"""``autotune profile pipeline``: the times of the input pipeline."""

from pathlib import Path

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_option, json_option, state_dir_option
from autotune.trial.termination import signals_held


@click.command(name="pipeline")
@config_option
@click.option("--grid", "with_grid", is_flag=True, help="Also try batch sizes and workers, a short trial a pair.")
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(
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
        from autotune.commands.profile.profiling import answer_pipeline

    answer_pipeline(call, config, with_grid=with_grid, as_json=as_json, state_dir=state_dir, trainer=trainer)
    return 0
