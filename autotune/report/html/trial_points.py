"""Trials as points in the time of their searches, beside the speed of today's config."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from autotune.records import Ending, Purpose, TrialRecord
from autotune.report.plain_text import changes_text

_NO_FAILURE = frozenset((Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED))


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """One trial.

    Attributes:
        trial: Its record.
        t_s: Its end, in seconds of search time: what lies between two searches is left out.
        ratio: Its speed over that of today's config on its machine; None where it cannot be compared.
        changes: What it changes, as text.
        has_failed: Whether it ended with an error.
    """

    trial: TrialRecord
    t_s: float
    ratio: float | None
    changes: str
    has_failed: bool


def trial_points(trials: Sequence[TrialRecord]) -> list[TrialPoint]:
    """Return the trials of a study, in the order of their ends; those of diagnoses are no part of a search.

    Args:
        trials: All its trials.
    """
    made = [trial for trial in trials if trial.purpose is not Purpose.DIAGNOSE]
    baseline = next((trial for trial in made if trial.purpose is Purpose.BASELINE), None)
    if baseline is None:
        return []
    today_s = {machine: _today(made, baseline.point, machine) for machine in {trial.machine for trial in made}}
    points: list[TrialPoint] = []
    start_s, last = 0.0, ""
    begins: dict[str, float] = {}
    for trial in made:
        ended_s = _stamp(trial)
        if trial.search != last and trial.search not in begins:
            start_s = points[-1].t_s if points else 0.0
            begins[trial.search] = ended_s - trial.duration_s - start_s
        last = trial.search
        today = today_s[trial.machine]
        measured = trial.comparable
        points.append(
            TrialPoint(
                trial=trial,
                t_s=max(0.0, ended_s - begins[trial.search]),
                ratio=measured.speed / today if measured is not None and today else None,
                changes=changes_text(
                    {path: value for path, value in trial.values.items() if baseline.values.get(path) != value}
                ),
                has_failed=trial.ending not in _NO_FAILURE,
            )
        )
    return points


def best_over_time(points: Iterable[TrialPoint]) -> list[tuple[float, float]]:
    """Return the mean speed of the fastest point so far, at the times from which it holds; 1.0 is today's config."""
    speeds: dict[str, list[float]] = {}
    steps: list[tuple[float, float]] = []
    for point in points:
        if point.ratio is None:
            continue
        baseline = point.trial.purpose is Purpose.BASELINE or point.changes == changes_text({})
        speeds.setdefault("" if baseline else point.trial.point, []).append(math.log(point.ratio))
        best = max([0.0, *(math.fsum(some) / len(some) for name, some in speeds.items() if name)])
        if not steps or not math.isclose(steps[-1][1], math.exp(best), rel_tol=1e-6):
            steps.append((point.t_s, math.exp(best)))
    return steps


def _today(trials: Sequence[TrialRecord], baseline: str, machine: str) -> float | None:
    """Return the geometric mean speed of today's config on a machine; None where it was not measured there."""
    speeds = [
        math.log(trial.comparable.speed)
        for trial in trials
        if trial.comparable is not None and trial.point == baseline and trial.machine == machine
    ]
    return math.exp(math.fsum(speeds) / len(speeds)) if speeds else None


def _stamp(trial: TrialRecord) -> float:
    try:
        return datetime.fromisoformat(trial.ended_utc).timestamp()
    except ValueError:
        return 0.0
