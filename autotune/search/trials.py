"""Trials of a search and its study."""

import math
from collections.abc import Sequence
from statistics import median

from autotune.measure.score import ln_score
from autotune.records import Measurement, TrialRecord, Validity
from autotune.search.problem import Problem
from autotune.space.space import Space
from autotune.study.record import StudyRecord
from autotune.study.summary import speed_over


class SearchTrials:
    """Trials of a search.

    Attributes:
        own: The search's own, oldest first.
    """

    def __init__(self, problem: Problem, study: StudyRecord) -> None:
        self._problem = problem
        self._study = study
        self._is_of_this_code: dict[frozenset[tuple[str, str]], bool] = {}
        self.own: list[TrialRecord] = []
        self.baseline_point = problem.space.name(problem.space.baseline)

    def of_study(self) -> list[TrialRecord]:
        """Return the study's trials of this search's code, oldest first."""
        known, kept = self._is_of_this_code, []
        for trial in self._study.records():
            code = frozenset(trial.code.items())
            if code not in known:
                # The code on disk may have been edited since the first trial, whose code counts.
                first = self.own[0] if self.own else None
                known[code] = trial.shares_code_with(first) if first else bool(self._problem.code.of_now([trial]))
            if known[code]:
                kept.append(trial)
        return kept

    def good_baseline(self) -> list[TrialRecord]:
        return [trial for trial in self.own if trial.point == self.baseline_point and trial.comparable]

    def baseline_measurements(self) -> list[Measurement]:
        return [trial.comparable for trial in self.good_baseline() if trial.comparable]

    def speedup(self, trials: Sequence[TrialRecord]) -> float | None:
        """Return the speed of trials relative to the baseline in this search, if comparable."""
        baseline = self.good_baseline()
        good = [trial for trial in trials if trial.comparable]
        return speed_over(good, baseline) if good and baseline else None

    def score(self, record: TrialRecord) -> float | None:
        """Return the score of a trial relative to the baseline, else to the first measured trial."""
        objective = self._problem.objective
        measured = record.measurement if record.validity is Validity.GOOD else None
        if measured is None or not objective.can_score(measured):
            return None
        good = [*self.baseline_measurements(), *(trial.comparable for trial in self.own)]
        unit = next((one for one in good if one and objective.can_score(one)), measured)
        return math.exp(ln_score(measured, unit, objective))

    def pace(self, part: Space | None = None) -> float:
        """Return the samples per second of the fastest trial in a part of the space, 0 without one.

        For utilization only baseline trials count.
        """
        asked = self.good_baseline() if self._problem.objective.by_utilization else self.own
        inside = (trial.comparable for trial in asked if part is None or part.contains(trial.values))
        return max((measured.samples_per_s for measured in inside if measured), default=0.0)

    def data_wait(self) -> float | None:
        """Return the share of time that the baseline waits for data, if known."""
        waits = [measured.data_wait_fraction for measured in self.baseline_measurements()]
        known = [wait for wait in waits if wait is not None]
        return median(known) if known else None

    def has_settled(self, space: Space) -> bool:
        """Return whether any trial filled its caches in time."""
        return any(trial.comparable and space.settles(trial.values) for trial in self.own)
