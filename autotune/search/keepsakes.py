"""The checkpoints that a user has already: copied before the first run, looked at after each, never written to.

The keys of a config that say where a trainer writes point elsewhere in runs (`autotune.settings.outputs`). A trainer
with a place of its own in its code writes over what real training has left there, and only doing so shows it. Then no
further run is made, and the copies stay. What is only added to, or written again as it was, is not lost.
"""

import os
import re
import shlex
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.clock import Clock
from autotune.errors import RunError
from autotune.events import Event, RunEnded
from autotune.search.leftovers import folders_looked_at, names_of
from autotune.search.setup import Setup
from autotune.settings.paths import path_of, real_path
from autotune.trial.state import LEAST_FREE_BYTES
from autotune.trial.surroundings import Surroundings

MOST_BYTES = 1 << 30
"""Of all copies together; the latest files come first."""

MOST_S = 10.0
"""After this no further copy is begun."""

_CHECKPOINT = re.compile(
    r".*(?:ckpt|checkpoint).*"
    r"|.*\.(?:data-\d+-of-\d+|distcp|gguf|keras|onnx|pdopt|pdparams|pth|safetensors|tflite|weights)",
    re.IGNORECASE,
)
# Data come in these too; so a word must say that it is none, in the file's name or its folder's.
_OR_DATA = re.compile(r".*\.(?:bin|h5|hdf5|index|joblib|msgpack|npz|pb|pickle|pkl|pt)", re.IGNORECASE)
_WORD = re.compile(
    r"best|checkpoint|ckpt|epoch|final|last|latest|model|net|optim|save|state|step|variables|weight", re.IGNORECASE
)
_CHUNK_BYTES = 1 << 20
_LATE_S = 5.0  # what a trainer wrote last may come after the last of its run's own files


@dataclass(frozen=True, kw_only=True)
class _Keepsake:
    """A file as it was, and its copy; None if there is none."""

    path: Path
    inode: int
    size: int
    written_ns: int
    copy: Path | None

    def is_whole(self) -> bool:
        """Whether all that it held is still there."""
        try:
            now = self.path.stat()
        except OSError:
            return False
        if (now.st_ino, now.st_size, now.st_mtime_ns) == (self.inode, self.size, self.written_ns):
            return True
        return self.copy is not None and _begins_like(self.path, self.copy)


