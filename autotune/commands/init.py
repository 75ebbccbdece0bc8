"""``autotune init``: finds the knobs of a config, and adds a commented section to it."""

import shlex
import sys
from pathlib import Path

import click

from autotune.commands.parameters import config_option, state_dir_option
from autotune.commands.printing import ask
from autotune.process.termination import signals_held


@click.command(name="init")
@config_option
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--separate", is_flag=True, help="Write <name>.autotune.yaml beside the config, and leave that alone.")
@click.option("--from-flags", is_flag=True, help="Make the config, which is a new file, out of the command's flags.")
@click.option("--no-proof", is_flag=True, help="Do not start the trainer first to see that it can be measured.")
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
def command(
    config: Path,
    yes: bool,
    separate: bool,
    from_flags: bool,
    no_proof: bool,
    state_dir: Path | None,
    trainer: tuple[str, ...],
) -> int:
    """Finds the knobs of a config, makes one short trial to see that they can be measured, and adds a section.

    Type how training is started behind --. Nothing is written before you have seen it and said yes.

    \b
    autotune init --config config.yaml -- python train.py --config config.yaml
    autotune init --config new.yaml --from-flags -- python train.py --batch_size=16 --lr 3e-4
    """  # noqa: D301 -- click's own mark for "do not rewrap"
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.commands.proving import show_preflight
        from autotune.commands.showing import command_notes, knob_rows, show_remarks
        from autotune.errors import ConfigError
        from autotune.report.console import text_console
        from autotune.report.init_preview import print_inventory
        from autotune.search.init_plan import plan_init, plan_init_from_flags
        from autotune.search.unlisted_knobs import not_taken
        from autotune.settings.apply import create_file, write_edit
        from autotune.settings.secrets import masked
        from autotune.settings.typed import read_typed, refuse_secrets

    if not trainer:
        raise click.UsageError("Type how training is started, behind --:  -- python train.py --config {config}")
    if separate and from_flags:
        raise click.UsageError("--from-flags makes a new file that holds its section; leave --separate out.")
    typed = read_typed(trainer)
    refuse_secrets(typed.words)
    if from_flags:
        init_plan = plan_init_from_flags(config, typed, state_dir=state_dir)
    else:
        init_plan = plan_init(config, typed, separate=separate, state_dir=state_dir)
    problem, console = init_plan.problem, text_console()
    show_remarks(problem.state)
    left_flags = init_plan.flags.left if init_plan.flags else {}
    print_inventory(
        console,
        knob_rows(problem),
        not_taken={**{skipped.path: skipped.why for skipped in not_taken(problem)}, **left_flags},
        redirected=problem.settings.outputs.redirected,
        left=problem.settings.outputs.left,
        command=masked(problem.command),
    )
    for note in command_notes(problem):
        console.print(note, soft_wrap=True)
    is_asked = sys.stdin is not None and sys.stdin.isatty()
    may_write = yes or is_asked
    if may_write and not no_proof:
        show_preflight(problem, may_ask=is_asked and not yes)
    console.print()
    console.print(init_plan.edit.diff, soft_wrap=True, end="")
    if not may_write:
        raise ConfigError(
            "this is what would be written; nothing was, because there is nobody here to ask",
            where=str(init_plan.edit.path),
            remedy="Write it with --yes.",
        )
    if not yes and not ask(f"\nWrite this to {init_plan.edit.path}?"):
        console.print("Nothing was written.")
        return 0
    if init_plan.is_new:
        create_file(init_plan.edit.path, init_plan.edit.new)
        console.print(f"\nWritten to {init_plan.edit.path}.", soft_wrap=True)
    else:
        problem.state.create()
        backup = write_edit(init_plan.edit, problem.state.backups, SystemClock())
        console.print(f"\nWritten to {init_plan.edit.path}; the file as it was: {backup}", soft_wrap=True)
    console.print(f"Next:  autotune search --config {shlex.quote(str(config))} --budget 30m", soft_wrap=True)
    return 0
