"""Planning and execution of writes to the user's config, and of reverts. No other module writes that file.

A write keeps a backup and replaces the file atomically: a crash leaves the old or the new file, complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import msgspec

from autotune.clock import Clock
from autotune.config.code import CodeArgument, arguments_of, place_of, with_values
from autotune.config.document import Document, read_bytes
from autotune.config.keys import KeyPath, NewValues, Syntax, dotted, syntax_of
from autotune.config.load import separate_path
from autotune.config.outputs import exists
from autotune.config.parsers import same_value
from autotune.config.schema import SECTION
from autotune.config.splice import Splice, check_editable, differs_by_key, plan_splices, splice, with_section
from autotune.errors import CannotEditYaml, ConfigError
from autotune.files import make_private_folder, open_regular, replace_durably, sync_folder
from autotune.records import CODE, Scalar, Values


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Value changed by hand after `apply` wrote it; `present` is None if it can no longer be reverted."""

    dotted: str
    applied: Scalar
    present: Scalar


@dataclass(frozen=True, kw_only=True)
class ConfigEdit:
    """Planned change to a config.

    Attributes:
        old: Complete text now.
        new: Complete text afterwards.
        undoes: Number of the write that a revert undoes.
        conflicts: Values changed by hand since that a revert overrides, so ask first.
        inserted: Inserted characters; empty if only values change.
        undoes_init: Whether a revert removes the section that `init` added.
    """

    path: Path
    old: str
    new: str
    changes: tuple[ValueChange, ...]
    undoes: int | None = None
    conflicts: tuple[Conflict, ...] = ()
    inserted: str = ""
    undoes_init: bool = False

    @property
    def nothing_to_do(self) -> bool:
        return self.old == self.new

    @property
    def diff(self) -> str:
        return _diff(self, str(self.path), f"{self.path} (new)")


def plan_edit(path: Path, values: NewValues) -> ConfigEdit:
    """Plan to write values into a config; equal values keep their spelling.

    Raises:
        ConfigError: The config is unreadable, or a value cannot be changed.
    """
    document = Document.read(path)
    keys: dict[KeyPath, Scalar] = dict(values.items())
    splices = plan_splices(document, document.differing(keys))
    return ConfigEdit(
        path=path, old=document.text, new=splice(document, splices), changes=_changes_of(document, splices)
    )


def plan_code(arguments: Mapping[str, CodeArgument], values: Values) -> list[ConfigEdit]:
    """Plan to write values into the trainer's code; raises as `plan_edit`."""
    wanted = [one for path, one in arguments.items() if path in values and values[path] != one.value]
    edits = []
    for file in dict.fromkeys(one.file for one in wanted):
        here, old = [one for one in wanted if one.file == file], read_bytes(file)
        changes = tuple(
            ValueChange(path=(one.path,), old=one.value, new=values[one.path], old_text="", new_text="") for one in here
        )
        edits.append(
            ConfigEdit(path=file, old=old.decode(), new=with_values(old, here, values).decode(), changes=changes)
        )
    return edits


def patch_of(edits: Sequence[ConfigEdit], folder: Path) -> str:
    """Return edits in a folder as a patch for ``git apply`` there."""
    names = [edit.path.relative_to(folder).as_posix() for edit in edits]
    names = [f"{name}\t" if " " in name else name for name in names]  # a tab ends a name with spaces
    return "".join(_diff(edit, f"a/{name}", f"b/{name}") for edit, name in zip(edits, names, strict=True))


def plan_section(path: Path, lines: Sequence[str]) -> ConfigEdit:
    """Plan to append an ``autotune:`` section to a config; raise a ConfigError if it cannot take one."""
    document = Document.read(path)
    if SECTION in document:
        raise ConfigError(
            "the config already has an autotune section",
            where=f"{path}:{document.line(SECTION)}",
            remedy="Edit it there; `autotune search --dry-run` shows its effect.",
        )
    new = with_section(document, SECTION, lines)
    return ConfigEdit(path=path, old=document.text, new=new.text, changes=(), inserted=new.inserted)


