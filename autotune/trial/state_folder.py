"""State folder ``.autotune/``: its location, its contents, and the pruning of old trials."""

import contextlib
import grp
import os
import pwd
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from autotune.errors import AutotuneError, TrialError
from autotune.files import FOLDER, create_private, make_private_folder, project_folder
from autotune.trial.folder import TrialFolder

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
    def locate(cls, config: Path, *, explicit: Path | None, environ: Mapping[str, str]) -> "StateFolder":
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
    ) -> tuple[str, ...]:
        """Delete the oldest trial folders of a study. Never follows links, never touches folders without our marker.

        Args:
            protected: Names of trials that stay, however old.
            keep: Number of the latest trials that stay besides.
            is_over: Returns whether no time is left for it: then the others stay until the next time.

        Returns:
            The names of the trials whose folders were deleted, oldest first.
        """
        trials = self.trials(study)
        if trials.is_symlink() or not trials.is_dir():
            return ()
        aged: list[tuple[float, str]] = []
        with contextlib.suppress(OSError):  # somebody may have taken it away, or closed it
            for entry in trials.iterdir():
                created_s = TrialFolder(entry).created_s()
                if created_s is not None and _NAME.fullmatch(entry.name):
                    aged.append((created_s, entry.name))
        aged.sort()
        deleted = []
        for _, name in aged[: max(len(aged) - keep, 0)]:
            if is_over():
                break
            if name not in protected:
                TrialFolder(trials / name).delete(is_over)
                deleted.append(name)
        return tuple(deleted)

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
