"""Writing tuned values into the user's config, and taking them back. Nothing else writes that file.

A plan is made first and can be shown; carrying it out keeps a backup, then replaces the file in one step, so that
a crash at any moment leaves the old file or the new one, whole. Without printing or asking anything.
"""

import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from autotune.clock import Clock
from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar
from autotune.settings.backups import Backups, Entry, ValueChange, sync_folder
from autotune.settings.document import Document, read_bytes
from autotune.settings.keys import KeyPath, NewValues
from autotune.settings.parsers import same_value
from autotune.settings.splice import Splice, check_editable, plan_splices, splice


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A value that `apply` wrote and that somebody changed since.

    Attributes:
        path: Its key path in parts.
        applied: What `apply` wrote.
        present: What stands there now; None also where the key is gone.
        before: What stood there before `apply`.
        why_kept: Why it cannot be taken back at all; None where `write_edit` would take it back.
    """

    path: tuple[str | int, ...]
    applied: Scalar
    present: Scalar
    before: Scalar
    why_kept: str | None

    @property
    def dotted(self) -> str:
        """The path as people write it."""
        return ".".join(str(part) for part in self.path)


@dataclass(frozen=True, kw_only=True)
class ConfigEdit:
    """A change to a config that is planned and not yet made.

    Attributes:
        path: The config, as the user named it.
        old: The whole text now.
        new: The whole text afterwards.
        changes: The values that differ.
        undoes: Of a revert: the number of the write that it takes back.
        conflicts: Of a revert: values edited since. Writing the plan overrides them, so ask first.
    """

    path: Path
    old: str
    new: str
    changes: tuple[ValueChange, ...]
    undoes: int | None = None
    conflicts: tuple[Conflict, ...] = ()

    @property
    def nothing_to_do(self) -> bool:
        """Whether the file holds all the values already."""
        return self.old == self.new

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty if there is none."""
        lines = unified_diff(_lines(self.old), _lines(self.new), str(self.path), f"{self.path} (new)", n=2)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def plan_edit(path: Path, values: NewValues) -> ConfigEdit:
    """Plans to write values into a config; values it holds already are left as they are written.

    Raises:
        ConfigError: The file cannot be read as a config.
        CannotEditYaml: A value cannot be changed by itself.
    """
    document = Document.read(path)
    wanted: dict[KeyPath, Scalar] = {
        key: value for key, value in values.items() if not same_value(document.today(key), value)
    }
    splices = plan_splices(document, wanted)
    return ConfigEdit(path=path, old=document.text, new=splice(document, splices), changes=_changes(document, splices))


def plan_revert(path: Path, backups_folder: Path) -> ConfigEdit:
    """Plans to undo the last apply that is not undone yet.

    The old values are put back into the text as it is now, so that edits made meanwhile to other lines stay.
    Successive reverts undo successive applies.

    Args:
        path: The config.
        backups_folder: The state folder's ``backups``.

    Raises:
        ConfigError: There is nothing to undo, or the file or the record of changes cannot be read.
        CannotEditYaml: The old values cannot be put back by themselves.
    """
    document = Document.read(path)
    entries = Backups(backups_folder, path.resolve()).entries()
    undone = {entry.undoes for entry in entries}
    for entry in reversed(entries):
        if entry.undoes is None and entry.number not in undone:
            edit = _plan_undo(path, document, entry)
            # An apply whose values are gone already (undone by hand, or never written) has nothing to undo.
            if not edit.nothing_to_do:
                return edit
    raise ConfigError(
        "no apply is left to be undone here",
        where=str(path),
        remedy=f"Backups of every earlier state are kept in {backups_folder}.",
    )


def write_edit(edit: ConfigEdit, backups_folder: Path, clock: Clock) -> Path | None:
    """Carries out a plan: backup first, then the file in one step. Mode, owner and symbolic link stay.

    Args:
        edit: The plan. Its conflicts, if any, are overridden.
        backups_folder: The state folder's ``backups``.
        clock: Stamps the backup.

    Returns:
        The backup; None if there was nothing to do.

    Raises:
        ConfigError: The file changed since it was planned, or cannot be written (permissions, no space). The
            config is then as it was, and no temporary file is left.
    """
    if edit.nothing_to_do:
        return None
    real = edit.path.resolve()
    content = edit.old.encode()
    _check_unchanged(edit, content)
    if not os.access(real, os.W_OK, effective_ids=True):
        raise ConfigError(
            "the file is read-only", where=str(edit.path), remedy="Allow writing (chmod u+w), and try again."
        )
    backups = Backups(backups_folder, real)
    try:
        backup = backups.add(content, edit.changes, edit.undoes, clock)
    except OSError as error:
        raise ConfigError(
            f"no backup could be written: {error.strerror}; the config is unchanged",
            where=str(backups.folder),
            remedy="Make room or check the permissions there, and try again.",
        ) from error
    try:
        _replace(edit, real, content)
    except ConfigError:
        backups.drop(backup)
        raise
    return backup


def _replace(edit: ConfigEdit, real: Path, content: bytes) -> None:
    temporary: str | None = None
    try:
        before = real.stat()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{real.name}.", suffix=".autotune", dir=real.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(edit.new.encode())
            file.flush()
            if os.fstat(descriptor).st_uid != before.st_uid or os.fstat(descriptor).st_gid != before.st_gid:
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, before.st_mode & 0o7777)  # after chown, which clears set-id bits
            os.fsync(descriptor)
        _check_unchanged(edit, content)
        os.replace(temporary, real)
        temporary = None
    except OSError as error:
        raise ConfigError(
            f"could not be written: {error.strerror}; the config is unchanged",
            where=str(edit.path),
            remedy=f"Make room, or check owner and permissions of {real.parent}, and try again.",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    with contextlib.suppress(OSError):  # it is written; some network file systems cannot sync a folder
        sync_folder(real.parent)


def _check_unchanged(edit: ConfigEdit, content: bytes) -> None:
    if read_bytes(edit.path) != content:
        raise ConfigError(
            "the file was changed by somebody else meanwhile; nothing was written",
            where=str(edit.path),
            remedy="Look at the change, and run the command again.",
        )


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
        changes=_changes(document, splices),
        undoes=entry.number,
        conflicts=tuple(conflicts),
    )


def _conflict(change: ValueChange, present: Scalar, why_kept: str | None) -> Conflict:
    return Conflict(path=change.path, applied=change.new, present=present, before=change.old, why_kept=why_kept)


def _changes(document: Document, splices: list[Splice]) -> tuple[ValueChange, ...]:
    return tuple(
        ValueChange(
            path=change.leaf.path,
            old=change.leaf.value,
            new=change.value,
            old_text=document.text[change.leaf.start : change.leaf.end],
            new_text=change.text,
        )
        for change in splices
    )


def _lines(text: str) -> list[str]:
    """Lines as a diff shows them: unlike `str.splitlines`, only a line feed ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
