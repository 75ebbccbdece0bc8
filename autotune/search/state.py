"""State of one search: its trials, the model of the points, the lengths of windows, the current and the best answer."""

from autotune.records import TrialRecord
from autotune.sampler.config_sampler import SamplerChoice
from autotune.sampler.observations import of_space
from autotune.search.current_answer import CurrentAnswer, Incumbent
from autotune.search.findings import Findings
from autotune.search.model import Model, explores
from autotune.search.problem import Problem
from autotune.search.trials import SearchTrials
from autotune.search.warm_start import WarmStart
from autotune.search.windows import Windows
from autotune.study.record import StudyRecord
from autotune.trial.execution import Execution


class SearchState:
    """State of one search: grows with each trial, and is asked before each."""

    def __init__(
        self,
        problem: Problem,
        study: StudyRecord,
        findings: Findings,
        *,
        sampler: SamplerChoice,
        seed: int,
        budget_s: float,
        warm_start: WarmStart | None = None,
    ) -> None:
        self._findings = findings
        self.trials = trials = SearchTrials(problem, study)
        findings.recall(of_space(trials.of_study(), problem.space), problem.space)
        self.model = Model(
            problem, study, findings, trials, sampler=sampler, seed=seed, warm_start=warm_start or WarmStart()
        )
        self.windows = Windows(problem, trials, self.model, budget_s)
        self.answer = CurrentAnswer(problem, trials, self.model, self.windows, budget_s)
        self.incumbent = Incumbent(by_utilization=problem.objective.by_utilization)

    def learn(self, record: TrialRecord, done: Execution) -> None:
        """Learn from one more trial, which is among the search's own already."""
        if done.window is not None and record.comparable and explores(record):
            self.windows.add(done.window)
        self.model.learn(record, done)

    @property
    def scratch_loss(self) -> float | None:
        """First loss of today's config; None as long as no trial of it has told."""
        losses = self._findings.baseline_losses
        return losses.first if losses else None

    @property
    def trials_since_better(self) -> int:
        """Number of the latest trials that have found nothing better; 0 while nothing better is known."""
        return self.incumbent.trials_since(len(self.trials.own))
