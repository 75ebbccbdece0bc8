"""Reverting of writes to the user's config: makes the plan, which `autotune.settings.apply` carries out."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar
from autotune.settings.apply import ConfigEdit, Conflict, changes_of
from autotune.settings.backups import Backups, Entry, ValueChange
from autotune.settings.load import separate_path
from autotune.settings.paths import exists
from autotune.settings.schema import SECTION
from autotune.settings.text.cut import differs_by_key
from autotune.settings.text.document import Document
from autotune.settings.text.parsers import same_value
from autotune.settings.text.splice import Splice, check_editable, splice


def plan_revert(path: Path, backups_folder: Path) -> ConfigEdit:
    """Plan to undo the last write to one config; see `plan_reverts`."""
    return plan_reverts([path], backups_folder)[0]


def plan_reverts(paths: Sequence[Path], backups_folder: Path) -> list[ConfigEdit]:
    """Plan to undo the last apply, or init, that is not undone yet, in all files that it changed.

    The old values are put back into the text as it is now, so that edits made meanwhile to other lines stay; a
    section is taken out where it still stands as it was added. Successive reverts undo successive writes.

    Args:
        paths: The config, and the further ones of its section.
        backups_folder: The state folder's ``backups``.

    Raises:
        ConfigError: There is nothing to undo, or a file or the record of changes cannot be read, or the last write
            changed other files too.
        CannotEditYaml: The old values cannot be put back by themselves.
    """
    documents = {path: Document.read(path) for path in paths}
    written = [(path, entry) for path in paths for entry in _left(path, backups_folder)]
    while written:
        _, last = max(written, key=lambda one: (one[1].utc, one[1].number))
        same = [one for one in written if one[1] is last or (last.together and one[1].together == last.together)]
        edits = [
            (_plan_removal if entry.inserted else _plan_undo)(path, documents[path], entry) for path, entry in same
        ]
        # An apply whose values are gone already (undone by hand, or never written) has nothing to undo.
        if any(not edit.nothing_to_do for edit in edits):
            if len(same) < last.files:
                raise ConfigError(
                    f"the last apply changed {last.files} files together, and not all of them are known here",
                    where=str(paths[0]),
                    remedy="Give --config the config whose section names the others under files:.",
                )
            return edits
        written = [one for one in written if one not in same]
    raise ConfigError(
        "no apply or init is left to be undone here",
        where=str(paths[0]),
        remedy=f"Backups of every earlier state are kept in {backups_folder}.{_on_separate(paths[0])}",
    )


def _on_separate(config: Path) -> str:
    """Return the remedy where the section stands in a file of its own; empty where it does not."""
    beside = separate_path(config)
    if not exists(beside):
        return ""
    return (
        f"\nThe section stands in {beside}, a file of its own: what was applied there is reverted with --config "
        f"{shlex.quote(str(beside))}; `init --separate` made the file anew, so it is undone by deleting it."
    )


def _left(path: Path, backups_folder: Path) -> list[Entry]:
    """Return the writes to a file that are not undone."""
    entries = Backups(backups_folder, path.resolve()).entries()
    undone = {entry.undoes for entry in entries}
    return [entry for entry in entries if entry.undoes is None and entry.number not in undone]


def _plan_removal(path: Path, document: Document, entry: Entry) -> ConfigEdit:
    before, found, after = document.text.rpartition(entry.inserted)
    new = before + after
    if SECTION not in document:
        new = document.text  # it was taken out by hand
    elif not found or not differs_by_key(document, Document.parse(new, document.name), SECTION):
        raise ConfigError(
            "the autotune section was edited since it was added, and is not taken out",
            where=f"{path}:{document.line(SECTION)}",
            remedy="Delete it by hand; then revert goes on with what came before.",
        )
    return ConfigEdit(path=path, old=document.text, new=new, changes=(), undoes=entry.number)


def _plan_undo(path: Path, document: Document, entry: Entry) -> ConfigEdit:
    splices: list[Splice] = []
    conflicts: list[Conflict] = []
    for change in entry.changes:
        try:
            leaf = document.leaf(change.path)
            check_editable(leaf)
        except CannotEditYaml as error:
            conflicts.append(_conflict(change, None, error.message))
            continue
        if same_value(leaf.value, change.old):
            continue
        if not same_value(leaf.value, change.new):
            conflicts.append(_conflict(change, leaf.value, None))
        splices.append(Splice(leaf=leaf, value=change.old, text=change.old_text, restores=True))
    return ConfigEdit(
        path=path,
        old=document.text,
        new=splice(document, splices),
        changes=changes_of(document, splices),
        undoes=entry.number,
        conflicts=tuple(conflicts),
    )


def _conflict(change: ValueChange, present: Scalar, why_kept: str | None) -> Conflict:
    return Conflict(path=change.path, applied=change.new, present=present, before=change.old, why_kept=why_kept)
