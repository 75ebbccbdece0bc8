"""Folders: the state folder ``.autotune/``, trial folders, temporary files, and their deletion."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import json
import logging
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, TrialError
from autotune.files import FOLDER, create_private, make_private_folder, project_folder, read_tail

LEAST_FREE_BYTES = 1 << 30
"""Free space that a trial needs to start."""

# Names become parts of paths, and some come from a storage that others can write to.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


class StateFolder:
    """State folder: everything kept between searches.

    Attributes:
        remarks: Sentences for the user on why another folder is not used.
        backups: Configs before changes.
        workers: State and output of workers on this machine's other GPUs.
    """

    def __init__(self, path: Path, *, remarks: tuple[str, ...] = ()) -> None:
        self.path = path
        self.remarks = remarks
        self.studies = path / "studies"
        self.searches = path / "searches"
        self.cache = path / "cache"
        self.backups = path / "backups"
        self.kept = path / "kept"
        self.workers = path / "workers"
        self._trials = path / "trials"

    @classmethod
    def locate(cls, config: Path, *, explicit: Path | None, environ: Mapping[str, str]) -> StateFolder:
        """Locate the state folder of a config.

        Args:
            config: Links resolved, so that all its names share one folder.

        Returns:
            The named folder (`explicit`, else ``AUTOTUNE_DIR``); else ``.autotune`` in the `project_folder`; if other
            users could write to that one or replace it, ``autotune`` in ``$XDG_STATE_HOME``, with a remark.

        Raises:
            ConfigError: The config's folder cannot be found.
            AutotuneError: The named folder is unsafe, or both default folders are.
        """
        named = explicit or (Path(environ["AUTOTUNE_DIR"]) if environ.get("AUTOTUNE_DIR") else None)
        if named is not None:
            return cls(_own(named.absolute(), config))
        path = project_folder(config) / FOLDER
        why = why_not_ours(path, owners_for(config)) or why_exposed(path.parent)
        if why is None:
            return cls(path)
        other = user_state_folder(environ)
        if why_other := why_not_ours(other, owners_for(config)) or why_exposed(other.parent):
            raise AutotuneError(
                f"no safe place for the state folder: {path} is not used because {why}, "
                f"and {other} because {why_other}",
                remedy="Pass a folder that only you can write to, or a new one, with --state-dir or AUTOTUNE_DIR.",
            )
        remark = f"{path} is not used: {why}. The state is kept in {other}; choose another place with --state-dir."
        return cls(other, remarks=(remark,))

    def create(self) -> None:
        """Create the folder and its subfolders, for the owner only and ignored by git.

        Raises:
            AutotuneError: It cannot be written to.
        """
        try:
            if not self.path.exists():
                make_private_folder(self.path)
                if why := why_not_ours(self.path, frozenset({os.geteuid()})):
                    raise self._not_writable(why)
            # Only in an empty folder: --state-dir may name one with the user's files.
            if not any(self.path.iterdir()):
                create_private(self.path / ".gitignore", b"*\n")
            for folder in (self.studies, self._trials, self.searches, self.cache, self.backups, self.kept):
                make_private_folder(folder)
        except OSError as error:
            raise self._not_writable(error.strerror) from error
        if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
            raise self._not_writable("it is read-only")

    def search_lock(self, study: str, machine: str) -> Path:
        """Return the file that locks a study for one search per machine."""
        host = machine.partition("-")[0]  # one lock for all its GPUs
        return self.studies / f"{study}.{host}.search"

    def pending(self, study: str) -> Path:
        """Return the file of trials that a server has not accepted yet."""
        return self.studies / f"{study}.pending"

    def trials(self, study: str) -> Path:
        """Return the folder of a study's trials; raise ValueError for an invalid name."""
        return self._trials / _checked(study)

    def trial(self, study: str, trial: str) -> TrialFolder:
        return TrialFolder(self.trials(study) / _checked(trial))

    def free_bytes(self) -> int:
        """Return the free disk space; raise AutotuneError if the folder is gone."""
        try:
            return shutil.disk_usage(self.path).free
        except OSError as error:
            raise self._not_writable(error.strerror) from error

    def require_space(self) -> None:
        """Raise TrialError if less than `LEAST_FREE_BYTES` are free."""
        free = self.free_bytes()
        if free < LEAST_FREE_BYTES:
            raise TrialError(
                f"only {free >> 20} MiB are free; a trial needs at least 1 GiB",
                where=str(self.path),
                remedy="Free space on that disk, or choose another one with --state-dir.",
            )

    def prune(
        self,
        study: str,
        *,
        protected: Collection[str],
        keep: int = 200,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Delete all but the latest `keep` trial folders and the `protected` ones, until `is_over`."""
        trials = self.trials(study)
        if trials.is_symlink() or not trials.is_dir():
            return
        aged: list[tuple[float, str]] = []
        with contextlib.suppress(OSError):  # removed or made unreadable meanwhile
            for entry in trials.iterdir():
                created_s = TrialFolder(entry).created_s()
                if created_s is not None and _NAME.fullmatch(entry.name):
                    aged.append((created_s, entry.name))
        for _, name in sorted(aged)[: max(len(aged) - keep, 0)]:
            if name not in protected and not is_over():
                TrialFolder(trials / name).delete(is_over)

    def _not_writable(self, why: str | None) -> AutotuneError:
        return AutotuneError(
            f"the state folder cannot be written: {why}",
            where=str(self.path),
            remedy="Choose another place with --state-dir or AUTOTUNE_DIR.",
        )


def _own(named: Path, config: Path) -> Path:
    """Return the folder that the user named; raise AutotuneError if other users could write to it."""
    owners = owners_for(config)
    why = None
    if named.is_symlink():
        if named.lstat().st_uid not in owners:
            why = "it is a link that another user made"
        named = Path(os.path.realpath(named))
    if why := why or why_not_ours(named, owners):
        raise AutotuneError(
            f"this state folder is not used: {why}",
            where=str(named),
            remedy="Anyone who can write to it could run their code as you. If it is yours, run chmod go-w on it; "
            "else pass a new folder.",
        )
    return named


def user_state_folder(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_STATE_HOME/autotune`` (XDG Base Directory Specification)."""
    base = Path(environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():  # counts as unset
        try:
            home = environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:  # a user without a name, in a container
            home = "/"
        base = Path(home) / ".local" / "state"
    return base.resolve() / "autotune"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid folder name: {name!r}")
    return name


# Ownership of folders: whether another user could write to our folder or replace it.


def owners_for(config: Path) -> frozenset[int]:
    """Return the ids of trusted owners: this user; for root also the config's owner."""
    me = os.geteuid()
    if me != 0:
        return frozenset({me})
    try:
        return frozenset({0, config.stat().st_uid})
    except OSError:  # it does not exist yet
        return frozenset({0})


def why_not_ours(folder: Path, owners: frozenset[int]) -> str | None:
    """Return why a folder must not be used, if there is a reason."""
    try:
        status = folder.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if status.st_uid not in owners:
        return f"it belongs to {_name(status.st_uid)}"
    if _others_may_write(status):
        return f"others may write to it ({stat.filemode(status.st_mode)})"
    return None


def why_exposed(place: Path) -> str | None:
    """Return why other users could replace a folder in this place, if they can.

    That needs write permission on a folder above it without the sticky bit. Owners have it, except root and the owner
    of ``/`` (root under another id in a container). For root, owners don't count: root works in others' folders on
    purpose.

    Args:
        place: Parent of the state folder; links resolved.
    """
    me = os.geteuid()
    for folder in (place, *place.parents):
        try:
            status = folder.stat()
        except OSError:  # does not exist yet
            continue
        if _others_may_write(status) and not status.st_mode & stat.S_ISVTX:
            return f"others may write to {folder} ({stat.filemode(status.st_mode)})"
        if me != 0 and status.st_uid not in (me, 0, os.stat("/").st_uid):
            return f"{folder} belongs to {_name(status.st_uid)}"
    return None


def _others_may_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid, status.st_uid)


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether only a folder's owner and root are in its group, as with one group per user."""
    name = _name(uid)
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    return set(group.gr_mem) <= {name, "root"} and (gid in (0, uid) or group.gr_name == name)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


MARKER = ".autotune-trial"
"""File that marks a folder as created by autotune; others are never emptied or removed."""

_TAIL_BYTES = 32 << 10
_log = logging.getLogger(__name__)


class TrialFolder:
    """Folder of one trial and its file names.

    Attributes:
        result: For people; the study's record is authoritative.
        samples: Readings of the GPU collector.
        inject: Goes on the trainer's import path.
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
        """Create the folder, its marker and ``outputs/``; keep an existing folder of ours.

        Args:
            output_paths: Paths that the trainer will write to; only their parents are created, because some trainers
                refuse an existing folder.
            observed: Whether to create ``inject/`` too.

        Raises:
            TrialError: It cannot be created, or another folder is in its place.
        """
        try:
            make_private_folder(self.path)
            if not self.is_ours():
                if any(self.path.iterdir()):
                    raise TrialError(
                        "a folder that autotune did not create is in the place of a trial's folder",
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
            raise _unusable("the trial's folder cannot be created", self.path, error) from error

    def is_ours(self) -> bool:
        return self.created_s() is not None

    def created_s(self) -> float | None:
        """Return when the marker was written, in seconds since the epoch; None for other folders and links."""
        try:
            if not stat.S_ISDIR(os.lstat(self.path).st_mode):
                return None
            marker = os.lstat(self.path / MARKER)
        except OSError:
            return None
        return marker.st_mtime if stat.S_ISREG(marker.st_mode) else None

    def write_config(self, text: str, name: str = "config.yaml") -> None:
        """Write the trial's copy of the config; raise TrialError if that fails."""
        try:
            # Into the same file: its access time shows whether the trainer reads it.
            descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
        except OSError as error:
            raise _unusable("the trial's config cannot be written", self.path / name, error) from error

    def contents(self) -> frozenset[Path]:
        return frozenset(self._walk(lambda _path: True))

    def restore(self, contents: frozenset[Path]) -> None:
        """Delete everything that is not in `contents`."""
        if self.is_ours():
            for path in [path for path in self._walk(contents.__contains__) if path not in contents]:
                discard(path, lambda: False, self.path.parent)

    def _walk(self, descend: Callable[[Path], bool]) -> Iterator[Path]:
        """Yield the paths in the folder and in subfolders for which `descend` holds, but not through links."""
        waiting = [self.path]
        while waiting:
            # Not readable, gone meanwhile, or a path longer than PATH_MAX.
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    yield path
                    if entry.is_dir(follow_symlinks=False) and descend(path):
                        waiting.append(path)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result; only log a failure, because a full disk ends the search soon anyway."""
        try:
            create_private(self.result, (json.dumps({"format": 2, **result}, indent=2) + "\n").encode())
        except OSError as error:
            _log.warning("%s could not be written: %s", self.result, error.strerror)

    def stderr_tail(self) -> str:
        return _tail(self.stderr)

    def has_processes_elsewhere(self) -> bool:
        """Return whether the trial ran processes that its guard cannot stop itself."""
        return any(self.path.glob("away.*"))

    def forget_processes_elsewhere(self) -> None:
        """Forget those of an earlier start in this folder, which end once their own file is gone.

        Raises:
            TrialError: Their files cannot be deleted.
        """
        try:
            for path in (*self.path.glob("away.*"), self.path / "over"):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable("the trial's folder cannot be used again", self.path, error) from error

    def stdout_tail(self) -> str:
        return _tail(self.stdout)

    def discard_outputs(self, is_over: Callable[[], bool] = lambda: False) -> None:
        if self.is_ours():
            discard(self.outputs, is_over, self.path.parent)

    def discard_temporary(self, is_over: Callable[[], bool] = lambda: False) -> None:
        if self.is_ours():
            delete_temporary_folder(self.path, is_over)

    def delete(self, is_over: Callable[[], bool] = lambda: False) -> None:
        if self.is_ours():
            delete_temporary_folder(self.path, is_over)
            discard(self.path, is_over, self.path.parent)


def _unusable(what: str, place: Path, error: OSError) -> TrialError:
    remedy = "Check disk space and permissions, or choose another place with --state-dir."
    return TrialError(f"{what}: {error.strerror}", where=str(place), remedy=remedy)


def delete_left(trials: Path, is_over: Callable[[], bool]) -> None:
    """Delete what earlier searches left on this machine; needs the study's lock, and no running trial."""
    for path in list(trials.glob(f"{_ASIDE}*")):
        discard(path, is_over, trials)
    # Those inside a trial's folder are deleted with it: on a shared disk, that trial may be running elsewhere.
    with contextlib.suppress(OSError):
        for path in trials.iterdir():
            if not temporary_folder(path).is_relative_to(os.path.realpath(trials)):
                delete_temporary_folder(path, is_over)


def _tail(path: Path) -> str:
    data, size = read_tail(path, _TAIL_BYTES)
    if size > _TAIL_BYTES:
        # Without the partial first line, unless it is the only one.
        data = data.partition(b"\n")[2] or data
    return data.decode("utf-8", "replace")


# Folder for the temporary files of one trial (``TMPDIR``).


TEMPORARY_VARIABLE = "TMPDIR"
_LONGEST_BYTES = 107 - len("/torch-shm-dir-XXXXXX/manager.sock")  # limit in unix(7), less the longest known name in it


def temporary_folder(trial: Path) -> Path:
    """Return the path of a trial's folder for temporary files, without white space (torch.compile splits at it)."""
    real = os.path.realpath(trial)
    inside = Path(real, "tmp")
    if len(os.fsencode(inside)) <= _LONGEST_BYTES and not has_space(inside):
        return inside
    name = f"autotune-{os.getuid()}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:12]}"
    places = (Path(place, name) for place in (os.path.realpath(tempfile.gettempdir()), "/tmp", "/var/tmp"))  # noqa: S108 - it is private, and checked before use
    return next((path for path in places if len(os.fsencode(path)) <= _LONGEST_BYTES), inside)


def has_space(path: Path) -> bool:
    """Return whether a path contains white space."""
    return str(path).split() != [str(path)]


def make_temporary_folder(trial: Path) -> Path | None:
    """Create a trial's temporary folder; if that fails, log a warning and return None."""
    folder = temporary_folder(trial)
    try:
        if not os.path.lexists(folder):
            make_private_folder(folder)
        if _is_ours(folder):
            return folder
        _log.warning("%s is not private to this user; temporary files of the trial are not kept separate", folder)
    except OSError as error:
        _log.warning("%s cannot be created: %s", folder, error.strerror)
    return None


def delete_temporary_folder(trial: Path, is_over: Callable[[], bool] = lambda: False) -> None:
    """Delete a trial's temporary files as `discard` does."""
    folder = temporary_folder(trial)
    if _is_ours(folder):
        discard(folder, is_over, folder.parent)


def _is_ours(folder: Path) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


# Copy of the step observer, for the import path of a trainer.


def copy_observer(folder: Path) -> None:
    """Copy the step observer into a folder of the import path, under a name that no trainer imports.

    Raises:
        OSError: The folder cannot be written to.
    """
    package = folder / "_autotune_trainee"
    make_private_folder(folder)
    make_private_folder(package)
    for source in (Path(__file__).parents[1] / "trainee").glob("*.py"):
        place = folder if source.name == "sitecustomize.py" else package
        text = source.read_text(encoding="utf-8")
        text = re.sub(r"^( *)from autotune\.trainee\b", rf"\1from {package.name}", text, flags=re.MULTILINE)
        create_private(place / source.name, text.encode())


_ASIDE = ".deleted-"
_DEVNULL = subprocess.DEVNULL


def delete_tree(path: Path, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Delete a folder or file until `is_over`, but not through links or mounts; return whether all of it is gone.

    Uses rm(1): ``shutil.rmtree`` fails on a thousand nested folders.
    """
    if not os.path.lexists(path) or is_over():
        return not os.path.lexists(path)
    program = shutil.which("rm", path=os.defpath) or "rm"
    command = (program, "-rf", "--one-file-system", "--", os.path.abspath(path))
    with (
        contextlib.suppress(OSError),
        subprocess.Popen(command, cwd="/", env={}, stdin=_DEVNULL, stdout=_DEVNULL, stderr=_DEVNULL) as process,
    ):
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            if is_over():
                process.kill()
    return not os.path.lexists(path)


def discard(path: Path, is_over: Callable[[], bool], aside: Path) -> None:
    """Delete a folder; once time is up, move the rest to `aside` (same disk) for `delete_in_background`."""
    if delete_tree(path, is_over):
        return
    with contextlib.suppress(OSError):
        if is_over():
            moved = path.rename(aside / f"{_ASIDE}{secrets.token_hex(8)}")
            delete_in_background(moved)
            return
    _log.warning("%s could not be deleted completely; delete it by hand if the disk fills up", path)


def delete_in_background(path: Path) -> None:
    """Delete a folder in a separate, idle-priority process that outlives this one."""
    command = ("sh", "-c", 'read -r _; rm -rf --one-file-system -- "$1" &', "sh", os.path.abspath(path))
    with (
        contextlib.suppress(OSError),  # no process could be started: a later search deletes it
        subprocess.Popen(
            command, cwd="/", env={}, start_new_session=True, stdin=subprocess.PIPE, stdout=_DEVNULL, stderr=_DEVNULL
        ) as shell,
    ):
        # Before it starts rm, which inherits it; the I/O priority follows from it.
        os.sched_setscheduler(shell.pid, os.SCHED_IDLE, os.sched_param(0))
        shell.communicate(b"\n")