def create_file(path: Path, text: str) -> None:
    """Write a new file, completely or not at all; raise a ConfigError if it exists or cannot be written."""
    made = False
    try:
        with open(path, "xb") as file:
            made = True
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise ConfigError(
            "the file already exists and is not overwritten",
            where=str(path),
            remedy="Choose another name, or move the file.",
        ) from error
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                path.unlink()
        raise ConfigError(
            f"the file cannot be written: {error.strerror}",
            where=str(path),
            remedy=f"Free disk space, or check that {path.parent} exists and is writable.",
        ) from error


def write_edits(edits: Sequence[ConfigEdit], backups_folder: Path, clock: Clock) -> dict[Path, Path]:
    """Execute plans for several files, overriding their conflicts; return their backups. Mode, owner and links stay.

    All files are checked, backed up, then replaced one by one; on an error, replaced files are restored.

    Raises:
        ConfigError: A file changed since it was planned, or cannot be written; no file changed unless it says so.
    """
    edits = [edit for edit in edits if not edit.nothing_to_do]
    for edit in edits:
        _check_unchanged(edit)
        if not os.access(edit.path.resolve(), os.W_OK, effective_ids=True):
            raise ConfigError(
                "the file is read-only", where=str(edit.path), remedy="Allow writing (chmod u+w), and try again."
            )
    backups = _back_up(edits, backups_folder, clock)
    replaced: list[ConfigEdit] = []
    try:
        for edit in edits:
            _replace(edit)
            replaced.append(edit)
    except ConfigError as error:
        _restore(replaced, error)
        _delete_backups(backups)
        raise
    return backups


def _back_up(edits: Sequence[ConfigEdit], backups_folder: Path, clock: Clock) -> dict[Path, Path]:
    together = f"{clock.utc().isoformat()}-{os.urandom(4).hex()}" if len(edits) > 1 else None
    backups: dict[Path, Path] = {}
    for edit in edits:
        folder, now = _backups(backups_folder, edit.path), clock.utc()
        entry = JournalEntry(
            number=max((one.number for one in _entries(folder)), default=0) + 1,
            utc=now.isoformat(),
            changes=edit.changes,
            undoes=edit.undoes,
            inserted=edit.inserted,
            together=together,
            files=len(edits),
            config=os.fspath(edit.path.resolve()),
        )
        content = edit.old.encode()
        stem = f"{now:%Y%m%dT%H%M%S.%fZ}-{hashlib.sha256(content).hexdigest()[:8]}"
        suffix = ".yaml" if syntax_of(edit.path.name) is Syntax.YAML else ".bak"
        while (backup := folder / f"{stem}{suffix}").exists():  # two writes within the clock's resolution
            stem = f"{stem}-{entry.number}"
        backups[edit.path] = backup
        manifest = {"format": FORMAT, **asdict(entry)}
        try:
            make_private_folder(folder)
            replace_durably(backup, content)  # mode 0600: configs may hold tokens
            # The manifest comes last: without it there is no entry.
            replace_durably(folder / f"{stem}.json", json.dumps(manifest, indent=1).encode())
        except OSError as error:
            _delete_backups(backups)
            raise ConfigError(
                f"the backup cannot be written: {error.strerror}; the config is unchanged",
                where=str(folder),
                remedy="Free disk space or check the permissions there, then try again.",
            ) from error
    return backups


def _delete_backups(backups: Mapping[Path, Path]) -> None:
    for backup in backups.values():
        for path in (backup.with_suffix(".json"), backup):
            path.unlink(missing_ok=True)


def _restore(replaced: Sequence[ConfigEdit], error: ConfigError) -> None:
    for edit in replaced:
        try:
            _replace(replace(edit, old=edit.new, new=edit.old))
        except ConfigError as second:
            raise ConfigError(
                f"{error.message}; {edit.path} was already written and cannot be restored: {second.message}",
                where=error.where,
                remedy=f"Restore its old values by hand: {edit.diff}",
            ) from error


