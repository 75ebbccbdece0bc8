"""Writing of tuned values, or of a section, into the user's config. No other module writes that file.

A plan is made first and can be shown; carrying it out keeps a backup, then replaces the file in one step, so that
a crash at any moment leaves either the old or the new file, whole. Nothing here prints or asks anything.
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
    """Value that `apply` wrote and that somebody changed since.

    Attributes:
        present: The present value; None also where the key cannot be reverted any more.
    """

    dotted: str
    applied: Scalar
    present: Scalar


@dataclass(frozen=True, kw_only=True)
class ConfigEdit:
    """Planned change to a config that is not yet made.

    Attributes:
        old: The whole text now.
        new: The whole text afterwards.
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
        return _diff(self, str(self.path), f"{self.path} (new)")


def plan_edit(path: Path, values: NewValues) -> ConfigEdit:
    """Plan to write values into a config; equal values are left as they are written.

    Raises:
        ConfigError: The file cannot be read as a config.
        CannotEditYaml: A value cannot be changed by itself.
    """
    document = Document.read(path)
    wanted: dict[KeyPath, Scalar] = {
        key: value for key, value in values.items() if not same_value(document.leaf(key).value, value)
    }
    splices = plan_splices(document, wanted)
    return ConfigEdit(
        path=path, old=document.text, new=splice(document, splices), changes=_changes_of(document, splices)
    )


def plan_code(arguments: Mapping[str, CodeArgument], values: Values) -> list[ConfigEdit]:
    """Plan to write values into the trainer's code; files that hold all of theirs are left out.

    Raises:
        ConfigError: A file cannot be read, or a value cannot be written by itself.
    """
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
    """Return edits of files below a folder as a patch for ``git apply`` or ``patch -p1`` there."""
    names = [edit.path.relative_to(folder).as_posix() for edit in edits]
    names = [f"{name}\t" if " " in name else name for name in names]  # where a name with spaces ends
    return "".join(_diff(edit, f"a/{name}", f"b/{name}") for edit, name in zip(edits, names, strict=True))


