"""Study of a config on this machine: its trials, and the answer that they give."""

import glob
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from autotune.errors import StorageAway, StudyError
from autotune.problem.problem import Problem, open_problem
from autotune.records import TrialRecord
from autotune.results import SearchResult
from autotune.study.identity import frameworks_text
from autotune.study.pending import PendingTrials
from autotune.study.record import Study as Record
from autotune.study.summary import latest_search, summarize


class Study:
    """Study of a config on this machine, as its record has it; nothing is started, and nothing written.

    Args:
        config: The config.
        state_dir: Where everything is kept; None finds the place by the config.
        storage: Where studies are kept, see `autotune.tune`.

    Attributes:
        name: Name of the study.
        where: Its journal, or the database that it is in.
        trials: Every trial on record, oldest first.

    Raises:
        StudyError: There is no record of this config, or it cannot be read.
        ConfigError: The config cannot be used.
    """

    def __init__(self, config: Path | str, *, state_dir: Path | str | None = None, storage: str | None = None) -> None:
        place = None if state_dir is None else Path(state_dir)
        self._read(open_problem(Path(config), command=None, state_dir=place, storage=storage))

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the study of a problem that is open already; raises as the class does."""
        study = cls.__new__(cls)
        study._read(problem)
        return study

    def answer(self) -> SearchResult:
        """Return the answer of the last search that came to one, worked out from the record anew.

        Raises:
            StudyError: No trial gave numbers.
        """
        problem = self._problem
        search = latest_search(self.trials, problem.objective)
        result = search and summarize(
            self.trials, search, problem.space, objective=problem.objective, why_no_gpu=problem.why_no_gpu
        )
        if not result:
            why = "no trial of this config has given numbers yet"
            if self.trials and search is None:
                why = "there are only diagnoses of this config yet, and no search"
            raise StudyError(why, where=self.where, remedy=_remedy(problem))
        if not problem.command and (versions := frameworks_text(self.trials[-1].conditions)):
            unknown = f"Measured with {versions}; whether training uses that is not known: the config has no command."
            result = replace(result, cautions=(*result.cautions, unknown))
        return result

    def _read(self, problem: Problem) -> None:
        try:
            known = problem.known_study()
        except StorageAway as away:
            if not (waiting := _waiting(problem)):
                raise
            raise StorageAway(
                f"{away.message}; trials that wait here to be written there: {waiting}",
                where=away.where,
                remedy=away.remedy,
            ) from None
        if known is None:
            place = problem.address.shown if problem.address else str(problem.state.studies)
            path = problem.address.path if problem.address else None
            absent = " (there is no such file or folder)" if path is not None and not os.path.lexists(path) else ""
            why = f"nothing is known about this config yet in {place}{absent}"
            if other := problem.study_of_other_frameworks():
                versions = frameworks_text(problem.conditions) or "the frameworks as they are"
                why += f" with {versions}; study {other} is of others"
            raise StudyError(why, where=str(problem.config_path), remedy=_remedy(problem))
        record = Record(known, problem.storage, pending=problem.state.pending(known), reads_only=True)
        self._problem = problem
        self.name = record.name
        self.where = record.where
        self.trials: Sequence[TrialRecord] = tuple(record.records())
        record.close()


def _waiting(problem: Problem) -> int:
    """Return how many finished trials of a config wait on this machine for a storage that is away."""
    same = problem.study.rsplit("-", 1)[0]  # whatever the command is
    waiting = 0
    for file in problem.state.studies.glob(f"{glob.escape(same)}-*.pending"):
        with suppress(StudyError):
            waiting += len(PendingTrials(file, problem.storage.where(file.stem)).trials)
    return waiting


def _remedy(problem: Problem) -> str:
    return f"Run: {problem.typed.command('search', '--budget', '30m')}"
