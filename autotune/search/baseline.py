"""Requirements on the baseline: without its numbers there is nothing to compare with, and the search ends."""

from collections.abc import Sequence

from autotune.durations import format_duration
from autotune.errors import TrialError
from autotune.problem.problem import Problem
from autotune.records import Ending, TrialRecord, Validity
from autotune.trial.explanations import EXPLANATIONS

_STOPPED_BY_US = frozenset({Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED})


def require_baseline(
    record: TrialRecord, problem: Problem, *, budget_s: float, earlier: Sequence[TrialRecord] = ()
) -> None:
    """Check that the search can go on after the trials of the baseline.

    A baseline that failed by itself is let through: another point may do better, and the failure is told in the end.

    Args:
        record: The last trial of the baseline.
        problem: What is tuned.
        budget_s: The whole budget.
        earlier: Earlier trials of the search, whose numbers are not compared with others.

    Raises:
        TrialError: The budget ended before the baseline was measured, or what is searched for cannot be measured.
    """
    if record.ending is Ending.UNCOUNTED:
        raise TrialError(
            f"today's config cannot be measured: {record.detail}",
            where=str(problem.config_path),
            remedy=EXPLANATIONS[record.ending].remedy,
        )
    measured = record.comparable
    if measured and not problem.objective.is_told_by(measured):
        raise TrialError(
            "objective: utilization, but the GPU's utilization was not measured while today's config ran",
            where=str(problem.config_path),
            remedy="See whether the trainer uses the GPU, and what `autotune monitor` says of it; or search for\n"
            "effective_utilization or throughput instead.",
        )
    if measured or record.ending is not Ending.KILLED_BY_BUDGET:
        return
    if record.validity is Validity.UNMEASURED and any(trial.measurement for trial in earlier):
        was_cold = any(trial.validity is Validity.COLD for trial in earlier)
        raise TrialError(
            f"the budget of {format_duration(budget_s)} ended before today's config could be measured again: its first "
            f"trial {'was taken to fill caches' if was_cold else 'ended early'}, and does not count",
            where=str(problem.config_path),
            remedy="Give it more time, or run the same command again.",
        )
    failed = next(
        (trial for trial in earlier if trial.measurement is None and trial.ending not in _STOPPED_BY_US), None
    )
    if record.validity is Validity.UNMEASURED and failed is not None:
        explained, detail = EXPLANATIONS[failed.ending], f" ({failed.detail})" if failed.detail else ""
        raise TrialError(
            f"today's config gave no numbers: {explained.sentence.removesuffix('.')}{detail}; the budget of "
            f"{format_duration(budget_s)} ended while it was tried again",
            where=str(problem.config_path),
            remedy=explained.remedy,
        )
    if record.validity is Validity.UNMEASURED:
        raise TrialError(
            f"no training step that counts was seen within the budget of {format_duration(budget_s)}"
            f"{f': {record.detail}' if record.detail else ''}",
            where=str(problem.config_path),
            remedy="Give it more time if training takes longer than that to start. If the trainer does not report\n"
            "its steps, add to its loop:  from autotune.trainee import step;  step(samples=...)",
        )
    raise TrialError(
        f"the budget of {format_duration(budget_s)} is too short for one trial of today's config",
        where=str(problem.config_path),
        remedy="Give it at least ten times what one trial takes, from its start to a few seconds of training.",
    )
