"""``autotune revert``."""

import os
from pathlib import Path

import click

from autotune.commands.output import ask, ask_or_refuse, can_ask, say, say_document, say_remarks
from autotune.commands.parameters import config_option, dry_run_option, force_option, state_dir_option
from autotune.errors import AutotuneError
from autotune.report.plain_text import safe_text
from autotune.trial.termination import signals_held


@click.command(name="revert")
@config_option
@dry_run_option
@force_option
@state_dir_option
def command(config: Path, dry_run: bool, force: bool, state_dir: Path | None) -> int:
    """Undo the last `autotune apply`; repeat to undo earlier ones.

    Finally removes what `autotune init` added. Keeps other edits.
    """
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.config.apply import plan_reverts, write_edits, written_sources
        from autotune.config.load import load_settings
        from autotune.trial.folders import StateFolder

    state = StateFolder.locate(config, explicit=state_dir, environ=os.environ)
    say_remarks(state.remarks)
    try:
        files = load_settings(config).paths
    except AutotuneError:  # a file with a damaged section can still be reverted
        files = (config,)
    edits = plan_reverts((*files, *written_sources(state.backups)), state.backups)
    conflicts = [conflict for edit in edits for conflict in edit.conflicts]
    if conflicts and not dry_run and not force:
        edited = "; ".join(f"{one.dotted} is {one.present}, apply wrote {one.applied}" for one in conflicts)
        question = f"Edited since the apply: {edited}. Restore the old values anyway?"
        ask_or_refuse(question, where=str(config), remedy="Restore them with --force.")
    for edit in edits:
        say_document(safe_text(edit.diff))
    if any(edit.undoes_init for edit in edits):
        say("No apply is left to undo: this removes the section that `autotune init` added, with the command.")
        if not dry_run and not force and can_ask():
            ask("Remove it?", must=True)
    if not dry_run:
        for file, backup in write_edits(edits, state.backups, SystemClock()).items():
            say(f"\nReverted {file}; backup: {backup}")
    return 0
