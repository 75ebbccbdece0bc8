"""Job of several workers: the same command on several machines, each with a seed of its own."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from autotune.submission.shared_storage import SharedFolder


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """Workers that are to be started on other machines.

    Attributes:
        config: The config as it was typed.
        program: Command line of autotune there, without a subcommand.
        options: Options of ``autotune worker`` that all of them get, the storage included; no password is in them.
        seed: Seed of the first one; each further one has the next number, so that no two draw the same points.
        cwd: Directory that they start in, the same path on all machines.
        folder: Folder of journals that all of them have to see; None if the study is in a database.
    """

    config: Path
    program: tuple[str, ...]
    options: tuple[str, ...]
    seed: int
    cwd: Path
    folder: SharedFolder | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Command line of a worker, without its seed."""
        return (*self.program, "worker", "--config", str(self.config), *self.options)

    def entering(self) -> list[str]:
        """Return the lines of a POSIX shell that go to the directory, and leave where it is not the same one."""
        lines = [f"cd -- {shlex.quote(str(self.cwd))} || exit 1"]
        if self.folder is not None:
            place = shlex.quote(str(self.folder.path))
            remedy = "not the one of the submitting machine: name a shared one, or a database, with --storage."
            lines += [
                f'if [ "$(stat -L -c %i -- {place})" != {self.folder.inode} ]; then '
                f"""printf 'autotune: on %s, %s is no folder, or {remedy}\\n' "$(uname -n)" {place} >&2; exit 1; fi"""
            ]
        return lines


def plain_name(config: Path) -> str:
    """Return the stem of a config as a part of names that engines take: at most 20 of ``a-z``, ``0-9`` and ``-``."""
    kept = "".join(one if one.isascii() and one.isalnum() else "-" for one in config.stem.lower())
    return "-".join(filter(None, kept.split("-")))[:20].strip("-") or "config"
