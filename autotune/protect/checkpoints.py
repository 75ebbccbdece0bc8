"""Checkpoint backups: the user's existing checkpoints are copied before the trials, checked after each, and restored.

The keys of a config that say where a trainer writes are redirected in trials (`autotune.settings.outputs`). A trainer
with a path hard-coded in its source still overwrites the checkpoints of real training, which shows only afterwards.
Then the file is restored from its copy and the search goes on; where there is no copy no further trial is made. A
file that others write to as well is left to them, and its copy stays. A file that was only appended to, or written
again with the same content, is not lost.
"""

import contextlib
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.clock import Clock
from autotune.errors import TrialError
from autotune.events import Event, TrialEnded, TrialStarted
from autotune.folders.state_folder import LEAST_FREE_BYTES
from autotune.process.open_files import files_being_written
from autotune.protect.kept_file import CannotPutBack, CopyChanged, KeptFile, SomebodyElses, kept, stamp_of
from autotune.protect.left_files import LeftFiles
from autotune.protect.side_effects import folders_looked_at, names_of
from autotune.protect.snapshot import Below, Snapshot
from autotune.settings.outputs import unquoted
from autotune.settings.paths import path_of, real_path
from autotune.trial.plan import Trainer

MOST_BYTES = 1 << 30
"""Size limit of all copies together; the latest files come first."""

MOST_S = 10.0
"""Time limit after which no further copy is begun."""

_CHECKPOINT = re.compile(
    r".*(?:ckpt|checkpoint).*"
    r"|.*\.(?:data-\d+-of-\d+|distcp|gguf|keras|onnx|pdopt|pdparams|pth|safetensors|tflite|weights)",
    re.IGNORECASE,
)
# Data have these suffixes too, so a word in the name of the file or its folder must mark it as a checkpoint.
_OR_DATA = re.compile(r".*\.(?:bin|h5|hdf5|index|joblib|msgpack|npz|pb|pickle|pkl|pt)", re.IGNORECASE)
_WORD = re.compile(
    r"best|checkpoint|ckpt|epoch|final|last|latest|model|net|optim|save|state|step|variables|weight", re.IGNORECASE
)