def plan_section(path: Path, lines: Sequence[str]) -> ConfigEdit:
    """Plan to add an ``autotune:`` section at the end of a config; everything else stays byte for byte.

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
    made = False
    try:
        with open(path, "xb") as file:
            made = True
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise ConfigError(
            "there is such a file already, and it is not overwritten",
            where=str(path),
            remedy="Choose another name, or move the file away.",
        ) from error
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                path.unlink()
        raise ConfigError(
            f"the file cannot be written: {error.strerror}",
            where=str(path),
            remedy=f"Make room, or check that {path.parent} is there and may be written to.",
        ) from error


def write_edits(edits: Sequence[ConfigEdit], backups_folder: Path, clock: Clock) -> dict[Path, Path]:
    """Carry out plans for several files, all or none; their conflicts are overridden. Mode, owner and link stay.

    All files are checked, then all backed up, then replaced one after the other. If one cannot be, those that were
    replaced already are put back; a crash in between leaves files of either state, and backups for all of them.

    Returns:
        The backup of each file that was written.

    Raises:
        ConfigError: A file changed since it was planned, or cannot be written (permissions, no space). All files are as
            they were, unless the message says something else, and no temporary file is left.
    """
    edits = [edit for edit in edits if not edit.nothing_to_do]
    for edit in edits:
        _check_unchanged(edit)
        if not os.access(edit.path.resolve(), os.W_OK, effective_ids=True):
            raise ConfigError(
                "the file is read-only", where=str(edit.path), remedy="Allow writing (chmod u+w), and try again."
            )
    kept = _back_up(edits, backups_folder, clock)
    replaced: list[ConfigEdit] = []
    try:
        for edit in edits:
            _replace(edit)
            replaced.append(edit)
    except ConfigError as error:
        _put_back(replaced, error)
        _drop(kept)
        raise
    return kept


def _back_up(edits: Sequence[ConfigEdit], backups_folder: Path, clock: Clock) -> dict[Path, Path]:
    """Back up files as they are before a write; return the backup of each, beside which its manifest lies."""
    together = f"{clock.utc().isoformat()}-{os.urandom(4).hex()}" if len(edits) > 1 else None
    kept: dict[Path, Path] = {}
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
        while (backup := folder / f"{stem}{suffix}").exists():  # a clock too coarse to tell two writes apart
            stem = f"{stem}-{entry.number}"
        kept[edit.path] = backup
        manifest = {"format": FORMAT, **asdict(entry)}
        try:
            make_private_folder(folder)
            # Configs may hold tokens: like the folder, the copy is for its owner alone.
            replace_durably(backup, content)
            # The manifest comes last: without it there is no entry.
            replace_durably(folder / f"{stem}.json", json.dumps(manifest, indent=1).encode())
        except OSError as error:
            _drop(kept)
            raise ConfigError(
                f"no backup could be written: {error.strerror}; the config is unchanged",
                where=str(folder),
                remedy="Make room or check the permissions there, and try again.",
            ) from error
    return kept


def _drop(kept: Mapping[Path, Path]) -> None:
    """Remove the backups of writes that did not happen."""
    for backup in kept.values():
        for path in (backup.with_suffix(".json"), backup):
            path.unlink(missing_ok=True)


def _put_back(replaced: Sequence[ConfigEdit], error: ConfigError) -> None:
    """Put back files that were replaced, after an error at another one."""
    for edit in replaced:
        back = replace(edit, old=edit.new, new=edit.old)
        try:
            _replace(back)
        except ConfigError as second:
            raise ConfigError(
                f"{error.message}; {edit.path} was written before, and cannot be put back: {second.message}",
                where=error.where,
                remedy=f"Write its old values back by hand: {edit.diff}",
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


def _check_unchanged(edit: ConfigEdit) -> None:
    if read_bytes(edit.path) != edit.old.encode():
        raise ConfigError(
            "the file was changed by somebody else meanwhile; nothing was written",
            where=str(edit.path),
            remedy="Look at the change, and run the command again.",
        )


def _changes_of(document: Document, splices: list[Splice]) -> tuple[ValueChange, ...]:
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


def _diff(edit: ConfigEdit, old: str, new: str) -> str:
    lines = unified_diff(_lines(edit.old), _lines(edit.new), old, new, n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Split a text into lines as a diff shows them: unlike `str.splitlines`, only a line feed ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ValueChange:
    """Change of one scalar by a write.

    Attributes:
        old_text: The characters before, quotes included.
    """

    path: tuple[str | int, ...]
    old: Scalar
    new: Scalar
    old_text: str
    new_text: str

    @property
    def dotted(self) -> str:
        """Key path as people write it."""
        return dotted(self.path)


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """Record of one write to a config.

    Attributes:
        number: Its position among the writes to this config, from 1.
        undoes: Of a revert: the number of the write that it undid; None for an apply and an init.
        inserted: The characters that an init inserted; empty for values.
        together: Of a write that changed several files: its name, which their entries share; else None.
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
    """Return the folder of one config's backups and their manifests, by its real path."""
    real = config.resolve()
    return backups_folder / f"{real.stem}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:8]}"


def _entries(folder: Path) -> list[JournalEntry]:
    """Return all entries of one config, oldest first."""
    return sorted((_read(path) for path in folder.glob("*.json")), key=lambda entry: entry.number)


def _read(path: Path) -> JournalEntry:
    try:
        with open_regular(path) as file:
            manifest: dict[str, Any] = json.loads(file.read())
        if manifest["format"] != FORMAT:
            raise ConfigError(
                f"this backup has format {manifest['format']}, this autotune knows {FORMAT}",
                where=str(path),
                remedy="Use the autotune that wrote it, or copy the file beside it back by hand.",
            )
        json.dumps(manifest, ensure_ascii=False).encode()  # a ValueError for half a surrogate pair, which no file holds
        return msgspec.convert(manifest, JournalEntry)
    except (ValueError, LookupError, TypeError, RecursionError, OSError) as error:
        remedy = "Delete it; the backup beside it is the config as it was."
        raise ConfigError("this record of a change cannot be read", where=str(path), remedy=remedy) from error


# Reverting of writes: the plan, which `write_edits` carries out.


