"""Study of a config on this machine: trials and current answer."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

from autotune.config.keys import first_of
from autotune.errors import ConfigError, StorageAway, StudyError
from autotune.records import (
    NO_SEARCH,
    ChangeSet,
    KeyChange,
    SearchResult,
    Side,
    TrialRecord,
    Values,
)
from autotune.search.problem import Problem, open_problem
from autotune.search.real_trainings import trainings_here
from autotune.space.space import Space
from autotune.study.answer import Kinds
from autotune.study.entry import UndeliveredTrials, read_records
from autotune.study.identity import frameworks_text
from autotune.study.reasons import VerdictRule, rules_of
from autotune.study.storage.journal import JournalFolder
from autotune.study.storage.storage import Storage
from autotune.study.summary import Rating, answer_of, ratings_among, summarize


class Study:
    """Read-only study of a config on this machine; `storage` is as for `autotune.tune`.

    Attributes:
        trials: All recorded trials, oldest first.

    Raises:
        StudyError: There is no readable record of this config.
        ConfigError: The config is invalid.
    """

    def __init__(self, config: Path | str, *, state_dir: Path | str | None = None, storage: str | None = None) -> None:
        place = None if state_dir is None else Path(state_dir)
        self._read(open_problem(Path(config), command=None, state_dir=place, storage=storage))

    @classmethod
    def of(cls, problem: Problem) -> Self:
        study = cls.__new__(cls)
        study._read(problem)
        return study

    def answer(self, *, excluded: Kinds = frozenset()) -> SearchResult:
        """Recompute the current answer for the current trainer code.

        Args:
            excluded: Kinds of change to rule out: ``batch``, ``precision``, ``unknown``.

        Raises:
            StudyError: No trial of this code has a measurement.
        """
        problem = self._problem
        result = answer_of_study(problem, self.current, self._ratings, excluded=excluded)
        if not result:
            why = "no trial of this config has a measurement yet"
            if self.current and (last := self.current[-1]).detail:
                why += f": the last one {last.ending.value} ({last.detail})"
            if self.why_not_current:
                why = f"no trial of the current trainer code has a measurement: {self.why_not_current}"
            elif self.trials and all(trial.purpose in NO_SEARCH for trial in self.trials):
                why = "this config has no search yet, only diagnoses and trainings"
            raise StudyError(why, where=self.where, remedy=_remedy(problem))
        if not problem.command and (versions := frameworks_text(self.trials[-1].conditions.frameworks)):
            unknown = f"Measured with {versions}; without a command in the config, those of training are unknown."
            result = replace(result, cautions=(*result.cautions, unknown))
        return result

    def rules(self, result: SearchResult) -> list[VerdictRule]:
        """Return the rules behind an answer, in order."""
        others = len(self.trials) - len(self.current)
        return list(rules_of(self.current, result, self._problem.objective, of_other_code=others))

    def limited_answers(self) -> Iterator[SearchResult]:
        """Yield answers of searches whose limits excluded the current answer, latest first."""
        searches = dict.fromkeys(trial.search for trial in reversed(self.current) if trial.conditions.left_out_answer)
        for search in searches:
            if result := answer_of_search(self._problem, self.current, search, self._ratings, excluded=frozenset()):
                yield result

    @cached_property
    def current(self) -> Sequence[TrialRecord]:
        """Trials of the current trainer code, or of unknown code; only these count."""
        return self._problem.code.of_now(self.trials)

    @cached_property
    def why_not_current(self) -> str:
        """Files that differ for trials of other code; empty if there are none."""
        current = {trial.number for trial in self.current}
        others = [trial for trial in self.trials if trial.number not in current]
        if not others:
            return ""
        names, last = self._problem.code.changed(others[-1].code), others[-1].ended_utc
        count = f"1 trial ({last})" if len(others) == 1 else f"{len(others)} trials (last: {last})"
        return f"{count} used other code: {first_of(names, 3)} {'differs' if len(names) == 1 else 'differ'}"

    def change_set(self, result: SearchResult, *, trial: TrialRecord | None = None) -> ChangeSet:
        return changes_of_result(self._problem, self.name, self.trials, result, trial=trial)

    def _read(self, problem: Problem) -> None:
        try:
            known = problem.place.known_study()
        except StorageAway as away:
            if not (waiting := _count_undelivered(problem)):
                raise
            message = f"{away.message}; trials waiting here to be delivered: {waiting}"
            raise StorageAway(message, where=away.where, remedy=away.remedy) from None
        if known is None:
            place = problem.address.shown if problem.address else str(problem.state.studies)
            path = problem.address.path if problem.address else None
            absent = " (no such file or folder)" if path is not None and not os.path.lexists(path) else ""
            why = f"no study of this config in {place}{absent}"
            if other := problem.place.study_of_other_frameworks():
                versions = frameworks_text(problem.frameworks) or "the current frameworks"
                why += f" with {versions}; study {other} used other versions"
            raise StudyError(why, where=str(problem.config_path), remedy=_remedy(problem))
        kept, self._ratings = read_study(known, problem.storage, pending=problem.state.pending(known))
        trainings = trainings_here(known, {trial.search for trial in kept})
        after = max((trial.number for trial in kept), default=-1) + 1
        self.trials = [*kept, *(replace(one, number=after + place) for place, (one, _) in enumerate(trainings))]
        self._problem = problem
        self.name = known
        self.where = problem.storage.where(known)


def read_study(
    name: str, storage: Storage, *, pending: Path | None = None
) -> tuple[Sequence[TrialRecord], Mapping[str, Rating]]:
    """Return the trials of a study, oldest first, and its ratings of changes by search; raise StudyError.

    Reads a journal without Optuna, whose import dominates the run time of ``autotune status``.
    """
    if isinstance(storage, JournalFolder) and (found := storage.read(name)) is not None:
        trials, attributes = found
        return [record for _, record in read_records(trials, (), storage.where(name))], ratings_among(attributes)
    from autotune.study.record import StudyRecord  # imports Optuna

    with closing(StudyRecord(name, storage, pending=pending, reads_only=True)) as record:
        return record.records(), record.ratings


def answer_of_search(
    problem: Problem,
    records: Sequence[TrialRecord],
    search: str,
    ratings: Mapping[str, Rating],
    *,
    space: Space | None = None,
    excluded: Kinds | None = None,
) -> SearchResult | None:
    """Return the answer from the trials of one search."""
    return summarize(
        records,
        search,
        space or problem.space,
        objective=problem.objective,
        why_no_gpu=problem.hardware.why_no_gpu,
        excluded=problem.excluded if excluded is None else excluded,
        ratings=ratings,
    )


def answer_of_study(
    problem: Problem, records: Sequence[TrialRecord], ratings: Mapping[str, Rating], *, excluded: Kinds | None = None
) -> SearchResult | None:
    """Return the study's current answer."""
    return answer_of(
        records,
        problem.space,
        objective=problem.objective,
        why_no_gpu=problem.hardware.why_no_gpu,
        config_point=problem.space.name(problem.space.baseline),
        excluded=problem.excluded if excluded is None else excluded,
        ratings=ratings,
    )


