"""Backups of a config, one numbered entry for each write of `apply` and `revert`: the old file and a small manifest.

    backups/<stem>-<8 hex of the real path>/<utc>-<sha8>.yaml      the file before the write (of JSON and TOML .bak)
                                            <utc>-<sha8>.json      which values changed

Entries are written before the config is, so that a crash between the two leaves an entry too many, never a
change without its backup.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.errors import ConfigError
from autotune.files import make_private_folder, open_regular
from autotune.records import Scalar
from autotune.settings.text.syntax import Syntax, syntax_of

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ValueChange:
    """Change of one scalar by a write.

    Attributes:
        path: Its key path in parts.
        old: Its value before.
        new: Its value after.
        old_text: The characters before, quotes included.
        new_text: The characters after.
    """

    path: tuple[str | int, ...]
    old: Scalar
    new: Scalar
    old_text: str
    new_text: str

    @property
    def dotted(self) -> str:
        """Key path as people write it."""
        return ".".join(str(part) for part in self.path)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Record of one write to a config.

    Attributes:
        number: Its position among the writes to this config, from 1.
        utc: ISO 8601 stamp.
        changes: The values that it changed.
        undoes: Of a revert: the number of the write that it undid; None for an apply and an init.
        inserted: The characters that an init inserted; empty for values.
        together: Of a write that changed several files: its name, which their entries share; else None.
        files: How many files it changed.
    """

    number: int
    utc: str
    changes: tuple[ValueChange, ...]
    undoes: int | None
    inserted: str = ""
    together: str | None = None
    files: int = 1


class Backups:
    """Entries of one config.

    Attributes:
        config: The config's real path, links resolved.
        folder: The folder of its entries.
    """

    def __init__(self, backups_folder: Path, config: Path) -> None:
        self.config = config
        digest = hashlib.sha256(os.fsencode(config)).hexdigest()
        self.folder = backups_folder / f"{config.stem}-{digest[:8]}"

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first.

        Raises:
            ConfigError: A manifest is damaged, or of a later autotune.
        """
        found = [_read(path) for path in self.folder.glob("*.json")]
        return sorted(found, key=lambda entry: entry.number)

    def add(
        self,
        content: bytes,
        changes: Sequence[ValueChange],
        undoes: int | None,
        clock: Clock,
        *,
        inserted: str = "",
        together: str | None = None,
        files: int = 1,
    ) -> Path:
        """Back up the file as it is before a write.

        Args:
            content: The config's bytes before the write.
            changes: The values that the write is going to change.
            undoes: See `Entry.undoes`.
            clock: Stamps the entry.
            inserted: See `Entry.inserted`.
            together: See `Entry.together`.
            files: See `Entry.files`.

        Returns:
            The backup file; its manifest lies beside it.

        Raises:
            OSError: The entry cannot be written; nothing of it is left.
        """
        now = clock.utc()
        number = max((entry.number for entry in self.entries()), default=0) + 1
        manifest = {
            "format": FORMAT,
            "number": number,
            "utc": now.isoformat(),
            "config": os.fspath(self.config),
            "undoes": undoes,
            "changes": [asdict(change) for change in changes],
            "inserted": inserted,
            "together": together,
            "files": files,
        }
        make_private_folder(self.folder)
        stem = f"{now:%Y%m%dT%H%M%S.%fZ}-{hashlib.sha256(content).hexdigest()[:8]}"
        suffix = ".yaml" if syntax_of(self.config.name) is Syntax.YAML else ".bak"
        backup = self.folder / f"{stem}{suffix}"
        while backup.exists():  # a clock too coarse to tell two writes apart
            stem = f"{stem}-{number}"
            backup = self.folder / f"{stem}{suffix}"
        try:
            _write_private(backup, content)
            # The manifest comes last: without it there is no entry.
            _write_private(backup.with_name(f"{stem}.json"), json.dumps(manifest, indent=1).encode())
        except OSError:
            self.drop(backup)
            raise
        return backup

    def drop(self, backup: Path) -> None:
        """Remove an entry whose write did not happen."""
        for path in (backup.with_name(f"{backup.name.removesuffix(backup.suffix)}.json"), backup):
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames and new files in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_private(path: Path, content: bytes) -> None:
    # Configs may hold tokens: like the folder, the copy is for its owner alone.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _read(path: Path) -> Entry:
    try:
        with open_regular(path) as file:
            manifest: dict[str, Any] = json.loads(file.read())
        if manifest["format"] != FORMAT:
            raise ConfigError(
                f"this backup has format {manifest['format']}, this autotune knows {FORMAT}",
                where=str(path),
                remedy="Use the autotune that wrote it, or copy the file beside it back by hand.",
            )
        return Entry(
            number=_whole(manifest["number"]),
            utc=_text(manifest["utc"]),
            undoes=None if manifest["undoes"] is None else _whole(manifest["undoes"]),
            changes=tuple(_change(change) for change in manifest["changes"]),
            inserted=_text(manifest.get("inserted", "")),  # the first versions had none of these
            together=None if manifest.get("together") is None else _text(manifest["together"]),
            files=_whole(manifest.get("files", 1)),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise ConfigError(
            "this record of a change cannot be read",
            where=str(path),
            remedy="Delete it; the backup beside it is the config as it was.",
        ) from error


def _change(found: Any) -> ValueChange:
    if not isinstance(found["path"], list):
        raise TypeError("not a list")
    return ValueChange(
        path=tuple(_text(part) if isinstance(part, str) else _whole(part) for part in found["path"]),
        old=_scalar(found["old"]),
        new=_scalar(found["new"]),
        old_text=_text(found["old_text"]),
        new_text=_text(found["new_text"]),
    )


def _whole(found: Any) -> int:
    if not isinstance(found, int) or isinstance(found, bool):
        raise TypeError("not a whole number")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError("not a text")
    found.encode()  # a ValueError where it holds half a surrogate pair, which no file can
    return found


def _scalar(found: Any) -> Scalar:
    if found is not None and not isinstance(found, bool | int | float | str):
        raise TypeError("not a single value")
    return found
