"""Folders: the state folder ``.autotune/``, the folder of one trial in it, and the deletion of what a trainer made."""

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
"""Free space below which no trial starts."""

# Names become parts of paths, and some come out of a storage that others can write.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


class StateFolder:
    """State folder: everything that is kept between searches.

    Args:
        path: The folder; it need not exist yet.

    Attributes:
        remarks: Sentences for the user on why it is this one and not another.
        backups: Folder of the configs as they were before they were changed.
        workers: Folder of the workers on further GPUs of this machine: their state and output; made by the first one.
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
        """Locate the state folder of a config: the one that was named, or that of the project the config is part of.

        Args:
            config: The user's config. Links are resolved first, so that it has one state folder by whatever
                name it is reached.
            explicit: Value of ``--state-dir``; None if it is not given.
            environ: The environment, for ``AUTOTUNE_DIR``; empty counts as not set.

        Returns:
            The folder that was named; else ``.autotune`` in the nearest folder above the config that holds
            ``.autotune`` or ``.git``; else ``.autotune`` beside the config. Where somebody else could have put
            something into that one, or could replace it, ``autotune`` in ``$XDG_STATE_HOME`` instead, with a remark.

        Raises:
            ConfigError: The config's folder cannot be found.
            AutotuneError: The folder that was named is not this user's, or others may write to it; or that one, and
                the one in ``$XDG_STATE_HOME`` too.
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
                f"there is no safe place for the state folder: {path} is not used because {why}, "
                f"nor {other} because {why_other}",
                remedy="Name a folder that is yours alone, or is not there yet, with --state-dir or AUTOTUNE_DIR.",
            )
        remark = f"{path} is not used: {why}. The state is kept in {other}; --state-dir names another place."
        return cls(other, remarks=(remark,))

    def create(self) -> None:
        """Create the folder and its subfolders, accessible to its owner only, and ignored by git.

        Raises:
            AutotuneError: It cannot be made or written to, or somebody else was faster.
        """
        try:
            if not self.path.exists():
                make_private_folder(self.path)
                if why := why_not_ours(self.path, frozenset({os.geteuid()})):
                    raise self._not_writable(why)
            # Only into a folder that is all ours: --state-dir may name one full of the user's files.
            if not any(self.path.iterdir()):
                create_private(self.path / ".gitignore", b"*\n")
            for folder in (self.studies, self._trials, self.searches, self.cache, self.backups, self.kept):
                make_private_folder(folder)
        except OSError as error:
            raise self._not_writable(error.strerror) from error
        if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
            raise self._not_writable("it is read-only")

    def search_lock(self, study: str, machine: str) -> Path:
        """Return the file that the one search of a study holds on a machine; others may share the folder."""
        host = machine.partition("-")[0]  # whichever of its GPUs it is for
        return self.studies / f"{study}.{host}.search"

    def pending(self, study: str) -> Path:
        """Return the file of the trials that a server has not taken yet."""
        return self.studies / f"{study}.pending"

    def trials(self, study: str) -> Path:
        """Return the folder that holds the trials of a study.

        Raises:
            ValueError: That is no valid name.
        """
        return self._trials / _checked(study)

    def trial(self, study: str, trial: str) -> TrialFolder:
        """Return the folder of one trial; it need not exist.

        Raises:
            ValueError: One of them is no valid name.
        """
        return TrialFolder(self.trials(study) / _checked(trial))

    def free_bytes(self) -> int:
        """Return the free space on the disk of the trials, for an ordinary user (without root's reserve).

        Raises:
            AutotuneError: The folder is gone.
        """
        try:
            return shutil.disk_usage(self.path).free
        except OSError as error:
            raise self._not_writable(error.strerror) from error

    def require_space(self) -> None:
        """Raise an error if the disk is nearly full.

        Raises:
            TrialError: Less than 1 GiB is free.
        """
        free = self.free_bytes()
        if free < LEAST_FREE_BYTES:
            raise TrialError(
                f"only {free >> 20} MiB are free; a trial needs at least 1 GiB",
                where=str(self.path),
                remedy="Make room on that disk, or choose another one with --state-dir.",
            )

    def prune(
        self,
        study: str,
        *,
        protected: Collection[str],
        keep: int = 200,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Delete the oldest trial folders of a study. Never follows links, never touches folders without our marker.

        Args:
            protected: Names of trials that stay, however old.
            keep: Number of the latest trials that stay besides.
            is_over: Returns whether no time is left for it: then the others stay until the next time.
        """
        trials = self.trials(study)
        if trials.is_symlink() or not trials.is_dir():
            return
        aged: list[tuple[float, str]] = []
        with contextlib.suppress(OSError):  # somebody may have taken it away, or closed it
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
    """Return the folder that the user named, if it is theirs; the place where it lies is theirs to judge.

    Raises:
        AutotuneError: It is not.
    """
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
            remedy="Whoever may write to it could have code of theirs run. If it is yours, close it (chmod go-w); else "
            "name a folder that is not there yet.",
        )
    return named


def user_state_folder(environ: Mapping[str, str]) -> Path:
    """Return autotune's folder in the user's state directory of the XDG Base Directory Specification."""
    base = Path(environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():  # which counts as not set
        try:
            home = environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:  # a user by number alone, in a container
            home = "/"
        base = Path(home) / ".local" / "state"
    return base.resolve() / "autotune"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name for a folder: {name!r}")
    return name


# Ownership of folders: checks whether somebody else could plant files in our folder, or replace it by one of theirs.


def owners_for(config: Path) -> frozenset[int]:
    """Return the ids of the users whose state folders may be used: this one; for root also the owner of the config."""
    me = os.geteuid()
    if me != 0:
        return frozenset({me})
    try:
        return frozenset({0, config.stat().st_uid})
    except OSError:  # it is still to be made
        return frozenset({0})


def why_not_ours(folder: Path, owners: frozenset[int]) -> str | None:
    """Return the reason for which a folder must not be used; None if it may be, or does not exist."""
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
    """Return the reason for which a folder in this place could be replaced by others; None if only its owner could.

    Replacing it needs write permission on one of the folders above it, up to the root. In one with the sticky bit, like
    ``/tmp``, nobody can remove files of others. A folder above that belongs to another user counts as open to that
    user, except those of root and of the owner of ``/`` (root by another number in a container). For root the owners
    above do not count: root works in the folders of others on purpose, and the owner of a folder above a config can
    replace the config, and so choose the command, anyway.

    Args:
        place: The folder that holds, or is to hold, the state folder; links resolved.
    """
    me = os.geteuid()
    for folder in (place, *place.parents):
        try:
            status = folder.stat()
        except OSError:  # still to be made
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
    """Return whether nobody but a folder's owner, and root, is in its group.

    Where each user has a group of their own, the usual umask lets it write, so most folders are open to such a group.
    """
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
            raise _unusable("the trial's folder cannot be made", self.path, error) from error

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
            raise _unusable("the trial's config cannot be written", self.path / name, error) from error

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

    def has_processes_elsewhere(self) -> bool:
        """Return whether processes of the trial have run that its guard cannot end by itself."""
        return any(self.path.glob("away.*"))

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


def _unusable(what: str, place: Path, error: OSError) -> TrialError:
    remedy = "See to that (room, permissions), or choose another place with --state-dir."
    return TrialError(f"{what}: {error.strerror}", where=str(place), remedy=remedy)


def delete_left(trials: Path, is_over: Callable[[], bool]) -> None:
    """Delete what earlier searches have left on this machine: what they had no time to delete, and temporary files.

    To be called by the holder of the study's lock, while none of its own trials is going on.

    Args:
        trials: The folder that holds the trials of the study.
        is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
    """
    for path in left_aside(trials):
        discard(path, is_over, trials)
    # Those inside a trial's folder are deleted with it: on a shared disk, that trial may be going on elsewhere.
    with contextlib.suppress(OSError):
        for path in trials.iterdir():
            if not temporary_folder(path).is_relative_to(os.path.realpath(trials)):
                delete_temporary_folder(path, is_over)


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


def make_temporary_folder(trial: Path) -> Path | None:
    """Make a trial's folder for temporary files; log a warning if that fails: programs then use the system's own.

    Returns:
        The folder; None if it is not there, or not ours.
    """
    folder = temporary_folder(trial)
    try:
        if not os.path.lexists(folder):
            make_private_folder(folder)
        if _is_ours(folder):
            return folder
        _log.warning("%s is not this user's own; temporary files of the trial are not kept apart", folder)
    except OSError as error:
        _log.warning("%s cannot be made: %s", folder, error.strerror)
    return None


def delete_temporary_folder(trial: Path, is_over: Callable[[], bool] = lambda: False) -> None:
    """Delete a trial's temporary files; log a warning if that fails.

    Args:
        is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
    """
    folder = temporary_folder(trial)
    if not _is_ours(folder) or delete_tree(folder, is_over):
        return
    if is_over():
        delete_apart(folder)
    else:
        _log.warning("%s could not be deleted completely", folder)


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


_ASIDE = ".deleted-"
_NO = subprocess.DEVNULL


def delete_tree(path: Path, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Delete a folder with all that is in it, or a single file; links are deleted, never followed.

    Anything on another file system (a mount) stays, and so does anything that the system refuses to delete. By rm(1):
    ``shutil.rmtree`` recurses into each level, and fails on a thousand nested folders.

    Args:
        is_over: Called now and then; once it returns True, the rest stays.

    Returns:
        True if nothing is left of it.
    """
    if not os.path.lexists(path) or is_over():
        return not os.path.lexists(path)
    program = shutil.which("rm", path=os.defpath) or "rm"
    command = (program, "-rf", "--one-file-system", "--", os.path.abspath(path))
    with (
        contextlib.suppress(OSError),
        subprocess.Popen(command, cwd="/", env={}, stdin=_NO, stdout=_NO, stderr=_NO) as process,
    ):
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            if is_over():
                process.kill()
    return not os.path.lexists(path)


def discard(path: Path, is_over: Callable[[], bool], aside: Path) -> bool:
    """Delete a folder as `delete_tree` does; what there is no time for is moved aside for a process of its own.

    Args:
        aside: Folder on the same disk. `left_aside` finds there what that process did not come to delete.

    Returns:
        True if nothing is left of it at its place.
    """
    if delete_tree(path, is_over):
        return True
    if not is_over():
        return False
    moved = aside / f"{_ASIDE}{secrets.token_hex(8)}"
    try:
        os.rename(path, moved)
    except OSError:
        return False
    delete_apart(moved)
    return True


def left_aside(folder: Path) -> list[Path]:
    """Return what `discard` has moved into a folder and is still there."""
    return list(folder.glob(f"{_ASIDE}*"))


def delete_apart(path: Path) -> None:
    """Delete a folder in a process of its own, which outlives this one and runs only where nobody else wants a core."""
    command = ("sh", "-c", 'read -r _; rm -rf --one-file-system -- "$1" &', "sh", os.path.abspath(path))
    with (
        contextlib.suppress(OSError),  # where there is no room for a process, somebody deletes it later
        subprocess.Popen(
            command, cwd="/", env={}, start_new_session=True, stdin=subprocess.PIPE, stdout=_NO, stderr=_NO
        ) as shell,
    ):
        # Before it starts rm, which has this from it; the disk's time follows from the core's.
        os.sched_setscheduler(shell.pid, os.SCHED_IDLE, os.sched_param(0))
        shell.communicate(b"\n")
