"""``autotune init``: finds the knobs of a config, and adds a commented section to it."""

from typing import Any

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_files_option, dry_run_option, state_dir_option
from autotune.options import InitRequest
from autotune.trial.termination import signals_held


@click.command(name="init")
@config_files_option
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--separate", is_flag=True, help="Write <name>.autotune.yaml beside the config, and leave that alone.")
@click.option("--from-flags", is_flag=True, help="Make the config, which is a new file, out of the command's flags.")
@dry_run_option
@click.option("--no-preflight", is_flag=True, help="Do not start the trainer first to see that it can be measured.")
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(call: Invocation, /, **options: Any) -> int:
    """Finds the knobs of a config, makes one short trial to see that they can be measured, and adds a section.

    Type how training is started behind --. Nothing is started or written before you have said yes. A second trial has
    the section in its config: if the trainer rejects it, the section goes into <name>.autotune.yaml beside that.

    \b
    autotune init --config config.yaml -- python train.py --config config.yaml
    autotune init --config model.yaml --config data.yaml -- python train.py model.yaml data.yaml
    autotune init --config new.yaml --from-flags -- python train.py --batch_size=16 --lr 3e-4
    """  # noqa: D301 -- click's own mark for "do not rewrap"
    request = InitRequest(**options)
    if not request.trainer:
        raise click.UsageError("Type how training is started, behind --:  -- python train.py --config {config}")
    if request.separate and request.from_flags:
        raise click.UsageError("--from-flags makes a new file that holds its section; leave --separate out.")
    if request.further and request.from_flags:
        raise click.UsageError("--from-flags makes one new file; give one --config.")
    with signals_held():
        from autotune.commands.init_run import (
            plan_requested,
            show_change,
            show_inventory,
            tried,
            write_if_wanted,
        )
        from autotune.report.console import text_console

    console = text_console()
    plan = plan_requested(request)
    show_inventory(console, plan)
    if request.dry_run:
        show_change(console, plan)
        return 0
    if request.yes or request.may_ask:
        plan = tried(console, plan, request, call)
    write_if_wanted(console, plan, request)
    return 0
