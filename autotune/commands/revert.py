"""``autotune revert``: undoes the last apply, or init."""

import os
from pathlib import Path

import click

from autotune.commands.output import ask_or_refuse, say, say_document, say_remarks
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
    """Puts back the values that the last `autotune apply` changed; again, those of the one before.

    What `autotune init` added is taken out when its turn comes. Other edits to the file since then stay.
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
    except AutotuneError:  # a section that is damaged must not keep its file from being reverted
        files = (config,)
    edits = plan_reverts((*files, *written_sources(state.backups)), state.backups)
    conflicts = [conflict for edit in edits for conflict in edit.conflicts]
    if conflicts and not dry_run and not force:
        said = "; ".join(
            f"{conflict.dotted} is {conflict.present}, apply had written {conflict.applied}" for conflict in conflicts
        )
        question = f"Edited since it was applied: {said}. Put the old values back all the same?"
        ask_or_refuse(question, where=str(config), remedy="Go on with --force.")
    for edit in edits:
        say_document(safe_text(edit.diff))
    if not dry_run:
        for file, backup in write_edits(edits, state.backups, SystemClock()).items():
            say(f"\nReverted {file}; the file as it was: {backup}")
    return 0
