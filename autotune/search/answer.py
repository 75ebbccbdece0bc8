"""Study of a config on this machine: its trials, and the answer that they give."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

from autotune.config.code import place_of
from autotune.config.keys import first_of
from autotune.errors import ConfigError, StorageAway, StudyError
from autotune.records import (
    CODE,
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
    """Study of a config on this machine, as its record has it; nothing is started, and nothing written.

    Args:
        state_dir: Where everything is kept; None finds the place by the config.
        storage: Where studies are kept, see `autotune.tune`.

    Attributes:
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

    def answer(self, *, excluded: Kinds = frozenset()) -> SearchResult:
        """Return the answer that the study stands by, for the trainer as it is now, worked out from the record anew.

        Args:
            excluded: Kinds of change of the training that are out of the question: ``batch``, ``precision``,
                ``unknown``.

        Raises:
            StudyError: No trial of this code gave numbers.
        """
        problem = self._problem
        result = answer_of_study(problem, self.current, self._ratings, excluded=excluded)
        if not result:
            why = "no trial of this config has given numbers yet"
            if self.current and (last := self.current[-1]).detail:
                why += f": the last one {last.ending.value} ({last.detail})"
            if self.why_not_current:
                why = f"no trial of the trainer as it is now has given numbers: {self.why_not_current}"
            elif self.trials and all(trial.purpose in NO_SEARCH for trial in self.trials):
                why = "there is no search of this config yet, only diagnoses and trainings"
            raise StudyError(why, where=self.where, remedy=_remedy(problem))
        if not problem.command and (versions := frameworks_text(self.trials[-1].conditions.frameworks)):
            unknown = f"Measured with {versions}; whether training uses that is not known: the config has no command."
            result = replace(result, cautions=(*result.cautions, unknown))
        return result

    def rules(self, result: SearchResult) -> list[VerdictRule]:
        """Return the rules that led to an answer of this study, in the order in which they were applied."""
        others = len(self.trials) - len(self.current)
        return list(rules_of(self.current, result, self._problem.objective, of_other_code=others))

    def limited_answers(self) -> Iterator[SearchResult]:
        """Yield the answers of searches whose limits left out what the study stands by, the latest first."""
        searches = dict.fromkeys(trial.search for trial in reversed(self.current) if trial.conditions.left_out_answer)
        for search in searches:
            result = answer_of_search(self._problem, self.current, search, self._ratings, excluded=frozenset())
            if result is not None:
                yield result

    @cached_property
    def current(self) -> Sequence[TrialRecord]:
        """Trials of the trainer's code as it is now, as far as their code is known; only they are in an answer."""
        return self._problem.code.of_now(self.trials)

    @cached_property
    def why_not_current(self) -> str:
        """What has changed since the trials that are in no answer, and since when; empty if all are of this code."""
        current = {trial.number for trial in self.current}
        others = [trial for trial in self.trials if trial.number not in current]
        if not others:
            return ""
        names = self._problem.code.changed(others[-1].code)
        shown = first_of(names, 3)
        last = f"the last of {others[-1].ended_utc}"
        count = f"1 trial, of {others[-1].ended_utc}, is" if len(others) == 1 else f"{len(others)} trials, {last}, are"
        return f"{count} of other code: {shown} {'differs' if len(names) == 1 else 'differ'}"

    def change_set(self, result: SearchResult, *, trial: TrialRecord | None = None) -> ChangeSet:
        """Return the best point of an answer, or that of a trial, as it was judged; see `changes_of_result`."""
        return changes_of_result(self._problem, self.name, self.trials, result, trial=trial)

    def _read(self, problem: Problem) -> None:
        try:
            known = problem.place.known_study()
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
            if other := problem.place.study_of_other_frameworks():
                versions = frameworks_text(problem.frameworks) or "the frameworks as they are"
                why += f" with {versions}; study {other} is of others"
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
    """Read the trials of a study, oldest first, and what searches have kept of the worth of changes, by search.

    Of a journal they are read without Optuna, whose import takes longer than all the rest of ``autotune status``.

    Args:
        pending: File of trials that wait for a server.

    Raises:
        StudyError: The storage cannot be read.
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
    """Return the answer that the trials of one search give; see `summarize`.

    Args:
        space: What it searches; None for all that the config lets vary.
        excluded: Kinds of change that are out of the question; None for those of the problem.
    """
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
    problem: Problem,
    records: Sequence[TrialRecord],
    ratings: Mapping[str, Rating],
    *,
    excluded: Kinds | None = None,
) -> SearchResult | None:
    """Return the answer that a study stands by, as the config is now; see `answer_of`."""
    return answer_of(
        records,
        problem.space,
        objective=problem.objective,
        why_no_gpu=problem.hardware.why_no_gpu,
        today=problem.space.name(problem.space.baseline),
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
    """Return the changes to a config that an answer stands for, as they were judged.

    Args:
        result: The answer; it has a best point, unless a trial is wanted.
        trial: Trial whose point is wanted instead; None for that of the answer.

    Raises:
        ConfigError: The point is none of the config's space any more.
    """
    side = trial or result.best
    assert side is not None, "there is something to write"
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
    """Return the changes from the config and the code as they are now to a point that was measured beside them."""
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
    """Return every key that a point sets, beside what it was compared with.

    Raises:
        ConfigError: The point is none of the config's space any more.
    """
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
    gone = [path for path in values if path.startswith(CODE) and path not in problem.settings.code]
    if gone:
        place, call = place_of(gone[0])
        raise ConfigError(
            f"there is no {call} to be set in that line any more",
            where=place,
            remedy=f"Where lines have moved, search again: {problem.typed.command('search', '--budget', '30m')}",
        )
    if not problem.space.contains(values):
        raise ConfigError(
            "the values of that trial are not among those that this config allows now",
            where=str(problem.config_path),
            remedy="Widen the domains under autotune: knobs:, or search again.",
        )
    if not problem.space.is_named(point, values):
        moving = ", ".join(path for knob in problem.space.knobs for path in knob.paths[1:])
        raise ConfigError(
            f"a key that moves with the values of that trial held something else then than it would now: {moving}",
            where=str(problem.config_path),
            remedy="Put back what it was when that search began, or search again.",
        )


def _waiting(problem: Problem) -> int:
    """Return how many finished trials of a config wait on this machine for a storage that is away."""
    same = problem.study.rsplit("-", 1)[0]  # whatever the command is
    waiting = 0
    for file in problem.state.studies.glob(f"{glob.escape(same)}-*.pending"):
        with suppress(StudyError):
            waiting += len(UndeliveredTrials(file, problem.storage.where(file.stem)).trials)
    return waiting


def _remedy(problem: Problem) -> str:
    return f"Run: {problem.typed.command('search', '--budget', '30m')}"