class CheckpointBackups:
    """Backups of the files around the trials that have the names of checkpoints; to be used in a ``with`` statement.

    A file that an earlier search's trials have left is none of the user's as long as nobody has touched it since. Files
    in the folders that redirected keys name are watched but not copied, since trials do not write there.

    Args:
        trainer: Tells where a trial can be expected to write.
        clock: Limits the time for looking and copying.
        name: Name of the search, for the folder of the copies.

    Attributes:
        remark: Sentence for the user before the first trial; None if there is none.
        remarks: Sentences for the user on restored or lost files, each once; the caller takes them off.
    """

    def __init__(self, trainer: Trainer, clock: Clock, *, name: str) -> None:
        self._trainer = trainer
        self._clock = clock
        self._cwd = trainer.settings.folder
        self._folders = folders_looked_at(trainer)
        self._above = Path(os.path.commonpath(self._folders))
        self._copies = trainer.state.kept / name
        self._others = trainer.state.kept / f"{name}.written-by-others"
        self._left = LeftFiles(trainer.state.kept / "left-by-trials.json")
        self._kept: list[KeptFile] = []
        self._lost: list[KeptFile] = []
        self._why_lost: dict[str, None] = {}
        self._lost_told = 0
        self._told: set[Path] = set()
        self._trial = "the last trial"
        self.remark: str | None = None
        self.remarks: deque[str] = deque()

    def __enter__(self) -> Self:
        over_s = self._clock.now_s() + MOST_S
        room = min(MOST_BYTES, self._trainer.state.free_bytes() - 2 * LEAST_FREE_BYTES)
        moved = Below(self._moved())
        without: list[Path] = []
        for path, about in self._found():
            file = None
            if path not in moved:
                if about.st_size <= room and self._clock.now_s() < over_s:
                    file = kept(path, self._copies / path.relative_to(self._above))
                if file:
                    room -= about.st_size
                else:
                    without.append(path)
            self._kept.append(file or KeptFile(path=path, stamp=stamp_of(path)))
        if without:
            self.remark = (
                f"no room or time for copies beforehand: {names_of(without, self._cwd)}. Move them away if the trainer "
                "may write over them whatever its config says"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look(self._trial)  # the last trial may have ended without an event
        users = {file.path for file in self._kept}
        self._left.write({path: stamp for path in self._present() if path not in users and (stamp := stamp_of(path))})
        for file in self._kept:
            if file.copy:
                self._discard(file.copy)

    def after(self, event: Event) -> None:
        """Check the files before a trial and when it has ended.

        Raises:
            TrialError: One is lost.
        """
        if isinstance(event, TrialStarted):
            self._leave_to_others([file for file in self._kept if file.now != file.stamp])
            self._trial = f"trial {event.number}"
        elif isinstance(event, TrialEnded) and (loss := self.loss(f"trial {event.trial.number}")):
            raise loss

    def loss(self, what: str) -> TrialError | None:
        """Restore lost files; return an error for the user about those that cannot be restored.

        Args:
            what: Name of the cause, such as ``trial 3``.

        Returns:
            The error; None if there is no such file, or all of them were reported before.
        """
        self._look(what)
        if len(self._lost) == self._lost_told:
            return None
        self._lost_told = len(self._lost)
        names = names_of([file.path for file in self._lost], self._cwd)
        why = f" and not put back ({', '.join(self._why_lost)})" if self._why_lost else ""
        return TrialError(
            f"while {what} went on, outside its folder: changed or gone{why}: {names}; no further trial is made",
            where=str(self._trainer.config_path),
            remedy=f"{self._way_back()}\nIf a key of the config says where the trainer writes, name it under autotune: "
            "redirect:\nIf only its code does, move such files away first, or search in a copy of the project.",
        )

    def _way_back(self) -> str:
        copied = sum(file.copy is not None for file in self._lost)
        if not copied:
            return "There was no room or time to copy them beforehand."
        some = "" if copied == len(self._lost) else f" ({copied} of {len(self._lost)}; there was no room for more)"
        command = f"cp -r {shlex.quote(f'{self._copies}/.')} {shlex.quote(str(self._above))}"
        return f"As they were{some}, put back by:  {command}"

    def _look(self, what: str) -> None:
        """Check all files, and restore those that a trial has overwritten or removed."""
        whole: list[KeptFile] = []
        lost: list[KeptFile] = []
        back: list[Path] = []
        others: list[KeptFile] = []
        written: frozenset[tuple[int, int]] | None = None  # asked for only where it matters
        for file in self._kept:
            now = file.now
            if now == file.stamp:
                whole.append(file)
            elif file.copy is None:
                lost.append(file)
            elif file.still_begins_so():
                whole.append(replace(file, stamp=now))
            else:
                written = files_being_written() if written is None else written
                try:
                    whole.append(file.put_back(now, written))
                    back.append(file.path)
                except SomebodyElses:
                    others.append(file)
                except CopyChanged as reason:
                    self._why_lost[str(reason)] = None
                    self._set_aside(file.copy)
                    lost.append(replace(file, copy=None))
                except CannotPutBack as reason:
                    self._why_lost[str(reason)] = None
                    lost.append(file)
        # Not before: ^C may come at any moment, and a later look has to find all files here.
        self._kept, self._lost = [*whole, *others], [*self._lost, *lost]
        self._leave_to_others(others)
        self._tell(
            back,
            f"while {what} went on, written over or taken away: {{}}; put back from a copy, as after every trial. If "
            "a key of the config says where the trainer writes, name it under redirect:",
        )

    def _leave_to_others(self, files: Sequence[KeptFile]) -> None:
        """Stop watching files that somebody else writes to; their copies are set aside and stay."""
        if not files:
            return
        gone = set(map(id, files))
        self._kept = [file for file in self._kept if id(file) not in gone]
        for file in files:
            if file.copy is not None:
                self._set_aside(file.copy)
        where = f"; as they were before: {self._others}" if any(file.copy for file in files) else ""
        self._tell(
            [file.path for file in files],
            f"somebody else writes to {{}}: not looked after any more by this search{where}",
        )

    def _tell(self, paths: Sequence[Path], sentence: str) -> None:
        new = [path for path in paths if path not in self._told]
        self._told.update(new)
        if new:
            self.remarks.append(sentence.replace("{}", names_of(new, self._cwd), 1))

    def _set_aside(self, copy: Path) -> None:
        aside = self._others / copy.relative_to(self._copies)
        with contextlib.suppress(OSError):
            aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside.hardlink_to(copy)
            self._discard(copy)

    def _discard(self, copy: Path) -> None:
        """Delete a copy, and the folders of copies that become empty."""
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
            for folder in copy.parents:
                if folder == self._copies.parent:
                    break
                folder.rmdir()

    def _moved(self) -> list[Path]:
        settings = self._trainer.settings
        texts = [unquoted(settings.trial_document.leaf(key).text) for key in settings.outputs.redirected]
        beside = (self._cwd, self._trainer.config_path.absolute().parent)
        named = [path for folder in beside for text in texts if (path := path_of(text, folder))]
        places = [place for path in named if (place := real_path(path))]
        return [place for place in places if not self._cwd.is_relative_to(place)]

    def _present(self) -> list[Path]:
        """Return all files around the trials that have the names of checkpoints."""
        files = Snapshot(self._folders, self._trainer.apart, self._clock).files
        return [path for path in files if is_called_a_checkpoint(path)]

    def _found(self) -> list[tuple[Path, os.stat_result]]:
        """Return the user's files that have the names of checkpoints, the latest first."""
        left = self._left.read()
        found = []
        for path in self._present():
            try:
                about = path.lstat()
            except OSError:  # gone meanwhile
                continue
            if stat.S_ISREG(about.st_mode) and (path not in left or left[path] != stamp_of(path)):
                found.append((path, about))
        return sorted(found, key=lambda one: one[1].st_mtime_ns, reverse=True)


def is_called_a_checkpoint(path: Path) -> bool:
    """Return whether a file's name is that of a checkpoint or of a trained model."""
    if _CHECKPOINT.fullmatch(path.name):
        return True
    return bool(_OR_DATA.fullmatch(path.name) and _WORD.search(f"{path.parent.name}/{path.name}"))
