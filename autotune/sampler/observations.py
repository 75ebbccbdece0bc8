"""Results of each point's trials, relative to one reference trial of the study."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.measure.score import Objective, ln_score, ln_speed
from autotune.measure.statistics import TYPICAL_CV, pooled_variance
from autotune.records import DISTURBED, Ending, Measurement, TrialRecord, Validity, Values
from autotune.space.space import Space

EXTERNAL = frozenset({Ending.GPU_LOST, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED})
"""Endings that say nothing about the point, which may be retried."""

_TYPICAL_CV_TRIALS = 4.0  # degrees of freedom of `TYPICAL_CV`


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Point with its results.

    Attributes:
        scores: ln score of each comparable trial, relative to the reference.
        rough_scores: The same of trials with too few steps to be comparable.
        endings: Endings of failed trials.
    """

    name: str
    values: Values
    scores: tuple[float, ...] = ()
    ln_speeds: tuple[float, ...] = ()
    rough_scores: tuple[float, ...] = ()
    endings: tuple[Ending, ...] = ()
    durations_s: tuple[float, ...] = ()
    host_memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None

    @property
    def mean(self) -> float:
        """Mean ln score; -inf if no trial is comparable."""
        return fmean(self.scores) if self.scores else -math.inf

    @property
    def trials(self) -> int:
        return len(self.scores) + len(self.rough_scores) + len(self.endings)


class Observations(Mapping[str, Observation]):
    """Observation of each point, in the order of first trials.

    Left out are trials outside the current domain, and a point's first failure that may be external; a second one
    counts, so that the point is not retried forever.

    Args:
        records: Trials of this space (`of_space`), oldest first.
        unused: Knobs without effect: trials that differ only in them belong to one point.
    """

    def __init__(
        self, space: Space, objective: Objective, records: Iterable[TrialRecord] = (), *, unused: Collection[str] = ()
    ) -> None:
        self._space = space
        self._as_baseline = {path: value for path, value in space.baseline.items() if path in unused}
        self._objective = objective
        self._baseline = space.name(space.baseline)
        self._reference: Measurement | None = None
        self._observations: dict[str, Observation] = {}
        self._forgiven: set[str] = set()
        self._machines: set[str] = set()
        for record in records:
            self.add(record)

    def __getitem__(self, name: str) -> Observation:
        observation = self._observations[name]
        return self._with_speed_penalty(observation) if self._objective.by_utilization else observation

    def __iter__(self) -> Iterator[str]:
        return iter(self._observations)

    def __len__(self) -> int:
        return len(self._observations)

    def add(self, record: TrialRecord) -> None:
        """Add a trial; disturbed ones are ignored."""
        if record.validity in DISTURBED:
            return
        values = {path: self._as_baseline.get(path, value) for path, value in record.values.items()}
        comparable = record.comparable
        measured = comparable if comparable and self._objective.can_score(comparable) else None
        if measured and self._reference is None:
            self._reference = measured  # never changes: all observations are relative to it
        if not self._space.contains(values):
            return
        name = self._space.name(values)
        rough = record.measurement if record.validity is Validity.NOT_STEADY else None
        self._machines.add(record.machine)
        lacks_objective = comparable is not None and measured is None  # the driver reported no utilization
        may_be_external = len(self._machines) > 1 or record.ending in EXTERNAL
        is_excused = lacks_objective or (not measured and not rough and may_be_external)
        if is_excused and name not in self._forgiven:
            self._forgiven.add(name)
            return
        known = self._observations.get(name) or Observation(name=name, values=values)
        known = replace(known, durations_s=(*known.durations_s, record.duration_s))
        if measured and self._reference:
            score = ln_score(measured, self._reference, self._objective)
            fullest = measured.fullest_gpu
            known = replace(
                known,
                scores=(*known.scores, score),
                ln_speeds=(*known.ln_speeds, ln_speed(measured, self._reference)),
                host_memory_bytes=_largest(known.host_memory_bytes, measured.peak_memory_bytes),
                gpu_memory_bytes=_largest(
                    known.gpu_memory_bytes, fullest.peak_memory_bytes if fullest else measured.gpu_memory_bytes
                ),
                gpu_memory_total_bytes=fullest.memory_total_bytes if fullest else known.gpu_memory_total_bytes,
            )
        elif rough and self._reference:
            known = replace(known, rough_scores=(*known.rough_scores, ln_speed(rough, self._reference)))
        else:
            known = replace(known, endings=(*known.endings, record.ending))
        self._observations[name] = known

    def _with_speed_penalty(self, observation: Observation) -> Observation:
        """Add the penalty for lost speed; a rough trial counts if it is slower than the baseline."""
        baseline = self._observations.get(self._baseline)
        if baseline is None or not baseline.scores:
            return replace(observation, rough_scores=())
        losses = [self._objective.penalty(0.0, rough - fmean(baseline.ln_speeds)) for rough in observation.rough_scores]
        penalty = 0.0
        if observation.scores:
            ln_speedup = fmean(observation.ln_speeds) - fmean(baseline.ln_speeds)
            penalty = self._objective.penalty(observation.mean - baseline.mean, ln_speedup)
        return replace(
            observation,
            scores=tuple(score - penalty for score in observation.scores),
            rough_scores=tuple(baseline.mean - loss for loss in losses if loss > 0.0),
        )


def of_space(records: Iterable[TrialRecord], space: Space) -> list[TrialRecord]:
    """Return the trials of points of this space."""
    return [record for record in records if space.is_named(record.point, record.values)]


def _largest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def expected_trial_sd(observations: Mapping[str, Observation]) -> float:
    """Return the standard deviation of ln score between trials of one point, shrunk towards `TYPICAL_CV`."""
    return _expected_sd([observation.scores for observation in observations.values()])


def expected_speed_sd(observations: Mapping[str, Observation]) -> float:
    """Return the standard deviation of ln speed likewise."""
    return _expected_sd([observation.ln_speeds for observation in observations.values()])


def expected_sd_of(records: Iterable[TrialRecord], objective: Objective) -> float:
    """Return the standard deviation of ln score between trials of a point, by their records."""
    reference: Measurement | None = None
    scores: dict[str, list[float]] = {}
    for record in records:
        measured = record.comparable
        if measured and objective.can_score(measured):
            reference = reference or measured
            scores.setdefault(record.point, []).append(ln_score(measured, reference, objective))
    return _expected_sd(list(scores.values()))


def _expected_sd(scores: Sequence[Sequence[float]]) -> float:
    variance, df = pooled_variance(scores)
    return math.sqrt((_TYPICAL_CV_TRIALS * TYPICAL_CV**2 + df * variance) / (_TYPICAL_CV_TRIALS + df))