def _replace(edit: ConfigEdit) -> None:
    real, temporary = edit.path.resolve(), None
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
        _check_unchanged(edit)
        os.replace(temporary, real)
        temporary = None
    except OSError as error:
        raise ConfigError(
            f"the file cannot be written: {error.strerror}; it is unchanged",
            where=str(edit.path),
            remedy=f"Free disk space, or check owner and permissions of {real.parent}, then try again.",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
        sync_folder(real.parent)


def _check_unchanged(edit: ConfigEdit) -> None:
    if read_bytes(edit.path) != edit.old.encode():
        raise ConfigError(
            "the file was changed in the meantime; nothing was written",
            where=str(edit.path),
            remedy="Check the change, then run the command again.",
        )


def _changes_of(document: Document, splices: list[Splice]) -> tuple[ValueChange, ...]:
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


def _diff(edit: ConfigEdit, old: str, new: str) -> str:
    lines = unified_diff(_lines(edit.old), _lines(edit.new), old, new, n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Split a text at line feeds only, unlike `str.splitlines`."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ValueChange:
    """Change of one scalar; its texts include quotes."""

    path: tuple[str | int, ...]
    old: Scalar
    new: Scalar
    old_text: str
    new_text: str

    @property
    def dotted(self) -> str:
        return dotted(self.path)


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """Record of one write to a config.

    Attributes:
        number: Position among the writes to this config, from 1.
        together: Name shared by the entries of one write to several files.
        config: Path of the file, links resolved.
    """

    number: int
    utc: str
    changes: tuple[ValueChange, ...]
    undoes: int | None
    inserted: str = ""
    together: str | None = None
    files: int = 1
    config: str = ""


def _backups(backups_folder: Path, config: Path) -> Path:
    real = config.resolve()
    return backups_folder / f"{real.stem}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:8]}"


def _entries(folder: Path) -> list[JournalEntry]:
    return sorted((_read(path) for path in folder.glob("*.json")), key=lambda entry: entry.number)


def _read(path: Path) -> JournalEntry:
    try:
        with open_regular(path) as file:
            manifest: dict[str, Any] = json.loads(file.read())
        if manifest["format"] != FORMAT:
            raise ConfigError(
                f"the backup has format {manifest['format']}, this autotune supports {FORMAT}",
                where=str(path),
                remedy="Use the autotune that wrote it, or restore the file next to it by hand.",
            )
        json.dumps(manifest, ensure_ascii=False).encode()  # a ValueError for a lone surrogate
        return msgspec.convert(manifest, JournalEntry)
    except (ValueError, LookupError, TypeError, RecursionError, OSError) as error:
        remedy = "Delete it; the backup next to it is the config before the change."
        raise ConfigError("the record of a change cannot be read", where=str(path), remedy=remedy) from error


# Plans of reverts, which `write_edits` executes.


def plan_reverts(paths: Sequence[Path], backups_folder: Path) -> list[ConfigEdit]:
    """Plan to undo the last apply or init that is not undone yet, in all its files.

    Only the old values are restored, so other edits stay; a section is removed if it is unchanged.

    Args:
        paths: The config, and the further ones of its section.

    Raises:
        ConfigError: There is nothing to undo, or it cannot be undone.
    """
    written = [(path, entry) for path in paths for entry in _not_undone(path, backups_folder)]
    while written:
        _, last = max(written, key=lambda one: (one[1].utc, one[1].number))
        same = [one for one in written if one[1] is last or (last.together and one[1].together == last.together)]
        edits = [_plan_revert(path, entry, backups_folder) for path, entry in same]
        # Values undone by hand, or never written, leave nothing to undo.
        if any(not edit.nothing_to_do for edit in edits):
            if len(same) < last.files:
                raise ConfigError(
                    f"the last apply changed {last.files} files, and some of them are not named here",
                    where=str(paths[0]),
                    remedy="Pass the config whose section lists the others under files: with --config.",
                )
            return edits
        written = [one for one in written if one not in same]
    raise ConfigError(
        "there is no apply or init to undo",
        where=str(paths[0]),
        remedy=f"Backups of all earlier states are in {backups_folder}.{_separate_hint(paths[0])} A config that init "
        "created from flags is deleted by hand.",
    )


def _separate_hint(config: Path) -> str:
    separate = separate_path(config)
    if not exists(separate):
        return ""
    return (
        f"\nThe section is in {separate}: revert changes there with --config {shlex.quote(str(separate))}; "
        "undo `init --separate` by deleting the file."
    )


def _not_undone(path: Path, backups_folder: Path) -> list[JournalEntry]:
    entries = _entries(_backups(backups_folder, path))
    undone = {entry.undoes for entry in entries}
    return [entry for entry in entries if entry.undoes is None and entry.number not in undone]


def _plan_revert(path: Path, entry: JournalEntry, backups_folder: Path) -> ConfigEdit:
    if _is_of_code(entry):
        return _plan_code_revert(path, entry, _backups(backups_folder, path))
    return (_plan_section_revert if entry.inserted else _plan_value_revert)(path, Document.read(path), entry)


def _plan_code_revert(path: Path, entry: JournalEntry, folder: Path) -> ConfigEdit:
    """Plan to restore a source; if it was edited since, only the values."""
    backup = next(one.with_suffix(".bak") for one in folder.glob("*.json") if _read(one).number == entry.number)
    name = place_of(str(entry.changes[0].path[0]))[0].rpartition(":")[0]
    changes = {str(one.path[0]): one for one in entry.changes}
    present, old = read_bytes(path), read_bytes(backup)
    before, now = arguments_of(path, name, old), arguments_of(path, name, present)
    applied = with_values(old, [before[one] for one in changes], {one: change.new for one, change in changes.items()})
    if present in (old, applied):
        return ConfigEdit(path=path, old=present.decode(), new=old.decode(), changes=(), undoes=entry.number)
    if missing := [one for one in changes if one not in now]:
        raise ConfigError(
            f"the file was edited after apply, and this line has no {place_of(missing[0])[1]} now",
            where=str(path.with_name(place_of(missing[0])[0].rpartition("/")[2])),
            remedy=f"Restore the values by hand, or the file from its backup: {backup}",
        )
    restored = {one: change.old for one, change in changes.items() if now[one].value != change.old}
    return ConfigEdit(
        path=path,
        old=present.decode(),
        new=with_values(present, [now[one] for one in restored], restored).decode(),
        changes=(),
        undoes=entry.number,
        conflicts=tuple(
            Conflict(dotted=one, applied=changes[one].new, present=now[one].value)
            for one in restored
            if now[one].value != changes[one].new
        ),
    )


def written_sources(backups_folder: Path) -> list[Path]:
    """Return the existing source files of a trainer that values were written into."""
    entries = [_read(path) for path in sorted(backups_folder.glob("*/*.json"))]
    return [path for path in dict.fromkeys(Path(one.config) for one in entries if _is_of_code(one)) if path.is_file()]


def _is_of_code(entry: JournalEntry) -> bool:
    return any(str(change.path[0]).startswith(CODE) for change in entry.changes)


def _plan_section_revert(path: Path, document: Document, entry: JournalEntry) -> ConfigEdit:
    before, found, after = document.text.rpartition(entry.inserted)
    new = before + after
    if SECTION not in document:
        new = document.text  # it was removed by hand
    elif not found or not differs_by_key(document, Document(new, document.name), SECTION):
        raise ConfigError(
            "the autotune section was edited since init, and is not removed",
            where=f"{path}:{document.line(SECTION)}",
            remedy="Delete it by hand, then revert again for earlier changes.",
        )
    return ConfigEdit(path=path, old=document.text, new=new, changes=(), undoes=entry.number, undoes_init=True)


def _plan_value_revert(path: Path, document: Document, entry: JournalEntry) -> ConfigEdit:
    splices: list[Splice] = []
    conflicts: list[Conflict] = []
    for change in entry.changes:
        try:
            leaf = document.leaf(change.path)
            check_editable(leaf)
        except CannotEditYaml:
            conflicts.append(Conflict(dotted=change.dotted, applied=change.new, present=None))
            continue
        if same_value(leaf.value, change.old):
            continue
        if not same_value(leaf.value, change.new):
            conflicts.append(Conflict(dotted=change.dotted, applied=change.new, present=leaf.value))
        splices.append(Splice(leaf=leaf, value=change.old, text=change.old_text, restores=True))
    return ConfigEdit(
        path=path,
        old=document.text,
        new=splice(document, splices),
        changes=_changes_of(document, splices),
        undoes=entry.number,
        conflicts=tuple(conflicts),
    )