def changes_of_result(
    problem: Problem,
    study: str,
    trials: Iterable[TrialRecord],
    result: SearchResult,
    *,
    trial: TrialRecord | None = None,
) -> ChangeSet:
    """Return the config changes of an answer, or of another trial; raise ConfigError if it left the space."""
    side = trial or result.best
    assert side is not None, "the answer has a best point"
    search = trial.search if trial else result.search
    judged = trial or next((one for one in trials if one.search == search), None)
    return ChangeSet(
        study=study,
        search=search,
        point=side.point,
        keys=_keys(problem, side.point, side.values, result.baseline),
        document=judged.conditions.document if judged else None,
        code=dict(judged.code) if judged else {},
        speedup=None if trial else result.speedup,
        allowed=judged.conditions.allowed_changes if judged else (),
    )


def changes_from_now(problem: Problem, values: Values) -> ChangeSet:
    """Return the changes from today's config to a point measured against it."""
    space = problem.space
    today = Side(point=space.name(space.baseline), values=space.baseline, metrics=None)
    return ChangeSet(
        study=problem.study,
        search="",
        point=space.name(values),
        keys=_keys(problem, space.name(values), values, today),
        document=problem.place.training,
        code=problem.code.now.digests(),
        speedup=None,
    )


def _keys(problem: Problem, point: str, values: Values, baseline: Side | None) -> tuple[KeyChange, ...]:
    """Return every key that a point sets, with its old value."""
    _require_point(problem, point, values)
    space, before = problem.space, dict(baseline.values) if baseline else {}
    if baseline and space.is_named(baseline.point, before):
        before = space.keys(before)
    return tuple(
        KeyChange(path=path, old=before.get(path), new=value, label=space.label_of(knob.path, values[knob.path]).value)
        for knob in space.knobs
        for path, value in knob.keys(values[knob.path]).items()
    )


def _require_point(problem: Problem, point: str, values: Values) -> None:
    if not problem.space.contains(values):
        raise ConfigError(
            "this config no longer allows the values of that trial",
            where=str(problem.config_path),
            remedy="Widen the domains under autotune: knobs:, or search again, also if lines of the code have moved.",
        )
    if not problem.space.is_named(point, values):
        moving = ", ".join(path for knob in problem.space.knobs for path in knob.paths[1:])
        raise ConfigError(
            f"a key that moves with that trial's values would now be set differently: {moving}",
            where=str(problem.config_path),
            remedy="Restore its value from when that search began, or search again.",
        )


def _count_undelivered(problem: Problem) -> int:
    """Count trials of a config that wait here for an unreachable storage."""
    same = problem.study.rsplit("-", 1)[0]  # of any command
    waiting = 0
    for file in problem.state.studies.glob(f"{glob.escape(same)}-*.pending"):
        with suppress(StudyError):
            waiting += len(UndeliveredTrials(file, problem.storage.where(file.stem)).trials)
    return waiting


def _remedy(problem: Problem) -> str:
    return f"Run: {problem.typed.command('search', '--budget', '30m')}"
