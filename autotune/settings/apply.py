"""Writing of tuned values, or of a section, into the user's config. No other module writes that file.

A plan is made first and can be shown; carrying it out keeps a backup, then replaces the file in one step, so that
a crash at any moment leaves either the old or the new file, whole. Nothing here prints or asks anything.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path

from autotune.clock import Clock
from autotune.errors import ConfigError
from autotune.records import Scalar
from autotune.settings.backups import Backups, ValueChange, sync_folder
from autotune.settings.schema import SECTION
from autotune.settings.text.append import with_section
from autotune.settings.text.document import Document, read_bytes
from autotune.settings.text.keys import KeyPath, NewValues
from autotune.settings.text.parsers import same_value
from autotune.settings.text.splice import Splice, plan_splices, splice


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Value that `apply` wrote and that somebody changed since.

    Attributes:
        path: Its key path in parts.
        applied: The value that `apply` wrote.
        present: The present value; None also where the key is gone.
        before: The value before `apply`.
        why_kept: Reason for which it cannot be reverted at all; None where `write_edit` would revert it.
    """

    path: tuple[str | int, ...]
    applied: Scalar
    present: Scalar
    before: Scalar
    why_kept: str | None

    @property
    def dotted(self) -> str:
        """Key path as people write it."""
        return ".".join(str(part) for part in self.path)


@dataclass(frozen=True, kw_only=True)
class ConfigEdit:
    """Planned change to a config that is not yet made.

    Attributes:
        path: The config, as the user named it.
        old: The whole text now.
        new: The whole text afterwards.
        changes: The values that differ.
        undoes: Of a revert: the number of the write that it undoes.
        conflicts: Of a revert: values edited since. Writing the plan overrides them, so ask first.
        inserted: The inserted characters; empty where only values change.
    """

    path: Path
    old: str
    new: str
    changes: tuple[ValueChange, ...]
    undoes: int | None = None
    conflicts: tuple[Conflict, ...] = ()
    inserted: str = ""

    @property
    def nothing_to_do(self) -> bool:
        """True if the file holds all the values already."""
        return self.old == self.new

    @property
    def diff(self) -> str:
        """Unified diff of the change; empty if there is none."""
        lines = unified_diff(_lines(self.old), _lines(self.new), str(self.path), f"{self.path} (new)", n=2)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def plan_edit(path: Path, values: NewValues) -> ConfigEdit:
    """Plan to write values into a config; equal values are left as they are written.

    Raises:
        ConfigError: The file cannot be read as a config.
        CannotEditYaml: A value cannot be changed by itself.
    """
    document = Document.read(path)
    wanted: dict[KeyPath, Scalar] = {
        key: value for key, value in values.items() if not same_value(document.value(key), value)
    }
    splices = plan_splices(document, wanted)
    return ConfigEdit(
        path=path, old=document.text, new=splice(document, splices), changes=changes_of(document, splices)
    )


def plan_section(path: Path, lines: Sequence[str]) -> ConfigEdit:
    """Plan to add an ``autotune:`` section at the end of a config; everything else stays byte for byte.

    Args:
        path: The config.
        lines: The section, without line ends.

    Raises:
        ConfigError: The file cannot be read as a config, has a section, or another key cannot be added to it.
    """
    document = Document.read(path)
    if SECTION in document:
        raise ConfigError(
            "there is an autotune section already",
            where=f"{path}:{document.line(SECTION)}",
            remedy="Edit it there; `autotune search --dry-run` shows what it says.",
        )
    new = with_section(document, SECTION, lines)
    return ConfigEdit(path=path, old=document.text, new=new.text, changes=(), inserted=new.inserted)


