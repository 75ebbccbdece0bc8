"""Location and identity of a problem's study, and of studies to fall back on."""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotune.study.identity import StudyIdentity
from autotune.study.storage.address import StorageAddress
from autotune.study.storage.journal import JournalFolder, open_storage
from autotune.study.storage.storage import Storage
from autotune.trial.folders import StateFolder

_HASH = "[0123456789abcdef]" * 4  # strict, because studies of a shared database may have any name


@dataclass(frozen=True, kw_only=True)
class StudyPlace:
    """Place of the study of a problem.

    Attributes:
        address: Storage; None for journals in the state folder.
        known_knobs: Paths of all known knobs, tuned or not.
    """

    identity: StudyIdentity
    state: StateFolder
    address: StorageAddress | None
    known_knobs: Sequence[str] = ()

    @cached_property
    def name(self) -> str:
        """Name of the study, with hashes of the frameworks and the command at the end."""
        return self.identity.name

    @cached_property
    def training(self) -> str:
        """Hash of the training without the machine, which identifies its studies elsewhere."""
        return replace(self.identity, left_out=[*self.identity.left_out, *self.known_knobs]).training

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.address, self.state.studies)

    @property
    def journal(self) -> Path | None:
        """Journal file; None for a database."""
        return self.storage.path(self.name) if isinstance(self.storage, JournalFolder) else None

    def paths(self, study: str) -> dict[str, str | None]:
        return {
            "journal": None if self.journal is None else str(self.journal.with_name(f"{study}.journal")),
            "storage": self.storage.where(study),
            "trials": str(self.state.trials(study)),
        }

    def known_study(self) -> str | None:
        """Return the study to report and apply: this one, else the latest with another command.

        A config without a command also matches any framework versions. Last come studies of a part of this machine: one
        GPU and its share of the cores.
        """
        for name in (self.name, *self._studies_of_parts()):
            if self.storage.latest(glob.escape(name)):
                return name
            same, frameworks, _ = name.rsplit("-", 2)
            if known := self._latest_study(f"{same}-{frameworks if self.identity.command else _HASH}"):
                return known
        return None

    def _studies_of_parts(self) -> Iterator[str]:
        machine = self.identity.machine
        for parts in range(2, len(machine.gpus) + 1):
            part = replace(machine, cpu_cores=machine.cpu_cores // parts, gpus=machine.gpus[:1])
            yield replace(self.identity, machine=part).name

    def study_of_other_frameworks(self) -> str | None:
        """Return the latest study with other framework versions, and perhaps another command."""
        return self._latest_study(f"{self.name.rsplit('-', 2)[0]}-{_HASH}")

    def _latest_study(self, pattern: str) -> str | None:
        same, frameworks = pattern.rsplit("-", 1)
        return self.storage.latest(f"{glob.escape(same)}-{frameworks}-{_HASH}")
