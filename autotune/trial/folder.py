"""Folder of one trial: file names, creation and deletion, its temporary folder, the observer that is copied into it."""

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import TrialError
from autotune.files import create_private, make_private_folder, read_tail
from autotune.trial.deletion import delete_apart, delete_tree, discard, left_aside

MARKER = ".autotune-trial"
"""Name of the file that marks a folder as made by autotune; no folder without it is ever emptied or removed."""

_TAIL_BYTES = 32 << 10
_log = logging.getLogger(__name__)


class TrialFolder:
    """Folder of one trial and the names of its files.

    Args:
        path: The folder; it need not exist yet.

    Attributes:
        config: The trial's own copy of a YAML config.
        stdout: File of the trainer's standard output.
        stderr: File of the trainer's standard error.
        result: File of the search's verdict on the trial.
        samples: File of the GPU collector's readings during the trial.
        inject: Folder that is put on the trainer's import path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.stdout = path / "stdout.log"
        self.stderr = path / "stderr.log"
        self.result = path / "result.json"
        self.samples = path / "samples.jsonl"
        self.outputs = path / "outputs"
        self.inject = path / "inject"

    def create(
        self, *, output_paths: Iterable[str] = (), output_folders: Iterable[str] = (), observed: bool = False
    ) -> None:
        """Create the folder, its marker and ``outputs/``; an existing folder of ours is kept.

        Args:
            output_paths: Paths inside ``outputs/`` that the trainer will write to. Their parents are made, they
                themselves are not: some trainers refuse an existing folder, others a folder without a parent.
            observed: Whether to make ``inject/`` too: a real process needs it, and it is most of the work.

        Raises:
            TrialError: It cannot be made, or something that is not ours is in its place.
        """
        try:
            make_private_folder(self.path)
            if not self.is_ours():
                if any(self.path.iterdir()):
                    raise TrialError(
                        "a folder that autotune did not make is in the place of a trial's folder",
                        where=str(self.path),
                        remedy="Move it away, or choose another place with --state-dir.",
                    )
                create_private(self.path / MARKER, b'{"format": 1}\n')
            make_private_folder(self.outputs)
            if observed:
                copy_observer(self.inject)
            for path in output_paths:
                make_private_folder(Path(path).parent)
            for path in output_folders:
                make_private_folder(Path(path))
        except OSError as error:
            raise TrialError(
                f"the trial's folder cannot be made: {error.strerror}",
                where=str(self.path),
                remedy="See to that (room, permissions), or choose another place with --state-dir.",
            ) from error

    def is_ours(self) -> bool:
        """Return whether this is a real folder, not a link to one, with a real marker in it."""
        return self.created_s() is not None

    def created_s(self) -> float | None:
        """Return the time when the marker was written, in seconds since the epoch; None if the folder is not ours."""
        try:
            if not stat.S_ISDIR(os.lstat(self.path).st_mode):
                return None
            marker = os.lstat(self.path / MARKER)
        except OSError:
            return None
        return marker.st_mtime if stat.S_ISREG(marker.st_mode) else None

    def write_config(self, text: str, name: str = "config.yaml") -> None:
        """Write the trial's own copy of the config, character for character.

        Raises:
            TrialError: It cannot be written.
        """
        try:
            # Into the same file: when it was last read shows whether the trainer reads it.
            descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
        except OSError as error:
            raise TrialError(
                f"the trial's config cannot be written: {error.strerror}",
                where=str(self.path / name),
                remedy="See to that (room, permissions), or choose another place with --state-dir.",
            ) from error

    def contents(self) -> frozenset[Path]:
        """Return all paths that are in the folder now, at any depth."""
        return frozenset(self._walk(lambda _path: True))

    def restore(self, contents: frozenset[Path]) -> None:
        """Delete whatever is in the folder and not among these contents, so that the trial can be restarted."""
        if self.is_ours():
            for path in [path for path in self._walk(contents.__contains__) if path not in contents]:
                self._delete(path)

    def _walk(self, descend: Callable[[Path], bool]) -> Iterator[Path]:
        """Yield the paths in the folder and in its subfolders for which `descend` holds; links are not followed."""
        waiting = [self.path]
        while waiting:
            # Not readable, gone meanwhile, or so deep that the system has no name for it.
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    yield path
                    if entry.is_dir(follow_symlinks=False) and descend(path):
                        waiting.append(path)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result of the trial, for people who look into its folder; the study's record is the truth.

        A disk that is full now ends the search at the next append to the record; here it is only logged.
        """
        try:
            create_private(self.result, (json.dumps({"format": 2, **result}, indent=2) + "\n").encode())
        except OSError as error:
            _log.warning("%s could not be written: %s", self.result, error.strerror)

    def stderr_tail(self) -> str:
        """Return the last lines on stderr, at most 32 KiB; empty if there are none."""
        return _tail(self.stderr)

    def stdout_tail(self) -> str:
        """Return the last lines on stdout, at most 32 KiB; empty if there are none."""
        return _tail(self.stdout)

    def discard_outputs(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Delete what the trainer wrote into ``outputs/``; log a warning if that fails.

        Args:
            is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
        """
        if self.is_ours():
            self._delete(self.outputs, is_over)

    def discard_temporary(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Delete the trainer's temporary files; log a warning if that fails.

        Args:
            is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
        """
        if self.is_ours():
            delete_temporary_folder(self.path, is_over)

    def delete(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Delete the whole folder, if it is ours; log a warning if that fails.

        Args:
            is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
        """
        if self.is_ours():
            delete_temporary_folder(self.path, is_over)
            self._delete(self.path, is_over)

    def _delete(self, path: Path, is_over: Callable[[], bool] = lambda: False) -> None:
        if not discard(path, is_over, self.path.parent):
            _log.warning("%s could not be deleted completely; delete it yourself when the disk gets full", path)


def delete_left(trials: Path, is_over: Callable[[], bool]) -> None:
    """Delete what earlier searches have left on this machine: what they had no time to delete, and temporary files.

    To be called by the holder of the study's lock, while none of its own trials is going on.

    Args:
        trials: The folder that holds the trials of the study.
        is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
    """
    for path in left_aside(trials):
        discard(path, is_over, trials)
    delete_left_temporary_folders(trials, is_over)


def _tail(path: Path) -> str:
    data, size = read_tail(path, _TAIL_BYTES)
    if size > _TAIL_BYTES:
        # Not from within a line, unless one line is all there is.
        data = data.partition(b"\n")[2] or data
    return data.decode("utf-8", "replace")


# Folder for the temporary files of one trial: what ``TMPDIR`` names there.


TEMPORARY_VARIABLE = "TMPDIR"
_LONGEST_BYTES = 107 - len("/torch-shm-dir-XXXXXX/manager.sock")  # unix(7), and the longest known name below it


def temporary_folder(trial: Path) -> Path:
    """Return the path of a trial's folder for temporary files; it need not exist.

    It has no white space, as the system's own has none: torch.compile splits the compiler's command at it.
    """
    real = os.path.realpath(trial)
    inside = Path(real, "tmp")
    if len(os.fsencode(inside)) <= _LONGEST_BYTES and not has_space(inside):
        return inside
    name = f"autotune-{os.getuid()}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:12]}"
    places = (Path(place, name) for place in (os.path.realpath(tempfile.gettempdir()), "/tmp", "/var/tmp"))  # noqa: S108 - it is private, and checked before use
    return next((path for path in places if len(os.fsencode(path)) <= _LONGEST_BYTES), inside)


def has_space(path: Path) -> bool:
    """Return whether there is white space in a path."""
    return str(path).split() != [str(path)]


def make_temporary_folder(trial: Path) -> None:
    """Make a trial's folder for temporary files; log a warning if that fails: programs then use the system's own."""
    folder = temporary_folder(trial)
    try:
        if not os.path.lexists(folder):
            make_private_folder(folder)
        if not _is_ours(folder):
            _log.warning("%s is not this user's own; temporary files of the trial are not kept apart", folder)
    except OSError as error:
        _log.warning("%s cannot be made: %s", folder, error.strerror)


def delete_temporary_folder(trial: Path, is_over: Callable[[], bool] = lambda: False) -> None:
    """Delete a trial's temporary files; log a warning if that fails.

    Args:
        is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
    """
    folder = temporary_folder(trial)
    if not _is_ours(folder) or delete_tree(folder, is_over):
        return
    if is_over():
        delete_apart([folder])
    else:
        _log.warning("%s could not be deleted completely", folder)


def delete_left_temporary_folders(trials: Path, is_over: Callable[[], bool]) -> None:
    """Delete the temporary files outside their folders that trials of a killed search have left on this machine.

    To be called by the holder of the study's lock, while none of its own trials is going on. Those inside a trial's
    folder are deleted with it: on a shared disk, that trial may be going on elsewhere.

    Args:
        is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
    """
    with contextlib.suppress(OSError), os.scandir(trials) as entries:
        for entry in entries:
            if not temporary_folder(Path(entry.path)).is_relative_to(os.path.realpath(trials)):
                delete_temporary_folder(Path(entry.path), is_over)


def _is_ours(folder: Path) -> bool:
    """Return whether it is a real folder of this user's that nobody else can write to."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


# Copy of the step observer, for the import path of a trainer.


def copy_observer(folder: Path) -> None:
    """Copy the step observer under a name that no trainer imports, so that autotune itself is not importable there.

    Args:
        folder: Folder that is put on the trainer's import path; made if it does not exist.

    Raises:
        OSError: It cannot be made or written to.
    """
    package = folder / "_autotune_trainee"
    make_private_folder(folder)
    make_private_folder(package)
    for source in (Path(__file__).parents[1] / "trainee").glob("*.py"):
        place = folder if source.name == "sitecustomize.py" else package
        text = source.read_text(encoding="utf-8")
        text = re.sub(r"^( *)from autotune\.trainee\b", rf"\1from {package.name}", text, flags=re.MULTILINE)
        create_private(place / source.name, text.encode())
