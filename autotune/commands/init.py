"""``autotune init``."""

from typing import Any

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import config_files_option, dry_run_option, state_dir_option
from autotune.options import InitRequest
from autotune.trial.termination import signals_held


@click.command(name="init")
@config_files_option
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--separate", is_flag=True, help="Write the section to <name>.autotune.yaml, not into the config.")
@click.option("--from-flags", is_flag=True, help="Create the config from the command's flags.")
@dry_run_option
@click.option("--no-preflight", is_flag=True, help="Skip the trial that checks if training can be measured.")
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(call: Invocation, /, **options: Any) -> int:
    """Find the knobs of a config and add an autotune section to it.

    The trainer's command follows --. Starts and writes nothing before you confirm the diff. Then a short trial checks
    if training can be measured, a second one if the trainer accepts the section; if not, it goes into
    <name>.autotune.yaml.

    \b
    autotune init --config config.yaml -- python train.py --config config.yaml
    autotune init --config model.yaml --config data.yaml -- python train.py model.yaml data.yaml
    autotune init --config new.yaml --from-flags -- python train.py --batch_size=16 --lr 3e-4
    """  # noqa: D301 -- click's own mark for "do not rewrap"
    request = InitRequest(**options)
    if not request.trainer:
        raise click.UsageError("Missing the trainer's command, after --:  -- python train.py --config {config}")
    if request.separate and request.from_flags:
        raise click.UsageError("--from-flags conflicts with --separate: the new file contains its section.")
    if request.further and request.from_flags:
        raise click.UsageError("--from-flags creates one file; give one --config.")
    with signals_held():
        from autotune.commands.init_run import (
            is_wanted,
            plan_requested,
            show_change,
            show_inventory,
            tried,
            write_section,
        )
        from autotune.report.console import text_console

    console = text_console()
    plan = plan_requested(request)
    show_inventory(console, plan)
    show_change(console, plan)
    if not request.dry_run and is_wanted(console, plan, request):
        write_section(console, tried(console, plan, request, call))
    return 0
