"""Contents of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from statistics import geometric_mean, median

from rich.text import Text

from autotune.records import (
    CONFIRMED,
    NO_SEARCH,
    UNCHANGED,
    Ending,
    PooledGpu,
    Purpose,
    RaceLeg,
    Ratio,
    SearchResult,
    Side,
    TrialRecord,
)
from autotune.report.answer import (
    NOT_MEASURED,
    achieved_text,
    answer_notes,
    headline,
    metrics_rows,
    uncovered_text,
    validation_notes,
    whole_text,
    why_it_needs_consent,
)
from autotune.report.plain_text import changes_text, plain, value_text


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """Part of a baseline step, from a profile; its mean is negative if below the noise."""

    name: str
    mean_ms: float | None

    @property
    def shown_ms(self) -> float:
        return max(0.0, self.mean_ms or 0.0)


@dataclass(frozen=True, kw_only=True)
class DiagnosisSummary:
    """Summary of a diagnosis.

    Attributes:
        issues: Severity and sentence of each.
        recommendations: Sentence and gain of each, "" if not tried; None without a diagnosis.
    """

    verdict: str = ""
    issues: Sequence[tuple[str, str]] = ()
    recommendations: Sequence[tuple[str, str]] | None = None
    step_parts: Sequence[StepPart] = ()


@dataclass(frozen=True, kw_only=True)
class StudyContents:
    """Contents of a study's report.

    Attributes:
        result: None if no trial has a measurement.
        state: Sentence on a running or interrupted search.
        pairs: Speeds of the confirming pairs, today's first, in samples/s.
        step_times_s: Of the baseline and the other side; empty if not kept.
        commands: By purpose.
        machines: Unique names for people, by the record's names.
        remedies: By name of the ending.
    """

    config: str
    study: str
    trials: Sequence[TrialRecord]
    result: SearchResult | None
    why_no_result: str = ""
    state: str = ""
    elapsed_s: float | None = None
    measures: str = ""
    pairs: Sequence[tuple[float, float]] = ()
    step_times_s: tuple[Sequence[float], Sequence[float]] = ((), ())
    diff: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    conditions: Sequence[tuple[str, str]] = ()
    diagnosed: DiagnosisSummary = DiagnosisSummary()
    machines: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> Side | None:
        """Side to compare with the baseline: the best, or an unconfirmed candidate."""
        if self.result is None:
            return None
        return self.result.candidate if self.result.verdict in UNCHANGED else self.result.best

    @property
    def name_of_shown(self) -> str:
        return "tried" if self.result is not None and self.result.verdict in UNCHANGED else "best"

    @property
    def sides(self) -> list[tuple[str, Side]]:
        both = (("today", self.result.baseline if self.result else None), (self.name_of_shown, self.shown))
        return [(name, side) for name, side in both if side is not None]

    @property
    def sentence(self) -> str:
        if self.result is not None:
            return headline(self.result).plain
        return self.diagnosed.verdict or f"No answer: {self.why_no_result}."

    @property
    def warning(self) -> str:
        """Warning if training may converge more slowly; else ""."""
        result = self.result
        if result is None or result.verdict not in CONFIRMED or not result.may_learn_more_slowly:
            return ""
        return f"Caution: {why_it_needs_consent(result)}"

    @property
    def notes(self) -> list[Text]:
        assert self.result is not None, "only an answer has notes"
        texts = (whole_text(self.result), achieved_text(self.result), uncovered_text(self.result))
        notes = [Text(text) for text in texts if text]
        return [*notes, *validation_notes(self.result), *answer_notes(self.result)]

    @property
    def changed(self) -> str:
        baseline = self.result.baseline.values if self.result and self.result.baseline else {}
        values = self.shown.values if self.shown else {}
        changes = {path: value for path, value in values.items() if baseline.get(path) != value}
        return changes_text(changes) if changes else ""

    @property
    def figures(self) -> list[list[str]]:
        """Main figures: label, baseline, shown side."""
        sides = [side for _, side in self.sides if side.metrics]
        rows = metrics_rows(sides[0], next(iter(sides[1:]), None), details=False) if sides else []
        return [[*row, ""][:3] for row in rows if NOT_MEASURED not in row]

    @property
    def ratios(self) -> dict[str, Ratio]:
        assert self.result is not None, "only an answer has ratios"
        whole = self.result.whole.speedup if self.result.whole else None
        known = {"speed": self.result.speedup, "whole training": whole, "score": self.result.score_ratio}
        return {name: ratio for name, ratio in known.items() if ratio is not None}

    @property
    def groups(self) -> list[tuple[list[str], Ratio | None]]:
        """Changes, together if inseparable, with their gain."""
        assert self.result is not None, "only an answer has changes"
        names: dict[int, list[str]] = {}
        gains: dict[int, Ratio] = {}
        for change in self.result.changes:
            names.setdefault(change.group, []).append(f"{change.path.rpartition('.')[2]}: {value_text(change.new)}")
            if change.worth is not None:
                gains[change.group] = change.worth
        return [(some, gains.get(group)) for group, some in names.items()]

    @property
    def gains(self) -> list[tuple[str, Ratio]]:
        return [(", ".join(names), gain) for names, gain in self.groups if gain is not None]

    @property
    def spent_s(self) -> float:
        """Duration of the search, or the sum of its trials'."""
        if self.elapsed_s is not None:
            return self.elapsed_s
        return sum(trial.duration_s for trial in self.trials if trial.purpose not in NO_SEARCH)

    @property
    def race_legs(self) -> list[RaceLeg]:
        search = next((trial.search for trial in reversed(self.trials) if trial.race is not None), None)
        return [trial.race for trial in self.trials if trial.race is not None and trial.search == search]

    @cached_property
    def points(self) -> list["TrialPoint"]:
        return trial_points(self.trials)

    @property
    def names_of_machines(self) -> dict[str, str]:
        machines = dict.fromkeys(point.trial.machine for point in self.points)
        return {machine: plain(self.machines.get(machine, machine)) for machine in machines}

    @property
    def utilizations(self) -> list[tuple[str, PooledGpu, Sequence[tuple[float, float, float]]]]:
        """Scored GPU of each side, with a trial's driver windows."""
        return [(name, *found) for name, side in self.sides if (found := _windows(side, self.trials)) is not None]

    @property
    def step_times(self) -> list[tuple[str, Sequence[float]]]:
        names = ("today", self.name_of_shown)
        return [(name, times) for name, times in zip(names, self.step_times_s, strict=True) if times]

    @property
    def time_parts(self) -> list[tuple[str, float, float]]:
        """Seconds per 1,000 samples: data wait and the rest."""
        found = []
        for name, side in self.sides:
            metrics = side.metrics or {}
            waiting, speed = metrics.get("data_wait_fraction"), metrics.get("samples_per_s")
            if waiting is not None and speed:
                found.append((name, 1000.0 / speed * waiting, 1000.0 / speed * (1.0 - waiting)))
        return found