def create_file(path: Path, text: str) -> None:
    """Write a new file: a section of its own, or a config made of a command's flags.

    Raises:
        ConfigError: There is such a file, or it cannot be written; then nothing is left of it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise ConfigError(
            "there is such a file already, and it is not overwritten",
            where=str(path),
            remedy="Choose another name, or move the file away.",
        ) from error
    except OSError as error:
        raise _not_created(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise _not_created(path, error) from error


def write_edit(edit: ConfigEdit, backups_folder: Path, clock: Clock) -> Path | None:
    """Carry out a plan: backup first, then the file in one step. Mode, owner and symbolic link stay.

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
    return next(iter(write_edits([edit], backups_folder, clock).values()), None)


def write_edits(edits: Sequence[ConfigEdit], backups_folder: Path, clock: Clock) -> dict[Path, Path]:
    """Carry out plans for several files, all or none: see `write_edit`.

    All files are checked, then all backed up, then replaced one after the other. If one cannot be, those that were
    replaced already are put back; a crash in between leaves files of either state, and backups for all of them.

    Returns:
        The backup of each file that was written.

    Raises:
        ConfigError: As `write_edit`; all files are as they were, unless the message says something else.
    """
    edits = [edit for edit in edits if not edit.nothing_to_do]
    for edit in edits:
        _check_unchanged(edit, edit.old.encode())
        if not os.access(edit.path.resolve(), os.W_OK, effective_ids=True):
            raise ConfigError(
                "the file is read-only", where=str(edit.path), remedy="Allow writing (chmod u+w), and try again."
            )
    kept = _back_up(edits, backups_folder, clock)
    replaced: list[ConfigEdit] = []
    try:
        for edit in edits:
            _replace(edit, edit.path.resolve(), edit.old.encode())
            replaced.append(edit)
    except ConfigError as error:
        _put_back(replaced, error)
        _drop(edits, kept, backups_folder)
        raise
    return {edit.path: backup for edit, backup in zip(edits, kept, strict=True)}


def _back_up(edits: Sequence[ConfigEdit], backups_folder: Path, clock: Clock) -> list[Path]:
    together = f"{clock.utc().isoformat()}-{os.urandom(4).hex()}" if len(edits) > 1 else None
    kept: list[Path] = []
    for edit in edits:
        backups = Backups(backups_folder, edit.path.resolve())
        try:
            backup = backups.add(
                edit.old.encode(),
                edit.changes,
                edit.undoes,
                clock,
                inserted=edit.inserted,
                together=together,
                files=len(edits),
            )
        except OSError as error:
            _drop(edits, kept, backups_folder)
            raise ConfigError(
                f"no backup could be written: {error.strerror}; the config is unchanged",
                where=str(backups.folder),
                remedy="Make room or check the permissions there, and try again.",
            ) from error
        kept.append(backup)
    return kept


def _drop(edits: Sequence[ConfigEdit], kept: Sequence[Path], backups_folder: Path) -> None:
    for edit, backup in zip(edits, kept, strict=False):
        Backups(backups_folder, edit.path.resolve()).drop(backup)


def _put_back(replaced: Sequence[ConfigEdit], error: ConfigError) -> None:
    """Put back files that were replaced, after an error at another one.

    Raises:
        ConfigError: That is not possible; their backups stay.
    """
    for edit in replaced:
        back = replace(edit, old=edit.new, new=edit.old)
        try:
            _replace(back, edit.path.resolve(), back.old.encode())
        except ConfigError as second:
            raise ConfigError(
                f"{error.message}; {edit.path} was written before, and cannot be put back: {second.message}",
                where=error.where,
                remedy=f"Write its old values back by hand: {edit.diff}",
            ) from error


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


def _not_created(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the file cannot be written: {error.strerror}",
        where=str(path),
        remedy=f"Make room, or check that {path.parent} is there and may be written to.",
    )


def changes_of(document: Document, splices: list[Splice]) -> tuple[ValueChange, ...]:
    """Return the value changes that splices make, for the record."""
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
    """Split a text into lines as a diff shows them: unlike `str.splitlines`, only a line feed ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