def plan_reverts(paths: Sequence[Path], backups_folder: Path) -> list[ConfigEdit]:
    """Plan to undo the last apply, or init, that is not undone yet, in all files that it changed.

    The old values are put back into the text as it is now, so that edits made meanwhile to other lines stay; a
    section is taken out where it still stands as it was added. Successive reverts undo successive writes.

    Args:
        paths: The config, and the further ones of its section.

    Raises:
        ConfigError: There is nothing to undo, or a file or the record of changes cannot be read, or the last write
            changed other files too.
        CannotEditYaml: The old values cannot be put back by themselves.
    """
    written = [(path, entry) for path in paths for entry in _left(path, backups_folder)]
    while written:
        _, last = max(written, key=lambda one: (one[1].utc, one[1].number))
        same = [one for one in written if one[1] is last or (last.together and one[1].together == last.together)]
        edits = [_plan_back(path, entry, backups_folder) for path, entry in same]
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
        remedy=f"Backups of every earlier state are kept in {backups_folder}.{_on_separate(paths[0])} A file that init "
        "made new, for a trainer with flags, is deleted by hand.",
    )


def _on_separate(config: Path) -> str:
    beside = separate_path(config)
    if not exists(beside):
        return ""
    return (
        f"\nThe section stands in {beside}, a file of its own: what was applied there is reverted with --config "
        f"{shlex.quote(str(beside))}; `init --separate` made the file anew, so it is undone by deleting it."
    )


def _left(path: Path, backups_folder: Path) -> list[JournalEntry]:
    """Return the writes to a file that are not undone."""
    entries = _entries(_backups(backups_folder, path))
    undone = {entry.undoes for entry in entries}
    return [entry for entry in entries if entry.undoes is None and entry.number not in undone]


def _plan_back(path: Path, entry: JournalEntry, backups_folder: Path) -> ConfigEdit:
    if _is_of_code(entry):
        return _plan_code_back(path, entry, _backups(backups_folder, path))
    return (_plan_removal if entry.inserted else _plan_undo)(path, Document.read(path), entry)


def _plan_code_back(path: Path, entry: JournalEntry, folder: Path) -> ConfigEdit:
    """Plan to put a source back as it was; if it was edited since, only the values.

    Raises:
        ConfigError: One of the calls is no longer in its line, or its value is no number any more.
    """
    before = next(one.with_suffix(".bak") for one in folder.glob("*.json") if _read(one).number == entry.number)
    name = place_of(str(entry.changes[0].path[0]))[0].rpartition(":")[0]
    changes = {str(one.path[0]): one for one in entry.changes}
    present, old = read_bytes(path), read_bytes(before)
    known, there = arguments_of(path, name, old), arguments_of(path, name, present)
    applied = with_values(old, [known[one] for one in changes], {one: change.new for one, change in changes.items()})
    if present in (old, applied):
        return ConfigEdit(path=path, old=present.decode(), new=old.decode(), changes=(), undoes=entry.number)
    if gone := [one for one in changes if one not in there]:
        raise ConfigError(
            f"it was edited since the values were written into it, and there is no {place_of(gone[0])[1]} in that line",
            where=str(path.with_name(place_of(gone[0])[0].rpartition("/")[2])),
            remedy=f"Put back by hand what was written, or the file as it was before: {before}",
        )
    back = {one: change.old for one, change in changes.items() if there[one].value != change.old}
    return ConfigEdit(
        path=path,
        old=present.decode(),
        new=with_values(present, [there[one] for one in back], back).decode(),
        changes=(),
        undoes=entry.number,
        conflicts=tuple(
            Conflict(dotted=one, applied=changes[one].new, present=there[one].value)
            for one in back
            if there[one].value != changes[one].new
        ),
    )


def written_sources(backups_folder: Path) -> list[Path]:
    """Return the sources of a trainer that values were written into, as far as they are still there."""
    entries = [_read(path) for path in sorted(backups_folder.glob("*/*.json"))]
    return [path for path in dict.fromkeys(Path(one.config) for one in entries if _is_of_code(one)) if path.is_file()]


def _is_of_code(entry: JournalEntry) -> bool:
    return any(str(change.path[0]).startswith(CODE) for change in entry.changes)


def _plan_removal(path: Path, document: Document, entry: JournalEntry) -> ConfigEdit:
    before, found, after = document.text.rpartition(entry.inserted)
    new = before + after
    if SECTION not in document:
        new = document.text  # it was taken out by hand
    elif not found or not differs_by_key(document, Document(new, document.name), SECTION):
        raise ConfigError(
            "the autotune section was edited since it was added, and is not taken out",
            where=f"{path}:{document.line(SECTION)}",
            remedy="Delete it by hand; then revert goes on with what came before.",
        )
    return ConfigEdit(path=path, old=document.text, new=new, changes=(), undoes=entry.number)


def _plan_undo(path: Path, document: Document, entry: JournalEntry) -> ConfigEdit:
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
