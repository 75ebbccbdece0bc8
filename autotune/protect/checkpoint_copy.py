"""Checkpoint copy: a copy of the user's newest checkpoint, for trainings of a race that go on from where training is.

Trials write into folders of their own, so a trainer that goes on from what it finds in its output folder begins anew
there. The copy is made once, from what was written together with the newest checkpoint, and is put into the output
folder of each training that is to go on from it.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.files import make_private_folder
from autotune.protect.checkpoints import is_called_a_checkpoint
from autotune.settings.outputs import redirected_path, unquoted
from autotune.settings.paths import path_of
from autotune.trial.plan import Trainer

MOST_OF_FREE = 0.1
"""Largest share of the free space that the copies may take."""

_TOGETHER_S = 60.0  # a checkpoint of several files is written in less
_SMALL_BYTES = 1 << 16  # what says which checkpoint is the latest
_MOST_FILES = 20_000


@dataclass(frozen=True, kw_only=True)
class CheckpointCopy:
    """Copy of the user's newest checkpoint.

    Attributes:
        name: Path of the checkpoint, as the config has its folder.
        files: The copied files, each with its path below the folder of a trial's outputs.
    """

    name: str
    files: tuple[tuple[Path, Path], ...]

    def put_into(self, outputs: Path) -> None:
        """Copy the files into a trial's folder of outputs.

        Raises:
            AutotuneError: They cannot be copied; none of them is there then.
        """
        try:
            for copy, below in self.files:
                _copy(copy, outputs / below)
        except AutotuneError:
            for _, below in self.files:
                (outputs / below).unlink(missing_ok=True)
            raise

    def discard(self) -> None:
        """Delete the copy."""
        for copy, _ in self.files:
            with contextlib.suppress(OSError):
                copy.unlink()
                copy.parent.rmdir()


@dataclass(frozen=True, kw_only=True)
class NoCopy:
    """Reason for which there is no copy, one clause; empty where there is no checkpoint."""

    why: str


def copy_newest_checkpoint(trainer: Trainer, into: Path, *, times: int) -> CheckpointCopy | NoCopy:
    """Copy the newest checkpoint that lies in a folder which the config names as an output.

    Args:
        trainer: Tells which keys are outputs.
        into: Folder for the copy; made if there is something to copy.
        times: Number of trainings that will get one.

    Returns:
        The copy, or why there is none.
    """
    settings = trainer.settings
    newest: tuple[float, Path, Path, str] | None = None
    for key in settings.outputs.redirected:
        text = unquoted(settings.trial_document.leaf(key).text)
        for base in (settings.folder, trainer.config_path.absolute().parent):
            folder = path_of(os.path.expandvars(text), base)
            if folder is None or not folder.is_dir():
                continue
            for path in _files(folder):
                written_s = _mtime(path)
                if is_called_a_checkpoint(path) and (newest is None or written_s > newest[0]):
                    newest = (written_s, path, folder, text)
    if newest is None:
        return NoCopy(why="")
    written_s, path, folder, text = newest
    chosen = [
        one
        for one in _files(path.parent)
        if _mtime(one) >= written_s - _TOGETHER_S or (one.parent == path.parent and _size(one) <= _SMALL_BYTES)
    ]
    name = os.fspath(Path(text) / path.relative_to(folder))
    needed, free = sum(map(_size, chosen)) * (times + 1), trainer.state.free_bytes()
    if needed > MOST_OF_FREE * free:
        return NoCopy(
            why=f"{times + 1} copies of {name} take {needed / 2**30:.1f} GiB, more than {MOST_OF_FREE:.0%} of the free "
            "space"
        )
    files = []
    try:
        for place, one in enumerate(chosen):
            copy = into / str(place)
            _copy(one, copy)
            below = Path(redirected_path(text, Path())) / one.relative_to(folder)
            files.append((copy, below))
    except AutotuneError as error:
        shutil.rmtree(into, ignore_errors=True)
        return NoCopy(why=f"{name} cannot be copied: {error.message}")
    return CheckpointCopy(name=name, files=tuple(files))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the plain files of a folder and those below, not through links."""
    seen = 0
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above) / name
            seen += 1
            if seen > _MOST_FILES:
                return
            if path.is_file() and not path.is_symlink():
                yield path


def _copy(path: Path, to: Path) -> None:
    """Copy a file with its times; as a reflink where the file system can.

    Raises:
        AutotuneError: It cannot be done.
    """
    try:
        make_private_folder(to.parent)
        with path.open("rb") as source, to.open("xb") as copy:
            left = os.fstat(source.fileno()).st_size
            try:
                while left > 0 and (done := os.copy_file_range(source.fileno(), copy.fileno(), left)):
                    left -= done
            except OSError:  # between file systems, or an old one
                source.seek(0)
                copy.seek(0)
                copy.truncate()
                shutil.copyfileobj(source, copy)
        shutil.copystat(path, to)
    except OSError as error:
        with contextlib.suppress(OSError):
            to.unlink()
        raise AutotuneError(f"{error.strerror or error}", where=os.fspath(path)) from error


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
