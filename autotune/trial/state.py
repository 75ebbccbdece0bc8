"""The state folder, ``.autotune/``: where it is, what is in it, and what is pruned from it."""

import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from autotune.errors import AutotuneError, ConfigError, RunError
from autotune.trial.folder import RunFolder

FOLDER = ".autotune"
LEAST_FREE_BYTES = 1 << 30
"""No run starts with less free space than this."""

KEPT_RUNS = 200

# Names become parts of paths, and some come out of a storage that others can write.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


class StateFolder:
    """Knows where everything is kept between searches.

    Args:
        path: The folder; it need not exist yet.

    Attributes:
        path: The folder.
        studies: The records of runs.
        searches: What each search said, one file each.
        cache: What trainers cache on disk.
        backups: The configs as they were before they were changed.
        kept: Copies of checkpoints, as they were before a run wrote over them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.studies = path / "studies"
        self.searches = path / "searches"
        self.cache = path / "cache"
        self.backups = path / "backups"
        self.kept = path / "kept"
        self._runs = path / "runs"

    @classmethod
    def locate(cls, config: Path, *, explicit: Path | None, environ: Mapping[str, str]) -> "StateFolder":
        """Finds the state folder of a config: as told, or with the project that the config is part of.

        Args:
            config: The user's config. Links are resolved first, so that it has one state folder by whatever
                name it is reached.
            explicit: What ``--state-dir`` says.
            environ: The environment, for ``AUTOTUNE_DIR``; empty counts as not set.

        Returns:
            The folder that was named; else ``.autotune`` in the nearest folder above the config that holds
            ``.autotune`` or ``.git``; else ``.autotune`` beside the config.
        """
        named = explicit or (Path(environ["AUTOTUNE_DIR"]) if environ.get("AUTOTUNE_DIR") else None)
        if named is not None:
            return cls(named.absolute())
        try:
            beside = config.resolve().parent
        except (OSError, RuntimeError) as error:  # the working directory is gone; a loop of links
            raise ConfigError(
                f"its folder cannot be found: {error}", where=str(config), remedy="Check the path, and where you are."
            ) from error
        for folder in (beside, *beside.parents):
            if (folder / FOLDER).is_dir() or (folder / ".git").exists():  # .git is a file in a worktree
                return cls(folder / FOLDER)
        return cls(beside / FOLDER)

    def create(self) -> None:
        """Makes the folder, readable for its owner only and ignored by git, and what belongs into it.

        Raises:
            AutotuneError: It cannot be made or written to.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Only into a folder that is all ours: --state-dir may name one full of the user's files.
            if not any(self.path.iterdir()):
                (self.path / ".gitignore").write_text("*\n", encoding="utf-8")
            for folder in (self.studies, self._runs, self.searches, self.cache, self.backups):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise self._not_writable(error.strerror) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise self._not_writable("it is read-only")

    def runs(self, study: str) -> Path:
        """The folder that holds the runs of a study.

        Raises:
            ValueError: That is no name.
        """
        return self._runs / _checked(study)

    def run(self, study: str, run: str) -> RunFolder:
        """The folder of one run; it need not exist.

        Raises:
            ValueError: One of them is no name.
        """
        return RunFolder(self.runs(study) / _checked(run))

    def spans_of_runs(self) -> list[tuple[float, float]]:
        """When the runs went on whose folders are there: from and to, in seconds since the epoch.

        The end is when the latest of a run's own files was written: also one that was killed has an end.
        """
        spans = []
        for path in self._runs.glob("*/*"):
            created_s = RunFolder(path).created_s()
            if created_s is not None:
                spans.append((created_s, max(file.lstat().st_mtime for file in path.iterdir())))
        return spans

    def free_bytes(self) -> int:
        """Free space where runs are kept, for the user who asks (without what is reserved for root).

        Raises:
            AutotuneError: The folder is gone.
        """
        try:
            return shutil.disk_usage(self.path).free
        except OSError as error:
            raise self._not_writable(error.strerror) from error

    def require_space(self) -> None:
        """Refuses a run that might fill the disk.

        Raises:
            RunError: Less than 1 GiB is free.
        """
        free = self.free_bytes()
        if free < LEAST_FREE_BYTES:
            raise RunError(
                f"only {free >> 20} MiB are free; a run needs at least 1 GiB",
                where=str(self.path),
                remedy="Make room on that disk, or choose another one with --state-dir.",
            )

    def prune(self, study: str, *, protected: Collection[str], keep: int = KEPT_RUNS) -> tuple[str, ...]:
        """Deletes the oldest run folders of a study. Never follows links, never touches what is not ours.

        Args:
            study: The study.
            protected: Names of runs that stay, however old.
            keep: How many of the latest runs stay besides.

        Returns:
            The names of the runs whose folders were deleted, oldest first.
        """
        runs = self.runs(study)
        if runs.is_symlink() or not runs.is_dir():
            return ()
        aged: list[tuple[float, str]] = []
        for entry in runs.iterdir():
            created_s = RunFolder(entry).created_s()
            if created_s is not None:
                aged.append((created_s, entry.name))
        aged.sort()
        old = [name for _, name in aged[: max(len(aged) - keep, 0)] if name not in protected]
        for name in old:
            RunFolder(runs / name).delete()
        return tuple(old)

    def _not_writable(self, why: str | None) -> AutotuneError:
        return AutotuneError(
            f"the state folder cannot be written: {why}",
            where=str(self.path),
            remedy="Choose another place with --state-dir or AUTOTUNE_DIR.",
        )


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name for a folder: {name!r}")
    return name