def _windows(
    side: Side, trials: Sequence[TrialRecord]
) -> tuple[PooledGpu, Sequence[tuple[float, float, float]]] | None:
    gpu = next((one for one in side.gpus.devices if one.scored), None) if side.gpus else None
    if gpu is None:
        return None
    found = [
        one.busy_windows
        for trial in trials
        if trial.point == side.point and trial.comparable is not None
        for one in trial.comparable.gpus
        if one.figures.uuid == gpu.figures.uuid and one.busy_windows
    ]
    return (gpu, max(found, key=len)) if found else None


def quantile(times: Sequence[float], share: float) -> float:
    """Return a quantile, without interpolation except for the median."""
    if share == 0.5:
        return median(times)
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# Trials over time.


_NO_FAILURE = frozenset((Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED))


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """Trial, with its end in search time and its speed over the same machine's baseline, if comparable."""

    trial: TrialRecord
    t_s: float
    ratio: float | None
    changes: str
    has_failed: bool


def trial_points(trials: Sequence[TrialRecord]) -> list[TrialPoint]:
    """Return the trials of searches, in order."""
    firsts = {trial.search: trial for trial in reversed(trials)}
    # Only the first trial of a diagnosis has its own purpose.
    others = {search for search, first in firsts.items() if first.purpose in NO_SEARCH}
    made = [trial for trial in trials if trial.search not in others and trial.purpose not in NO_SEARCH]
    baseline = next((trial for trial in made if trial.purpose is Purpose.BASELINE), None)
    if baseline is None:
        return []
    today_s = {machine: _today(made, baseline.point, machine) for machine in {trial.machine for trial in made}}
    points: list[TrialPoint] = []
    zero_s: dict[str, float] = {}  # by search: timestamp of search time 0
    for trial in made:
        ended_s = _stamp(trial)
        if trial.search not in zero_s:
            zero_s[trial.search] = ended_s - trial.duration_s - (points[-1].t_s if points else 0.0)
        today, measured = today_s[trial.machine], trial.comparable
        changes = {path: value for path, value in trial.values.items() if baseline.values.get(path) != value}
        point = TrialPoint(
            trial=trial,
            t_s=max(0.0, ended_s - zero_s[trial.search]),
            ratio=measured.speed / today if measured is not None and today else None,
            changes=changes_text(changes),
            has_failed=trial.ending not in _NO_FAILURE,
        )
        points.append(point)
    return points


def best_over_time(points: Iterable[TrialPoint]) -> list[tuple[float, float]]:
    """Return time and speed of each new best point; its speed is the mean of all its trials over the baseline."""
    measured = [point for point in points if point.ratio is not None]
    speeds: dict[str, list[float]] = {}
    for point in measured:
        speeds.setdefault(point.trial.point, []).append(point.ratio or 1.0)
    means = {name: geometric_mean(own) for name, own in speeds.items()}
    steps: list[tuple[float, float]] = []
    for point in measured:
        is_today = point.trial.purpose is Purpose.BASELINE or point.changes == changes_text({})
        speed = 1.0 if is_today else means[point.trial.point]
        if not steps or speed > steps[-1][1]:
            steps.append((point.t_s, max(1.0, speed)))
    return steps


def _today(trials: Sequence[TrialRecord], baseline: str, machine: str) -> float | None:
    speeds = [
        trial.comparable.speed
        for trial in trials
        if trial.comparable is not None and trial.point == baseline and trial.machine == machine
    ]
    return geometric_mean(speeds) if speeds else None


def _stamp(trial: TrialRecord) -> float:
    try:
        return datetime.fromisoformat(trial.ended_utc).timestamp()
    except ValueError:
        return 0.0