class Keepsakes:
    """The files around the runs that are called like checkpoints, for as long as a ``with`` block lasts.

    Files that an earlier run has left are none of the user's. Where redirected keys point to in real training nothing
    is written, so that is looked at, and not copied.

    Args:
        setup: Says where a run can be expected to write.
        clock: For the time that looking and copying may take.
        cwd: Where runs start.
        name: Of the search, for the folder of the copies.

    Attributes:
        remark: What the user should know before the first run; None if there is nothing.
    """

    def __init__(self, setup: Setup, clock: Clock, *, cwd: Path, name: str) -> None:
        self._setup = setup
        self._clock = clock
        self._cwd = Path(os.path.realpath(cwd))
        self._folders = folders_looked_at(setup, cwd=cwd)
        self._above = Path(os.path.commonpath(self._folders))
        self._copies = setup.state.kept / name
        self._kept: list[_Keepsake] = []
        self._lost: list[_Keepsake] = []
        self.remark: str | None = None

    def __enter__(self) -> Self:
        over_s = self._clock.now_s() + MOST_S
        room = min(MOST_BYTES, self._setup.state.free_bytes() - 2 * LEAST_FREE_BYTES)
        moved = self._moved()
        without: list[Path] = []
        for path, about in self._found():
            copy = None
            if not any(path.is_relative_to(place) for place in moved):
                if about.st_size <= room and self._clock.now_s() < over_s:
                    copy = self._copied(path)
                if copy:
                    room -= about.st_size
                else:
                    without.append(path)
            self._kept.append(
                _Keepsake(path=path, inode=about.st_ino, size=about.st_size, written_ns=about.st_mtime_ns, copy=copy)
            )
        if without:
            self.remark = (
                f"no room or time for copies beforehand: {names_of(without, self._cwd)}. Move them away if the trainer "
                "may write over them whatever its config says"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look()
        for keepsake in self._kept:
            if keepsake.copy:
                keepsake.copy.unlink(missing_ok=True)
        if not any(keepsake.copy for keepsake in self._lost):
            shutil.rmtree(self._copies, ignore_errors=True)

    def after(self, event: Event) -> None:
        """Looks at the files when a run has ended.

        Raises:
            RunError: One is lost.
        """
        if isinstance(event, RunEnded) and (loss := self.loss(f"run {event.run.number}")):
            raise loss

    def loss(self, what: str) -> RunError | None:
        """What to tell the user of files that are lost; None if none is.

        Args:
            what: What has gone on, such as ``run 3``.
        """
        self._look()
        if not self._lost:
            return None
        names = names_of([keepsake.path for keepsake in self._lost], self._cwd)
        return RunError(
            f"while {what} went on, outside its folder: changed or gone: {names}; no further run is made",
            where=str(self._setup.config_path),
            remedy=f"{self._way_back()}\nIf a key of the config says where the trainer writes, name it under autotune: "
            "redirect:\nIf only its code does, move such files away first, or search in a copy of the project.",
        )

    def _way_back(self) -> str:
        copied = sum(keepsake.copy is not None for keepsake in self._lost)
        if not copied:
            return "There was no room or time to copy them beforehand."
        some = "" if copied == len(self._lost) else f" ({copied} of {len(self._lost)}; there was no room for more)"
        command = f"cp -r {shlex.quote(f'{self._copies}/.')} {shlex.quote(str(self._above))}"
        return f"As they were{some}, put back by:  {command}"

    def _look(self) -> None:
        self._lost += [keepsake for keepsake in self._kept if not keepsake.is_whole()]
        self._kept = [keepsake for keepsake in self._kept if keepsake not in self._lost]

    def _moved(self) -> list[Path]:
        settings = self._setup.settings
        texts = [settings.run_document.leaf(key).text for key in settings.outputs.redirected]
        beside = (self._cwd, self._setup.config_path.absolute().parent)
        named = [path for folder in beside for text in texts if (path := path_of(text, folder))]
        places = [place for path in named if (place := real_path(path))]
        return [place for place in places if not self._cwd.is_relative_to(place)]

    def _found(self) -> list[tuple[Path, os.stat_result]]:
        """The user's files that are called like checkpoints, the latest first."""
        spans = self._setup.state.spans_of_runs()
        found = []
        for path in Surroundings(self._folders, [self._setup.state.path], self._clock).files:
            if not is_called_a_checkpoint(path):
                continue
            try:
                about = path.lstat()
            except OSError:  # gone meanwhile
                continue
            by_a_run = any(from_s <= about.st_mtime <= to_s + _LATE_S for from_s, to_s in spans)
            if stat.S_ISREG(about.st_mode) and not by_a_run:
                found.append((path, about))
        return sorted(found, key=lambda one: one[1].st_mtime_ns, reverse=True)

    def _copied(self, path: Path) -> Path | None:
        copy = self._copies / path.relative_to(self._above)
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        except OSError:  # not readable, or the disk is full after all
            copy.unlink(missing_ok=True)
            return None
        return copy


def is_called_a_checkpoint(path: Path) -> bool:
    """Whether a file's name is that of a checkpoint or of a trained model."""
    if _CHECKPOINT.fullmatch(path.name):
        return True
    return bool(_OR_DATA.fullmatch(path.name) and _WORD.search(f"{path.parent.name}/{path.name}"))


def _begins_like(path: Path, copy: Path) -> bool:
    try:
        with path.open("rb") as file, copy.open("rb") as old:
            while chunk := old.read(_CHUNK_BYTES):
                if file.read(len(chunk)) != chunk:
                    return False
    except OSError:
        return False
    return True
