"""Row of the table of real trainers: where it comes from, its project, its command, and what to expect of it."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real_trainers.own_log import OwnLog

LONGEST_PREPARATION_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Places from which a project is made.

    Attributes:
        project: Folder of the project, which is there and empty.
        home: Home folder of the user, also there.
        checkout: Checkout of the trainer's repository; of an installed package, the folder of the package.
        python: Interpreter that has the trainer's packages.
        env: Environment in which that interpreter runs.
    """

    project: Path
    home: Path
    checkout: Path
    python: Path
    env: Mapping[str, str]

    def copy(self, *names: str, into: str = ".") -> None:
        """Copy files or folders of the checkout into the project, by the last part of their names."""
        for name in names:
            source, target = self.checkout / name, self.project / into / Path(name).name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(".git", "__pycache__"))
            else:
                shutil.copy2(source, target)

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        (self.project / name).parent.mkdir(parents=True, exist_ok=True)
        (self.project / name).write_text(text)

    def run(self, program: str, *arguments: str) -> None:
        """Run a Python program in the project, with the packages of the trainer.

        Raises:
            RuntimeError: It fails.
            subprocess.TimeoutExpired: It takes longer than `LONGEST_PREPARATION_S`.
        """
        how: dict[str, Any] = {"cwd": self.project, "env": dict(self.env), "stdin": subprocess.DEVNULL, "text": True}
        words = [str(self.python), "-c", program, *arguments]
        done = subprocess.run(words, capture_output=True, check=False, timeout=LONGEST_PREPARATION_S, **how)
        if done.returncode:
            raise RuntimeError(f"the data could not be made: {done.stderr[-600:]}")


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Trainer that nobody here wrote.

    Attributes:
        name: Name of the row.
        repository: ``owner/name`` of the public repository that it comes from.
        needs: Files of it, relative to the checkout, without which there is nothing to run.
        package: Import name of the installed package that holds it, instead of a checkout.
        lay_out: Make the project: the copied part of the checkout, and data in the format that the trainer reads.
        command: Command as its user types it, in `folder`; split as a shell would.
        folder: Folder of the project in which the command is typed.
        config: Config for autotune, relative to `folder`.
        init: Further words of ``autotune init``.
        by_hand: Text that the user has to add to the section that ``init`` wrote, for an answer.
        written_by_hand: Whole file `config` that the user has to write because ``init`` cannot.
        env: Environment that the trainer needs.
        log: Form of its progress lines.
        batch: Samples in a batch: a number, or the key of the trial's config that holds it.
        accumulation: Batches in an update of the optimizer, likewise.
        steps: Whether its steps can be seen without a change to it, as far as the documentation says.
        waits: Whether it waits for data noticeably; None where that is open.
    """

    name: str
    repository: str
    needs: tuple[str, ...] = ()
    package: str | None = None
    lay_out: Callable[[Place], None]
    command: str
    folder: str = "."
    config: str = "tuned.yaml"
    init: tuple[str, ...] = ("--from-flags",)
    by_hand: str = ""
    written_by_hand: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    log: OwnLog
    batch: int | str
    accumulation: int | str = 1
    steps: bool = True
    waits: bool | None = None

    @property
    def checkout(self) -> str:
        """Name of the checkout's folder."""
        return self.repository.partition("/")[2]

    def missing(self, checkouts: Path, packages: Path) -> str | None:
        """Say what is missing for it to run; None if nothing is."""
        root = packages / self.package if self.package else checkouts / self.checkout
        absent = [name for name in ("", *self.needs) if not (root / name).exists()]
        if not absent:
            return None
        what = f"the package {self.package}" if self.package else f"{self.checkout}/{absent[0]}".rstrip("/")
        return f"{what} is not at hand: it is of {self.repository}"
